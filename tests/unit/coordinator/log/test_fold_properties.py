"""What holds for the folds of both logs whatever order, repetition or version their records come in."""

from __future__ import annotations

from dataclasses import replace

from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.log.config_fold import (
    connector_record,
    current_record,
    fold,
    fold_all,
    leader_record,
    tombstone,
)
from cdcworker.coordinator.log.status_fold import (
    LeaseReader,
    StatusState,
    fold_status,
    lease_record,
    live_workers,
    presence_record,
    task_key,
    task_status_record,
)
from cdcworker.coordinator.model import ClusterState, Connector, Leader, Presence, TaskId, TaskStatus
from hypothesis import given
from hypothesis import strategies as st

JUDGE = LeaseReader("me", "b1", 0.0, 2.0)
TASK = TaskId("c", 0)
numbers = st.integers(1, 4)
STATES = ("RUNNING", "PAUSED", "FAILED", "RESTARTING", "STOPPED")


def reports():
    """A worker says one thing only under one (epoch, seq), so the state follows from both."""
    return st.builds(lambda e, s: TaskStatus("c", 0, STATES[(e * 7 + s) % 5], f"w{e}", e, s), numbers, numbers)


def order(status: TaskStatus) -> tuple[int, int]:
    return status.task_epoch, status.seq


def told(*statuses: TaskStatus, state: StatusState | None = None) -> TaskStatus | None:
    records = [task_status_record(status) for status in statuses]
    return fold_status(state or StatusState(), records, JUDGE).tasks.get(TASK)


@given(st.lists(reports(), min_size=1), st.randoms())
def test_of_a_tasks_reports_the_newest_epoch_and_then_the_newest_counts_in_whatever_order_they_come(said, random):
    newest = max(said, key=order)
    for _ in range(3):
        random.shuffle(said)
        assert told(*said) == newest


@given(st.lists(reports()), st.lists(reports(), min_size=1), st.integers(0, 20))
def test_a_report_that_comes_again_changes_nothing(before, said, place):
    everything = [*before, *said]
    again = everything[place % len(everything)]
    assert told(*everything, again) == told(*everything)


@given(st.lists(reports()), st.lists(reports()))
def test_a_tombstone_forgets_all_reports_before_it_and_none_after_it(before, after):
    records = [*map(task_status_record, before), tombstone(task_key(TASK)), *map(task_status_record, after)]
    found = fold_status(StatusState(), records, JUDGE).tasks.get(TASK)
    assert found == (max(after, key=order) if after else None)


@given(st.lists(reports(), min_size=1), st.lists(reports(), min_size=1), st.booleans())
def test_reports_fold_the_same_in_one_batch_and_in_two(first, second, with_tombstone):
    head = [*map(task_status_record, first), *([tombstone(task_key(TASK))] if with_tombstone else [])]
    tail = list(map(task_status_record, second))
    halves = fold_status(fold_status(StatusState(), head, JUDGE), tail, JUDGE)
    assert halves.tasks == fold_status(StatusState(), head + tail, JUDGE).tasks


@given(st.lists(st.integers(0, 6), max_size=20))
def test_a_lease_counts_when_it_advances_and_only_then(counts):
    other = Presence("other", "b2", "http://other", "1", "p")
    state = fold_status(StatusState(), [presence_record(other)], JUDGE)
    highest, seen_s = -1, 0.0
    for number, count in enumerate(counts, 1):
        own = replace(JUDGE, mono=float(number))
        state = fold_status(state, [lease_record("me", "b1", number), lease_record("other", "b2", count)], own)
        if count > highest:
            highest, seen_s = count, state.lease_clock_s
        assert (state.leases["other"].count, state.leases["other"].seen_s) == (highest, seen_s)


@given(st.lists(st.integers(0, 6), min_size=1))
def test_late_words_of_a_replaced_process_take_nothing_from_its_successor(counts):
    old, new = (Presence("other", boot, "http://other", "1", "p") for boot in ("b2", "b3"))
    start = [presence_record(old), lease_record("other", "b2", 1), presence_record(new), lease_record("other", "b3", 1)]
    state = fold_status(StatusState(), start, JUDGE)
    late = fold_status(state, [lease_record("other", "b2", count) for count in counts], JUDGE)
    assert late.leases["other"] == state.leases["other"]
    assert live_workers(late, 10.0)["other"] == new


# --- the config log ---------------------------------------------------------------------------------------------------

LEADER = Leader(5, "w", "b", "http://w")
CONNECTOR = Connector("c", "i1", 3, {"a": "b"}, "RUNNING", "source")


def at(record: LogRecord, epoch: int) -> LogRecord:
    return replace(record, headers={"e": str(epoch)})


START = fold_all(ClusterState(), [at(leader_record(LEADER), 5), at(connector_record(CONNECTOR), 5)])

newer = st.builds(
    lambda kind, name, n, gone: LogRecord(f"{kind}/{name}", None if gone else {"n": n, "more": {"x": [n]}}),
    st.sampled_from(["quota", "mood", "policy-v9", "logger"]),
    st.sampled_from(["a", "b/c", "ä"]),
    st.integers(0, 3),
    st.booleans(),
)


@given(st.lists(newer))
def test_kinds_that_this_version_does_not_know_are_kept_word_for_word_until_their_tombstone(records):
    state = fold_all(START, [at(record, 5) for record in records])
    last = {record.key: record.value for record in records}
    assert state.settings == {key: value for key, value in last.items() if value is not None}
    for key, value in last.items():
        assert current_record(state, key) == LogRecord(key, value)
    assert (state.connectors, state.leader, state.epoch) == (START.connectors, LEADER, 5)


stale = st.builds(
    lambda record, epoch: at(record, epoch),
    st.sampled_from(
        [
            tombstone("connector/c"),
            connector_record(replace(CONNECTOR, version=9, config={"a": "zombie"})),
            leader_record(Leader(4, "old", "bo", "http://old")),
            tombstone("leader"),
            LogRecord("assignment/w", {"boot_id": "bo", "tasks": [["c", "i1", 0, 1]]}),
            LogRecord("mood/x", {"n": 1}),
        ]
    ),
    st.integers(0, 4),
)


@given(st.lists(stale))
def test_records_of_older_leaders_change_nothing_but_what_has_to_be_written_again(records):
    state = fold_all(START, records)
    assert replace(state, stale_keys=frozenset()) == START
    assert state.stale_keys == {record.key for record in records}
    for key in sorted(state.stale_keys):
        state = fold(state, at(current_record(state, key), 5))
    assert state == START
