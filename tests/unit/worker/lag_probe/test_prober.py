"""Which tasks are measured from outside, how often, and who is told."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from cdcworker.coordinator.model import AssignedTask, Assignment, Connector, TaskId, TaskSet, TaskStatus
from cdcworker.worker.lag_probe import prober
from cdcworker.worker.lag_probe.child import answer
from cdcworker.worker.lag_probe.prober import AGAIN_S, TASKS_MAX, LagProber

ME = "w1"


class Cluster:
    """One worker's view, and a child that answers every task alike."""

    def __init__(self, leads: bool = True) -> None:
        self.connectors: dict[str, Connector] = {}
        self.task_sets: dict[str, TaskSet] = {}
        self.entries: list[AssignedTask] = []
        self.statuses: dict[TaskId, TaskStatus] = {}
        self.leads, self.now = leads, 1_000.0
        self.asked: list[list[dict]] = []
        self.told: list[tuple[AssignedTask, dict]] = []
        self.numbers = {"lag_bytes": 5}
        self.planned = 0
        self.prober = LagProber(
            {"providers": {}, "kafka": {}},
            self.view,
            lambda task, numbers: self.told.append((task, numbers)),
            self._plan,
            self._ask,
            lambda: self.now,
        )

    def add(self, name: str, state: str, *, kind: str = "postgres", target: str = "RUNNING", **metrics) -> None:
        config = {"connector.class": kind, "a": "1"}
        of = "sink" if kind == "spark" else "source"
        self.connectors[name] = Connector(name, "i", 1, config, target, of)
        self.task_sets[name] = TaskSet("i", 0, () if target == "STOPPED" else ({"b": "2"},))
        if target != "STOPPED":
            entry = AssignedTask(name, "i", 0, 4)
            self.entries.append(entry)
            self.statuses[entry.id] = TaskStatus(name, 0, state, ME, 4, metrics=metrics)

    def view(self):
        assignment = Assignment("b1", tuple(self.entries))
        state = SimpleNamespace(
            connectors=self.connectors,
            task_sets=self.task_sets,
            assignments={ME: assignment},
            commands={},
            connections={},
        )
        return SimpleNamespace(
            ready=True, worker_id=ME, boot_id="b1", is_leader=self.leads, state=state, statuses=self.statuses
        )

    def _plan(self, connector):
        self.planned += 1
        return ({"b": "2"}, {"b": "3"})

    def _ask(self, question):
        self.asked.append(question["tasks"])
        lines = [
            json.dumps({"key": task["key"], "numbers": self.numbers, "memory": {"since_s": 1}})
            for task in question["tasks"]
        ]
        return "\n".join([*lines, '{"key": 0, "num'])

    def names(self) -> list[str]:
        return [task["connector"] for task in self.asked[-1]] if self.asked else []


RETRIES = {"code": "c", "count": 1, "since_ms": 1}


@pytest.mark.parametrize(
    ("state", "kind", "metrics", "measured"),
    [
        ("PAUSED", "postgres", {}, True),
        ("FAILED", "postgres", {}, True),
        ("RESTARTING", "postgres", {}, True),
        ("RUNNING", "postgres", {"retrying": RETRIES}, True),
        ("RUNNING", "postgres", {"retrying": None}, False),
        ("PAUSED", "spark", {}, True),
        ("RUNNING", "spark", {"retrying": RETRIES}, False),
        ("PAUSED", "datagen", {}, False),
    ],
)
def test_a_task_that_reads_nothing_is_measured(state, kind, metrics, measured):
    cluster = Cluster(leads=False)
    cluster.add("c", state, kind=kind, **metrics)
    cluster.prober.look()
    assert cluster.names() == (["c"] if measured else [])
    assert cluster.told == ([(cluster.entries[0], {"lag_bytes": 5})] if measured else [])


def test_one_child_is_asked_for_all_tasks_and_only_when_they_are_due():
    cluster = Cluster()
    for number in range(5):
        cluster.add(f"c{number}", "PAUSED")
    cluster.prober.look()
    cluster.prober.look()
    assert [len(tasks) for tasks in cluster.asked] == [5]
    assert cluster.asked[0][0]["config"] == {"connector.class": "postgres", "a": "1", "b": "2"}
    cluster.now += AGAIN_S
    cluster.prober.look()
    assert [len(tasks) for tasks in cluster.asked] == [5, 5]
    assert cluster.asked[1][0]["memory"] == {"since_s": 1}, "a measurement knows the one before"


