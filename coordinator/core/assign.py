"""Task assignment: sticky, weighted, with each connector's tasks spread over the workers. A pure function in O(n log
n)."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from cdcworker.coordinator.log.task_weight import UNIT
from cdcworker.coordinator.model import TaskId

BAND = UNIT / 2
"""Workers whose loads differ by less count as equal for a free task: it goes where its connector has fewest tasks."""
TRIGGER_SHARE = 0.1
"""When weights differ, tasks move only if the fullest worker is above the emptiest by this share of the mean load."""
_EPSILON = 1e-9


Member = tuple[str, str]
"""A worker id and the boot id of its process."""


@dataclass(frozen=True, slots=True)
class StableMembers:
    """The workers that the last decision spread tasks over, and since when one of an earlier decision is missing.

    While a worker is missing it is likely to come back, so tasks that are running stay where they are for a while.
    """

    members: frozenset[Member] = frozenset()
    missing_since: float | None = None
    """The leader's monotonic clock, in seconds, when the last worker was lost; None when nobody is missing."""

    def updated(self, members: Collection[Member], mono: float) -> StableMembers:
        """Returns the members as of this decision. A worker that joins completes them: it gets its share at once.

        A new leader does not know who was there before it, so it takes a worker to be missing.
        """
        present = frozenset(members)
        if self.members and present - self.members:
            return StableMembers(present)
        return self if present == self.members else StableMembers(present, mono)

    def may_balance(self, delay_s: float, mono: float) -> bool:
        """Tells whether running tasks may move for an even spread: nobody is missing, or for `delay_s` already."""
        return self.missing_since is None or mono - self.missing_since >= delay_s


@dataclass(frozen=True, slots=True)
class PlacementFacts:
    """What an assignment depends on besides ids. Missing entries mean capacity 1, the weight of a light task, and that
    all workers are allowed."""

    capacity: Mapping[str, int] = field(default_factory=dict)
    weight: Mapping[TaskId, int] = field(default_factory=dict)
    allowed: Mapping[str, Collection[str]] = field(default_factory=dict)
    """The workers that can run a connector's tasks, by connector."""
    prepared: Collection[str] = ()
    """Workers with a warm standby, each for one sink task."""
    sinks: Collection[str] = ()
    """The sink connectors."""
    may_balance: bool = True
    """Tells whether running tasks may move for an even spread."""


def assign(
    tasks: Iterable[TaskId],
    holders: Mapping[TaskId, str],
    workers: Collection[str],
    facts: PlacementFacts | None = None,
) -> dict[TaskId, str]:
    """Returns a worker for every task that can run somewhere; as few running tasks as possible move.

    `holders` names the worker that runs a task now; a holder that is not among `workers` is ignored. If all tasks weigh
    the same, loads per capacity end as even as whole tasks allow; otherwise an imbalance has to be worth the moves. The
    result is the same on every worker and does not depend on the order of the arguments.
    """
    if not workers:
        return {}
    plan = _AssignmentPlan(workers, facts or PlacementFacts())
    free = []
    for task in sorted(set(tasks)):
        holder = holders.get(task)
        if holder is not None and plan.fits(task, holder):
            plan.place(task, holder)
        else:
            free.append(task)
    free.sort(key=lambda task: (-plan.weight(task), task))
    for task in free:
        worker = plan.best_for(task)
        if worker is not None:
            plan.place(task, worker)
            if task.connector in plan.facts.sinks:
                plan.prepared.discard(worker)
    if plan.facts.may_balance:
        plan.balance()
    return plan.assigned


