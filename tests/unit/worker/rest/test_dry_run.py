"""`?dry_run=true`: the same refusals, else what would be done; nothing is written, sent on or set."""

from __future__ import annotations

import logging
from copy import deepcopy

import pytest
from cdcworker.connectors.api.context import CheckFinding
from cdcworker.schemas.errors import INTERNAL, CdcError
from cdcworker.worker.offsets.model import ConnectorOffset
from cdcworker.worker.server.application import ENDPOINTS


@pytest.fixture
def client(connect, herder, kept):
    def plan(connector):
        return [{"table": f"t{n}", "password": "x"} for n in range(int(connector.config.get("tasks.max", "1")))]

    return connect(herder, offsets=kept, plan=plan)


@pytest.fixture(autouse=True)
def _untouched(cluster, herder, kept):
    """Whatever a test asks for, nothing changes."""
    yield
    assert herder.submitted == []
    assert kept.asked == []


def body(answer, status=200):
    assert answer.status_code == status, answer.text
    found = answer.json()
    assert found.pop("dry_run") is True
    return found


def test_of_a_creation_shows_config_tasks_and_findings(client, config, checks, cluster, words):
    checks.findings = [CheckFinding("host", "warning", "check.incomplete", "slow", "wait")]
    found = body(client.post("/connectors?dry_run=True", json={"name": "c", "config": {**config, "tasks.max": "2"}}))
    assert (found["connector"], found["effect"], found["type"]) == ("c", "created", "source")
    assert found["target_state"] == {"from": None, "to": "RUNNING"}
    assert {"key": "host", "from": None, "to": "db"} in found["changes"]
    assert {"key": "password", "from": None, "to": "****"} in found["changes"]
    assert found["tasks"]["start"] == [0, 1]
    assert found["tasks"]["planned"][1] == {
        "id": {"connector": "c", "task": 1},
        "config": {"table": "t1", "password": "****"},
    }
    assert found["findings"][0]["code"] == "check.incomplete"
    assert words.secret not in str(found)
    assert cluster.state.connectors == {}


def test_of_a_stopped_creation_plans_no_tasks(client, config):
    sent = {"name": "c", "config": config, "initial_state": "STOPPED"}
    assert body(client.post("/connectors?dry_run=true", json=sent))["tasks"] == {
        "planned": [],
        "start": [],
        "restart": [],
        "stop": [],
    }


def test_of_a_change_shows_what_differs_and_what_restarts(client, config, cluster):
    cluster.add("c", {"tasks.max": "2"})
    cluster.plan("c", "RUNNING", "RUNNING")
    sent = {**config, "name": "c", "host": "other", "tasks.max": "1", "password": "****"}
    found = body(client.put("/connectors/c/config?dry_run=true", json=sent))
    assert found["effect"] == "changed"
    assert found["changes"] == [
        {"key": "host", "from": "db", "to": "other"},
        {"key": "tasks.max", "from": "2", "to": "1"},
    ]
    assert found["version"] == {"from": 1, "to": 2}
    tasks = found["tasks"]
    assert (tasks["start"], tasks["restart"], tasks["stop"]) == ([], [0], [1])


def test_of_a_changed_secret_says_only_that_it_changes(client, config, cluster):
    cluster.add("c")
    found = body(client.patch("/connectors/c/config?dry_run=true", json={"password": "another-1"}))
    assert found["changes"] == [{"key": "password", "from": "****", "to": "****"}]


def test_of_the_same_config_changes_nothing(client, config, cluster):
    cluster.add("c", {"tasks.max": "1"})
    cluster.plan("c", "RUNNING")
    found = body(client.put("/connectors/c/config?dry_run=true", json={**config, "name": "c", "tasks.max": "1"}))
    assert (found["effect"], found["changes"]) == ("unchanged", [])
    assert found["tasks"]["restart"] == []
    assert "version" not in found


def test_of_a_deletion_says_what_stops(client, cluster):
    cluster.add("c")
    cluster.plan("c", "RUNNING", "FAILED")
    found = body(client.delete("/connectors/c?dry_run=true"))
    assert (found["effect"], found["tasks"]["stop"], found["changes"]) == ("deleted", [0, 1], [])


@pytest.mark.parametrize(
    ("verb", "before", "effect", "tasks"),
    [
        ("stop", "RUNNING", "changed", ([], [], [0])),
        ("pause", "RUNNING", "changed", ([], [], [])),
        ("resume", "RUNNING", "unchanged", ([], [], [])),
        ("resume", "STOPPED", "changed", ([0, 1], [], [])),
    ],
)
def test_of_a_target_state_says_which_tasks_come_and_go(client, cluster, verb, before, effect, tasks):
    cluster.add("c", {"tasks.max": "2"}, target_state=before)
    if before == "RUNNING":
        cluster.plan("c", "RUNNING")
    found = body(client.put(f"/connectors/c/{verb}?dry_run=true"))
    assert found["effect"] == effect
    assert tuple(found["tasks"][what] for what in ("start", "restart", "stop")) == tasks


@pytest.mark.parametrize(
    ("path", "tasks"),
    [
        ("restart", []),
        ("restart?includeTasks=true", [0, 1]),
        ("restart?includeTasks=true&onlyFailed=true", [1]),
        ("tasks/0/restart", [0]),
    ],
)
def test_of_a_restart_says_which_tasks(client, cluster, path, tasks):
    cluster.add("c")
    cluster.plan("c", "RUNNING", "FAILED")
    joint = "&" if "?" in path else "?"
    found = body(client.post(f"/connectors/c/{path}{joint}dry_run=true"))
    assert (found["effect"], found["tasks"]["restart"]) == ("restarted", tasks)


