"""Snapshots on demand: asked for, seen on any worker, paused, resumed, cancelled; and the command line for it."""

from __future__ import annotations

import json

import httpx
import pytest
from cdcworker.coordinator.model import ChangeJob, PutJob
from cdcworker.worker.cli.main import cli
from cdcworker.worker.rest.resources import snapshots
from cdcworker.worker.security import access
from cdcworker.worker.security.access import Caller, parse_grants
from click.testing import CliRunner

PATH = "/v1/connectors/c/snapshots"
PART = {
    "id": "initial",
    "kind": "snapshot",
    "origin": "start",
    "state": "RUNNING",
    "rows": 50,
    "bytes": 2048,
    "rows_estimate": 200,
    "rows_per_s": 10.0,
    "eta_s": 15.0,
    "tables_done": 1,
    "tables_total": 3,
    "tables": [{"table": "public.t", "state": "RUNNING", "rows": 50, "bytes": 2048, "rows_estimate": 100}],
    "waits_for": "",
    "started_ms": 900,
}


@pytest.fixture
def reported(cluster):
    """What the task of connector c says of its snapshots."""
    cluster.add("c")
    cluster.plan("c", "RUNNING")

    def report(*parts):
        cluster.report("c", 0, "RUNNING", metrics={"jobs": [{**PART, **part} for part in parts]})

    report()
    return report


def test_one_is_asked_for_and_seen_before_a_task_has_taken_it_up(client, reported, herder):
    answer = client.post(PATH, json={"tables": ["public.b", "public.a"], "rows_per_s": 100})
    assert answer.status_code == 202
    made = answer.json()
    assert (made["state"], made["tables"], made["rows_per_s_max"]) == ("PENDING", ["public.a", "public.b"], 100)
    assert answer.headers["location"] == f"{PATH}/{made['id']}"
    assert client.get(answer.headers["location"]).json() == made
    (command,) = herder.submitted
    assert command == PutJob("c", "snapshot", {"tables": ["public.a", "public.b"], "rows_per_s": 100})


def test_an_equal_request_is_answered_with_the_snapshot_that_runs(client, reported):
    first = client.post(PATH, json={"tables": ["a", "b"]}).json()["id"]
    assert client.post(PATH, json={"tables": ["b", "a", "a"]}).json()["id"] == first
    assert client.post(PATH, json={"tables": ["b"]}).json()["id"] != first
    assert len(client.get(PATH).json()["snapshots"]) == 2


def test_progress_is_what_the_tasks_report_on_any_worker(pair, reported):
    reported({})
    for client in (pair.leader, pair.follower):
        (found,) = client.get(PATH).json()["snapshots"]
        assert (found["id"], found["origin"], found["state"], found["rows"], found["eta_s"]) == (
            *("initial", "start", "RUNNING", 50, 15.0),
        )
        assert found["details"][0]["table"] == "public.t"


def test_what_several_tasks_report_is_one_snapshot(client, cluster, reported):
    cluster.plan("c", "RUNNING", "RUNNING")
    for task, state in ((0, "COMPLETED"), (1, "RUNNING")):
        cluster.report("c", task, "RUNNING", metrics={"jobs": [{**PART, "state": state}]})
    (found,) = client.get(PATH).json()["snapshots"]
    assert (found["state"], found["rows"], found["tables_total"], len(found["details"])) == ("RUNNING", 100, 6, 2)


def test_tables_that_were_given_up_are_counted_beside_those_that_were_read(client, cluster, reported):
    cluster.plan("c", "RUNNING", "RUNNING")
    for task, more in ((0, {"tables_cancelled": 2}), (1, {"tables_cancelled": 1, "state": "CANCELLED"})):
        cluster.report("c", task, "RUNNING", metrics={"jobs": [{**PART, "state": "COMPLETED", **more}]})
    (found,) = client.get(PATH).json()["snapshots"]
    numbers = [found[f"tables_{name}"] for name in ("done", "cancelled", "total")]
    assert (found["state"], numbers) == ("CANCELLED", [2, 3, 6])


@pytest.mark.parametrize(("verb", "wanted"), [("pause", "PAUSED"), ("resume", "RUNNING"), ("", "CANCELLED")])
def test_one_that_the_task_began_by_itself_can_be_held_and_ended(client, reported, herder, verb, wanted):
    reported({})
    path = f"{PATH}/initial" + (f"/{verb}" if verb else "")
    answer = client("PUT" if verb else "DELETE", path)
    assert (answer.status_code, answer.json()["wanted"]) == (202, wanted)
    assert herder.submitted == [ChangeJob("c", "initial", wanted, "snapshot")]
    assert (answer.json()["origin"], answer.json()["rows"]) == ("start", 50)


def test_one_that_has_ended_is_not_held(client, reported):
    reported({"state": "COMPLETED", "ended_ms": 5})
    for answer in (client.put(f"{PATH}/initial/pause"), client.delete(f"{PATH}/initial")):
        assert (answer.status_code, answer.json()["code"]) == (409, "rest.conflict")


