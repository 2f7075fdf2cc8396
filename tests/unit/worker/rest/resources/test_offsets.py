from __future__ import annotations

import json
from dataclasses import replace

import httpx
import pytest
from cdcworker.coordinator.model import AssignedTask, Assignment, FencedTasks, TaskSet
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.offsets import model as offsets
from cdcworker.worker.offsets.model import ConnectorOffset, Translation
from cdcworker.worker.rest.resources import offsets as rest
from cdcworker.worker.security.access import CALLER, Caller, Grant

BARRIER = 77
ALTERED = "The offsets for this connector have been altered successfully"
NOT_STOPPED = (
    "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the specified "
    "connector by issuing a 'PUT' request to the '/connectors/c/stop' endpoint"
)


def patch(client, *items, name="c"):
    return client.patch(f"/connectors/{name}/offsets", json={"offsets": list(items)})


def test_offsets_are_shown_as_pairs(client, cluster, kept):
    cluster.add("c")
    kept.found = [ConnectorOffset({"server": "s", "task": 0}, {"v": 1})]
    answer = client.get("/connectors/c/offsets")
    assert (answer.status_code, answer.json()) == (
        200,
        {"offsets": [{"partition": {"server": "s", "task": 0}, "offset": {"v": 1}}]},
    )


@pytest.mark.parametrize(
    ("role", "prefix", "shown"), [("read", "", False), ("operate", "", True), ("operate", "d", False)]
)
def test_keys_up_to_which_rows_were_read_are_for_who_may_see_rows(connect, herder, cluster, kept, role, prefix, shown):
    client = connect(herder, offsets=kept)
    cluster.add("c", {"connector.class": "postgres"})
    load = {
        "id": "initial",
        "origin": "start",
        "tables": [{"t": [3, "public", "c"], "parts": [[["hush"], None, False]]}],
    }
    kept.found = [ConnectorOffset({"server": "s"}, {"v": 1, "snapshot": {"loaded": [1], "loads": [load]}})]
    route = client.app.router

    async def app(scope, receive, send):
        scope[CALLER] = Caller("somebody", (Grant("read"), Grant(role, prefix)), "token")
        await route(scope, receive, send)

    client.app.middleware_stack = app
    answer = client.get("/connectors/c/offsets")
    assert answer.status_code == 200
    (item,) = answer.json()["offsets"]
    assert item["offset"]["snapshot"] == {"loaded": [1], "loads": [load] if shown else 1}


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
def test_of_an_unknown_connector_are_404(client, method):
    body = {"json": {"offsets": [{"partition": {"a": 1}, "offset": None}]}} if method == "PATCH" else {}
    answer = client(method, "/connectors/c/offsets", **body)
    assert (answer.status_code, answer.json()["message"]) == (404, "Connector c not found")


def test_source_offsets_are_altered_with_their_numbers(client, stopped, kept):
    stopped()
    answer = patch(client, {"partition": {"server": "s", "task": 0}, "offset": {"lsn": 1 << 60, "ratio": 0.5}})
    assert (answer.status_code, answer.json()) == (200, {"message": ALTERED})
    assert kept.asked == [("c", BARRIER, [ConnectorOffset({"server": "s", "task": 0}, {"lsn": 1 << 60, "ratio": 0.5})])]


def test_a_null_offset_forgets_one_partition_and_the_last_word_counts(client, stopped, kept):
    stopped()
    partition = {"server": "s", "task": 0}
    patch(client, {"partition": partition, "offset": {"n": 1}}, {"partition": partition, "offset": None})
    assert kept.asked == [("c", BARRIER, [ConnectorOffset(partition, None)])]


def test_reset_is_answered_in_connects_words_again_and_again(client, stopped, kept):
    stopped()
    for _ in range(2):
        answer = client.delete("/connectors/c/offsets")
        assert answer.json() == {"message": "The offsets for this connector have been reset successfully"}
    assert kept.asked == [("c", BARRIER, None)] * 2


