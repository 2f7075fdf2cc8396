"""Sticky, balanced assignment."""

from __future__ import annotations

from cdcworker.coordinator.assign import assign
from cdcworker.coordinator.model import TaskId
from hypothesis import given
from hypothesis import strategies as st

TASKS = st.sets(st.builds(TaskId, st.sampled_from("abcde"), st.integers(0, 7)), max_size=30)
WORKERS = st.sets(st.sampled_from([f"w{n}" for n in range(6)]), min_size=1)


@given(TASKS, WORKERS, st.data())
def test_every_task_has_one_worker_and_loads_differ_by_at_most_one(tasks, workers, data):
    holders = data.draw(
        st.dictionaries(st.sampled_from(sorted(tasks) or [TaskId("z", 0)]), st.sampled_from(["w0", "w5", "gone"]))
    )
    out = assign(tasks, holders, workers)
    assert out.keys() == tasks
    loads = {worker: list(out.values()).count(worker) for worker in workers}
    assert sum(loads.values()) == len(tasks)
    assert max(loads.values()) - min(loads.values()) <= 1


@given(TASKS, WORKERS, st.data())
def test_only_what_balance_needs_changes_hands(tasks, workers, data):
    names = st.sampled_from(sorted(workers))
    holders = {task: data.draw(names) for task in sorted(tasks)}
    moved = sum(holders[task] != worker for task, worker in assign(tasks, holders, workers).items())
    loads = sorted((list(holders.values()).count(w) for w in workers), reverse=True)
    floor, rest = divmod(len(tasks), len(workers))
    targets = [floor + (n < rest) for n in range(len(workers))]
    assert moved == sum(max(0, load - target) for load, target in zip(loads, targets, strict=True))


@given(TASKS, WORKERS)
def test_an_assignment_is_stable_and_does_not_depend_on_the_order(tasks, workers):
    first = assign(sorted(tasks), {}, sorted(workers))
    assert assign(sorted(tasks, reverse=True), {}, sorted(workers, reverse=True)) == first
    assert assign(tasks, first, workers) == first


def test_the_tasks_of_one_connector_are_spread():
    tasks = [TaskId(c, n) for c in "ab" for n in range(3)]
    out = assign(tasks, {}, ["w0", "w1", "w2"])
    for connector in "ab":
        assert len({worker for task, worker in out.items() if task.connector == connector}) == 3


def test_a_joining_worker_takes_tasks_of_several_connectors_first():
    tasks = [TaskId("a", n) for n in range(3)] + [TaskId("b", 0)]
    holders = dict.fromkeys(tasks, "w0")
    out = assign(tasks, holders, ["w0", "w1"])
    moved = [task.connector for task, worker in out.items() if worker == "w1"]
    assert moved.count("a") >= 1
    assert len(moved) == 2


def test_without_workers_nobody_gets_anything():
    assert assign([TaskId("a", 0)], {}, []) == {}
