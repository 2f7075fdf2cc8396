"""Several herds that are told what to run: configs, splits, target states, restarts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from cdcworker.coordinator.core import events
from cdcworker.coordinator.log.status_fold import topics_record
from cdcworker.coordinator.memory import MemoryLog
from cdcworker.coordinator.model import DeleteConnector, PutConnector, Reply, Restart, TaskId

from .several_herds import FAILOVER_S


def test_a_config_change_restarts_only_the_tasks_of_its_connector(world):
    before = world.running()
    world.ask_until_ok(PutConnector("c1", {"n": "1"}))
    world.until(lambda: all(e != before[t] for t, e in world.running().items() if t.connector == "c1"), FAILOVER_S)
    world.settle()
    after = world.running()
    assert {task.connector for task in after if after[task] != before[task]} == {"c1"}
    configs = [p.config for n in world.nodes.values() for p in n.live_processes() if p.entry.connector == "c1"]
    assert [config["n"] for config in configs] == ["1"] * 3
    assert sorted(config["task"] for config in configs) == ["0", "1", "2"]


def test_a_wider_task_set_starts_what_is_new_and_a_narrower_one_stops_what_is_gone(world):
    world.widths["c0"] = 6
    world.ask_until_ok(PutConnector("c0", {"n": "wide"}))
    world.settle()
    world.widths["c0"] = 1
    world.ask_until_ok(PutConnector("c0", {"n": "narrow"}))
    world.settle()
    assert len([t for t in world.running() if t.connector == "c0"]) == 1


def test_another_split_of_the_same_config_is_taken_and_an_equal_or_old_one_changes_nothing(world):
    before = world.running()
    connector = world.cluster().connectors["c0"]
    ids = (connector.name, connector.incarnation, connector.config_version)
    world.leader().tell(events.TasksPlanned(*ids, tuple({"task": str(n)} for n in range(3))))
    world.leader().tell(events.TasksPlanned(connector.name, "another life", 1, ({"task": "9"},)))
    world.run(1.0)
    world.settle()
    assert world.running() == before
    world.widths["c0"] = 2
    world.leader().tell(events.TasksPlanned(*ids, ({"task": "7"}, {"task": "8"})))
    world.until(lambda: len([t for t in world.running() if t.connector == "c0"]) == 2, FAILOVER_S)
    world.settle()
    configs = [p.config for n in world.nodes.values() for p in n.live_processes() if p.entry.connector == "c0"]
    assert sorted(config["task"] for config in configs) == ["7", "8"]


def test_pausing_and_resuming_restarts_nothing(world):
    before = world.running()
    world.ask_until_ok(PutConnector("c2", None, target_state="PAUSED"))
    world.run(1.0)
    paused = {p.entry.connector for n in world.nodes.values() for p in n.live_processes() if p.paused}
    assert paused == {"c2"}
    world.ask_until_ok(PutConnector("c2", None, target_state="RUNNING"))
    world.run(1.0)
    assert not [p for n in world.nodes.values() for p in n.live_processes() if p.paused]
    assert world.running() == before


def test_a_stopped_connector_has_no_tasks_and_starts_again(world):
    world.ask_until_ok(PutConnector("c2", None, target_state="STOPPED"))
    world.settle()
    assert world.cluster().task_sets["c2"].tasks == ()
    assert "c2" not in {t.connector for t in world.running()}
    world.ask_until_ok(PutConnector("c2", None, target_state="RUNNING"))
    world.settle()
    assert len([t for t in world.running() if t.connector == "c2"]) == 3


def running_of(world, name):
    return [task for task in world.running() if task.connector == name]


def test_a_connector_that_is_created_paused_has_no_tasks_until_it_is_resumed(world):
    world.ask_until_ok(PutConnector("late", {"n": "x"}, kind="source", target_state="PAUSED"))
    world.run(5.0)
    assert (running_of(world, "late"), "late" in world.cluster().task_sets) == ([], False)
    world.ask_until_ok(PutConnector("late", None, target_state="RUNNING"))
    world.settle()
    assert running_of(world, "late")


def test_a_stopped_connector_that_is_paused_has_no_tasks_until_it_is_resumed(world):
    world.ask_until_ok(PutConnector("c2", None, target_state="STOPPED"))
    world.settle()
    world.ask_until_ok(PutConnector("c2", None, target_state="PAUSED"))
    world.run(5.0)
    assert (running_of(world, "c2"), world.cluster().task_sets["c2"].tasks) == ([], ())
    world.ask_until_ok(PutConnector("c2", None, target_state="RUNNING"))
    world.settle()
    assert len(running_of(world, "c2")) == 3


def test_a_deleted_connector_leaves_neither_tasks_nor_statuses_nor_assignments(world):
    used = topics_record(TaskId("c3", 0), {"before"})
    kept = topics_record(TaskId("c1", 0), {"before"})
    for record in (used, kept):
        MemoryLog(world.status).append((replace(record, key=f"former_{record.key}"), record), 1)
    world.ask_until_ok(DeleteConnector("c3"))
    world.settle()
    world.run(10.0)
    state = world.cluster()
    assert "c3" not in state.task_sets
    assert not [e for a in state.assignments.values() for e in (*a.tasks, *a.revoke) if e.connector == "c3"]
    assert not [t for n in world.nodes.values() for t in n.state.status.tasks if t.connector == "c3"]
    for node in world.nodes.values():
        status = node.state.status
        assert {t.connector for t in (*status.topics, *status.former_topics)} == {"c1"}


def test_a_restart_command_runs_once_on_every_owner(world):
    starts = Counter(world.starts)
    reply = world.ask_until_ok(Restart("c1", include_tasks=True))
    assert reply.outcome == "ok"
    world.run(3.0)
    again = world.starts - starts
    assert {entry.id for entry in again} == {TaskId("c1", n) for n in range(3)}
    assert set(again.values()) == {1}
    world.run(240.0)
    assert world.starts - starts == again
    assert not world.cluster().commands


def test_a_follower_points_to_the_leader(world):
    follower = next(n for n in world.nodes.values() if n is not world.leader())
    request_id = world.ask(PutConnector("x", {}, "source"), follower)
    world.run(0.2)
    assert world.replies[request_id] == Reply("not_leader", leader_url=world.leader().state.me.url, leader_epoch=1)


def test_a_split_error_is_visible_and_a_transient_one_keeps_the_running_tasks(world):
    before = world.running()
    world.errors["c0"] = {"code": "x.down", "kind": "transient", "message": "down"}
    world.ask_until_ok(PutConnector("c0", {"n": "7"}))
    world.run(2.0)
    assert world.cluster().task_sets["c0"].error["code"] == "x.down"
    assert world.running() == before
    del world.errors["c0"]
    world.until(lambda: world.cluster().task_sets["c0"].error is None, 30.0)
    world.settle()
    world.errors["c0"] = {"code": "x.bad", "kind": "config", "message": "bad"}
    world.ask_until_ok(PutConnector("c0", {"n": "8"}))
    world.run(3.0)
    assert world.cluster().task_sets["c0"].error["code"] == "x.bad"
    assert "c0" not in {t.connector for t in world.running()}
    del world.errors["c0"]
    world.ask_until_ok(Restart("c0"))
    world.settle()
    assert world.cluster().task_sets["c0"].error is None