def test_a_dry_run_changes_nothing(client, reported, cluster):
    reported({})
    before = cluster.state
    found = client.post(f"{PATH}?dry_run=true", json={"tables": ["a"]}).json()
    assert (found["effect"], found["dry_run"]) == ("changed", True)
    assert client.put(f"{PATH}/initial/pause?dry_run=true").json()["effect"] == "changed"
    assert cluster.state == before


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "/tables"),
        ({"tables": []}, "/tables"),
        ({"tables": ["("]}, "/tables/0"),
        ({"tables": ["t"], "table": 1}, "/table"),
        ({"tables": ["t"], "rows_per_s": -1}, "/rows_per_s"),
        ({"tables": ["t"], "rows_per_s": True}, "/rows_per_s"),
        ({"tables": ["t"], "filters": {"u": "a = 1"}}, "/filters/u"),
        ({"tables": ["t"], "filters": {"t": "true) or (true"}}, "/filters/t"),
        ({"tables": ["t"], "filters": {"t": "true); drop table t; --"}}, "/filters/t"),
        ({"tables": ["t"], "filters": {"t": "a = '\\' or true"}}, "/filters/t"),
        ({"tables": ["t"], "filters": {"t": "a = $$x$$"}}, "/filters/t"),
        ({"tables": ["t"], "filters": {"t": 'a = "b'}}, "/filters/t"),
        ([], ""),
    ],
)
def test_what_is_wrong_with_a_request_is_400_and_says_where(client, reported, body, path):
    answer = client.post(PATH, json=body)
    assert (answer.status_code, answer.json()["configPath"]) == (400, path)


def test_quotes_and_parentheses_that_close_are_a_condition(client, reported):
    text = "(note = 'it''s; --(' or \"odd)\" in (1, 2))"
    assert client.post(PATH, json={"tables": ["t"], "filters": {"t": text}}).json()["filters"] == {"t": text}


def test_unknown_ones_and_connectors_without_tables(client, reported, cluster):
    assert client.get("/v1/connectors/x/snapshots").status_code == 404
    assert client.post("/v1/connectors/x/snapshots", json={"tables": ["t"]}).status_code == 404
    assert client.get(f"{PATH}/nope").status_code == 404
    assert client.put(f"{PATH}/nope/pause").status_code == 404
    cluster.add("sink", {"connector.class": "drain"}, kind="sink")
    answer = client.post("/v1/connectors/sink/snapshots", json={"tables": ["t"]})
    assert (answer.status_code, answer.json()["code"]) == (409, "rest.no_snapshots")


@pytest.mark.parametrize(("grant", "status"), [("operate", 403), ("admin", 202)])
def test_a_condition_of_sql_takes_an_admin(client, reported, monkeypatch, grant, status):
    monkeypatch.setattr(access, "caller_of", lambda scope: Caller("someone", parse_grants([grant])))
    assert client.post(PATH, json={"tables": ["t"], "filters": {"t": "a = 1"}}).status_code == status
    assert client.post(PATH, json={"tables": ["u"]}).status_code == 202


@pytest.mark.parametrize(
    ("grants", "shown"),
    [("read", "****"), ("read operate:d", "****"), ("operate:c", "name = 'k-4711'"), ("admin", "name = 'k-4711'")],
)
def test_a_condition_is_shown_to_who_may_see_rows(client, reported, monkeypatch, grants, shown):
    made = client.post(PATH, json={"tables": ["t", "u"], "filters": {"t": "name = 'k-4711'"}}).json()
    caller = Caller("someone", parse_grants(grants.split()))
    monkeypatch.setattr(snapshots, "caller_of", lambda scope: caller)
    (one,) = [item for item in client.get(PATH).json()["snapshots"] if item["id"] == made["id"]]
    assert one == client.get(f"{PATH}/{made['id']}").json()
    assert (one["filters"], one["tables"]) == ({"t": shown}, ["t", "u"])


class TestCommandLine:
    @pytest.fixture
    def run(self, client, monkeypatch, reported):
        def request(method, url, **options):
            options.pop("timeout")
            options.pop("trust_env")
            return client(method, url.removeprefix("http://leader:8083"), **options)

        monkeypatch.setattr(httpx, "request", request)
        monkeypatch.setenv("CDC_URL", "http://leader:8083")
        reported({})
        return lambda *arguments: CliRunner().invoke(cli, ["snapshots", *arguments])

    def test_shows_how_far_they_have_come(self, run):
        assert run("list", "c").output.splitlines() == [
            "ID       ORIGIN  STATE    TABLES  ROWS               BYTES   ROWS/S  LEFT  REMARK",
            "initial  start   RUNNING  1/3     50 of ~200 (25 %)  2.0 kB  10      15s",
        ]
        assert "public.t  RUNNING  50 of ~100 (50 %)" in run("get", "c", "initial").output

    def test_begins_and_ends_them(self, run):
        made = json.loads(run("create", "c", "public.t", "--filter", "public.t=a=1", "--json").output)["result"]
        assert made["filters"] == {"public.t": "a=1"}
        assert run("cancel", "c", made["id"]).output == f"{made['id']} PENDING, wanted CANCELLED\n"
        assert run("pause", "c", "initial", "--dry-run").output == "would be changed c\n"
        assert run("pause", "c", "nope").exit_code == 1
        assert run("create", "c", "t", "--filter", "oops").exit_code == 2