@pytest.mark.parametrize(("method", "done"), [("PATCH", "altered"), ("DELETE", "reset")])
def test_a_connector_that_does_not_look_at_offsets_is_told_apart(client, stopped, kept, method, done):
    stopped()
    kept.managed = False
    body = {"json": {"offsets": [{"partition": {"a": 1}, "offset": None}]}} if method == "PATCH" else {}
    assert client(method, "/connectors/c/offsets", **body).json()["message"] == (
        f"The Connect framework-managed offsets for this connector have been {done} successfully. However, if this "
        f"connector manages offsets externally, they will need to be manually {done} in the system that the "
        "connector uses."
    )


@pytest.mark.parametrize("state", ["RUNNING", "PAUSED"])
@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
def test_a_connector_that_is_not_stopped_keeps_its_offsets(client, cluster, kept, state, method):
    cluster.add("c", target_state=state)
    body = {"json": {"offsets": [{"partition": {"a": 1}, "offset": None}]}} if method == "PATCH" else {}
    answer = client(method, "/connectors/c/offsets", **body)
    assert (answer.status_code, answer.json()["message"]) == (400, NOT_STOPPED)
    assert answer.json()["code"] == "rest.not_stopped"
    assert kept.asked == []


def test_a_connector_whose_tasks_are_still_being_stopped_is_409(client, cluster, stopped, kept):
    stopped()
    cluster.state.task_sets["c"] = TaskSet("inc-1", 1, ({},), task_epoch=BARRIER)
    for ready in (False, False, True):
        answer = client.delete("/connectors/c/offsets")
        assert answer.status_code == (200 if ready else 409)
        if not ready:
            assert (answer.headers["retry-after"], answer.headers["x-cdc-reason"]) == ("1", "tasks")
        cluster.state.task_sets["c"] = TaskSet("inc-1", 0, (), task_epoch=BARRIER)
        pending = (0,) if "c" not in cluster.state.fenced else ()
        cluster.state.fenced["c"] = FencedTasks(0, pending)


def test_debezium_gets_no_position_while_a_task_may_store_another(connect, herder, cluster, stopped, kept):
    stopped()
    kept.from_debezium = lambda _connector, changes: Translation(changes)
    kept.to_debezium = lambda _connector: Translation([ConnectorOffset({"server": "s"}, {"lsn": 8})])
    client = connect(herder, offsets=kept)
    task = AssignedTask("c", "inc-1", 0, BARRIER - 1)
    for held in ({"tasks": (task,)}, {"revoke": (task,)}, {}):
        cluster.state.assignments["w"] = Assignment("boot", **held)
        answer = client.get("/connectors/c/offsets?form=debezium")
        assert answer.status_code == (409 if held else 200)
        if held:
            assert (answer.headers["retry-after"], answer.headers["x-cdc-reason"]) == ("1", "tasks")
    assert answer.json() == {"offsets": [{"partition": {"server": "s"}, "offset": {"lsn": 8}}], "notes": []}
    cluster.state.fenced["c"] = FencedTasks(0, (0,))
    assert client.get("/connectors/c/offsets?form=debezium").status_code == 409


def test_offsets_are_altered_by_what_they_mean(connect, herder, stopped, kept):
    stopped()
    asked = []

    def moved(connector, to, task):
        asked.append((connector.name, to, task))
        return Translation([ConnectorOffset({"server": "s"}, {"lsn": 9})], ["2 transactions are missed"])

    kept.moved = moved
    client = connect(herder, offsets=kept)
    dry = client.patch("/connectors/c/offsets?dry_run=true", json={"to": "now"}).json()
    assert dry["warning"] == "2 transactions are missed."
    assert dry["offsets"] == [{"partition": {"server": "s"}, "from": None, "to": {"lsn": 9}}]
    answer = client.patch("/connectors/c/offsets", json={"to": " skip ", "task": 1})
    assert (answer.json(), answer.headers["x-cdc-warning"]) == ({"message": ALTERED}, "2 transactions are missed.")
    assert asked == [("c", "now", None), ("c", "skip", 1)]
    assert kept.asked[-1] == ("c", BARRIER, [ConnectorOffset({"server": "s"}, {"lsn": 9})])


