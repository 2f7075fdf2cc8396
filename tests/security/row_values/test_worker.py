"""Nothing that a worker tells of rows that fail holds a value of theirs: answers, metrics, events, the log, topics, bundles."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator

import pytest
from cdcworker.worker.server.application import ENDPOINTS

from .canaries import Canaries
from .failing_worker import FailingWorker

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.spark]
CONNECTORS = ("shop", "out", "lines", "notes", "frames")
SHOW_ROWS = {
    "/v1/connectors/{connector}/changes": "rows before and after their changes, for operators (`tail`)",
    "/v1/connectors/{connector}/explain": "the way of one row, whose key the caller names, for operators",
}
"""Operations that exist to show rows. All others are asked, by a user who may do no more than they need."""
FOLLOWED = "/v1/events"
"""Its events are followed from the start."""
NAMES = {
    "plugin": "postgres", "logger": "root", "task": "0", "snapshot": "initial", "other": "x",
}  # fmt: skip


@pytest.fixture(scope="module")
def failing(kafka, postgres, tmp_path_factory):
    world = FailingWorker(tmp_path_factory.mktemp("rows"), kafka, postgres, Canaries())
    try:
        world.worker.wait_ready()
        world.listen()
        world.start_files()
        world.start_source()
        world.start_sink()
        world.answers = [*world.ask_for_snapshots(), *world.wait_for_the_sink()]
        for name, code in (("lines", "file.unreadable_line"), ("notes", "file.unreadable_line")):
            world.wait_failed(name, code)
        world.wait(lambda: world.task("frames")["state"] == "FAILED", "the end of frames")
        yield world
    finally:
        world.close()


def paths() -> Iterator[tuple[str, str]]:
    """Each GET of the API with its role; of a connector those of every connector."""
    for endpoint in ENDPOINTS:
        if endpoint.method != "GET" or endpoint.path in SHOW_ROWS or endpoint.path == FOLLOWED:
            continue
        names = CONNECTORS if "{connector}" in endpoint.path else CONNECTORS[:1]
        for name in names:
            filled = {**NAMES, "connector": name, "subject": "none"}
            yield re.sub(r"\{(\w+)(?::int)?\}", lambda found, of=filled: of[found[1]], endpoint.path), endpoint.role


def answers(failing: FailingWorker) -> Iterator[tuple[str, str]]:
    for path, role in paths():
        user = "reader" if role in ("read", "open") else "ops"
        answer = failing.ask("GET", path, user=user)
        assert answer.status_code in (200, 400, 404), (path, answer.text)
        yield path, answer.text
    for path in ("/connectors?expand=status&expand=info", "/connectors/shop/status?details=true"):
        yield path, failing.ask("GET", path, user="reader").text
    for connector in ("shop", "out"):
        topics = [name for name in failing.ask("GET", "/v1/schemas").json().get("subjects", ()) if connector == "shop"]
        for subject in topics:
            name = subject if isinstance(subject, str) else subject["subject"]
            yield f"schema {name}", failing.ask("GET", f"/v1/schemas/{name}/history", user="reader").text


def topics(failing: FailingWorker) -> Iterator[tuple[str, str]]:
    """The records of the topics that whoever reads may not learn a value from."""
    for topic in ("status", "audit"):
        for record in failing.worker.read(f"{failing.group}.{topic}"):
            parts = (record.key(), record.value(), *(value for _, value in record.headers() or ()))
            yield f"the topic {topic}", b" ".join(part or b"" for part in parts).decode("utf-8", "backslashreplace")


def command(failing: FailingWorker, *words: str) -> str:
    argv = [sys.executable, "-m", "cdcworker.worker.cli.main", *words, "--url", failing.worker.url]
    environment = {**os.environ, "CDC_TOKEN": failing.tokens["ops"]}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=120)
    return done.stdout + done.stderr


def bundle(failing: FailingWorker) -> Iterator[tuple[str, str]]:
    path = failing.folder / "bundle.tar.gz"
    yield "what the bundle's command says", command(failing, "support-bundle", str(path), "--no-doctor")
    with tarfile.open(path) as found:
        for member in found:
            content = found.extractfile(member)
            assert content is not None
            yield f"bundle {member.name}", content.read().decode("utf-8", "backslashreplace")


def test_no_value_of_a_row_that_fails_is_told(failing):
    heard = [*failing.answers, *answers(failing), ("the events", failing.heard()), *topics(failing), *bundle(failing)]
    heard += [("the doctor's command", command(failing, "doctor", "shop")), ("the log", failing.worker.log.read_text())]
    told = dict(heard)
    for name, code in (
        ("shop", "source.record_too_large"),
        ("out", "spark.target_value"),
        ("lines", "file.unreadable_line"),
    ):
        assert code in told[f"/v1/connectors/{name}/doctor"] + told["/v1/cluster"] + told["the events"], code
    assert "FAILED" in told["/v1/connectors/shop/snapshots"]
    assert {place: found for place, text in heard if (found := failing.canaries.found(text))} == {}


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
    assert failing.ask("PUT", "/connectors/spare/stop").status_code == 202
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
    yield failing.ask("GET", f"/v1/connectors/shop/explain?table=public.keyed&key={key}").text, True
    where = made("a condition of a tail")
    path = f"/v1/connectors/shop/changes?from=now&follow=false&where=v={where}"
    yield failing.ask("GET", path).text, True


def test_a_value_in_a_request_is_told_to_its_sender_alone(failing):
    answered = list(requests(failing))
    assert [text for text, again in answered if not again and failing.canaries.found(text)] == []
    heard = [("the log", failing.worker.log.read_text()), *topics(failing)]
    heard += [
        (path, failing.ask("GET", path, user="reader").text) for path in ("/v1/cluster", "/connectors/spare/status")
    ]
    assert {place: found for place, text in heard if (found := failing.canaries.found(text))} == {}
    assert json.loads(failing.ask("GET", "/v1/support").text)["log"]