class _AssignmentPlan:
    """An assignment while it is made: who gets which task, and the loads that follow."""

    def __init__(self, workers: Collection[str], facts: PlacementFacts) -> None:
        self.facts = facts
        self.workers = sorted(workers)
        self.assigned: dict[TaskId, str] = {}
        self.capacity = {worker: max(1, facts.capacity.get(worker, 1)) for worker in self.workers}
        self.load: dict[str, float] = dict.fromkeys(self.workers, 0.0)
        """The sum of a worker's task weights, divided by its capacity."""
        self.connectors: dict[str, Counter[str]] = {worker: Counter() for worker in self.workers}
        self.prepared = {*facts.prepared}

    def weight(self, task: TaskId) -> int:
        return self.facts.weight.get(task, UNIT)

    def fits(self, task: TaskId, worker: str) -> bool:
        allowed = self.facts.allowed.get(task.connector)
        return worker in self.capacity and (allowed is None or worker in allowed)

    def place(self, task: TaskId, worker: str) -> None:
        self.assigned[task] = worker
        self.load[worker] += self.weight(task) / self.capacity[worker]
        self.connectors[worker][task.connector] += 1

    def remove(self, task: TaskId) -> None:
        worker = self.assigned.pop(task)
        self.load[worker] -= self.weight(task) / self.capacity[worker]
        self.connectors[worker][task.connector] -= 1

    def best_for(self, task: TaskId) -> str | None:
        """Returns, of the least loaded workers, the one with the fewest tasks of the connector; None if none can run
        it.

        A sink task goes to a worker with a warm standby if there is one: elsewhere it would start many times slower.
        """
        weight, allowed = self.weight(task), self.facts.allowed.get(task.connector)
        able = self.workers if allowed is None else [worker for worker in self.workers if worker in allowed]
        if task.connector in self.facts.sinks:
            able = [worker for worker in able if worker in self.prepared] or able
        if not able:
            return None
        after = {worker: self.load[worker] + weight / self.capacity[worker] for worker in able}
        limit = min(after.values()) + BAND
        near = [worker for worker in able if after[worker] < limit]
        return min(near, key=lambda w: (self.connectors[w][task.connector], after[w], w))

    # --- balancing --------------------------------------------------------------------------------------------------

    def balance(self) -> None:
        """Moves tasks from full workers to empty ones while that lowers the load of the fuller of the two.

        The gap between these two counts, not the one to the mean: beside a worker with a single heavy task all others
        stay far below the mean, and moving light tasks between them helps nobody.
        """
        gap = self._tolerance()
        if len(self.workers) < 2 or self._imbalance() <= gap:
            return
        candidates = _MoveCandidates(self)
        if self._move_one(candidates, gap):
            while self._move_one(candidates, gap / 2):
                pass

    def _tolerance(self) -> float:
        """Returns the gap between a fuller and an emptier worker up to which nothing is moved."""
        if len({self.weight(task) for task in self.assigned}) <= 1:
            return 0.0
        mean = sum(self.load.values()) / len(self.load)
        return max(2.0 * UNIT, TRIGGER_SHARE * mean)

    def _imbalance(self) -> float:
        return max(self.load.values()) - min(self.load.values())

    def _move_one(self, candidates: _MoveCandidates, least: float) -> bool:
        """Moves one task between two workers that are more than `least` apart; tries the fullest and the emptiest
        first."""
        by_load = sorted(self.workers, key=lambda w: (self.load[w], w))
        for source in reversed(by_load):
            for target in by_load:
                if target == source or self.load[target] >= self.load[source] - least - _EPSILON:
                    break
                task = candidates.pick(source, target)
                if task is not None:
                    self.remove(task)
                    self.place(task, target)
                    candidates.put(task, target)
                    return True
        return False

    def gain(self, weight: int, source: str, target: str) -> float:
        """Returns by how much the load of the fuller worker falls when a task of this weight moves."""
        before = self.load[source]
        after = max(before - weight / self.capacity[source], self.load[target] + weight / self.capacity[target])
        return before - after

    def excess(self, connector: str, source: str, target: str) -> int:
        return self.connectors[source][connector] - self.connectors[target][connector]


class _MoveCandidates:
    """The tasks that could move, by worker and weight; for each pair of workers a heap ordered by the gain in spread.

    The gain of a pair only falls while tasks move from full to empty, so an outdated entry is pushed again with its
    present gain.
    """

    def __init__(self, plan: _AssignmentPlan) -> None:
        self._plan = plan
        self._tasks: dict[str, dict[int, set[TaskId]]] = {worker: defaultdict(set) for worker in plan.workers}
        for task, worker in plan.assigned.items():
            self._tasks[worker][plan.weight(task)].add(task)
        self._heaps: dict[tuple[str, str, int], list[tuple[int, TaskId]]] = {}

    def put(self, task: TaskId, worker: str) -> None:
        weight = self._plan.weight(task)
        self._tasks[worker][weight].add(task)
        for (source, target, heavy), heap in self._heaps.items():
            if source == worker and heavy == weight and self._plan.fits(task, target):
                heapq.heappush(heap, self._entry(task, source, target))

    def pick(self, source: str, target: str) -> TaskId | None:
        """Removes and returns the best task to move; None when no move helps."""
        plan = self._plan
        weights = [weight for weight, tasks in self._tasks[source].items() if tasks]
        gains = {weight: plan.gain(weight, source, target) for weight in weights}
        for weight in sorted(weights, key=lambda w: (-gains[w], w)):
            if gains[weight] <= _EPSILON:
                return None
            task = self._best(source, target, weight)
            if task is not None:
                self._tasks[source][weight].discard(task)
                return task
        return None

    def _best(self, source: str, target: str, weight: int) -> TaskId | None:
        heap = self._heap(source, target, weight)
        held = self._tasks[source][weight]
        while heap:
            _, task = entry = heapq.heappop(heap)
            if task not in held:
                continue
            now = self._entry(task, source, target)
            if now <= entry:
                return task
            heapq.heappush(heap, now)
        return None

    def _heap(self, source: str, target: str, weight: int) -> list[tuple[int, TaskId]]:
        key = (source, target, weight)
        if key not in self._heaps:
            fits = (task for task in self._tasks[source][weight] if self._plan.fits(task, target))
            heap = [self._entry(task, source, target) for task in fits]
            heapq.heapify(heap)
            self._heaps[key] = heap
        return self._heaps[key]

    def _entry(self, task: TaskId, source: str, target: str) -> tuple[int, TaskId]:
        return (-self._plan.excess(task.connector, source, target), task)