@pytest.mark.parametrize(
    ("body", "message", "path"),
    [
        ('{"to":"now","offsets":[]}', "Unknown member 'offsets' beside to: only task exists", "/offsets"),
        ('{"to":1}', "`to` must be earliest, now, skip or a position", "/to"),
        ('{"to":" "}', "`to` must be earliest, now, skip or a position", "/to"),
        ('{"to":"now","task":-1}', "`task` must be the number of a task", "/task"),
        ('{"to":"now","task":true}', "`task` must be the number of a task", "/task"),
        ("{}", "Partitions / offsets need to be provided for an alter offsets request", "/offsets"),
        ('{"offsets":[]}', "Partitions / offsets need to be provided for an alter offsets request", "/offsets"),
        ("[]", "The body must be a JSON object", ""),
        ('{"offsets":{}}', "`offsets` must be a list", "/offsets"),
        ('{"offsets":[1]}', "An offset must be an object with partition and offset", "/offsets/0"),
        ('{"offsets":[{}],"x":1}', "Unknown member 'x': only offsets exists", "/x"),
        ('{"offsets":[{"x":1}]}', "Unknown member 'x': partition and offset exist", "/offsets/0/x"),
        ('{"offsets":[{"partition":1}]}', "`partition` must be an object or null", "/offsets/0/partition"),
        ('{"offsets":[{"offset":[]}]}', "`offset` must be an object or null", "/offsets/0/offset"),
        ('{"offsets":[{}]}', "The partition cannot be null or missing", "/offsets/0"),
        ('{"offsets":[{"partition":{"a":"\\ud800"}}]}', "Text holds half of a surrogate pair", ""),
    ],
)
def test_a_body_of_another_shape_is_400_and_says_where(client, stopped, kept, body, message, path):
    stopped()
    headers = {"content-type": "application/json"}
    answer = client.patch("/connectors/c/offsets", content=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["message"].startswith(message)
    assert answer.json()["configPath"] == path
    assert kept.asked == []


TOPIC = {"kafka_topic": "t", "kafka_partition": 0}


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({}, "The partition for a sink connector offset cannot be null or missing"),
        ({"partition": None, "offset": None}, "The partition for a sink connector offset cannot be null or missing"),
        (
            {"partition": {}},
            "The partition for a sink connector offset must contain the keys 'kafka_topic' and 'kafka_partition'",
        ),
        ({"partition": {**TOPIC, "kafka_topic": None}}, "Kafka topic names must be valid strings and may not be null"),
        ({"partition": {**TOPIC, "kafka_partition": None}}, "Kafka partitions must be valid numbers and may not be"),
        (
            {"partition": {**TOPIC, "kafka_partition": "x"}},
            "Failed to parse the following Kafka partition value in the provided offsets: 'x'. Partition values for "
            "sink connectors need to be integers.",
        ),
        (
            {"partition": TOPIC, "offset": {}},
            "The offset for a sink connector should either be null or contain the key 'kafka_offset'",
        ),
        (
            {"partition": TOPIC, "offset": {"kafka_offset": 1.5}},
            "Failed to parse the following Kafka offset value in the provided offsets: '1.5'. Offset values for sink "
            "connectors need to be integers.",
        ),
        ({"partition": TOPIC, "offset": {"kafka_offset": True}}, "Failed to parse the following Kafka offset value"),
        ({"partition": TOPIC, "offset": {"kafka_offset": "9" * 19 + "9"}}, "Failed to parse the following Kafka off"),
        ({"partition": TOPIC, "offset": {"kafka_offset": -1}}, "Kafka offsets cannot be negative"),
        ({"partition": {**TOPIC, "kafka_partition": -1}}, "Kafka partitions cannot be negative"),
    ],
)
def test_sink_offsets_of_another_shape_are_400_in_connects_words(client, stopped, kept, item, message):
    stopped("sink")
    answer = patch(client, item)
    assert answer.status_code == 400
    assert answer.json()["message"].startswith(message)
    assert answer.json()["configPath"].startswith("/offsets/0/")
    assert kept.asked == []


def test_sink_offsets_may_be_text(client, stopped, kept):
    stopped("sink")
    item = {"partition": {"kafka_topic": "t", "kafka_partition": "3"}, "offset": {"kafka_offset": "42"}}
    assert patch(client, item).status_code == 200
    assert kept.asked[0][2] == [ConnectorOffset({"kafka_topic": "t", "kafka_partition": 3}, {"kafka_offset": 42})]


