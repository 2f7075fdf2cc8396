"""Records that no worker has written: whoever can write to a log can write any JSON, and a restart reads it again."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.core import events, state_machine
from cdcworker.coordinator.kafka.compacted_log import decode, encode
from cdcworker.coordinator.log.config_fold import assignment_record, connector_record, leader_record, task_set_record
from cdcworker.coordinator.model import AssignedTask, Assignment, Connector, Leader, Restart, TaskId, TaskSet
from hypothesis import given
from hypothesis import strategies as st

from .leader_herd import ME, OTHER, Driver, lease_record, of, presence_record

INF = float("inf")
GOOD = (
    leader_record(Leader(1, "other", "b2", "http://other")),
    connector_record(Connector("c", "i", 1, {"connector.class": "postgres"}, "RUNNING", "source")),
    task_set_record("c", TaskSet("i", 1, ({}, {}), task_epoch=1 << 20)),
    assignment_record("me", Assignment("b1", (AssignedTask("c", "i", 0, 1 << 20 | 1),))),
)
CONNECTOR = {"incarnation": "i", "version": 1, "config": {}, "target_state": "RUNNING", "kind": "source"}
TASKS = {"incarnation": "i", "config_version": 1, "task_epoch": 1, "tasks": [{}]}
STATUS = {"state": "RUNNING", "worker_id": "w", "task_epoch": 1}
CONFIG_RECORDS = [
    ("leader", {}),
    ("leader", {"epoch": INF, "worker_id": "x", "boot_id": "y"}),
    ("leader", {"epoch": 3, "worker_id": "x", "boot_id": "y"}),
    ("connector/c", {**CONNECTOR, "version": INF}),
    (
        "connector/c",
        {**CONNECTOR, "config": {"connector.class": 5, "task.restart.max": 3, "task.start.timeout.ms": None}},
    ),
    ("connector/c", {**CONNECTOR, "kind": [1]}),
    ("connector/c", {**CONNECTOR, "target_state": ["x"]}),
    ("tasks/c", {**TASKS, "tasks": [{"task.restart.max": 1}]}),
    ("tasks/c", {**TASKS, "tasks": [], "error": "boom"}),
    ("assignment/me", {"boot_id": "b1", "tasks": [["c", "i", -7, 9]]}),
    ("assignment/me", {"boot_id": "b1", "revoke": [["c", "i", 0, 9]], "causes": {"c-0": [5]}}),
    ("command/x", {"kind": "restart", "scope": {"connector": "c", "after": "x"}, "expires": 9e9}),
    ("command/x", {"kind": "restart", "expires": INF}),
    ("deadline/worker/w9", {"boot_id": "b", "delay_ms": INF}),
    ("fenced/c", {"pending": [INF]}),
    ("journal/0", {"seq": INF}),
    ("journal/0", {"seq": 1, "moves": [{"connector": "c", "task": 0, "from": [1]}]}),
    ("setting/cluster", {"kafka": 1}),
    ("claim/" + "9" * 5000, {"ensemble": ""}),
]
STATUS_RECORDS = [
    ("lease/w2", {"boot_id": "b", "n": INF}),
    ("worker/w2", {"boot_id": "b", "capacity": INF}),
    ("worker/w2", {"boot_id": "b", "labels": [1]}),
    ("task/c/0", {**STATUS, "task_epoch": INF}),
    ("task/c/0", {**STATUS, "task_epoch": 1e300}),
    ("task/c/0", {**STATUS, "task_epoch": []}),
    ("task/c/0", {**STATUS, "state": "FAILED", "error": "boom"}),
    ("task/c/0", {**STATUS, "state": []}),
    ("task/c/0", {**STATUS, "restarts": [INF, "3"]}),
    ("task/c/0", {**STATUS, "metrics": {"cpu_cores": INF, "events_per_s": [1]}}),
    ("topics/c/0", {"topics": 5}),
    ("former_topics/c/0", {"topics": 5}),
]


def lives_through(config=(), status=()):
    """A worker that reads these at its start runs its task, leads, takes a request and shows what it knows."""
    driver = Driver(*(LogRecord(r.key, r.value, {"e": "1"}) for r in GOOD), *config)
    driver.feed(events.LeaseAcked(driver.now))
    driver.status(presence_record(OTHER), *status)
    driver.settle(driver.lead())
    assert driver.state.lead.role == "leading"
    driver.settle(driver.feed(events.RequestArrived("r", Restart("c"))))
    for n in range(2, 6):
        driver.now += 1.0
        driver.feed(events.LeaseAcked(driver.now))
        driver.status(lease_record("me", "b1", n))
        driver.settle(driver.feed(events.Tick()))
    shown = state_machine.view(driver.state, events.Now(driver.now, 1))
    assert len(shown.statuses) == len(dict(shown.statuses))
    return driver


def test_the_plain_log_has_the_task_run():
    driver = lives_through()
    assert TaskId("c", 0) in driver.state.work.local


@pytest.mark.parametrize(("key", "value"), CONFIG_RECORDS)
def test_no_record_of_the_config_log_ends_a_worker(key, value):
    lives_through(config=[LogRecord(key, value, {"e": "2"})])


@pytest.mark.parametrize(("key", "value"), STATUS_RECORDS)
def test_no_record_of_the_status_log_ends_a_worker(key, value):
    lives_through(status=[LogRecord(key, value)])


def test_an_epoch_of_thousands_of_digits_is_none():
    driver = lives_through(config=[LogRecord("setting/x", {}, {"e": "1" * 5000})])
    assert driver.state.lead.epoch == 2


def test_an_epoch_that_no_leader_can_have_given_does_not_become_the_next_leaders():
    driver = lives_through(status=[LogRecord("task/c/1", {**STATUS, "task_epoch": 1e300})])
    assert driver.state.lead.epoch == 2


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)
SEEDS = [*((key, value) for key, value in CONFIG_RECORDS), *((r.key, r.value) for r in GOOD)]


@st.composite
def spoilt(draw, seeds):
    key, value = draw(st.sampled_from(seeds))
    value = dict(value)
    for name in draw(st.sets(st.sampled_from(sorted(value) or ["x"]), max_size=2)):
        value[name] = draw(junk)
    return key, value


@given(st.lists(spoilt(SEEDS), max_size=3), st.lists(spoilt(STATUS_RECORDS), max_size=3))
def test_no_value_of_any_field_ends_a_worker(config, status):
    lives_through([LogRecord(key, value, {"e": "2"}) for key, value in config], [LogRecord(*said) for said in status])


# --- text -----------------------------------------------------------------------------------------------------------


def message(value):
    fields = {
        "topic": "t",
        "key": b"k",
        "value": value,
        "headers": None,
        "offset": 0,
        "partition": 0,
        "timestamp": (0, 1),
    }
    return SimpleNamespace(**{name: lambda item=item: item for name, item in fields.items()})


def test_half_of_a_surrogate_pair_comes_back_as_it_was_written():
    """So a file's name stands in an error when it is no UTF-8."""
    value = {"error": {"message": "caf\udce9.csv", "other": "ü\\ud83d"}}
    _, data, _ = encode(LogRecord("task/c/0", value))
    assert json.loads(data) == value
    assert decode(message(data)).value == value


def test_json_that_nests_without_end_is_refused_and_no_tombstone():
    record = decode(message(b'{"a":' + b"[" * 100_000))
    assert record.refused
    assert record.value == {}


def test_a_task_whose_error_holds_half_a_pair_can_be_written_down_by_the_leader():
    driver = Driver()
    driver.status(presence_record(ME))
    driver.settle(driver.lead())
    connector = Connector("c", "i", 1, {"name": "\udce9"}, "RUNNING", "source")
    commands = driver.commit(
        events.WriteLog("w", (LogRecord("connector/c", connector_record(connector).value, {"e": "1"}),))
    )
    (plan,) = of(driver.settle(commands), events.PlanTasks)
    error = {"code": "x.y", "kind": "config", "message": "\udce9"}
    assert of(driver.feed(events.TasksPlanned("c", "i", 1, (), error)), events.WriteLog)
    assert plan.connector.name == "c"