def test_of_too_many_tasks_each_has_its_turn():
    cluster = Cluster()
    for number in range(TASKS_MAX + 5):
        cluster.add(f"c{number}", "PAUSED")
    cluster.prober.look()
    first = set(cluster.names())
    cluster.prober.look()
    assert (len(first), len(cluster.names())) == (TASKS_MAX, 5)
    assert not first & set(cluster.names())


@pytest.mark.parametrize("leads", [True, False])
def test_the_leader_measures_the_tasks_of_stopped_connectors(leads):
    cluster = Cluster(leads)
    cluster.add("c", "RUNNING", lag_s=3.0, offsets={"t-0": 7})
    cluster.prober.look()
    del cluster.entries[:], cluster.statuses[TaskId("c", 0)]
    cluster.add("c", "", target="STOPPED")
    for _ in range(3):
        cluster.now += AGAIN_S
        cluster.prober.look()
    found = {task: {"lag_bytes": 5} for task in (TaskId("c", 0), TaskId("c", 1))}
    assert cluster.prober.unassigned() == (found if leads else {})
    assert cluster.planned == (1 if leads else 0), "a plan holds until the connector changes"
    if leads:
        assert cluster.asked[0][0]["numbers"] == {"lag_s": 3.0, "offsets": {"t-0": 7}}, "what it told before it ended"
    assert cluster.told == []


def test_what_cannot_be_measured_leaves_what_was_known():
    config = {"connector.class": "postgres", "database.hostname": "127.0.0.1", "database.port": "1"}
    item = {"key": 0, "connector": "c", "task": 0, "config": config, "numbers": {}, "memory": {}, "prefixes": []}
    found = answer(item, {"providers": {}, "kafka": {"bootstrap.servers": "127.0.0.1:1"}})
    assert set(found) == {"code"}


@pytest.mark.parametrize(
    ("topic", "prefixes", "code"),
    [
        ("billing.public.x", ["shop-"], "topic.not_granted"),
        ("c1.audit", [], "topic.internal"),
        ("__consumer_offsets", ["shop-"], "topic.internal"),
    ],
)
@pytest.mark.parametrize("is_named", [True, False], ids=["named", "only in the offsets"])
def test_a_topic_that_the_sink_may_not_read_is_not_measured(topic, prefixes, code, is_named, tmp_path):
    """The owner of a sink can write to its ledger: what stands there is no reason to look at a topic."""
    config = {"connector.class": "spark", "warehouse": "parquet", "warehouse.path": str(tmp_path / "lake")}
    config |= {"topics": topic} if is_named else {"topics.regex": ".*"}
    told = {"offsets": {f"{topic}-0": 4}}
    item = {
        "key": 0,
        "connector": "c",
        "task": 0,
        "config": config,
        "numbers": told,
        "memory": {},
        "prefixes": prefixes,
    }
    rules = {"topics.own": "c1.audit", "file.connector.paths": str(tmp_path)}
    assert answer(item, {"providers": rules, "kafka": {"bootstrap.servers": "127.0.0.1:1"}}) == {"code": code}


def test_the_bound_of_a_connector_goes_with_its_task():
    cluster = Cluster()
    cluster.add("paused", "PAUSED", kind="spark")
    cluster.add("stopped", "STOPPED", kind="spark", target="STOPPED")
    cluster.connectors = {name: replace(one, topic_prefixes=("shop-",)) for name, one in cluster.connectors.items()}
    cluster.prober.look()
    assert {(task["connector"], *task["prefixes"]) for task in cluster.asked[-1]} == {
        ("paused", "shop-"),
        ("stopped", "shop-"),
    }


def test_the_child_answers_each_task_by_itself():
    bad = {"connector.class": "postgres", "topic.prefix": "p", "database.password": "secret-text"}
    tasks = [
        {"key": n, "connector": "c", "task": n, "config": config, "numbers": {}, "memory": {}, "prefixes": []}
        for n, config in enumerate((bad, {"connector.class": "datagen"}))
    ]
    out = prober.run_child({"providers": {}, "kafka": {"bootstrap.servers": "127.0.0.1:1"}, "tasks": tasks})
    lines = {line["key"]: line for line in map(json.loads, out.splitlines())}
    assert set(lines) == {0, 1}
    assert lines[1]["numbers"] == {}
    assert "secret-text" not in out


@pytest.mark.parametrize("numbers", [{"lag_bytes": 5, "x": "y" * 70_000}, ["a list"], {"x": "\ud800"}])
def test_an_answer_that_no_report_could_hold_is_left_out(numbers):
    cluster = Cluster()
    cluster.numbers = numbers
    cluster.add("c", "PAUSED")
    cluster.prober.look()
    assert cluster.asked
    assert cluster.told == []