@pytest.mark.parametrize(
    ("code", "path"), [(offsets.UNKNOWN_PARTITION, "/offsets/1/partition"), (offsets.BAD_POSITION, "/offsets/1/offset")]
)
def test_what_the_connector_cannot_take_is_400_and_says_where(client, stopped, kept, code, path):
    stopped()
    kept.error = CdcError(code, "no", where={"index": 1})
    answer = patch(client, {"partition": {"a": 1}, "offset": None})
    assert (answer.status_code, answer.json()["code"], answer.json()["configPath"]) == (400, code, path)


def test_too_many_that_ask_at_once_are_told_to_come_back(connect, herder, cluster, kept, monkeypatch):
    monkeypatch.setattr(rest, "WAIT_S", 0.0)
    cluster.add("c")
    answer = connect(herder, offsets=kept, offset_calls_max=0).get("/connectors/c/offsets")
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "rest.too_many", "1")


def test_a_connector_that_starts_meanwhile_is_409(client, stopped, kept):
    stopped()
    kept.error = CdcError(offsets.INTERRUPTED, "the connector does not stand still")
    answer = client.delete("/connectors/c/offsets")
    assert (answer.status_code, answer.headers["x-cdc-reason"], answer.headers["retry-after"]) == (409, "epoch", "1")
    assert answer.json()["message"].startswith("Cannot complete request because of a conflicting operation")


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_target_that_refuses_is_500(client, stopped, kept, method):
    stopped()
    kept.error = CdcError(offsets.REFUSED, "[spark.target_auth] the warehouse refused the login")
    answer = client(method, "/connectors/c/offsets")
    assert (answer.status_code, answer.json()["code"]) == (500, "offsets.refused")


def test_a_follower_shows_offsets_and_has_the_leader_alter_them(connect, client, make_herder, stopped, kept):
    stopped()
    own = type(kept)([ConnectorOffset({"a": 1}, {"b": 2})])
    leader = client
    follower = connect(make_herder(leads=False), httpx.ASGITransport(app=leader.app), offsets=own)
    assert len(follower.get("/connectors/c/offsets").json()["offsets"]) == 1
    answer = patch(follower, {"partition": {"a": 1}, "offset": {"b": 3}})
    assert (answer.status_code, json.loads(answer.content)) == (200, {"message": ALTERED})
    assert follower.delete("/connectors/c/offsets").status_code == 200
    assert [changes for _, _, changes in kept.asked] == [[ConnectorOffset({"a": 1}, {"b": 3})], None]
    assert own.asked == []
    assert follower.delete("/connectors/c/offsets?forward=false").status_code == 409


def test_without_a_leader_nothing_is_altered(connect, cluster, make_herder, stopped, kept):
    stopped()
    cluster.state = replace(cluster.state, leader=None)
    answer = connect(make_herder(leads=False), offsets=kept).delete("/connectors/c/offsets")
    assert (answer.status_code, answer.headers["x-cdc-reason"]) == (409, "rebalance")


def test_a_worker_without_a_keeper_says_so(connect, herder, cluster):
    cluster.add("c")
    assert connect(herder).get("/connectors/c/offsets").status_code == 501


def test_a_body_up_to_the_stated_limit_is_taken(client, stopped, kept):
    stopped("sink")
    item = '{"partition":{"kafka_topic":"t","kafka_partition":%d},"offset":{"kafka_offset":7}}'
    count = (1 << 20) // (len(item) + 4)
    body = '{"offsets":[' + ",".join(item % number for number in range(count)) + "]}"
    body += " " * ((1 << 20) - len(body))
    headers = {"content-type": "application/json"}
    answer = client("PATCH", "/connectors/c/offsets", content=body.encode(), headers=headers)
    assert answer.status_code == 200, answer.text
    assert len(kept.asked[-1][-1]) == count
    assert client("PATCH", "/connectors/c/offsets", content=f"{body} ".encode(), headers=headers).status_code == 413
    dense = "[" + "1," * 60_000 + "1]"
    assert client("PATCH", "/connectors/c/offsets", content=dense.encode(), headers=headers).status_code == 413
