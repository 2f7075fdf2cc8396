"""Which picture answers rest on: epochs of forwarded requests, reads that must see a write, and what is shown of moves."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest
from cdcworker.coordinator.model import JournalEntry, Leader, Reply, TaskId, TaskMove, TaskStatus
from cdcworker.worker.cli.commands.cluster import cluster as command
from click.testing import CliRunner

EPOCH = "x-cdc-leader-epoch"


def forwarded(client, epoch):
    return client.put("/connectors/c/pause?forward=true", headers={EPOCH: str(epoch)})


def test_a_forwarded_request_of_an_older_epoch_is_refused_with_the_newer_one_and_nothing_is_done(pair, cluster):
    cluster.add("c")
    answer = forwarded(pair.leader, 2)
    assert (answer.status_code, answer.json()["code"]) == (409, "rest.no_leader")
    assert answer.headers["x-cdc-reason"] == "stale-epoch"
    assert answer.headers[EPOCH] == "3"
    assert answer.headers["x-cdc-leader-url"] == "http://leader:8083"
    assert not pair.leading.submitted


def test_a_leader_that_is_told_of_a_newer_epoch_does_not_act(pair, cluster):
    cluster.add("c")
    answer = forwarded(pair.leader, 4)
    assert answer.status_code == 409
    assert answer.headers["retry-after"] == "1"
    assert not pair.leading.submitted
    assert forwarded(pair.leader, 3).status_code == 202


def test_a_follower_names_the_epoch_that_it_knows(pair, cluster, connect, make_herder):
    cluster.add("c")
    asked = []

    def answer(request):
        asked.append(request.headers[EPOCH])
        return httpx.Response(202)

    follower = connect(make_herder(leads=False), transport=httpx.MockTransport(answer))
    assert follower.put("/connectors/c/pause").status_code == 202
    assert asked == ["3"]


def test_a_follower_that_learns_of_a_newer_leader_reads_on_and_asks_that_one(cluster, connect, make_herder, runner):
    cluster.add("c")
    asked = []

    def answer(request):
        asked.append((request.url.host, request.headers[EPOCH]))
        if len(asked) > 1:
            return httpx.Response(202)
        cluster.state = replace(cluster.state, leader=Leader(4, "third:8083", "boot-t", "http://third:8083"))
        headers = {"x-cdc-reason": "stale-epoch", EPOCH: "4"}
        return httpx.Response(409, headers=headers, json={"error_code": 409, "message": "followed"})

    follower = connect(make_herder(leads=False), transport=httpx.MockTransport(answer), catch_up_s=5.0)
    assert follower.put("/connectors/c/pause").status_code == 202
    assert asked == [("leader", "3"), ("third", "4")]


def test_a_read_sees_at_least_the_version_that_it_asks_for_or_says_so(client, cluster):
    assert client.get("/connectors?min_version=10").status_code == 200
    late = client.get("/connectors?min_version=11")
    assert (late.status_code, late.json()["code"]) == (503, "rest.not_caught_up")
    assert late.headers["x-cdc-version"] == "10"
    assert client.get("/connectors?min_version=x").status_code == 400


@pytest.mark.parametrize(
    ("path", "largest"), [("/connectors?min_version=", 10**15 - 1), ("/v1/cluster/journal?limit=", 10**9)]
)
def test_a_number_above_its_maximum_is_400(client, path, largest):
    for number in (largest + 1, 10**17, 10**18, 10**40):
        answer = client.get(f"{path}{number}")
        assert (answer.status_code, answer.json()["code"]) == (400, "rest.bad_request")
        assert answer.json()["configPath"].strip("?") in path
    assert client.get(f"{path}{largest}").status_code == (503 if "min_version" in path else 200)


def test_a_read_waits_for_its_version(connect, herder, cluster):
    client = connect(herder, catch_up_s=5.0)
    views = iter([10, 10, 10])
    original = herder.view

    def view():
        cluster.state = replace(cluster.state, version=next(views, 12))
        return original()

    herder.view = view
    assert client.get("/connectors?min_version=12").status_code == 200


def test_a_connector_that_is_too_large_is_refused_with_a_code(client, herder, config):
    herder.script = [Reply("too_large", detail="the record would have 2 bytes, 1 are possible")]
    answer = client.put("/connectors/c/config", json=config)
    assert (answer.status_code, answer.json()["code"]) == (413, "coordinator.record_too_large")


def test_a_task_that_nobody_has_says_why(client, herder, cluster):
    cluster.add("c")
    cluster.plan("c", None)
    cluster.state = replace(cluster.state, assignments={})
    error = {"code": "coordinator.task_waits", "message": "waits", "hint": "nothing"}
    cluster.statuses[TaskId("c", 0)] = TaskStatus("c", 0, "UNASSIGNED", "", 0, error=error)
    herder.changes = {"waiting_s": {TaskId("c", 0): 12.34}}
    assert client.get("/connectors/c/tasks/0/status?details=true").json()["error"]["code"] == "coordinator.task_waits"
    (task,) = client.get("/v1/cluster").json()["tasks"]
    assert (task["waits_s"], task["error"]["code"]) == (12.3, "coordinator.task_waits")


def test_workers_tell_which_process_answers(client):
    assert client.get("/v1/live").json() == {"worker": "leader:8083", "boot": "boot-l"}


ENTRIES = {
    "1": JournalEntry(1, 1_700_000_000_000, "new task", (TaskMove("c", 0, "", "a", "new task"),)),
    "2": JournalEntry(2, 1_700_000_001_000, "worker probed gone", (TaskMove("c", 0, "a", "b", "worker probed gone"),)),
}


def test_the_journal_is_newest_first_and_limited(client, cluster):
    assert client.get("/v1/cluster/journal").json()["entries"] == []
    cluster.state = replace(cluster.state, journal=ENTRIES)
    assert [entry["seq"] for entry in client.get("/v1/cluster/journal").json()["entries"]] == [2, 1]
    (entry,) = client.get("/v1/cluster/journal?limit=1").json()["entries"]
    assert entry["moves"] == [{"connector": "c", "task": 0, "from": "a", "to": "b", "why": "worker probed gone"}]
    assert client.get("/v1/cluster/journal?limit=-1").status_code == 400


@pytest.fixture
def run(client, monkeypatch):
    def request(method, url, **options):
        return client(method, url.removeprefix("http://leader:8083"))

    monkeypatch.setattr(httpx, "request", request)
    return lambda *arguments: CliRunner().invoke(command, ["--url", "http://leader:8083", *arguments])


def test_the_command_line_shows_the_journal_and_the_workers(run, cluster):
    cluster.state = replace(cluster.state, journal=ENTRIES)
    lines = run("journal").output.splitlines()
    assert lines[1].split(maxsplit=6) == ["2", "2023-11-14", "22:13:21", "c-0", "a", "b", "worker probed gone"]
    assert "leader:8083    alive  0      0.1.0    leader" in run("status").output


@pytest.mark.parametrize(
    ("query", "returns"), [("", None), ("?restart=expected", True), ("?restart=none", False), ("?restart=x", "refused")]
)
def test_a_drain_says_whether_the_worker_comes_back(client, query, returns):
    asked = []
    client.app.state.api.drain = asked.append
    answer = client.post(f"/v1/drain{query}")
    assert answer.status_code == (400 if returns == "refused" else 202)
    assert asked == ([] if returns == "refused" else [returns])


def test_the_command_line_announces_a_restart(run, client):
    asked = []
    client.app.state.api.drain = asked.append
    assert run("drain", "--restart").output == "draining\n"
    assert asked == [True]
