"""The fold of the status log and the lease clock."""

from __future__ import annotations

from cdcworker.coordinator.log.config_fold import tombstone
from cdcworker.coordinator.log.status_fold import (
    LeaseReader,
    StatusState,
    fold_status,
    lease_record,
    live_workers,
    presence_record,
    task_status_record,
    topics_record,
)
from cdcworker.coordinator.model import Presence, TaskId, TaskStatus

ME = Presence("me", "b1", "http://me", "1", "p")
OTHER = Presence("other", "b2", "http://other", "1", "p", 2, {"zone": "z"}, True)


def fold(state, *records, mono=0.0):
    return fold_status(state, records, LeaseReader("me", "b1", mono, 2.0))


def started():
    return fold(StatusState(), presence_record(ME), presence_record(OTHER), lease_record("me", "b1", 1))


def test_presence_folds_to_the_value_it_was_made_from():
    assert started().presence == {"me": ME, "other": OTHER}
    gone = fold(started(), tombstone("worker/other"))
    assert gone.presence == {"me": ME}
    assert "other" not in gone.leases


def test_a_lease_that_does_not_advance_lapses_after_the_session():
    state = started()
    for second in range(1, 13):
        state = fold(state, lease_record("me", "b1", second + 1), mono=float(second))
        assert ("other" in live_workers(state, 10.0)) == (second <= 10)
    back = fold(state, lease_record("other", "b2", 1), mono=12.0)
    assert "other" in live_workers(back, 10.0)


def test_leases_do_not_age_while_the_own_one_does_not_advance():
    state = fold(started(), lease_record("other", "b2", 5), mono=3.0)
    state = fold(state, mono=500.0)
    assert "other" in live_workers(state, 10.0)
    state = fold(state, lease_record("me", "b1", 2), mono=501.0)
    assert "other" in live_workers(state, 10.0), "one own advance adds a bounded time, however long the silence was"


def test_a_repeated_lease_record_is_no_advance():
    state = fold(started(), lease_record("other", "b2", 5))
    for second in range(1, 13):
        renewed = (lease_record("me", "b1", second + 1), lease_record("other", "b2", 5))
        state = fold(state, *renewed, mono=float(second))
    assert "other" not in live_workers(state, 10.0)


def test_the_lease_of_a_replaced_process_does_not_keep_its_successor_alive():
    new = Presence("other", "b3", "http://other", "1", "p")
    state = fold(started(), presence_record(new))
    for second in range(1, 13):
        renewed = (lease_record("me", "b1", second + 1), lease_record("other", "b2", second))
        state = fold(state, *renewed, mono=float(second))
    assert "other" not in live_workers(state, 10.0)


def test_a_restarted_worker_is_alive_at_once():
    state = started()
    for second in range(1, 13):
        state = fold(state, lease_record("me", "b1", second + 1), mono=float(second))
    state = fold(state, presence_record(Presence("other", "b3", "u", "1", "p")), mono=12.0)
    assert live_workers(state, 10.0)["other"].boot_id == "b3"


def status(epoch, seq, state="RUNNING"):
    return TaskStatus("a/b", 3, state, "w", epoch, seq, {"code": "x"} if state == "FAILED" else None, {"lag_s": 1})


def test_a_late_report_of_an_older_owner_never_covers_the_newer_ones():
    for stale in (status(6, 99, "STOPPED"), status(7, 1, "FAILED")):
        state = fold(StatusState(), task_status_record(status(7, 2)), task_status_record(stale))
        assert state.tasks == {TaskId("a/b", 3): status(7, 2)}
    newer = fold(StatusState(), task_status_record(status(7, 2)), task_status_record(status(8, 1, "FAILED")))
    assert newer.tasks[TaskId("a/b", 3)] == status(8, 1, "FAILED")


def test_statuses_and_topics_are_removed_by_tombstones():
    state = fold(StatusState(), task_status_record(status(1, 1)), topics_record(TaskId("a/b", 3), {"t2", "t1"}))
    assert state.topics == {TaskId("a/b", 3): frozenset({"t1", "t2"})}
    state = fold(state, tombstone("task/a/b/3"), tombstone("topics/a/b/3"))
    assert (state.tasks, state.topics) == ({}, {})


def test_records_that_cannot_be_read_are_skipped():
    broken = [tombstone("task/x"), tombstone("what"), presence_record(ME).__class__("worker/x", {"no": 1})]
    state = fold(started(), *broken)
    assert state.presence == started().presence


def test_leases_of_others_do_not_make_the_clock_run():
    third = Presence("third", "b3", "http://third", "1", "p")
    state = fold(started(), presence_record(third))
    for second in range(1, 30):
        state = fold(state, lease_record("other", "b2", second), mono=float(second))
    assert "third" in live_workers(state, 10.0)


def test_the_lease_of_one_that_is_not_there_ends_with_its_tombstone_and_that_of_one_that_is_does_not():
    there = fold(started(), lease_record("other", "b2", 1))
    assert "other" in fold(there, tombstone("lease/other")).leases
    gone = fold(there, tombstone("worker/other"), lease_record("other", "b2", 2))
    assert "other" in gone.leases
    assert "other" not in fold(gone, tombstone("lease/other")).leases
