"""The fold of the config log."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.log.config_fold import (
    assignment_record,
    command_record,
    connector_record,
    current_record,
    deadline_record,
    fenced_record,
    fold,
    fold_accepted,
    fold_all,
    journal_record,
    leader_record,
    should_run,
    task_epoch,
    task_set_of,
    task_set_record,
    tombstone,
)
from cdcworker.coordinator.memory import MemoryTopic
from cdcworker.coordinator.model import (
    AssignedTask,
    Assignment,
    ClusterState,
    Command,
    Connector,
    FencedTasks,
    JournalEntry,
    Leader,
    ReturnDeadline,
    TaskMove,
    TaskSet,
)
from hypothesis import given
from hypothesis import strategies as st

CONNECTOR = Connector("c", "i1", 3, {"a": "b"}, "PAUSED", "sink", {"team": "x"}, 5, 6, 2)
TASKS = TaskSet("i1", 2, ({"t": "0"}, {"t": "1"}), {"code": "x"}, 77)
ASSIGNMENT = Assignment("b1", (AssignedTask("c", "i1", 0, 80),), (AssignedTask("c", "i1", 1, 70),), "why")
COMMAND = Command("id", "restart", {"connector": "c"}, 99)
LEADER = Leader(4, "w", "b", "http://w", 9, "w-1")
DEADLINE = ReturnDeadline("b1", "restart", 60_000, (AssignedTask("c", "i1", 0, 80),))
FENCED = FencedTasks(2, (3, 4), "i1", 77)
ENTRY = JournalEntry(300, 5, "drain", (TaskMove("c", 0, "w", "", "drain"), TaskMove("c", 1, "", "v", "new task")))


def at(record: LogRecord, epoch: int, offset: int = -1) -> LogRecord:
    return replace(record, headers={"e": str(epoch)}, offset=offset)


def test_every_kind_folds_to_the_value_it_was_made_from():
    records = [
        leader_record(LEADER),
        connector_record(CONNECTOR),
        task_set_record("c", TASKS),
        assignment_record("w", ASSIGNMENT),
        command_record(COMMAND),
        deadline_record("worker/w", DEADLINE),
        fenced_record("c", FENCED),
        journal_record(ENTRY),
    ]
    state = fold_all(ClusterState(), [at(r, 4, n) for n, r in enumerate(records)])
    assert state == ClusterState(
        leader=LEADER,
        connectors={"c": CONNECTOR},
        task_sets={"c": TASKS},
        assignments={"w": ASSIGNMENT},
        deadlines={"worker/w": DEADLINE},
        fenced={"c": FENCED},
        journal={"44": ENTRY},
        commands={"id": COMMAND},
        epoch=4,
        version=8,
    )
    for record in records:
        assert current_record(state, record.key) == record


def test_a_record_of_an_older_epoch_is_ignored_and_its_key_remembered_until_it_is_written_again():
    state = fold_all(ClusterState(), [at(leader_record(LEADER), 4, 0), at(connector_record(CONNECTOR), 4, 1)])
    stale = fold(state, at(tombstone("connector/c"), 3, 2))
    assert stale.connectors == {"c": CONNECTOR}
    assert stale.stale_keys == {"connector/c"}
    assert (stale.epoch, stale.version) == (4, 3)
    healed = fold(stale, at(current_record(stale, "connector/c"), 4, 3))
    assert healed.stale_keys == frozenset()
    assert healed.connectors == {"c": CONNECTOR}


def test_a_record_without_an_epoch_counts_only_in_a_log_that_has_none():
    assert fold(ClusterState(), connector_record(CONNECTOR)).connectors
    assert not fold(ClusterState(epoch=1), connector_record(CONNECTOR)).connectors
    assert not fold(ClusterState(epoch=1), replace(connector_record(CONNECTOR), headers={"e": "x"})).connectors


def test_a_second_claim_of_an_epoch_is_not_the_leader():
    state = fold(ClusterState(), at(leader_record(LEADER), 4))
    other = fold(state, at(leader_record(replace(LEADER, boot_id="other")), 4))
    assert other.leader == LEADER
    assert fold(state, at(leader_record(LEADER), 4)).stale_keys == frozenset()


def test_only_records_that_counted_are_given_back():
    new, old = at(connector_record(CONNECTOR), 4), at(tombstone("connector/c"), 3)
    assert fold_accepted(ClusterState(), [new, old])[1] == [new]


def test_unknown_kinds_are_kept_and_removed_by_their_tombstone():
    state = fold(ClusterState(), LogRecord("logger/x", {"level": "DEBUG"}))
    assert state.settings == {"logger/x": {"level": "DEBUG"}}
    assert current_record(state, "logger/x").value == {"level": "DEBUG"}
    assert fold(state, tombstone("logger/x")).settings == {}


def test_an_unreadable_value_replaces_the_readable_one_and_is_kept_as_it_is():
    state = fold(ClusterState(), connector_record(CONNECTOR))
    broken = fold(state, LogRecord("connector/c", {"what": 1}))
    assert broken.settings == {"connector/c": {"what": 1}}
    assert broken.connectors["c"].refused
    assert broken.connectors["c"].config == {}
    again = fold(broken, connector_record(CONNECTOR))
    assert (again.connectors, again.settings) == ({"c": CONNECTOR}, {})


@pytest.mark.parametrize(
    "record",
    [
        leader_record(LEADER),
        connector_record(CONNECTOR),
        task_set_record("c", TASKS),
        assignment_record("w", ASSIGNMENT),
        command_record(COMMAND),
        deadline_record("worker/w", DEADLINE),
        fenced_record("c", FENCED),
        journal_record(ENTRY),
    ],
    ids=lambda record: record.key,
)
def test_fields_of_a_newer_version_are_ignored_and_kept_when_the_key_is_written_again(record):
    newer = replace(record, value={**(record.value or {}), "mood": "good"})
    state = fold(ClusterState(), newer)
    assert not state.settings
    assert current_record(state, record.key) == newer


def test_entries_of_a_newer_version_may_be_longer():
    value = {"boot_id": "b", "tasks": [["c", "i1", 0, 80, "new"]]}
    state = fold(ClusterState(), LogRecord("assignment/w", value))
    assert state.assignments["w"].tasks == (AssignedTask("c", "i1", 0, 80),)


def test_a_task_set_of_another_incarnation_is_none():
    state = fold_all(ClusterState(), [connector_record(CONNECTOR), task_set_record("c", TASKS)])
    assert task_set_of(state, "c") == TASKS
    born_again = fold(state, connector_record(replace(CONNECTOR, incarnation="i2")))
    assert task_set_of(born_again, "c") is None
    assert task_set_of(fold(state, tombstone("connector/c")), "c") is None


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (AssignedTask("c", "i1", 0, 77), True),
        (AssignedTask("c", "i1", 0, 76), False),
        (AssignedTask("c", "i1", 2, 99), False),
        (AssignedTask("c", "i2", 0, 99), False),
        (AssignedTask("d", "i1", 0, 99), False),
    ],
)
def test_an_entry_should_run_when_it_belongs_to_the_present_set(entry, expected):
    state = fold_all(ClusterState(), [connector_record(CONNECTOR), task_set_record("c", TASKS)])
    assert should_run(state, entry) is expected
    stopped = fold(state, connector_record(replace(CONNECTOR, target_state="STOPPED")))
    assert not should_run(stopped, entry)


def test_task_epochs_of_a_later_leader_are_higher():
    assert task_epoch(2, 0) > task_epoch(1, (1 << 20) - 1)
    with pytest.raises(ValueError, match="counter"):
        task_epoch(1, 1 << 20)


KEYS = ["leader", "connector/a", "connector/b", "tasks/a", "assignment/w", "command/1", "logger/x", "deadline/a"]


@st.composite
def logs(draw):
    """A log as leaders write it: epochs rise, each claim first; then a time at which compaction runs."""
    topic, epoch = MemoryTopic(), 0
    for _ in range(draw(st.integers(0, 30))):
        if epoch == 0 or draw(st.integers(0, 6)) == 0:
            epoch += 1
            topic.append([at(leader_record(replace(LEADER, epoch=epoch, boot_id=f"b{epoch}")), epoch)])
            continue
        kind, _, name = draw(st.sampled_from(KEYS[1:])).partition("/")
        n = draw(st.integers(1, 5))
        value = {
            "connector": connector_record(replace(CONNECTOR, name=name, version=n, config_version=n)),
            "tasks": task_set_record(name, replace(TASKS, config_version=n)),
            "assignment": assignment_record(name, replace(ASSIGNMENT, reason=str(n))),
            "command": command_record(replace(COMMAND, id=name, expires_ms=n)),
            "logger": LogRecord(f"logger/{name}", {"n": n}),
            "deadline": LogRecord(f"deadline/{name}", {"n": n}),
        }[kind]
        if draw(st.booleans()) and draw(st.booleans()):
            value = tombstone(value.key)
        topic.append([at(value, epoch)])
    return topic


@given(logs(), st.integers(0, 30), st.booleans())
def test_a_compacted_log_folds_to_the_same_state(topic, cut, drop_tombstones):
    whole = fold_all(ClusterState(), topic.records)
    compacted = MemoryTopic(topic.records[:cut], topic.records[cut].offset if cut < topic.end else topic.end)
    compacted.compact(drop_tombstones)
    rest = topic.records[cut:]
    assert fold_all(ClusterState(), [*compacted.records, *rest]) == whole


@given(logs())
def test_folding_in_any_cut_gives_the_same_state(topic):
    state = ClusterState()
    for record in topic.records:
        before = state
        state = fold(before, record)
        assert before is not state
    assert state == fold_all(ClusterState(), topic.records)
    middle = len(topic.records) // 2
    half = fold_all(ClusterState(), topic.records[:middle])
    assert fold_all(half, topic.records[middle:]) == state
