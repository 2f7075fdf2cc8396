"""Sticky, balanced assignment."""

from __future__ import annotations

from cdcworker.coordinator.core.assign import PlacementFacts, assign
from cdcworker.coordinator.log.task_weight import updated_weight, weight
from cdcworker.coordinator.model import TaskId
from hypothesis import given
from hypothesis import strategies as st

from .call_count import calls

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


def facts(**weights):
    return PlacementFacts(weight={TaskId("c", int(name[1:])): weight for name, weight in weights.items()})


def test_heavy_tasks_count_for_what_they_weigh():
    tasks = [TaskId("c", n) for n in range(5)]
    out = assign(tasks, {}, ["w0", "w1"], facts(t0=16))
    heavy = out[tasks[0]]
    assert [worker for task, worker in out.items() if task != tasks[0]] == [({"w0", "w1"} - {heavy}).pop()] * 4


def test_an_imbalance_of_weights_has_to_be_worth_the_moves():
    tasks = [TaskId("c", n) for n in range(20)]
    holders = {task: f"w{task.task % 2}" for task in tasks}
    out = assign(tasks, holders, ["w0", "w1"], facts(t0=8))
    assert out == holders
    out = assign(tasks, holders, ["w0", "w1"], facts(t0=32))
    moved = [task for task in tasks if out[task] != holders[task]]
    assert 1 <= len(moved) <= 4
    assert {holders[task] for task in moved} == {"w0"}


def test_capacity_is_respected_and_tasks_that_fit_nowhere_are_left_out():
    tasks = [TaskId("c", n) for n in range(6)] + [TaskId("d", 0)]
    out = assign(tasks, {}, ["w0", "w1"], PlacementFacts(capacity={"w0": 2}, allowed={"d": ()}))
    assert sum(worker == "w0" for worker in out.values()) == 4
    assert TaskId("d", 0) not in out


@given(TASKS, WORKERS, st.data())
def test_tasks_are_only_where_they_may_be_and_what_is_held_rests_when_nothing_changed(tasks, workers, data):
    some = st.sets(st.sampled_from(sorted(workers)))
    allowed = data.draw(st.dictionaries(st.sampled_from("abc"), some))
    weight = data.draw(st.dictionaries(st.sampled_from(sorted(tasks) or [TaskId("z", 0)]), st.sampled_from([4, 8, 36])))
    known = PlacementFacts(
        weight=weight, allowed=allowed, capacity=data.draw(st.dictionaries(st.sampled_from("w"), st.just(2)))
    )
    out = assign(tasks, {}, workers, known)
    assert all(out[task] in allowed.get(task.connector, workers) for task in out)
    assert {task for task in tasks if allowed.get(task.connector, workers)} == out.keys()
    again = assign(tasks, out, workers, known)
    assert assign(tasks, again, workers, known) == again


def test_a_decision_about_many_tasks_grows_little_faster_than_they():
    def work(connectors):
        tasks = [TaskId(f"c{i}", n) for i in range(connectors) for n in range(3)]
        first = assign(tasks, {}, [f"w{n}" for n in range(5)])
        return calls(lambda: assign(tasks, first, [f"w{n}" for n in range(6)]))

    assert work(400) < 1.3 * 4 * work(100)


# --- load -----------------------------------------------------------------------------------------------------------


def measured(*cores):
    load = None
    for value in cores:
        load = updated_weight(load, {"cpu_cores": value})
    return load


def test_a_load_climbs_only_when_it_lasts_and_falls_only_far_below():
    assert measured(*[0.1] * 50).level == 0
    assert measured(*[0.1] * 50, 1.0, 1.0).level == 0, "a burst"
    assert measured(*[0.6] * 200).level == 2
    assert measured(*[0.6] * 200, *[0.4, 0.6] * 50).level == 2, "noise"
    assert measured(*[0.6] * 200, *[0.05] * 200).level == 0


def test_a_report_without_a_measure_changes_nothing():
    assert updated_weight(None, {}) is None
    assert updated_weight(None, {"cpu_cores": "much", "events_per_s": None}) is None
    assert updated_weight(None, {"events_per_s": 20_000.0}).mean > 0
    assert weight("sink", None) > weight("source", None)
    assert weight("source", measured(*[0.6] * 200)) > weight("sink", None)


def test_light_tasks_do_not_go_to_and_fro_between_workers_that_are_alike_because_another_has_a_heavy_one():
    heavy, light = TaskId("sink", 0), [TaskId(f"c{n}", 0) for n in range(6)]
    holders = {heavy: "w2"} | dict.fromkeys(light[:4], "w1") | dict.fromkeys(light[4:], "w3")
    facts = PlacementFacts(weight={heavy: 36} | dict.fromkeys(light, 4))
    assert assign([heavy, *light], holders, ["w1", "w2", "w3"], facts) == holders


def test_a_sink_goes_where_one_is_prepared_each_worker_taking_one():
    first, second, source = TaskId("warehouse", 0), TaskId("warehouse", 1), TaskId("shop", 0)
    light = [TaskId(f"c{n}", 0) for n in range(3)]
    holders = dict.fromkeys(light, "w2")
    facts = PlacementFacts(weight={first: 36, second: 36}, prepared={"w2"}, sinks={"warehouse"}, may_balance=False)
    assert assign([first, *light], holders, ["w1", "w2"], facts)[first] == "w2"
    both = assign([first, second, *light], holders, ["w1", "w2"], facts)
    assert {both[first], both[second]} == {"w1", "w2"}
    assert assign([source, *light], holders, ["w1", "w2"], facts)[source] == "w1"
    elsewhere = PlacementFacts(allowed={"warehouse": {"w1"}}, prepared={"w2"}, sinks={"warehouse"})
    assert assign([first], {}, ["w1", "w2"], elsewhere) == {first: "w1"}
