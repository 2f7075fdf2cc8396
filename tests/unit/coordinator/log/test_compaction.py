"""A log that compaction has thinned, at whatever moment, folds to the same state as the whole log."""

from __future__ import annotations

from dataclasses import replace

from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.log.config_fold import (
    assignment_record,
    command_record,
    connector_record,
    deadline_record,
    fenced_record,
    fold_all,
    journal_record,
    leader_record,
    task_set_record,
    tombstone,
)
from cdcworker.coordinator.log.status_fold import (
    LeaseReader,
    StatusState,
    fold_status,
    lease_record,
    presence_record,
    task_status_record,
    topics_record,
)
from cdcworker.coordinator.model import (
    AssignedTask,
    Assignment,
    ClusterState,
    Command,
    Connector,
    FencedTasks,
    JournalEntry,
    Leader,
    Presence,
    ReturnDeadline,
    TaskId,
    TaskMove,
    TaskSet,
    TaskStatus,
)
from hypothesis import given, settings
from hypothesis import strategies as st

names = st.sampled_from(["a", "b"])
numbers = st.integers(1, 5)
incarnations = st.sampled_from(["i1", "i2"])
entries = st.builds(AssignedTask, names, incarnations, st.integers(0, 2), numbers)
KEYS = ("connector/a", "tasks/a", "assignment/w", "deadline/worker/w", "fenced/a", "command/c1", "logger/x", "tasks/b")


def connectors(name, incarnation, version):
    return connector_record(Connector(name, incarnation, version, {"v": str(version)}, "RUNNING", "source"))


def task_sets(name, incarnation, epoch):
    return task_set_record(name, TaskSet(incarnation, 1, ({},) * epoch, task_epoch=epoch))


def written() -> st.SearchStrategy[LogRecord]:
    """One record as a leader writes it, unreadable ones and those of unknown kinds among them."""
    return st.one_of(
        st.builds(connectors, names, incarnations, numbers),
        st.builds(task_sets, names, incarnations, numbers),
        st.builds(lambda boot, held: assignment_record("w", Assignment(boot, tuple(held))), names, st.lists(entries)),
        st.builds(
            lambda held: deadline_record("worker/w", ReturnDeadline("b", "crash", 5, tuple(held))), st.lists(entries)
        ),
        st.builds(lambda name, n: fenced_record(name, FencedTasks(n, (n,), "i1", n)), names, numbers),
        st.builds(lambda n: journal_record(JournalEntry(n, n, "x", (TaskMove("a", 0, "", "w", "x"),))), numbers),
        st.builds(lambda n: command_record(Command(f"c{n % 2}", "restart", {"n": n}, n)), numbers),
        st.builds(lambda n: LogRecord("logger/x", {"level": str(n)}), numbers),
        st.builds(lambda n: LogRecord("connector/a", {"broken": n}), numbers),
        st.sampled_from(KEYS).map(tombstone),
    )


@st.composite
def histories(draw) -> list[LogRecord]:
    """What leaders of rising epochs wrote: the proof keeps older ones from writing at all."""
    out, epoch = [], 0
    for record in draw(st.lists(st.one_of(written(), st.just(None)), max_size=40)):
        if record is None or epoch == 0:
            epoch += 1
            out.append((leader_record(Leader(epoch, f"w{epoch}", f"b{epoch}", "u")), epoch))
        if record is not None:
            out.append((record, epoch))
    return [replace(record, headers={"e": str(e)}, offset=n) for n, (record, e) in enumerate(out)]


def compacted(records: list[LogRecord], upto: int, drop_tombstones: bool) -> list[LogRecord]:
    """As the broker does it: of the closed part only each key's last record, tombstones gone after their time."""
    head, tail = records[:upto], records[upto:]
    last = {record.key: record.offset for record in head}
    kept = [r for r in head if r.offset == last[r.key] and not (drop_tombstones and r.value is None)]
    return kept + tail


@settings(max_examples=100)
@given(histories(), st.data())
def test_a_compacted_log_folds_to_the_same_state(records, data):
    whole = fold_all(ClusterState(), records)
    # The newest record is never removed: the closed part ends before it.
    upto = data.draw(st.integers(0, max(0, len(records) - 1)))
    for drop in (False, True):
        thinned = compacted(records, upto, drop)
        assert fold_all(ClusterState(), thinned) == whole
        assert fold_all(ClusterState(), compacted(thinned, max(0, len(thinned) - 1), drop)) == whole


@settings(max_examples=80)
@given(histories(), st.data())
def test_a_reader_that_had_read_a_part_before_compaction_gets_to_the_same_state(records, data):
    """As long as no tombstone was removed behind its back: that is why a reader that was away long reads all again."""
    read = data.draw(st.integers(0, len(records)))
    upto = data.draw(st.integers(0, max(0, len(records) - 1)))
    rest = [record for record in compacted(records, upto, False) if record.offset >= read]
    assert fold_all(fold_all(ClusterState(), records[:read]), rest) == fold_all(ClusterState(), records)


# --- status log -----------------------------------------------------------------------------------------------------

JUDGE = LeaseReader("me", "b0", 0.0, 2.0)


def reported() -> st.SearchStrategy[LogRecord]:
    workers = st.sampled_from(["w1", "w2"])
    boots = st.sampled_from(["b1", "b2"])
    return st.one_of(
        st.builds(lambda w, b: presence_record(Presence(w, b, "u", "1", "p")), workers, boots),
        st.builds(lambda n, e: topics_record(TaskId("a", n), {f"t{e}"}), st.integers(0, 1), numbers),
        st.sampled_from(["worker/w1", "topics/a/0", "former_topics/a/0"]).map(tombstone),
        st.builds(lambda n, e: LogRecord(f"former_topics/a/{n}", {"topics": [f"t{e}"]}), st.integers(0, 1), numbers),
    )


@settings(max_examples=80)
@given(st.lists(reported(), max_size=30), st.data())
def test_presence_and_topics_fold_to_the_same_from_a_compacted_status_log(records, data):
    records = [replace(record, offset=n) for n, record in enumerate(records)]
    whole = fold_status(StatusState(), records, JUDGE)
    thinned = compacted(records, data.draw(st.integers(0, max(0, len(records) - 1))), data.draw(st.booleans()))
    found = fold_status(StatusState(), thinned, JUDGE)
    assert (found.presence, found.topics) == (whole.presence, whole.topics)
    assert found.former_topics == whole.former_topics


@settings(max_examples=80)
@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20), st.data())
def test_the_reports_of_successive_owners_fold_to_the_same_from_a_compacted_status_log(orders, data):
    """Owners come one after another: their epochs rise, and within one the numbers do."""
    rising = sorted(set(orders))
    reports = [task_status_record(TaskStatus("a", 0, "RUNNING", f"w{e}", e, s)) for e, s in rising]
    records = [replace(record, offset=n) for n, record in enumerate([*reports, lease_record("w1", "b1", 3)])]
    thinned = compacted(records, data.draw(st.integers(0, len(records) - 1)), True)
    assert fold_status(StatusState(), thinned, JUDGE).tasks == fold_status(StatusState(), records, JUDGE).tasks
