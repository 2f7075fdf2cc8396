"""One herd as leader: claim, write, read back, step down."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from cdcworker.coordinator.api import Term
from cdcworker.coordinator.core import events, state_machine
from cdcworker.coordinator.log.config_fold import (
    assignment_record,
    connector_record,
    fenced_record,
    leader_record,
    task_set_record,
    tombstone,
)
from cdcworker.coordinator.log.status_fold import lease_record, presence_record, task_status_record
from cdcworker.coordinator.model import (
    AssignedTask,
    Assignment,
    Connector,
    FencedTasks,
    Leader,
    PutConnector,
    Reply,
    TaskId,
    TaskSet,
    TaskStatus,
)

from .leader_herd import OTHER, TERM, Driver, e, keys, of


def test_the_leader_record_is_the_first_of_a_claim_and_one_above_every_epoch_seen():
    driver = Driver(e(leader_record(Leader(6, "x", "bx", "u")), 6), e(tombstone("logger/x"), 7))
    assert of(driver.feed(events.TermChanged(TERM)), events.Claim)
    (write,) = of(driver.feed(events.Claimed()), events.WriteLog)
    assert keys(write) == ["leader"]
    assert write.records[0].value["epoch"] == 8
    assert write.records[0].headers["e"] == "8"
    assert write.records[0].headers["w"] == "me"


def test_a_config_log_made_anew_starts_above_the_epochs_of_the_status_log():
    driver = Driver()
    driver.status(task_status_record(TaskStatus("c", 0, "RUNNING", "x", 5 << 20 | 3)))
    driver.feed(events.TermChanged(TERM))
    (write,) = of(driver.feed(events.Claimed()), events.WriteLog)
    assert write.records[0].value["epoch"] == 6


def test_nothing_is_decided_before_the_claim_is_read_back():
    driver = Driver()
    driver.feed(events.TermChanged(TERM))
    (claim,) = of(driver.feed(events.Claimed()), events.WriteLog)
    assert driver.feed(events.RequestArrived("r", PutConnector("c", {}, "source"))) == [
        events.AnswerRequest("r", Reply("no_leader", detail="no leader has claimed"))
    ]
    driver.feed(events.WriteDone(claim.write_id))
    assert not of(driver.feed(events.Tick()), events.WriteLog)
    driver.commit(claim)
    assert of(driver.feed(events.RequestArrived("r2", PutConnector("c", {}, "source"))), events.WriteLog)


def test_ok_is_answered_when_the_record_has_been_read_back_not_when_it_was_written():
    driver = Driver()
    driver.lead()
    commands = driver.feed(events.RequestArrived("r", PutConnector("c", {}, "source")))
    (write,) = of(commands, events.WriteLog)
    assert write.records[0].headers["d"] == "r"
    commands += driver.feed(events.WriteDone(write.write_id)) + driver.feed(events.Tick())
    assert not of(commands, events.AnswerRequest)
    assert of(driver.commit(write), events.AnswerRequest) == [
        events.AnswerRequest("r", Reply("ok", created=True, version=1))
    ]


def test_requests_that_come_during_a_write_are_decided_together_after_it():
    driver = Driver()
    driver.lead()
    (first,) = of(driver.feed(events.RequestArrived("r1", PutConnector("c", {}, "source"))), events.WriteLog)
    for n in (2, 3):
        create = PutConnector("d", {"n": str(n)}, "source", create_only=True)
        assert not driver.feed(events.RequestArrived(f"r{n}", create))
    (second,) = of(driver.commit(first), events.WriteLog)
    assert keys(second) == ["connector/d"]
    answers = {a.request_id: a.reply.outcome for a in of(driver.commit(second), events.AnswerRequest)}
    assert answers == {"r2": "ok", "r3": "exists"}


def test_a_refusal_that_rests_on_an_unwritten_decision_is_taken_back_with_it():
    driver = Driver()
    driver.lead()
    (first,) = of(driver.feed(events.RequestArrived("r1", PutConnector("c", {}, "source"))), events.WriteLog)
    for n in (2, 3):
        driver.feed(events.RequestArrived(f"r{n}", PutConnector("d", {}, "source", create_only=True)))
    (second,) = of(driver.commit(first), events.WriteLog)
    answers = of(driver.feed(events.WriteFailed(second.write_id, "stale")), events.AnswerRequest)
    assert {a.reply.outcome for a in answers} == {"no_leader"}


@pytest.mark.parametrize("reason", ["stale", "fenced"])
def test_a_refused_write_steps_down_answers_and_claims_again(reason):
    driver = Driver()
    driver.lead()
    (write,) = of(driver.feed(events.RequestArrived("r", PutConnector("c", {}, "source"))), events.WriteLog)
    commands = driver.feed(events.WriteFailed(write.write_id, reason))
    assert [a.reply.outcome for a in of(commands, events.AnswerRequest)] == ["no_leader"]
    driver.now += 1
    assert of(driver.feed(events.Tick()), events.Claim)
    (claim,) = of(driver.feed(events.Claimed()), events.WriteLog)
    assert claim.records[0].value["epoch"] == 2


@pytest.mark.parametrize("happened", [True, False])
def test_an_unknown_write_is_judged_by_the_log_after_the_next_claim(happened):
    driver = Driver()
    driver.lead()
    (write,) = of(driver.feed(events.RequestArrived("r", PutConnector("c", {}, "source"))), events.WriteLog)
    assert not of(driver.feed(events.WriteFailed(write.write_id, "unknown")), events.AnswerRequest)
    if happened:
        driver.topic.append(write.records)
    driver.now += 1
    assert of(driver.feed(events.Tick()), events.Claim)
    commands = driver.feed(events.ConfigRecords(tuple(driver.unread()))) + driver.feed(events.Claimed())
    assert [a.reply.outcome for a in of(commands, events.AnswerRequest)] == ["ok" if happened else "no_leader"]


def test_an_unknown_write_is_lost_when_another_claim_is_in_the_log_without_it():
    driver = Driver()
    driver.lead()
    (write,) = of(driver.feed(events.RequestArrived("r", PutConnector("c", {}, "source"))), events.WriteLog)
    driver.feed(events.WriteFailed(write.write_id, "unknown"))
    driver.topic.append([e(leader_record(Leader(2, "other", "b2", "u")), 2)])
    commands = driver.feed(events.ConfigRecords(tuple(driver.unread())))
    assert [a.reply.outcome for a in of(commands, events.AnswerRequest)] == ["no_leader"]


def test_it_is_so_already_is_answered_only_by_a_leader_that_can_still_write():
    driver = Driver()
    driver.lead()
    ask = PutConnector("c", {"a": "1"}, kind="source")
    driver.settle(driver.feed(events.RequestArrived("r1", ask)))
    commands = driver.feed(events.RequestArrived("r2", ask))
    assert not of(commands, events.AnswerRequest)
    (write,) = of(commands, events.WriteLog)
    assert keys(write) == ["leader"]
    refused = driver.feed(events.WriteFailed(write.write_id, "stale"))
    assert [answer.reply.outcome for answer in of(refused, events.AnswerRequest)] == ["no_leader"]


def test_a_request_that_waits_too_long_gets_a_timeout_and_does_not_happen_later():
    driver = Driver()
    driver.lead()
    (first,) = of(driver.feed(events.RequestArrived("r1", PutConnector("c", {}, "source"))), events.WriteLog)
    driver.feed(events.RequestArrived("r2", PutConnector("d", {}, "source")))
    driver.now += 31
    answers = of(driver.feed(events.Tick()), events.AnswerRequest)
    assert {a.request_id: a.reply.outcome for a in answers} == {"r1": "timeout", "r2": "timeout"}
    commands = driver.settle(driver.commit(first))
    assert not of(commands, events.AnswerRequest)
    assert "d" not in driver.state.cluster.connectors


def test_losing_the_term_ends_the_claim_at_once():
    driver = Driver()
    driver.lead()
    (write,) = of(driver.feed(events.RequestArrived("r1", PutConnector("c", {}, "source"))), events.WriteLog)
    driver.feed(events.RequestArrived("r2", PutConnector("d", {}, "source")))
    answers = of(driver.feed(events.TermChanged(None)), events.AnswerRequest)
    assert [(a.request_id, a.reply.outcome) for a in answers] == [("r2", "no_leader")]
    assert not state_machine.view(driver.state, events.Now(driver.now, 0)).is_leader
    answers = of(driver.commit(write), events.AnswerRequest)
    assert [(a.request_id, a.reply.outcome) for a in answers] == [("r1", "ok")], "it was in the log before any claim"


def test_a_refreshed_proof_changes_nothing():
    driver = Driver()
    driver.lead()
    assert not of(driver.feed(events.TermChanged(Term(b"new", 2))), events.Claim)
    assert state_machine.view(driver.state, events.Now(driver.now, 0)).is_leader


def test_the_leader_record_names_its_place_in_the_election_and_another_place_is_another_claim():
    driver = Driver()
    driver.feed(events.TermChanged(Term(b"proof", 1, member="m1")))
    (write,) = of(driver.feed(events.Claimed()), events.WriteLog)
    assert write.records[0].value["member"] == "m1"
    driver.commit(write)
    assert not of(driver.feed(events.TermChanged(Term(b"new", 2, member="m1"))), events.Claim)
    assert of(driver.feed(events.TermChanged(Term(b"other", 3, member="m2"))), events.Claim)
    assert not state_machine.view(driver.state, events.Now(driver.now, 0)).is_leader


def test_a_failed_claim_is_tried_again_with_back_off():
    driver = Driver()
    driver.feed(events.TermChanged(TERM))
    gaps = []
    for _ in range(4):
        assert not of(driver.feed(events.ClaimFailed("x")), events.Claim)
        since = driver.now
        while not of(driver.feed(events.Tick()), events.Claim):
            driver.now += 0.1
        gaps.append(round(driver.now - since, 1))
    assert gaps == sorted(gaps)
    assert gaps[0] <= 0.6
    assert gaps[-1] >= 3.9


def test_another_claim_of_a_higher_epoch_ends_the_own():
    driver = Driver()
    driver.lead()
    driver.topic.append([e(leader_record(Leader(2, "other", "b2", "u")), 2)])
    driver.feed(events.ConfigRecords(tuple(driver.unread())))
    assert not state_machine.view(driver.state, events.Now(driver.now, 0)).is_leader


def test_keys_at_which_a_stale_record_was_seen_are_written_again():
    driver = Driver()
    driver.settle(driver.lead())
    driver.settle(driver.feed(events.RequestArrived("r", PutConnector("c", {}, "source", target_state="STOPPED"))))
    driver.topic.append([e(tombstone("connector/c"), 0)])
    commands = driver.settle(driver.feed(events.ConfigRecords(tuple(driver.unread()))))
    (write,) = of(commands, events.WriteLog)
    assert keys(write) == ["connector/c"]
    assert write.records[0].value["target_state"] == "STOPPED"
    assert not driver.state.cluster.stale_keys


def test_a_full_queue_refuses():
    driver = Driver()
    driver.lead()
    for n in range(1002):
        commands = driver.feed(events.RequestArrived(f"r{n}", PutConnector("c", {"n": str(n)}, "source")))
    assert [a.reply.detail for a in of(commands, events.AnswerRequest)] == ["too many requests wait"]


# --- placement ------------------------------------------------------------------------------------------------------

CONNECTOR = Connector("c", "i", 1, {"a": "b"}, "RUNNING", "source")
TASKS = TaskSet("i", 1, ({}, {}), task_epoch=1)
ENTRY0, ENTRY1 = AssignedTask("c", "i", 0, 2), AssignedTask("c", "i", 1, 3)


def log(*assignments):
    records = [leader_record(Leader(0, "x", "bx", "u")), connector_record(CONNECTOR), task_set_record("c", TASKS)]
    return [e(r, 0) for r in (*records, *assignments)]


def test_a_task_changes_hands_only_after_its_worker_reported_it_stopped():
    driver = Driver(*log(assignment_record("me", Assignment("b1", (ENTRY0, ENTRY1)))))
    driver.settle(driver.lead())
    driver.settle(driver.status(presence_record(OTHER)))
    plan = driver.state.cluster.assignments
    assert (plan["me"].tasks, plan["me"].revoke) == ((ENTRY1,), (ENTRY0,))
    assert "other" not in plan
    driver.now += 5
    assert not of(driver.feed(events.Tick()), events.WriteLog)
    late = task_status_record(TaskStatus("c", 0, "STOPPED", "me", ENTRY0.task_epoch - 1, 9))
    assert not of(driver.status(late), events.WriteLog), "the report of an earlier epoch releases nothing"
    driver.settle(driver.status(task_status_record(TaskStatus("c", 0, "STOPPED", "me", ENTRY0.task_epoch, 1))))
    plan = driver.state.cluster.assignments
    assert (plan["me"].tasks, plan["me"].revoke) == ((ENTRY1,), ())
    (moved,) = plan["other"].tasks
    assert moved.id == ENTRY0.id
    assert moved.task_epoch >= 1 << 20


def given(driver, worker="me"):
    assignment = driver.state.cluster.assignments.get(worker)
    return {entry.id for entry in assignment.tasks} if assignment else set()


BOTH = {ENTRY0.id, ENTRY1.id}


def test_lost_tasks_move_in_the_write_that_buries_their_worker_and_their_new_owner_fences_them():
    driver = Driver(*log(assignment_record("gone", Assignment("bg", (ENTRY0, ENTRY1)))))
    commands = driver.lead()
    (write,) = of(commands, events.WriteLog)
    assert set(keys(write)) == {"assignment/gone", "assignment/me", "journal/1"}
    assert not of(driver.settle(commands), events.FenceIds)
    assert given(driver) == BOTH
    assert not driver.state.cluster.fenced


def stopped_log(*assignments):
    return [*log(*assignments), e(connector_record(replace(CONNECTOR, target_state="STOPPED", version=2)), 0)]


def test_lost_tasks_of_a_stopped_connector_are_fenced_by_the_leader_after_it_wrote_that_down():
    driver = Driver(*stopped_log(assignment_record("gone", Assignment("bg", (ENTRY0, ENTRY1)))))
    commands = driver.lead()
    (write,) = of(commands, events.WriteLog)
    assert not of(commands, events.FenceIds), "not before the write proved the lead"
    assert {"assignment/gone", "fenced/c", "tasks/c"} <= set(keys(write))
    commands = driver.settle(commands)
    assert of(commands, events.FenceIds) == [events.FenceIds((TaskId("c", 0), TaskId("c", 1)))]
    assert driver.state.cluster.fenced["c"].pending == (0, 1)
    driver.now += 6
    assert not of(driver.settle(driver.feed(events.Tick())), events.FenceIds)
    driver.settle(driver.feed(events.FencesDone((TaskId("c", 0), TaskId("c", 1)))))
    assert driver.state.cluster.fenced["c"].pending == ()
    assert not driver.state.lead.fences


def test_an_id_whose_fence_is_under_way_is_given_to_nobody():
    driver = Driver(*stopped_log(assignment_record("gone", Assignment("bg", (ENTRY0, ENTRY1)))))
    driver.settle(driver.lead())
    resume = events.RequestArrived("r", PutConnector("c", None, target_state="RUNNING"))
    (plan,) = of(driver.settle(driver.feed(resume)), events.PlanTasks)
    driver.settle(driver.feed(events.TasksPlanned("c", "i", plan.config_version, ({}, {}, {}))))
    assert given(driver) == {TaskId("c", 2)}
    commands = driver.settle(driver.feed(events.FencesDone((TaskId("c", 0),))))
    assert given(driver) == {TaskId("c", 0), TaskId("c", 2)}
    driver.now += driver.state.settings.fence_wait_s + 1
    commands += driver.settle(driver.feed(events.Tick()))
    assert given(driver) == {TaskId("c", 0), TaskId("c", 1), TaskId("c", 2)}, "a lost answer holds nothing up for ever"
    assert not of(commands, events.FenceIds)


def test_a_fence_that_failed_is_tried_again_with_back_off_until_it_is_given_up():
    driver = Driver(*stopped_log(assignment_record("gone", Assignment("bg", (ENTRY0, ENTRY1)))))
    asked = of(driver.settle(driver.lead()), events.FenceIds)
    ids, start, times = (TaskId("c", 0), TaskId("c", 1)), driver.now, []
    while driver.state.cluster.fenced["c"].pending:
        assert asked == [events.FenceIds(ids)]
        times.append(driver.now - start)
        commands = driver.settle(driver.feed(events.FencesDone(ids, failed=ids)))
        assert not of(commands, events.FenceIds), "not at once"
        asked, until = [], driver.now + 100
        while driver.state.cluster.fenced["c"].pending and not asked and driver.now < until:
            driver.now += 0.5
            asked = of(driver.settle(driver.feed(events.Tick())), events.FenceIds)
    assert len(times) == 10
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[0] <= 2
    assert pauses == sorted(pauses)
    assert pauses[-1] > 50
    assert not driver.state.lead.fences


def test_a_fence_that_failed_once_and_then_stood_is_struck_off():
    driver = Driver(*stopped_log(assignment_record("gone", Assignment("bg", (ENTRY0, ENTRY1)))))
    driver.settle(driver.lead())
    ids = (TaskId("c", 0), TaskId("c", 1))
    driver.settle(driver.feed(events.FencesDone(ids, failed=ids)))
    assert driver.state.cluster.fenced["c"].pending == (0, 1)
    driver.now += 6
    driver.settle(driver.feed(events.Tick()))
    driver.settle(driver.feed(events.FencesDone(ids)))
    assert driver.state.cluster.fenced["c"].pending == ()


def test_a_fence_that_fails_does_not_keep_its_task_from_who_starts_it():
    driver = Driver(*stopped_log(assignment_record("gone", Assignment("bg", (ENTRY0, ENTRY1)))))
    driver.settle(driver.lead())
    ids = (TaskId("c", 0), TaskId("c", 1))
    driver.settle(driver.feed(events.FencesDone(ids, failed=ids)))
    resume = events.RequestArrived("r", PutConnector("c", None, target_state="RUNNING"))
    (plan,) = of(driver.settle(driver.feed(resume)), events.PlanTasks)
    driver.settle(driver.feed(events.TasksPlanned("c", "i", plan.config_version, ({}, {}))))
    assert given(driver) == set(ids)
    assert driver.state.cluster.fenced["c"].pending == ()


def test_the_ids_that_a_smaller_set_leaves_over_are_fenced_after_their_tasks_have_stopped():
    driver = Driver(*log(assignment_record("me", Assignment("b1", (ENTRY0, ENTRY1)))))
    driver.settle(driver.lead())
    commands = driver.settle(driver.feed(events.TasksPlanned("c", "i", 1, ({},))))
    fenced = driver.state.cluster.fenced["c"]
    assert (fenced.count, fenced.pending) == (1, (1,))
    assert not of(commands, events.FenceIds)
    stop = task_status_record(TaskStatus("c", 1, "STOPPED", "me", ENTRY1.task_epoch, 1))
    assert of(driver.settle(driver.status(stop)), events.FenceIds) == [events.FenceIds((TaskId("c", 1),))]


def test_lost_tasks_of_a_paused_source_are_fenced_before_they_move():
    """A paused task opens nothing, so its start would not fence the one before."""
    paused = e(connector_record(replace(CONNECTOR, target_state="PAUSED")), 0)
    driver = Driver(*log(paused, assignment_record("gone", Assignment("bg", (ENTRY0, ENTRY1)))))
    assert of(driver.settle(driver.lead()), events.FenceIds) == [events.FenceIds((TaskId("c", 0), TaskId("c", 1)))]
    assert not given(driver)
    driver.settle(driver.feed(events.FencesDone((TaskId("c", 0), TaskId("c", 1)))))
    assert given(driver) == BOTH


def test_a_new_leader_goes_on_with_fences_that_its_predecessor_wrote_down():
    driver = Driver(
        *log(e(fenced_record("c", FencedTasks(2, (7,))), 0), assignment_record("me", Assignment("b1", (ENTRY0,))))
    )
    assert of(driver.settle(driver.lead()), events.FenceIds) == [events.FenceIds((TaskId("c", 7),))]
    assert given(driver) == BOTH


def test_what_was_fenced_of_a_deleted_connector_is_swept():
    driver = Driver(e(leader_record(Leader(0, "x", "bx", "u")), 0), e(fenced_record("old", FencedTasks(2, (1,))), 0))
    driver.settle(driver.lead())
    driver.settle(driver.feed(events.FencesDone((TaskId("old", 1),))))
    assert not driver.state.cluster.fenced


def test_tasks_of_sinks_are_not_fenced():
    sink = replace(CONNECTOR, kind="sink", target_state="PAUSED")
    driver = Driver(*log(e(connector_record(sink), 0), assignment_record("gone", Assignment("bg", (ENTRY0,)))))
    assert not of(driver.settle(driver.lead()), events.FenceIds)
    assert given(driver) == BOTH


def test_entries_that_fit_are_left_as_they_are():
    driver = Driver(*log(assignment_record("me", Assignment("b1", (ENTRY0, ENTRY1)))))
    assert not of(driver.lead(), events.WriteLog)


def test_a_late_answer_to_an_old_split_is_ignored():
    driver = Driver()
    driver.settle(driver.lead())
    (first,) = of(
        driver.settle(driver.feed(events.RequestArrived("r1", PutConnector("c", {}, "source")))), events.PlanTasks
    )
    change = events.RequestArrived("r2", PutConnector("c", {"a": "2"}))
    (second,) = of(driver.settle(driver.feed(change)), events.PlanTasks)
    assert (first.config_version, second.config_version) == (1, 2)
    incarnation = driver.state.cluster.connectors["c"].incarnation
    driver.settle(driver.feed(events.TasksPlanned("c", incarnation, 1, ({"old": "1"},))))
    assert "c" not in driver.state.cluster.task_sets
    driver.settle(driver.feed(events.TasksPlanned("c", incarnation, 2, ({"new": "1"},))))
    assert driver.state.cluster.task_sets["c"].tasks == ({"new": "1"},)


def test_task_epochs_used_up_lead_to_a_new_claim():
    driver = Driver()
    driver.settle(driver.lead())
    driver.state = replace(driver.state, lead=replace(driver.state.lead, counter=(1 << 19) + 1))
    driver.now += 6
    assert of(driver.feed(events.Tick()), events.Claim)


def test_of_a_worker_that_died_neither_presence_nor_lease_stays_in_the_log():
    """Ids that never come back (a pod's, say) would fill it."""
    driver = Driver()
    driver.status(presence_record(OTHER), lease_record("other", "b2", 1), lease_record("long-gone", "b0", 9))
    driver.settle(driver.lead())
    swept = set()
    for n in range(2, 20):
        driver.now += 1.0
        commands = driver.status(lease_record("me", "b1", n)) + driver.feed(events.Tick())
        records = [record for append in of(commands, events.AppendStatus) for record in append.records]
        swept |= {record.key for record in records if record.value is None}
    assert swept == {"worker/other", "lease/other", "lease/long-gone"}
