"""Nothing that a worker tells of rows that fail in sources and sinks of files holds a value of theirs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from cdcworker.worker.server.application import ENDPOINTS

from .canaries import Canaries
from .failing_worker import HELD, FailingWorker
from .told import SHOW_ROWS, everything, leaks, topics, unsaid

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]
OF_FILES = {"lines": "file.unreadable_line", "notes": "file.unreadable_line", "frames": "schema.undecodable"}
CODES = (*HELD.values(), *OF_FILES.values(), "postgres.query_failed")


@pytest.fixture(scope="module")
def failing(kafka, postgres, tmp_path_factory):
    world = FailingWorker(tmp_path_factory.mktemp("rows"), kafka, postgres, Canaries())
    try:
        world.worker.wait_ready()
        world.listen()
        world.start_source()
        world.start_files()
        world.hold_tables()
        world.answers += world.ask_for_snapshots()
        for name, code in OF_FILES.items():
            world.wait_failed(name, code)
        yield world
    finally:
        world.close()


def test_no_value_of_a_row_that_fails_is_told(failing):
    heard = everything(failing, ["shop"])
    assert unsaid(heard, CODES) == []
    assert leaks(failing, heard) == {}


def test_the_operations_that_show_rows_are_for_operators(failing):
    roles = {endpoint.path: endpoint.role for endpoint in ENDPOINTS if endpoint.path in SHOW_ROWS}
    assert roles == dict.fromkeys(SHOW_ROWS, "operate")
    shown = failing.ask("GET", "/v1/connectors/shop/changes?from=beginning&follow=false")
    assert failing.canaries.found(shown.text), "else the search finds nothing anywhere"


def test_the_keys_of_a_snapshot_are_for_who_may_see_rows(failing):
    path = "/connectors/shop/offsets"
    found = {user: failing.ask("GET", path, user=user) for user in failing.tokens}
    assert {user: answer.status_code for user, answer in found.items()} == {"ops": 200, "reader": 200}
    assert failing.canaries.found(found["ops"].text), "whoever puts offsets back needs all of them"
    assert failing.canaries.found(found["reader"].text) == []
    assert [sorted(item["offset"]) for item in found["reader"].json()["offsets"]] == [
        sorted(item["offset"]) for item in found["ops"].json()["offsets"]
    ]


def requests(failing: FailingWorker) -> Iterator[tuple[str, bool]]:
    """Requests with values in them; yields what is answered, and whether Connect says the value again there."""
    made = failing.canaries.text
    lines = {"connector.class": "file", "file": str(failing.folder / "other.txt"), "topic": f"{failing.group}.other"}
    failing.put("spare", lines)
    assert failing.ask("PUT", "/connectors/spare/stop").status_code == 204
    failing.wait(
        lambda: failing.ask("GET", "/connectors/spare/status").json()["tasks"] == [], "the stop of a connector"
    )
    place = {"filename": lines["file"]}
    for number, offset in enumerate((made("an offset"), [made("an offset in a list")], {"k": made("a deep offset")})):
        body = {"offsets": [{"partition": place, "offset": {"v": 1, "position": offset}}]}
        answer = failing.ask("PATCH", "/connectors/spare/offsets", body)
        assert answer.status_code == 400, (number, answer.text)
        yield answer.text, False
    body = {"offsets": [{"partition": {**place, "x": made("a partition")}, "offset": None}]}
    yield failing.ask("PATCH", "/connectors/spare/offsets", body).text, True
    torn = f'{{"offsets": [{{"partition": {{"filename": "{made("torn JSON")}"'.encode()
    yield failing.ask("PATCH", "/connectors/spare/offsets", content=torn).text, False
    config = {**lines, "batch.size": made("a number's place")}
    yield failing.ask("PUT", "/connectors/other/config", config).text, True
    config = {**lines, "name": "other", "batch.size": made("a number's place in a validation")}
    yield failing.ask("PUT", "/connector-plugins/file/config/validate", config).text, True
    yield failing.ask("POST", "/v1/connectors/shop/snapshots", {"tables": [], "rows_per_s": made("a rate")}).text, False
    key = made("a key that is looked for")
    answer = failing.ask("GET", f"/v1/connectors/shop/explain?of=public.keyed&key={key}")
    assert answer.status_code == 200, answer.text
    yield answer.text, True
    where = made("a condition of a tail")
    path = f"/v1/connectors/shop/changes?from=now&follow=false&where=v={where}"
    answer = failing.ask("GET", path)
    assert answer.status_code == 200, answer.text
    yield answer.text, True


def test_a_value_in_a_request_is_told_to_its_sender_alone(failing):
    answered = list(requests(failing))
    assert [text for text, again in answered if not again and failing.canaries.found(text)] == []
    heard = [("the log", failing.worker.log.read_text()), *topics(failing)]
    heard += [
        (path, failing.ask("GET", path, user="reader").text) for path in ("/v1/cluster", "/connectors/spare/status")
    ]
    assert leaks(failing, heard) == {}
    assert json.loads(failing.ask("GET", "/v1/support").text)["log"]
