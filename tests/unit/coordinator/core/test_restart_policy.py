"""The restart policy: budgets that travel with the task, keys of the connector, deadlines of starts and stops."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cdcworker.coordinator.core import events, state_machine
from cdcworker.coordinator.core.herd_state import HerdSettings
from cdcworker.coordinator.core.restart_policy import RESTARTS_REMEMBERED_MAX, policy_of
from cdcworker.coordinator.log.config_fold import assignment_record, command_record, connector_record, task_set_record
from cdcworker.coordinator.log.status_fold import lease_record, presence_record
from cdcworker.coordinator.model import AssignedTask, Assignment, Command, Connector, Presence, TaskId, TaskSet

CONNECTOR = Connector("c", "i", 1, {"a": "1"}, "RUNNING", "source")
TASKS = TaskSet("i", 1, ({},), task_epoch=1)
TRANSIENT = {"code": "x.y", "kind": "transient", "message": "m"}
DATA = {"code": "x.d", "kind": "data", "message": "m"}
CONFIG = {"code": "x.z", "kind": "config", "message": "m"}


def entry(epoch: int) -> AssignedTask:
    return AssignedTask("c", "i", 0, epoch)


class Worker:
    """One herd that is told what a log holds; `status` is the status log of all workers of a test."""

    def __init__(self, name: str = "me", status: list | None = None, now: float = 100.0, **config: str) -> None:
        self.status = status if status is not None else []
        self.name, self.now = name, now
        self.state = state_machine.initial(Presence(name, f"boot-{name}", "u", "1", "p"))
        self.commands: list = []
        connector = replace(
            CONNECTOR, config={**CONNECTOR.config, **{k.replace("_", "."): v for k, v in config.items()}}
        )
        self.config(connector_record(connector), task_set_record("c", TASKS), replay=True)
        self.feed(events.StatusRecords((presence_record(self.state.me), lease_record(name, f"boot-{name}", 1))))
        self.feed(events.StatusRecords(tuple(self.status)))
        self.feed(events.Started())
        self.feed(events.LeaseAcked(self.now))

    def feed(self, event) -> list:
        self.state, commands = state_machine.step(self.state, event, events.Now(self.now, round(self.now * 1000)))
        for command in commands:
            if isinstance(command, events.AppendStatus):
                self.status += [record for record in command.records if record.key.startswith("task/")]
        self.commands += commands
        return list(commands)

    def config(self, *records, replay=False) -> list:
        return self.feed(events.ConfigRecords(records, replay=replay))

    def assigned(self, *entries, revoke=()) -> list:
        return self.config(assignment_record(self.name, Assignment(f"boot-{self.name}", entries, revoke)))

    def fails(self, task: AssignedTask, error=TRANSIENT) -> None:
        self.feed(events.TaskReport(task, "FAILED", error))
        self.feed(events.TaskExited(task, 1))

    def wait(self, seconds: float) -> list:
        out, until = [], self.now + seconds
        while self.now < until - 1e-9:
            self.now += 0.5
            out += self.feed(events.LeaseAcked(self.now)) + self.feed(events.Tick())
        return out

    def crash_loop(self, task: AssignedTask, times: int, error=TRANSIENT) -> int:
        """Fails each start; how many starts followed."""
        starts = 0
        for _ in range(times):
            self.fails(task, error)
            again = len(of(self.wait(61), events.StartTask))
            starts += again
            if not again:
                break
        return starts

    @property
    def last(self) -> dict:
        return [record.value for record in self.status if record.value][-1]


def of(commands, kind) -> list:
    return [command for command in commands if isinstance(command, kind)]


def restart(command_id: str = "r", expires_ms: int = 10**9, **scope):
    return command_record(Command(command_id, "restart", {"connector": "c", "incarnation": "i", **scope}, expires_ms))


# --- the policy ------------------------------------------------------------------------------------------------------


def test_delays_double_within_their_bounds_and_are_the_same_in_every_replay():
    policy = policy_of({}, HerdSettings())
    for before, top in enumerate([1, 2, 4, 8, 16, 32, 60, 60]):
        delays = [policy.delay_s(TaskId("c", n), before) for n in range(50)]
        assert all(top / 2 <= delay <= top for delay in delays)
        assert max(delays) - min(delays) > top / 4, "tasks that failed together do not come back together"
        assert delays == [policy.delay_s(TaskId("c", n), before) for n in range(50)]
    assert policy.delay_s(TaskId("c", 0), 10_000) <= 60


def test_a_connectors_keys_come_before_the_herds_settings():
    config = {
        "task.restart.max": "3",
        "task.restart.data.max": "2",
        "task.restart.window.ms": "5000",
        "task.restart.backoff.ms": "10",
        "task.restart.backoff.max.ms": "20",
        "task.start.timeout.ms": "7000",
    }
    policy = policy_of(config, HerdSettings())
    assert (policy.budget("transient"), policy.budget("data"), policy.budget("config")) == (3, 2, 0)
    assert (policy.window_s, policy.start_timeout_s) == (5.0, 7.0)
    assert policy.delay_s(TaskId("c", 0), 9) <= 0.02


@pytest.mark.parametrize("text", ["", "${env:X}", "-1", "1e3", "ten", "²"])
def test_a_value_that_is_no_number_counts_as_not_given(text):
    assert policy_of({"task.restart.max": text}, HerdSettings()).restarts_max == 10


def test_a_budget_is_bounded_because_it_travels():
    assert policy_of({"task.restart.max": "99999999"}, HerdSettings()).restarts_max == RESTARTS_REMEMBERED_MAX
    policy = policy_of({}, HerdSettings())
    assert len(policy.within_window((float(n) / 100 for n in range(1000)), 10.0)) == RESTARTS_REMEMBERED_MAX


# --- budgets ---------------------------------------------------------------------------------------------------------


def test_after_its_budget_a_task_is_quarantined_with_its_cause_until_a_person_restarts_it():
    worker = Worker(task_restart_max="3")
    worker.assigned(entry(2))
    assert worker.crash_loop(entry(2), 9) == 3
    assert (worker.last["state"], worker.last["error"]["code"]) == ("FAILED", "coordinator.task_quarantined")
    assert worker.last["error"]["cause"] == TRANSIENT
    assert not of(worker.wait(2000), events.StartTask), "time alone does not lift it"
    assert len(of(worker.config(restart()), events.StartTask)) == 1
    assert (worker.last["state"], worker.last["restarts"], worker.last["error"]) == ("RESTARTING", [], None)
    assert worker.crash_loop(entry(2), 9) == 3, "with the whole budget"


def test_a_task_that_moves_from_worker_to_worker_has_one_budget():
    status: list = []
    now, starts, epoch = 100.0, 0, 2
    for turn in range(12):
        worker = Worker(f"w{turn}", status, now, task_restart_max="5")
        starts += len(of(worker.assigned(entry(epoch)), events.StartTask))
        if worker.state.work.local[entry(epoch).id].phase == "failed":
            break
        worker.fails(entry(epoch))  # and the worker is killed: nobody says more
        now, epoch = worker.now + 1, epoch + 1
    assert starts == 6
    assert (status[-1].value["error"]["code"], status[-1].value["state"]) == ("coordinator.task_quarantined", "FAILED")
    assert status[-1].value["error"]["cause"] == TRANSIENT
    assert status[-1].value["task_epoch"] == epoch


def test_a_clock_of_another_machine_does_not_matter():
    status: list = []
    first = Worker("w1", status, 1_000_000.0, task_restart_max="3")
    first.assigned(entry(2))
    assert first.crash_loop(entry(2), 2) == 2
    second = Worker("w2", status, 5.0, task_restart_max="3")
    second.assigned(entry(3))
    assert second.crash_loop(entry(3), 9) == 1


def test_a_graceful_move_takes_the_charges_along():
    status: list = []
    first = Worker("w1", status, task_restart_max="3")
    first.assigned(entry(2))
    assert first.crash_loop(entry(2), 2) == 2
    first.feed(events.TaskReport(entry(2), "RUNNING"))
    first.assigned(revoke=(entry(2),))
    first.feed(events.TaskExited(entry(2), 0))
    assert (first.last["state"], len(first.last["restarts"])) == ("STOPPED", 2)
    second = Worker("w2", status, first.now, task_restart_max="3")
    second.assigned(entry(3))
    assert second.crash_loop(entry(3), 9) == 1


def test_a_quarantine_moves_with_its_task_and_a_restart_lifts_it_there():
    status: list = []
    first = Worker("w1", status, task_restart_max="1")
    first.assigned(entry(2))
    first.crash_loop(entry(2), 3)
    first.assigned(revoke=(entry(2),))
    assert first.last["state"] == "STOPPED"
    second = Worker("w2", status, first.now, task_restart_max="1")
    assert not of(second.assigned(entry(3)), events.StartTask)
    assert (second.last["state"], second.last["task_epoch"]) == ("FAILED", 3)
    assert second.last["error"]["cause"] == TRANSIENT
    assert len(of(second.config(restart()), events.StartTask)) == 1


def quarantined_and_let_go(status: list) -> Worker:
    first = Worker("w1", status, task_restart_max="1")
    first.assigned(entry(2))
    first.crash_loop(entry(2), 3)
    first.assigned(revoke=(entry(2),))
    return first


def test_a_restart_of_a_task_that_is_nobodys_is_kept_for_its_next_owner():
    status: list = []
    first = quarantined_and_let_go(status)
    first.config(restart(after=2))
    second = Worker("w2", status, first.now, task_restart_max="1")
    second.config(restart(after=2))
    assert len(of(second.assigned(entry(3)), events.StartTask)) == 1
    assert second.crash_loop(entry(3), 9) == 1, "with the whole budget"
    assert second.last["error"]["code"] == "coordinator.task_quarantined"
    second.assigned(revoke=(entry(3),))
    third = Worker("w3", status, second.now, task_restart_max="1")
    third.config(restart(after=2))
    assert not of(third.assigned(entry(4)), events.StartTask), "it was for the start after it, and for no other"


def test_a_restart_of_a_task_whose_owner_died_is_kept_too_and_the_log_may_be_read_anew():
    status: list = []
    first = Worker("w1", status, task_restart_max="1")
    first.assigned(entry(2))
    first.crash_loop(entry(2), 3)
    second = Worker("w2", status, first.now, task_restart_max="1")
    second.config(restart(after=2), replay=True)
    assert len(of(second.assigned(entry(3)), events.StartTask)) == 1


@pytest.mark.parametrize(
    "command",
    [
        restart(after=1),
        restart(),
        restart(after=2, task=1),
        restart(after=2, incarnation="another life"),
        restart(after=2, connector="d"),
        restart(after=2, expires_ms=1),
        command_record(Command("r", "dance", {"connector": "c", "incarnation": "i", "after": 2}, 10**9)),
    ],
)
def test_other_commands_lift_no_quarantine_of_a_task_that_moves(command):
    status: list = []
    first = quarantined_and_let_go(status)
    second = Worker("w2", status, first.now, task_restart_max="1")
    second.config(command)
    assert not of(second.assigned(entry(3)), events.StartTask)
    assert second.last["state"] == "FAILED"


def test_an_error_of_another_kind_is_tried_once_by_a_new_owner():
    status: list = []
    first = Worker("w1", status)
    first.assigned(entry(2))
    first.fails(entry(2), CONFIG)
    assert (first.last["state"], first.last["error"]["code"]) == ("FAILED", "x.z")
    second = Worker("w2", status, first.now)
    assert len(of(second.assigned(entry(3)), events.StartTask)) == 1


def test_a_new_config_begins_with_a_whole_budget():
    status: list = []
    first = Worker("w1", status, task_restart_max="1")
    first.assigned(entry(2))
    first.crash_loop(entry(2), 3)
    assert first.last["error"]["code"] == "coordinator.task_quarantined"
    first.config(
        connector_record(replace(CONNECTOR, version=2, config_version=2, config={"task.restart.max": "2"})),
        task_set_record("c", TaskSet("i", 2, ({},), task_epoch=5)),
    )
    assert len(of(first.assigned(entry(6)), events.StartTask)) == 1
    assert first.crash_loop(entry(6), 9) == 2


def test_a_window_without_failures_gives_the_budget_back():
    worker = Worker(task_restart_max="2", task_restart_window_ms="200000")
    worker.assigned(entry(2))
    assert worker.crash_loop(entry(2), 2) == 2
    worker.feed(events.TaskReport(entry(2), "RUNNING"))
    assert len(worker.last["restarts"]) == 2
    worker.wait(201)
    worker.feed(events.TaskReport(entry(2), metrics={"n": 1}))
    worker.wait(2)
    assert worker.last["restarts"] == []
    assert worker.crash_loop(entry(2), 2) == 2


def test_bad_data_halts_at_once_unless_it_has_a_budget():
    worker = Worker()
    worker.assigned(entry(2))
    assert worker.crash_loop(entry(2), 3, DATA) == 0
    assert worker.last["error"] == DATA
    other = Worker(task_restart_data_max="2")
    other.assigned(entry(2))
    assert other.crash_loop(entry(2), 9, DATA) == 2
    assert other.last["error"]["cause"] == DATA


def test_records_of_an_older_version_carry_no_charges():
    status: list = []
    first = Worker("w1", status)
    first.assigned(entry(2))
    first.crash_loop(entry(2), 1)
    old = [replace(r, value={k: v for k, v in r.value.items() if k != "restarts"}) for r in status]
    second = Worker("w2", old, first.now)
    assert len(of(second.assigned(entry(3)), events.StartTask)) == 1


# --- deadlines -------------------------------------------------------------------------------------------------------


def test_a_start_that_hangs_is_killed_and_charged():
    worker = Worker(task_start_timeout_ms="20000", task_restart_max="1")
    worker.assigned(entry(2))
    assert not of(worker.wait(19), events.KillTask)
    assert of(worker.wait(2), events.KillTask) == [events.KillTask(entry(2))]
    worker.feed(events.TaskReport(entry(2), "RUNNING"))
    worker.feed(events.TaskExited(entry(2), -9))
    assert (worker.last["state"], worker.last["error"]["code"]) == ("RESTARTING", "coordinator.task_start_timeout")
    assert len(of(worker.wait(5), events.StartTask)) == 1
    assert len(of(worker.wait(22), events.KillTask)) == 1
    worker.feed(events.TaskExited(entry(2), -9))
    assert worker.last["error"]["cause"]["code"] == "coordinator.task_start_timeout"


def test_a_start_that_says_what_it_does_has_time():
    worker = Worker(task_start_timeout_ms="20000")
    worker.assigned(entry(2))
    for _ in range(5):
        assert not of(worker.wait(15), events.KillTask)
        worker.feed(events.TaskReport(entry(2), metrics={"retries": 1}))
    worker.feed(events.TaskReport(entry(2), "RUNNING"))
    assert not of(worker.wait(60), events.KillTask)


def test_what_the_worker_measures_of_a_start_is_no_sign_of_life():
    worker = Worker(task_start_timeout_ms="20000")
    worker.assigned(entry(2))
    worker.wait(15)
    worker.feed(events.TaskReport(entry(2), metrics={"cpu_cores": 0.0, "rss_bytes": 1}))
    assert len(of(worker.wait(6), events.KillTask)) == 1


def test_a_process_that_survives_its_kill_does_not_hold_back_the_move():
    worker = Worker()
    worker.assigned(entry(2))
    worker.feed(events.TaskReport(entry(2), "RUNNING"))
    worker.assigned(revoke=(entry(2),))
    assert len(of(worker.wait(39), events.KillTask)) == 1
    assert worker.last["state"] == "RUNNING"
    worker.wait(2)
    assert worker.last["state"] == "STOPPED"
    assert not worker.feed(events.TaskExited(entry(2), -9))


def test_a_process_that_survives_a_restart_is_a_failure_with_a_code():
    worker = Worker()
    worker.assigned(entry(2))
    worker.feed(events.TaskReport(entry(2), "RUNNING"))
    worker.config(restart())
    assert not of(worker.wait(41), events.StartTask)
    assert (worker.last["state"], worker.last["error"]["code"]) == ("FAILED", "coordinator.task_stuck")
    new = worker.assigned(entry(3))
    assert len(of(new, events.StartTask)) == 1, "a new owner fences it"


def test_a_start_that_survives_its_kill_is_stuck_too():
    worker = Worker(task_start_timeout_ms="1000")
    worker.assigned(entry(2))
    worker.wait(35)
    assert (worker.last["state"], worker.last["error"]["code"]) == ("FAILED", "coordinator.task_stuck")
    assert len(of(worker.commands, events.KillTask)) == 1


def test_a_restart_during_a_stop_lifts_the_charges_and_stops_nothing_twice():
    worker = Worker(task_restart_max="2")
    worker.assigned(entry(2))
    worker.crash_loop(entry(2), 2)
    worker.feed(events.TaskReport(entry(2), "RUNNING"))
    worker.config(restart("r1"))
    worker.config(restart("r2"))
    assert len(of(worker.commands, events.StopTask)) == 1
    worker.feed(events.TaskExited(entry(2), 0))
    assert worker.crash_loop(entry(2), 9) == 2
