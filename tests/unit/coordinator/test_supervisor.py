"""One herd as follower: run the own assignment, restart, report, obey the lease."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cdcworker.coordinator import events as ev
from cdcworker.coordinator import herd
from cdcworker.coordinator.api import Record
from cdcworker.coordinator.model import (
    AssignedTask,
    Assignment,
    Command,
    PutConnector,
    Reply,
    TaskSet,
)
from cdcworker.coordinator.state import (
    assignment_record,
    command_record,
    connector_record,
    task_set_record,
    tombstone,
)
from cdcworker.coordinator.status import presence_record

from .follower import CONFIG, CONNECTOR, ENTRY, ME, TASKS, TRANSIENT, Driver, of


def test_an_assigned_task_starts_with_its_share_over_the_config():
    driver = Driver()
    (start,) = of(driver.assigned(ENTRY), ev.StartTask)
    assert start == ev.StartTask(ENTRY, "source", {"a": "1", "b": "3"}, False, 0)


def test_an_assignment_of_another_boot_is_not_ours():
    driver = Driver()
    assert not of(driver.assigned(ENTRY, boot_id="b0"), ev.StartTask)
    driver.running()
    assert of(driver.assigned(ENTRY, boot_id="b2"), ev.StopTask) == [ev.StopTask(ENTRY)]


def test_nothing_starts_before_its_connector_and_task_set_are_known():
    driver = Driver()
    other = AssignedTask("d", "j", 0, 9)
    assert not of(driver.assigned(other), ev.StartTask)
    new = replace(CONNECTOR, name="d", incarnation="j")
    assert not of(driver.config(connector_record(new)), ev.StartTask)
    assert of(driver.config(task_set_record("d", replace(TASKS, incarnation="j"))), ev.StartTask)


def test_nothing_starts_without_an_acknowledged_lease():
    driver = Driver()
    driver.now += 7
    assert not of(driver.assigned(ENTRY), ev.StartTask)
    assert of(driver.told(ev.LeaseAcked(driver.now)), ev.StartTask)


def test_a_revoked_task_is_stopped_then_reported():
    driver = Driver()
    driver.running()
    assert of(driver.assigned(revoke=(ENTRY,)), ev.StopTask) == [ev.StopTask(ENTRY)]
    assert driver.reported().state == "RUNNING"
    (append,) = of(driver.told(ev.TaskExited(ENTRY, 0)), ev.AppendStatus)
    assert [(r.key, r.value["state"], r.value["task_epoch"]) for r in append.records] == [("task/c/0", "STOPPED", 2)]
    assert not of(driver.assigned(ENTRY), ev.StartTask), "a reported stop is final for its task epoch"


def test_a_revoked_task_that_never_ran_here_is_reported_too():
    driver = Driver()
    (append,) = of(driver.assigned(revoke=(ENTRY,)), ev.AppendStatus)
    assert append.records[0].value["state"] == "STOPPED"


def test_a_report_is_sent_again_until_it_is_seen():
    driver = Driver()
    sent = of(driver.running(), ev.AppendStatus)[0].records
    again = [c for _, c in driver.wait(4.0) if isinstance(c, ev.AppendStatus)]
    assert again[0].records[0].value == sent[0].value
    driver.told(ev.StatusRecords(sent))
    assert not [c for _, c in driver.wait(8.0) if isinstance(c, ev.AppendStatus)]


def test_a_report_counts_as_seen_although_a_tombstone_follows_at_once():
    driver = Driver()
    sent = of(driver.running(), ev.AppendStatus)[0].records
    driver.told(ev.StatusRecords((*sent, tombstone("task/c/0"))))
    assert driver.reported() is None


def test_a_new_task_epoch_replaces_the_process_after_it_ended():
    driver = Driver()
    driver.running()
    driver.config(
        connector_record(replace(CONNECTOR, version=2, config={"a": "9"}, config_version=2)),
        task_set_record("c", replace(TASKS, config_version=2, task_epoch=5)),
    )
    new = ENTRY._replace(task_epoch=6)
    commands = driver.assigned(new)
    assert of(commands, ev.StopTask) == [ev.StopTask(ENTRY)]
    assert not of(commands, ev.StartTask)
    (start,) = of(driver.told(ev.TaskExited(ENTRY, 0)), ev.StartTask)
    assert (start.task, start.config["a"]) == (new, "9")


def test_a_task_of_an_older_set_runs_on_until_the_leader_replaces_it_but_does_not_start():
    driver = Driver()
    driver.running()
    newer = task_set_record("c", replace(TASKS, config_version=2, task_epoch=5))
    assert not of(driver.config(newer), ev.StopTask)
    driver.fails(TRANSIENT)
    assert not [c for _, c in driver.wait(10) if isinstance(c, ev.StartTask)]


@pytest.mark.parametrize(
    "record",
    [
        tombstone("connector/c"),
        connector_record(replace(CONNECTOR, incarnation="i2")),
        connector_record(replace(CONNECTOR, target_state="STOPPED")),
        task_set_record("c", TaskSet("i", 1, (), task_epoch=9)),
    ],
)
def test_a_task_that_its_connector_no_longer_wants_is_stopped(record):
    driver = Driver()
    driver.running()
    assert of(driver.config(record), ev.StopTask) == [ev.StopTask(ENTRY)]


def test_a_task_that_does_not_stop_is_killed_once():
    driver = Driver()
    driver.running()
    driver.assigned()
    kills = [(at, c) for at, c in driver.wait(20) if isinstance(c, ev.KillTask)]
    assert kills == [(110.0, ev.KillTask(ENTRY))]
    assert driver.reported().state == "RUNNING"
    driver.told(ev.TaskExited(ENTRY, -9))
    assert driver.reported().state == "STOPPED"


def test_pause_and_resume_are_passed_on_once():
    driver = Driver()
    driver.running()
    paused = connector_record(replace(CONNECTOR, target_state="PAUSED", version=2))
    assert of(driver.config(paused), ev.PauseTask) == [ev.PauseTask(ENTRY)]
    assert not of(driver.told(ev.Tick()), ev.PauseTask)
    driver.told(ev.TaskReport(ENTRY, "PAUSED"))
    assert driver.reported().state == "PAUSED"
    assert of(driver.config(connector_record(CONNECTOR)), ev.ResumeTask) == [ev.ResumeTask(ENTRY)]
    driver.config(paused)
    driver.fails(TRANSIENT)
    (start,) = [c for _, c in driver.wait(2) if isinstance(c, ev.StartTask)]
    assert start.paused


def test_transient_failures_restart_with_doubling_back_off_until_the_budget_is_used_up():
    driver = Driver()
    driver.running()
    delays = []
    while True:
        failed = driver.now
        driver.fails(TRANSIENT)
        if driver.reported().state == "FAILED":
            break
        assert driver.reported().state == "RESTARTING"
        starts = [(at, c) for at, c in driver.wait(61) if isinstance(c, ev.StartTask)]
        assert len(starts) == 1
        driver.now = starts[0][0]
        delays.append(driver.now - failed)
        assert starts[0][1].attempt == len(delays)
    ceilings = [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert len(delays) == len(ceilings)
    assert all(top / 2 <= delay <= top + 0.5 for delay, top in zip(delays, ceilings, strict=True))
    error = driver.reported().error
    assert (error["code"], error["cause"]) == ("coordinator.task_quarantined", TRANSIENT)
    assert not [c for _, c in driver.wait(700) if isinstance(c, ev.StartTask)]


def test_failures_far_apart_do_not_add_up():
    driver = Driver()
    driver.running()
    for _ in range(30):
        driver.fails(TRANSIENT)
        starts = [(at, c) for at, c in driver.wait(5) if isinstance(c, ev.StartTask)]
        assert len(starts) == 1
        driver.told(ev.TaskReport(ENTRY, "RUNNING"))
        driver.wait(601)


@pytest.mark.parametrize("kind", ["config", "data", "internal", "environment", "unheard-of"])
def test_other_failures_stay_failed_until_a_person_acts(kind):
    driver = Driver()
    driver.running()
    driver.fails({**CONFIG, "kind": kind})
    assert (driver.reported().state, driver.reported().error["code"]) == ("FAILED", "x.z")
    assert not [c for _, c in driver.wait(700) if isinstance(c, ev.StartTask)]
    new = ENTRY._replace(task_epoch=9)
    (start,) = of(driver.assigned(new), ev.StartTask)
    assert (start.task, start.attempt) == (new, 0)


def test_a_process_that_ends_by_itself_counts_as_a_crash_that_may_pass():
    driver = Driver()
    driver.running()
    driver.told(ev.TaskExited(ENTRY, -11))
    assert (driver.reported().state, driver.reported().error["code"]) == ("RESTARTING", "coordinator.task_crashed")


def test_a_fenced_task_that_is_still_assigned_starts_again_at_most_five_times_a_minute():
    driver = Driver()
    driver.running()
    starts = 0
    while driver.reported().state != "FAILED":
        driver.told(ev.TaskExited(ENTRY, 3))
        starts += len([c for _, c in driver.wait(17) if isinstance(c, ev.StartTask)])
        driver.now -= 16
    assert starts == 5
    assert driver.reported().error["cause"]["code"] == "coordinator.task_fenced"


def test_a_fenced_task_that_is_no_longer_assigned_is_let_go():
    driver = Driver()
    driver.running()
    driver.told(ev.TaskExited(ENTRY, 3))
    driver.assigned()
    assert not [c for _, c in driver.wait(5) if isinstance(c, ev.StartTask)]


def restart(command_id="r", task=None, only_failed=False, expires_ms=10**9):
    scope = {"connector": "c", "incarnation": "i", "task": task, "only_failed": only_failed}
    return command_record(Command(command_id, "restart", scope, expires_ms))


def test_a_restart_command_stops_and_starts_the_task_once():
    driver = Driver()
    driver.running()
    assert of(driver.config(restart()), ev.StopTask) == [ev.StopTask(ENTRY)]
    (start,) = of(driver.told(ev.TaskExited(ENTRY, 0)), ev.StartTask)
    assert (start.task, start.attempt) == (ENTRY, 1)
    assert driver.reported().state == "RESTARTING"
    driver.told(ev.TaskReport(ENTRY, "RUNNING"))
    assert not of(driver.config(restart()), ev.StopTask), "the same command again"
    assert of(driver.config(restart("r2")), ev.StopTask)


def test_a_restart_command_brings_back_a_failed_task():
    driver = Driver()
    driver.running()
    driver.fails(CONFIG)
    (start,) = of(driver.config(restart(only_failed=True)), ev.StartTask)
    assert start.task == ENTRY


@pytest.mark.parametrize(
    "command",
    [
        restart(task=1),
        restart(only_failed=True),
        restart(expires_ms=99_999),
        Record("command/x", {"kind": "dance", "scope": {"connector": "c"}, "expires": 10**9}),
    ],
)
def test_commands_that_do_not_concern_the_task_leave_it_alone(command):
    driver = Driver()
    driver.running()
    assert not of(driver.config(command), ev.StopTask)


def test_commands_of_the_replay_are_not_executed():
    driver = Driver(assignment_record("me", Assignment("b1", (ENTRY,))), restart())
    assert not of(driver.told(ev.Tick()), ev.StopTask)
    assert not of(driver.told(ev.ConfigRecords((restart(),), replay=True)), ev.StopTask)


def test_a_log_read_again_from_its_start_restarts_nothing():
    driver = Driver()
    driver.running()
    records = (
        connector_record(CONNECTOR),
        task_set_record("c", TASKS),
        assignment_record("me", Assignment("b1", (ENTRY,))),
        restart("old"),
    )
    commands = driver.told(ev.ConfigRecords(records, replay=True, reset=True))
    assert not of(commands, ev.StopTask)
    assert not of(commands, ev.StartTask)


def test_without_acknowledged_leases_tasks_go_silent_then_die_and_start_again_with_the_next_lease():
    driver = Driver()
    driver.running()
    said = []
    for tenth in range(100):
        driver.now = 100 + tenth / 10
        said += [(driver.now, type(c).__name__) for c in driver.told(ev.Tick()) if not isinstance(c, ev.RenewLease)]
    assert (106.0, "StopProducing") in said
    assert (109.0, "KillTask") in said
    assert [name for _, name in said].count("KillTask") == 1
    driver.told(ev.TaskExited(ENTRY, -9))
    assert driver.reported().state == "RESTARTING"
    assert not of(driver.told(ev.Tick()), ev.StartTask)
    assert of(driver.told(ev.LeaseAcked(driver.now)), ev.StartTask)


def test_a_late_acknowledgement_of_an_old_lease_makes_nothing_younger():
    driver = Driver()
    driver.now += 5
    driver.told(ev.LeaseAcked(104.0))
    driver.told(ev.LeaseAcked(101.0))
    assert driver.state.work.acked == 104.0


def test_leases_are_renewed_in_time_and_count_up():
    driver = Driver()
    renewals = []
    for tenth in range(1, 101):
        driver.now = 100 + tenth / 10
        renewals += of(driver.told(ev.Tick()), ev.RenewLease)
    counts = [r.record.value["n"] for r in renewals]
    assert counts == sorted(set(counts))
    assert 12 <= len(counts) <= 16


def test_a_second_process_under_the_same_worker_id_makes_the_first_one_leave():
    driver = Driver()
    driver.running()
    commands = driver.told(ev.StatusRecords((presence_record(replace(ME, boot_id="b9")),)))
    assert of(commands, ev.KillTask) == [ev.KillTask(ENTRY)]
    assert commands[-1] == ev.Leave("superseded")
    assert driver.told(ev.Tick()) == []


def test_a_worker_whose_presence_was_deleted_announces_itself_again():
    driver = Driver()
    driver.now += 10
    driver.told(ev.StatusRecords((tombstone("worker/me"),)))
    (append,) = of(driver.told(ev.Tick()), ev.AppendStatus)
    assert append.records[0].key == "worker/me"


def test_draining_says_so_and_leaves_when_nothing_is_assigned():
    driver = Driver()
    driver.running()
    (append,) = of(driver.told(ev.DrainRequested()), ev.AppendStatus)
    assert append.records[0].value["draining"] is True
    driver.assigned(revoke=(ENTRY,))
    assert not of(driver.told(ev.TaskExited(ENTRY, 0)), ev.Leave)
    commands = driver.assigned()
    assert commands[-1] == ev.Leave("drained")
    assert [r.key for r in of(commands, ev.AppendStatus)[-1].records] == ["worker/me", "lease/me"]


def test_a_drain_without_a_leader_ends_by_its_deadline():
    driver = Driver()
    driver.running()
    driver.told(ev.DrainRequested())
    said = driver.wait(21)
    assert [c for _, c in said if isinstance(c, ev.StopTask)] == [ev.StopTask(ENTRY)]
    commands = driver.told(ev.TaskExited(ENTRY, 0))
    assert commands[-1] == ev.Leave("drained")


def test_a_follower_without_a_live_leader_says_so():
    driver = Driver()
    answers = driver.told(ev.RequestArrived("r", PutConnector("c", {})))
    assert answers == [ev.Answer("r", Reply("no_leader", detail="no leader has claimed"))]


def test_topics_are_reported_once():
    driver = Driver()
    driver.running()
    (append,) = of(driver.told(ev.TaskTopics(ENTRY, ("t2", "t1"))), ev.AppendStatus)
    assert (append.records[0].key, append.records[0].value) == ("topics/c/0", {"topics": ["t1", "t2"]})
    assert not driver.told(ev.TaskTopics(ENTRY, ("t1",)))
    driver.told(ev.StatusRecords(append.records))
    assert herd.view(driver.state, ev.Now(driver.now, 0)).topics == {"c": frozenset({"t1", "t2"})}


def test_topics_that_were_reset_are_reported_again_without_those_that_are_not_in_use_any_more():
    driver = Driver()
    driver.running()
    (append,) = of(driver.told(ev.TaskTopics(ENTRY, ("t2", "t1"))), ev.AppendStatus)
    driver.told(ev.StatusRecords(append.records))
    driver.told(ev.StatusRecords((Record("topics/c/0", None),)))
    assert herd.view(driver.state, ev.Now(driver.now, 0)).topics == {}
    (append,) = of(driver.told(ev.TaskTopics(ENTRY, ("t1",))), ev.AppendStatus)
    assert append.records[0].value == {"topics": ["t1"]}


def test_numbers_are_reported_now_and_then_not_each_time_and_only_when_there_are_new_ones():
    driver = Driver()
    driver.running()
    appends = 0
    for n in range(40):
        driver.now += 0.25
        if n < 20:
            driver.told(ev.TaskReport(ENTRY, None, None, {"n": n}))
        appends += len(of(driver.told(ev.Tick()), ev.AppendStatus)) - (driver.reported() is None)
    assert 4 <= appends <= 9
    assert driver.reported().metrics == {"n": 19}


def test_a_task_that_names_ever_new_numbers_does_not_fill_its_reports():
    driver = Driver()
    driver.running()
    for n in range(2_000):
        driver.told(ev.TaskReport(ENTRY, metrics={f"n{n}": n}))
    driver.wait(3)
    assert len(driver.reported().metrics) <= 200
