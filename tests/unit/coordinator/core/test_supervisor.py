"""One herd as follower: run the own assignment, restart, report, obey the lease."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.core import events, state_machine
from cdcworker.coordinator.core.herd_state import CLOCKS_APART_S_MAX
from cdcworker.coordinator.core.requests import PendingRequest, decide
from cdcworker.coordinator.log.config_fold import (
    assignment_record,
    command_record,
    connector_record,
    task_set_record,
    tombstone,
)
from cdcworker.coordinator.log.status_fold import presence_record, topics_reset
from cdcworker.coordinator.model import (
    AssignedTask,
    Assignment,
    Command,
    PutConnector,
    Reply,
    Restart,
    TaskSet,
)

from .follower_herd import CONFIG, CONNECTOR, ENTRY, ME, TASKS, TRANSIENT, Driver, of


def test_an_assigned_task_starts_with_its_share_over_the_config():
    driver = Driver()
    (start,) = of(driver.assigned(ENTRY), events.StartTask)
    assert start == events.StartTask(ENTRY, "source", {"a": "1", "b": "3"}, False, 0, ())


def test_a_task_starts_with_the_bound_of_its_connectors_topics():
    driver = Driver(connector_record(replace(CONNECTOR, topic_prefixes=("shop-",))))
    (start,) = of(driver.assigned(ENTRY), events.StartTask)
    assert start.topic_prefixes == ("shop-",)


def test_an_assignment_of_another_boot_is_not_ours():
    driver = Driver()
    assert not of(driver.assigned(ENTRY, boot_id="b0"), events.StartTask)
    driver.running()
    assert of(driver.assigned(ENTRY, boot_id="b2"), events.StopTask) == [events.StopTask(ENTRY)]


def test_nothing_starts_before_its_connector_and_task_set_are_known():
    driver = Driver()
    other = AssignedTask("d", "j", 0, 9)
    assert not of(driver.assigned(other), events.StartTask)
    new = replace(CONNECTOR, name="d", incarnation="j")
    assert not of(driver.config(connector_record(new)), events.StartTask)
    assert of(driver.config(task_set_record("d", replace(TASKS, incarnation="j"))), events.StartTask)


def test_nothing_starts_without_an_acknowledged_lease():
    driver = Driver()
    driver.now += 7
    assert not of(driver.assigned(ENTRY), events.StartTask)
    assert of(driver.feed(events.LeaseAcked(driver.now)), events.StartTask)


def test_a_revoked_task_is_stopped_then_reported():
    driver = Driver()
    driver.running()
    assert of(driver.assigned(revoke=(ENTRY,)), events.StopTask) == [events.StopTask(ENTRY)]
    assert driver.reported().state == "RUNNING"
    (append,) = of(driver.feed(events.TaskExited(ENTRY, 0)), events.AppendStatus)
    assert [(r.key, r.value["state"], r.value["task_epoch"]) for r in append.records] == [("task/c/0", "STOPPED", 2)]
    assert not of(driver.assigned(ENTRY), events.StartTask), "a reported stop is final for its task epoch"


def test_a_revoked_task_that_never_ran_here_is_reported_too():
    driver = Driver()
    (append,) = of(driver.assigned(revoke=(ENTRY,)), events.AppendStatus)
    assert append.records[0].value["state"] == "STOPPED"


def test_a_report_is_sent_again_until_it_is_seen():
    driver = Driver()
    sent = of(driver.running(), events.AppendStatus)[0].records
    again = [c for _, c in driver.wait(4.0) if isinstance(c, events.AppendStatus)]
    assert again[0].records[0].value == sent[0].value
    driver.feed(events.StatusRecords(sent))
    assert not [c for _, c in driver.wait(8.0) if isinstance(c, events.AppendStatus)]


def test_a_report_counts_as_seen_although_a_tombstone_follows_at_once():
    driver = Driver()
    sent = of(driver.running(), events.AppendStatus)[0].records
    driver.feed(events.StatusRecords((*sent, tombstone("task/c/0"))))
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
    assert of(commands, events.StopTask) == [events.StopTask(ENTRY)]
    assert not of(commands, events.StartTask)
    (start,) = of(driver.feed(events.TaskExited(ENTRY, 0)), events.StartTask)
    assert (start.task, start.config["a"]) == (new, "9")


def test_a_task_of_an_older_set_runs_on_until_the_leader_replaces_it_but_does_not_start():
    driver = Driver()
    driver.running()
    newer = task_set_record("c", replace(TASKS, config_version=2, task_epoch=5))
    assert not of(driver.config(newer), events.StopTask)
    driver.fails(TRANSIENT)
    assert not [c for _, c in driver.wait(10) if isinstance(c, events.StartTask)]


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
    assert of(driver.config(record), events.StopTask) == [events.StopTask(ENTRY)]


def test_a_task_that_does_not_stop_is_killed_once():
    driver = Driver()
    driver.running()
    driver.assigned()
    kills = [(at, c) for at, c in driver.wait(20) if isinstance(c, events.KillTask)]
    assert kills == [(110.0, events.KillTask(ENTRY))]
    assert driver.reported().state == "RUNNING"
    driver.feed(events.TaskExited(ENTRY, -9))
    assert driver.reported().state == "STOPPED"


def test_pause_and_resume_are_passed_on_once():
    driver = Driver()
    driver.running()
    paused = connector_record(replace(CONNECTOR, target_state="PAUSED", version=2))
    assert of(driver.config(paused), events.PauseTask) == [events.PauseTask(ENTRY)]
    assert not of(driver.feed(events.Tick()), events.PauseTask)
    driver.feed(events.TaskReport(ENTRY, "PAUSED"))
    assert driver.reported().state == "PAUSED"
    assert of(driver.config(connector_record(CONNECTOR)), events.ResumeTask) == [events.ResumeTask(ENTRY)]
    driver.config(paused)
    driver.fails(TRANSIENT)
    (start,) = [c for _, c in driver.wait(2) if isinstance(c, events.StartTask)]
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
        starts = [(at, c) for at, c in driver.wait(61) if isinstance(c, events.StartTask)]
        assert len(starts) == 1
        driver.now = starts[0][0]
        delays.append(driver.now - failed)
        assert starts[0][1].attempt == len(delays)
    ceilings = [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert len(delays) == len(ceilings)
    assert all(top / 2 <= delay <= top + 0.5 for delay, top in zip(delays, ceilings, strict=True))
    error = driver.reported().error
    assert (error["code"], error["cause"]) == ("coordinator.task_quarantined", TRANSIENT)
    assert not [c for _, c in driver.wait(700) if isinstance(c, events.StartTask)]


def test_failures_far_apart_do_not_add_up():
    driver = Driver()
    driver.running()
    for _ in range(30):
        driver.fails(TRANSIENT)
        starts = [(at, c) for at, c in driver.wait(5) if isinstance(c, events.StartTask)]
        assert len(starts) == 1
        driver.feed(events.TaskReport(ENTRY, "RUNNING"))
        driver.wait(601)


@pytest.mark.parametrize("kind", ["config", "data", "internal", "environment", "unheard-of"])
def test_other_failures_stay_failed_until_a_person_acts(kind):
    driver = Driver()
    driver.running()
    driver.fails({**CONFIG, "kind": kind})
    assert (driver.reported().state, driver.reported().error["code"]) == ("FAILED", "x.z")
    assert not [c for _, c in driver.wait(700) if isinstance(c, events.StartTask)]
    new = ENTRY._replace(task_epoch=9)
    (start,) = of(driver.assigned(new), events.StartTask)
    assert (start.task, start.attempt) == (new, 0)


def test_a_process_that_ends_by_itself_counts_as_a_crash_that_may_pass():
    driver = Driver()
    driver.running()
    driver.feed(events.TaskExited(ENTRY, -11))
    assert (driver.reported().state, driver.reported().error["code"]) == ("RESTARTING", "coordinator.task_crashed")


def test_a_fenced_task_that_is_still_assigned_starts_again_at_most_five_times_a_minute():
    driver = Driver()
    driver.running()
    starts = 0
    while driver.reported().state != "FAILED":
        driver.feed(events.TaskExited(ENTRY, 3))
        starts += len([c for _, c in driver.wait(17) if isinstance(c, events.StartTask)])
        driver.now -= 16
    assert starts == 5
    assert driver.reported().error["cause"]["code"] == "coordinator.task_fenced"


def test_a_fenced_task_that_is_no_longer_assigned_is_let_go():
    driver = Driver()
    driver.running()
    driver.feed(events.TaskExited(ENTRY, 3))
    driver.assigned()
    assert not [c for _, c in driver.wait(5) if isinstance(c, events.StartTask)]


def restart(command_id="r", task=None, only_failed=False, expires_ms=10**9):
    scope = {"connector": "c", "incarnation": "i", "task": task, "only_failed": only_failed}
    return command_record(Command(command_id, "restart", scope, expires_ms))


def test_a_restart_command_stops_and_starts_the_task_once():
    driver = Driver()
    driver.running()
    assert of(driver.config(restart()), events.StopTask) == [events.StopTask(ENTRY)]
    (start,) = of(driver.feed(events.TaskExited(ENTRY, 0)), events.StartTask)
    assert (start.task, start.attempt) == (ENTRY, 1)
    assert driver.reported().state == "RESTARTING"
    driver.feed(events.TaskReport(ENTRY, "RUNNING"))
    assert not of(driver.config(restart()), events.StopTask), "the same command again"
    assert of(driver.config(restart("r2")), events.StopTask)


def test_a_restart_command_brings_back_a_failed_task():
    driver = Driver()
    driver.running()
    driver.fails(CONFIG)
    (start,) = of(driver.config(restart(only_failed=True)), events.StartTask)
    assert start.task == ENTRY


@pytest.mark.parametrize(
    "command",
    [
        restart(task=1),
        restart(only_failed=True),
        restart(expires_ms=99_999),
        LogRecord("command/x", {"kind": "dance", "scope": {"connector": "c"}, "expires": 10**9}),
    ],
)
def test_commands_that_do_not_concern_the_task_leave_it_alone(command):
    driver = Driver()
    driver.running()
    assert not of(driver.config(command), events.StopTask)


@pytest.mark.parametrize("ahead_s", [-CLOCKS_APART_S_MAX, 0, CLOCKS_APART_S_MAX])
def test_a_restart_reaches_a_worker_whose_clock_differs_as_far_as_clocks_may(ahead_s):
    driver = Driver()
    driver.running()
    leader_ms = round((driver.now - ahead_s) * 1000)
    asked = PendingRequest("r", Restart("c", include_tasks=True), leader_ms)
    records = decide(driver.state.cluster, asked).records
    assert of(driver.config(*records), events.StopTask) == [events.StopTask(ENTRY)]


def test_an_expired_command_is_logged_with_how_late_it_is(caplog):
    driver = Driver()
    driver.running()
    driver.config(restart("r9", expires_ms=70_000))
    (text,) = [record.getMessage() for record in caplog.records if "command" in record.getMessage()]
    assert "command=r9 late_s=30" in text


def test_commands_of_the_replay_are_not_executed():
    driver = Driver(assignment_record("me", Assignment("b1", (ENTRY,))), restart())
    assert not of(driver.feed(events.Tick()), events.StopTask)
    assert not of(driver.feed(events.ConfigRecords((restart(),), replay=True)), events.StopTask)


def test_a_log_read_again_from_its_start_restarts_nothing():
    driver = Driver()
    driver.running()
    records = (
        connector_record(CONNECTOR),
        task_set_record("c", TASKS),
        assignment_record("me", Assignment("b1", (ENTRY,))),
        restart("old"),
    )
    commands = driver.feed(events.ConfigRecords(records, replay=True, reset=True))
    assert not of(commands, events.StopTask)
    assert not of(commands, events.StartTask)


def test_without_acknowledged_leases_tasks_go_silent_then_die_and_start_again_with_the_next_lease():
    driver = Driver()
    driver.running()
    said = []
    for tenth in range(100):
        driver.now = 100 + tenth / 10
        said += [
            (driver.now, type(c).__name__) for c in driver.feed(events.Tick()) if not isinstance(c, events.RenewLease)
        ]
    assert (106.0, "StopProducing") in said
    assert (109.0, "KillTask") in said
    assert [name for _, name in said].count("KillTask") == 1
    driver.feed(events.TaskExited(ENTRY, -9))
    assert driver.reported().state == "RESTARTING"
    assert not of(driver.feed(events.Tick()), events.StartTask)
    assert of(driver.feed(events.LeaseAcked(driver.now)), events.StartTask)


def test_a_late_acknowledgement_of_an_old_lease_makes_nothing_younger():
    driver = Driver()
    driver.now += 5
    driver.feed(events.LeaseAcked(104.0))
    driver.feed(events.LeaseAcked(101.0))
    assert driver.state.work.lease_acked == 104.0


def test_leases_are_renewed_in_time_and_count_up():
    driver = Driver()
    renewals = []
    for tenth in range(1, 101):
        driver.now = 100 + tenth / 10
        renewals += of(driver.feed(events.Tick()), events.RenewLease)
    counts = [r.record.value["n"] for r in renewals]
    assert counts == sorted(set(counts))
    assert 12 <= len(counts) <= 16


def test_a_second_process_under_the_same_worker_id_makes_the_first_one_leave():
    driver = Driver()
    driver.running()
    commands = driver.feed(events.StatusRecords((presence_record(replace(ME, boot_id="b9")),)))
    assert of(commands, events.KillTask) == [events.KillTask(ENTRY)]
    assert commands[-1] == events.Leave("superseded")
    assert driver.feed(events.Tick()) == []


def test_a_worker_whose_presence_was_deleted_announces_itself_again():
    driver = Driver()
    driver.now += 10
    driver.feed(events.StatusRecords((tombstone("worker/me"),)))
    (append,) = of(driver.feed(events.Tick()), events.AppendStatus)
    assert append.records[0].key == "worker/me"


def test_draining_says_so_and_leaves_when_nothing_is_assigned():
    driver = Driver()
    driver.running()
    (append,) = of(driver.feed(events.DrainRequested()), events.AppendStatus)
    assert append.records[0].value["draining"] is True
    driver.assigned(revoke=(ENTRY,))
    assert not of(driver.feed(events.TaskExited(ENTRY, 0)), events.Leave)
    commands = driver.assigned()
    assert commands[-1] == events.Leave("drained")
    assert [r.key for r in of(commands, events.AppendStatus)[-1].records] == ["worker/me", "lease/me"]


def test_a_drain_without_a_leader_ends_by_its_deadline():
    driver = Driver()
    driver.running()
    driver.feed(events.DrainRequested())
    said = driver.wait(21)
    assert [c for _, c in said if isinstance(c, events.StopTask)] == [events.StopTask(ENTRY)]
    commands = driver.feed(events.TaskExited(ENTRY, 0))
    assert commands[-1] == events.Leave("drained")


def test_a_follower_without_a_live_leader_says_so():
    driver = Driver()
    answers = driver.feed(events.RequestArrived("r", PutConnector("c", {})))
    assert answers == [events.AnswerRequest("r", Reply("no_leader", detail="no leader has claimed"))]


def test_topics_are_reported_once():
    driver = Driver()
    driver.running()
    (append,) = of(driver.feed(events.TaskTopics(ENTRY, ("t2", "t1"))), events.AppendStatus)
    assert (append.records[0].key, append.records[0].value) == ("topics/c/0", {"topics": ["t1", "t2"]})
    assert not driver.feed(events.TaskTopics(ENTRY, ("t1",)))
    driver.feed(events.StatusRecords(append.records))
    assert state_machine.view(driver.state, events.Now(driver.now, 0)).topics == {"c": frozenset({"t1", "t2"})}


def test_topics_that_were_reset_are_reported_again_without_those_that_are_not_in_use_any_more():
    driver = Driver()
    driver.running()
    (append,) = of(driver.feed(events.TaskTopics(ENTRY, ("t2", "t1"))), events.AppendStatus)
    driver.feed(events.StatusRecords(append.records))
    commands = driver.feed(events.StatusRecords((LogRecord("topics/c/0", None),)))
    assert of(commands, events.RepeatTopics) == [events.RepeatTopics(ENTRY)]
    assert state_machine.view(driver.state, events.Now(driver.now, 0)).topics == {}
    (append,) = of(driver.feed(events.TaskTopics(ENTRY, ("t1",))), events.AppendStatus)
    assert append.records[0].value == {"topics": ["t1"]}


def test_topics_that_were_reset_are_known_until_their_connector_is_deleted():
    driver = Driver()
    driver.running()
    for topics in (("t1",), ("t2", "t3")):
        (append,) = of(driver.feed(events.TaskTopics(ENTRY, topics)), events.AppendStatus)
        driver.feed(events.StatusRecords(append.records))
        driver.feed(events.StatusRecords(tuple(topics_reset(driver.state.status, "c"))))
    view = state_machine.view(driver.state, events.Now(driver.now, 0))
    assert (view.topics, view.former_topics) == ({}, {"c": frozenset({"t1", "t2", "t3"})})
    assert topics_reset(driver.state.status, "c") == []


def test_numbers_are_reported_now_and_then_not_each_time_and_only_when_there_are_new_ones():
    driver = Driver()
    driver.running()
    appends = 0
    for n in range(40):
        driver.now += 0.25
        if n < 20:
            driver.feed(events.TaskReport(ENTRY, None, None, {"n": n}))
        appends += len(of(driver.feed(events.Tick()), events.AppendStatus)) - (driver.reported() is None)
    assert 4 <= appends <= 9
    assert driver.reported().metrics == {"n": 19}


def test_a_task_that_names_ever_new_numbers_does_not_fill_its_reports():
    driver = Driver()
    driver.running()
    for n in range(2_000):
        driver.feed(events.TaskReport(ENTRY, metrics={f"n{n}": n}))
    driver.wait(3)
    assert len(driver.reported().metrics) <= 200


@pytest.mark.parametrize("state", ["PAUSED", "FAILED", "RESTARTING"])
def test_what_is_measured_of_a_task_that_reads_nothing_is_reported_under_its_state(state):
    driver = Driver()
    driver.running()
    driver.feed(events.TaskReport(ENTRY, metrics={"lag_bytes": 1, "records": 7}))
    if state == "PAUSED":
        driver.feed(events.TaskReport(ENTRY, "PAUSED"))
    elif state == "FAILED":
        driver.fails(CONFIG)
    else:
        for _ in range(6):
            driver.fails(TRANSIENT)
            while not [c for _, c in driver.wait(0.5) if isinstance(c, events.StartTask)]:
                pass
        driver.fails(TRANSIENT)
    driver.feed(events.TaskMeasured(ENTRY, {"lag_bytes": 900}))
    driver.wait(12)
    found = driver.reported()
    assert found.state == state
    assert (found.metrics["lag_bytes"], found.metrics["records"]) == (900, 7)


def test_a_task_that_runs_again_tells_its_own_numbers():
    driver = Driver()
    driver.running()
    driver.feed(events.TaskReport(ENTRY, metrics={"lag_bytes": 1}))
    driver.feed(events.TaskMeasured(ENTRY, {"lag_bytes": 900}))
    driver.wait(30)
    assert driver.reported().metrics["lag_bytes"] == 1
    driver.feed(events.TaskReport(ENTRY, metrics={"retrying": {"code": "c", "count": 1, "since_ms": 1}}))
    driver.feed(events.TaskMeasured(ENTRY, {"lag_bytes": 900}))
    driver.wait(30)
    assert driver.reported().metrics["lag_bytes"] == 900