def test_of_other_changes_say_what_they_touch(client, cluster, herder, kept, stopped):
    cluster.topics["c"] = frozenset({"t"})
    assert body(client.put("/connectors/c/topics/reset?dry_run=true"))["topics"] == ["t"]
    assert cluster.topics == {"c": frozenset({"t"})}
    logger = logging.getLogger("cdcworker.dry")
    level = client.put("/admin/loggers/cdcworker.dry?dry_run=true", json={"level": "DEBUG"})
    assert body(level)["loggers"] == ["cdcworker.dry"]
    assert logger.level == logging.NOTSET
    level = client.put("/admin/loggers/cdcworker.dry?dry_run=true&scope=cluster", json={"level": "DEBUG"})
    assert body(level)["record"] == "logger/cdcworker.dry"
    stopped()
    place = {"server": "s", "task": 0}
    kept.found = [ConnectorOffset(place, {"n": 1})]
    sent = {"offsets": [{"partition": {"task": 0, "server": "s"}, "offset": {"n": 2}}]}
    found = body(client.patch("/connectors/c/offsets?dry_run=true", json=sent))
    assert found["offsets"] == [{"partition": place, "from": {"n": 1}, "to": {"n": 2}}]
    found = body(client.delete("/connectors/c/offsets?dry_run=true"))
    assert found["offsets"] == [{"partition": place, "from": {"n": 1}, "to": None}]


def test_of_a_drain_lists_the_tasks_that_move(connect, make_herder, cluster):
    cluster.add("c")
    cluster.plan("c", "RUNNING", worker="leader:8083")
    client = connect(make_herder())
    drained = []
    client.app.state.api.drain = drained.append
    assert body(client.post("/v1/drain?dry_run=true"))["tasks"] == [{"connector": "c", "task": 0}]
    assert drained == []


@pytest.mark.parametrize(
    ("method", "path", "sent", "status", "code"),
    [
        ("POST", "/connectors", {"name": "c", "config": {"connector.class": "fake", "host": "h"}}, 409, "rest.exists"),
        ("POST", "/connectors", {"name": "d", "config": {"connector.class": "fake"}}, 400, "rest.invalid_config"),
        ("PUT", "/connectors/x/pause", None, 404, "rest.not_found"),
        ("DELETE", "/connectors/x", None, 404, "rest.not_found"),
        ("PATCH", "/connectors/x/config", {"a": "b"}, 404, "rest.not_found"),
        ("POST", "/connectors/c/tasks/9/restart", None, 404, "rest.not_found"),
        ("DELETE", "/connectors/c/offsets", None, 400, "rest.not_stopped"),
    ],
)
def test_of_a_change_that_would_be_refused_is_refused(client, cluster, method, path, sent, status, code):
    cluster.add("c")
    answer = client(method, f"{path}?dry_run=true", **({"json": sent} if sent is not None else {}))
    assert (answer.status_code, answer.json()["code"]) == (status, code)


@pytest.mark.parametrize("asked", ["yes", "1", "", "tru", "true&dry_run=false"])
@pytest.mark.parametrize(
    ("method", "path", "sent"),
    [
        ("PUT", "/connectors/c/stop", None),
        ("DELETE", "/connectors/c", None),
        ("POST", "/connectors/c/restart", None),
        ("PATCH", "/connectors/c/config", {"port": "1"}),
        ("PUT", "/connectors/c/topics/reset", None),
        ("PUT", "/v1/connectors/c/labels", {}),
        ("PUT", "/admin/loggers/cdcworker.dry", {"level": "DEBUG"}),
    ],
)
def test_that_is_neither_true_nor_false_is_refused_before_anything_is_done(
    client, cluster, herder, method, path, sent, asked
):
    cluster.add("c")
    answer = client(method, f"{path}?dry_run={asked}", **({"json": sent} if sent is not None else {}))
    assert (answer.status_code, answer.json()["configPath"]) == (400, "?dry_run")
    assert herder.submitted == []


def test_of_a_stale_version_is_412(client, cluster):
    cluster.add("c", version=4)
    headers = {"if-match": '"3"'}
    for method, path in (("PUT", "pause"), ("DELETE", "")):
        path = f"/connectors/c/{path}".rstrip("/")
        assert client(method, f"{path}?dry_run=true", headers=headers).status_code == 412


def test_of_a_connector_that_cannot_be_split_says_why(connect, herder, config):
    def plan(connector):
        raise CdcError(INTERNAL, "no")

    found = body(connect(herder, plan=plan).post("/connectors?dry_run=true", json={"name": "c", "config": config}))
    assert found["tasks"]["error"]["code"] == "internal.unexpected"


def test_is_answered_by_a_follower_without_asking_the_leader(connect, make_herder, cluster):
    cluster.add("c")
    follower = make_herder(leads=False)
    before = deepcopy(cluster.state.connectors)
    assert body(connect(follower).put("/connectors/c/pause?dry_run=true"))["effect"] == "changed"
    assert follower.submitted == []
    assert cluster.state.connectors == before


def test_is_offered_by_whatever_changes_something():
    """The two that only workers ask refuse everybody, and validation changes nothing."""
    without = [e.path for e in ENDPOINTS if e.method != "GET" and "dry_run" not in e.query]
    assert [path for path in without if not path.endswith(("/tasks", "/fence", "/validate"))] == []
