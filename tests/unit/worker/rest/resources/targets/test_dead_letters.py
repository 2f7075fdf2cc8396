"""Dead letters over REST and in the command: what is asked of the child, what is told, who may ask."""

from __future__ import annotations

import json

import httpx
import pytest
from cdcworker.worker.cli.main import cli
from cdcworker.worker.dead_letters.child import answer
from cdcworker.worker.dead_letters.service import DeadLetters
from click.testing import CliRunner

PATH = "/v1/connectors/w/dead-letters"
URL = "http://leader:8083"
LETTER = {
    "topic": "p.s.t", "partition": 0, "offset": 3, "code": "spark.undecodable", "cause": "it does not fit",
    "at_ms": 1_790_000_000_000, "key_bytes": 6, "value_bytes": 40,
}  # fmt: skip
DONE = {"redriven": 2, "rows": 1, "failed": 0, "left": 0, "causes": [], "next": None}


class Child:
    def __init__(self):
        self.answers, self.asked = [], []

    def __call__(self, question):
        self.asked.append(question)
        return dict(self.answers.pop(0))


@pytest.fixture
def child():
    return Child()


@pytest.fixture
def letters(child):
    return DeadLetters({"bootstrap.servers": "k"}, {}, "g.schemas", child)


@pytest.fixture
def client(connect, herder, cluster, letters):
    cluster.add("w", {"topics": "p.s.t"}, kind="sink")
    cluster.add("s")
    return connect(herder, dead_letters=letters)


def test_a_page_says_where_the_next_one_begins(client, child):
    child.answers.append({"total": 5, "letters": [LETTER, {**LETTER, "offset": 4}, {**LETTER, "offset": 5}]})
    found = client.get(f"{PATH}?limit=2&topic=p.s.t&after=p.s.t:0:2").json()
    assert (found["total"], [each["offset"] for each in found["dead_letters"]], found["next"]) == (
        5,
        [3, 4],
        "p.s.t:0:4",
    )
    (asked,) = child.asked
    assert asked["do"] == "list"
    assert asked["asked"] == {"topic": "p.s.t", "after": ["p.s.t", 0, 2], "limit": 3}


def test_the_last_page_has_no_next(client, child):
    child.answers.append({"total": 1, "letters": [LETTER]})
    assert client.get(PATH).json()["next"] is None


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=²", "after=t", "after=t:x:1", "after=t:1:-1"])
def test_a_wrong_question_is_400(client, query):
    answer = client.get(f"{PATH}?{query}")
    assert answer.status_code == 400
    assert answer.json()["configPath"] == f"?{query.partition('=')[0]}"


def test_a_redrive_says_what_became_of_the_letters_and_is_counted(client, child):
    child.answers += [DONE, {**DONE, "next": ["p.s.t", 0, 9], "left": 7}]
    first = client.post(f"{PATH}/redrive").json()
    assert first == {"connector": "w", **DONE, "complete": True}
    second = client.post(f"{PATH}/redrive?topic=p.s.t").json()
    assert (second["complete"], second["next"]) == (False, "p.s.t:0:9")
    assert child.asked[1]["asked"] == {"topic": "p.s.t", "dry_run": False, "seconds": 20.0}
    assert 'cdc_dead_letters_redriven_total{connector="w"} 4.0' in client.get("/metrics").text


def test_a_dry_run_is_none_of_the_count(client, child, letters):
    child.answers.append(DONE)
    found = client.post(f"{PATH}/redrive?dry_run=true").json()
    assert (found["dry_run"], found["redriven"]) == (True, 2)
    assert child.asked[0]["asked"]["dry_run"] is True
    assert letters.redriven == {}


def test_a_source_has_none_and_a_connector_that_is_not_there_is_404(client):
    assert client.get("/v1/connectors/s/dead-letters").status_code == 400
    assert client.post("/v1/connectors/x/dead-letters/redrive").status_code == 404


@pytest.mark.parametrize(("kind", "code"), [("transient", "letters.unfinished"), ("config", "letters.refused")])
def test_what_the_child_refuses_is_told_with_its_code(client, child, kind, code):
    child.answers.append({"error": {"code": "x.y", "kind": kind, "message": "no", "hint": "do"}})
    answer = client.post(f"{PATH}/redrive")
    assert answer.status_code >= 500 or answer.status_code == 400
    assert (answer.json()["code"], answer.json()["message"]) == (code, "[x.y] no")


def test_a_connector_without_dead_letters_says_so():
    question = {"config": {"connector.class": "file", "name": "w"}, "providers": {}, "connector": "w"}
    assert answer(question)["error"]["code"] == "letters.not_offered"


@pytest.fixture
def run(client, monkeypatch):
    def request(method, url, **options):
        options.pop("timeout")
        options.pop("trust_env")
        return client(method, url.removeprefix(URL), **options)

    monkeypatch.setattr(httpx, "request", request)
    monkeypatch.setenv("CDC_URL", URL)
    return lambda *arguments: CliRunner().invoke(cli, ["dead-letters", "w", *arguments])


def test_the_command_lists_them(run, child):
    child.answers.append({"total": 1, "letters": [LETTER]})
    found = run()
    assert found.exit_code == 0, found.output
    assert "1 dead letter in all" in found.output
    assert "spark.undecodable" in found.output


def test_the_command_asks_until_each_letter_had_its_turn(run, child):
    cause = {"code": "a.b", "cause": "why", "letters": 1}
    child.answers.append({**DONE, "failed": 1, "left": 9, "causes": [cause], "next": ["p.s.t", 0, 9]})
    child.answers.append({**DONE, "failed": 1, "left": 2, "causes": [cause]})
    found = run("--redrive", "--json")
    result = json.loads(found.stdout)["result"]
    assert found.exit_code == 1, "some failed"
    assert (result["redriven"], result["rows"], result["failed"], result["left"]) == (4, 2, 2, 2)
    assert result["causes"] == [{**cause, "letters": 2}]
    assert child.asked[1]["asked"]["after"] == ["p.s.t", 0, 9]


def test_a_dry_run_alone_is_not_a_list(run):
    assert run("--dry-run").exit_code != 0
