"""Rows as they change over REST and in the terminal: who may, what is written down about it, what is shown."""

from __future__ import annotations

import json
import sys

import pytest
from cdcworker.worker.cli.commands import tail as command
from cdcworker.worker.cli.commands.tail import tail
from cdcworker.worker.diagnostics.tail import TailChildren
from cdcworker.worker.security.access import CALLER, Caller, Grant
from cdcworker.worker.security.audit import Audit
from click.testing import CliRunner

CHANGE = {
    "topic": "p.public.t", "partition": 0, "offset": 5, "written_ms": 1000, "table": "public.t", "op": "update",
    "key": {"id": 7}, "before": {"id": 7, "state": "new", "at": "x"}, "after": {"id": 7, "state": "paid\x1b[2J", "at": "x"},
    "changed": ["state"], "unknown": [], "source": {"ts_ms": 1_790_000_000_000},
}  # fmt: skip
SAID = [
    {"ready": {"topics": ["p.public.t"]}},
    {"change": CHANGE},
    {"counts": {"read": 3, "matched": 3, "dropped": 2, "unreadable": 0}},
    {"end": {"why": "limit", "read": 3, "matched": 3, "dropped": 2, "unreadable": 0}},
]
CHILD = """
import json, sys
question = json.load(sys.stdin)
print(json.dumps({"ready": {"asked": question}}))
for line in json.loads(sys.argv[1]): print(json.dumps(line))
"""


def events(answer):
    parts = [
        dict(line.split(": ", 1) for line in text.split("\n") if line) for text in answer.text.split("\n\n") if text
    ]
    return [(part["event"], json.loads(part["data"])) for part in parts if "event" in part]


@pytest.fixture
def trail():
    return []


@pytest.fixture
def make(connect, herder, cluster, trail):
    cluster.add("c", {"topic.prefix": "p"})

    def make(lines):
        reader = TailChildren({"bootstrap.servers": "b"}, "g.schemas", (sys.executable, "-c", CHILD, json.dumps(lines)))
        return connect(herder, tail=reader, audit=Audit("w1", trail.append), events_s_max=60.0)

    return make


def test_what_is_asked_reaches_the_child_and_what_it_says_the_client(make):
    query = "?table=t&op=update&key=7&where=a=b&from=15&limit=3&follow=false"
    (_, ready), (kind, change), _, end = events(make(SAID[1:]).get(f"/v1/connectors/c/changes{query}"))
    asked = ready["asked"]
    assert asked["filter"] == {"tables": ["t"], "ops": ["update"], "key": ["7"], "where": ["a=b"]}
    assert (asked["begin"], asked["at"], asked["limit"], asked["follow"]) == ("offset", 15, 3, False)
    assert (asked["schemas"], asked["kafka"]) == ("g.schemas", {"bootstrap.servers": "b"})
    assert (kind, change, end) == ("change", CHANGE, ("end", SAID[-1]["end"]))


def test_a_child_that_dies_is_an_error_and_no_end(make):
    kind, data = events(make(SAID[1:2]).get("/v1/connectors/c/changes"))[-1]
    assert (kind, data["code"]) == ("error", "changes.ended")


def test_what_cannot_be_meant_is_refused_before_anything_is_read(make, trail):
    client = make(SAID)
    for query in ("?from=later", "?limit=0", "?op=insert", "?table=(", "?where=x"):
        assert client.get(f"/v1/connectors/c/changes{query}").status_code == 400, query
    assert client.get("/v1/connectors/nobody/changes").status_code == 404
    assert trail == []


def test_rows_are_for_operators_and_looking_at_them_is_written_down(make, trail, monkeypatch):
    client = make(SAID)
    real = client.app.middleware_stack

    def called(role):
        async def app(scope, receive, send):
            scope[CALLER] = Caller("somebody", (Grant(role),), "token")
            await route(scope, receive, send)

        return app

    route = client.app.router
    client.app.middleware_stack = called("read")
    assert client.get("/v1/connectors/c/changes").status_code == 403
    assert trail == []
    client.app.middleware_stack = called("operate")
    assert client.get("/v1/connectors/c/changes?limit=1").status_code == 200
    client.app.middleware_stack = real
    (entry,) = trail
    assert (entry["who"], entry["connector"], entry["method"], entry["status"]) == ("somebody", "c", "GET", 200)
    assert "limit" not in json.dumps(entry)


def test_readers_are_few_at_a_time(make):
    client = make(SAID)
    client.app.state.api.services.tail._running = 4
    answer = client.get("/v1/connectors/c/changes")
    assert (answer.status_code, answer.json()["code"]) == (503, "rest.too_many")


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def said(monkeypatch):
    """The command over a worker that says this; gives what it was asked."""
    asked = []

    def stream(remote, path, query, last=""):
        asked.append((path, query))
        for item in SAID:
            ((kind, data),) = item.items()
            yield kind, "", data

    monkeypatch.setattr(command, "stream", stream)
    monkeypatch.setattr("cdcworker.worker.cli.client.follow.stream", stream)
    return asked


def run(*arguments):
    return CliRunner().invoke(tail, ["c", "--url", "http://worker", *arguments])


def test_a_change_is_shown_as_what_differs(said):
    done = run("--limit", "1")
    assert done.exit_code == 0, done.output
    head, *rest = done.stdout.splitlines()
    assert head.split() == ["14:13:20.000", "UPDATE", "public.t", "id=7", "p.public.t/0@5"]
    assert rest == [r"  ~ state  new → paid\x1b[2J"]
    assert run("--all-columns").stdout.splitlines()[1:] == [
        "    id     7",
        r"  ~ state  new → paid\x1b[2J",
        "    at     x",
    ]


def test_what_was_left_out_is_told_beside_the_changes(said):
    told = run().stderr.splitlines()
    assert told == [
        "topics: p.public.t",
        "! 2 changes left out: the stream is faster than this terminal (2 in all)",
        "3 records read, 1 changes shown, 2 left out",
    ]


def test_with_json_each_line_is_an_object(said):
    lines = [json.loads(line) for line in run("--json").stdout.splitlines()]
    assert [line["event"] for line in lines] == ["ready", "change", "counts", "end"]
    assert lines[1]["before"]["state"] == "new"


def test_options_become_the_query(said):
    run(
        "--table",
        "a",
        "--table",
        "b",
        "--op",
        "delete",
        "--row-key",
        "7",
        "--where",
        "x=1",
        "--from",
        "1h",
        "--no-follow",
    )
    ((path, query),) = said
    assert path == "/v1/connectors/c/changes"
    assert query == [
        ("table", "a"), ("table", "b"), ("op", "delete"), ("key", "7"), ("where", "x=1"), ("from", "1h"), ("follow", "false"),
    ]  # fmt: skip
