"""Which worker runs which task: sticky, weighted, one connector's tasks spread; a pure function in O(n log n)."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from cdcworker.coordinator.load import UNIT
from cdcworker.coordinator.model import TaskId

BAND = UNIT / 2
"""Workers whose load differs by less are alike to a free task: it goes where its connector has fewest tasks."""
TRIGGER_SHARE = 0.1
"""Where weights differ, tasks move only when the fullest worker is so much of the mean above the emptiest."""
_EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known beyond names. Missing entries: capacity 1, weight of a light task, every worker allowed."""

    capacity: Mapping[str, int] = field(default_factory=dict)
    weight: Mapping[TaskId, int] = field(default_factory=dict)
    allowed: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Workers that can run a connector's tasks, by connector."""
    prepared: Collection[str] = ()
    """Workers of which each can take over one task of a sink at once."""
    sinks: Collection[str] = ()
    """Connectors for which that matters."""
    level: bool = True
    """Whether held tasks may move at all for an even spread."""


def assign(
    tasks: Iterable[TaskId], holders: Mapping[TaskId, str], workers: Collection[str], facts: Facts | None = None
) -> dict[TaskId, str]:
    """A worker for every task that fits somewhere; as few held tasks as possible change hands.

    `holders` says who holds a task now; a holder that is not among `workers` does not count. Loads per capacity end
    as even as whole tasks allow when all weigh the same; otherwise an imbalance has to be worth the moves. Same
    input, same output, on every worker: the order of the arguments does not matter.
    """
    if not workers:
        return {}
    plan = _Plan(workers, facts or Facts())
    free = []
    for task in sorted(set(tasks)):
        holder = holders.get(task)
        if holder is not None and plan.fits(task, holder):
            plan.give(task, holder)
        else:
            free.append(task)
    free.sort(key=lambda task: (-plan.weight(task), task))
    for task in free:
        worker = plan.best_for(task)
        if worker is not None:
            plan.give(task, worker)
            if task.connector in plan.facts.sinks:
                plan.prepared.discard(worker)
    if plan.facts.level:
        plan.level()
    return plan.of


class _Plan:
    def __init__(self, workers: Collection[str], facts: Facts) -> None:
        self.facts = facts
        self.workers = sorted(workers)
        self.of: dict[TaskId, str] = {}
        self.capacity = {worker: max(1, facts.capacity.get(worker, 1)) for worker in self.workers}
        self.load: dict[str, float] = dict.fromkeys(self.workers, 0.0)
        """Sum of weights per capacity."""
        self.connectors: dict[str, Counter[str]] = {worker: Counter() for worker in self.workers}
        self.prepared = {*facts.prepared}

    def weight(self, task: TaskId) -> int:
        return self.facts.weight.get(task, UNIT)

    def fits(self, task: TaskId, worker: str) -> bool:
        allowed = self.facts.allowed.get(task.connector)
        return worker in self.capacity and (allowed is None or worker in allowed)

    def give(self, task: TaskId, worker: str) -> None:
        self.of[task] = worker
        self.load[worker] += self.weight(task) / self.capacity[worker]
        self.connectors[worker][task.connector] += 1

    def take(self, task: TaskId) -> None:
        worker = self.of.pop(task)
        self.load[worker] -= self.weight(task) / self.capacity[worker]
        self.connectors[worker][task.connector] -= 1

    def best_for(self, task: TaskId) -> str | None:
        """Of the least loaded workers the one with the fewest tasks of the same connector; for a sink of those only that
        are prepared: it would stand still for many times longer elsewhere."""
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

    # --- levelling --------------------------------------------------------------------------------------------------

    def level(self) -> None:
        """Move tasks from full workers to empty ones while that makes the fuller of the two less full.

        What counts is the gap between those two: where one worker has a single heavy task, the others are far below it
        for good, and light tasks that go to and fro between them help nobody.
        """
        gap = self._tolerance()
        if len(self.workers) < 2 or self._gap() <= gap:
            return
        stock = _Stock(self)
        if self._move_one(stock, gap):
            while self._move_one(stock, gap / 2):
                pass

    def _tolerance(self) -> float:
        """The gap between a fuller and an emptier worker that nothing is moved for."""
        if len({self.weight(task) for task in self.of}) <= 1:
            return 0.0
        mean = sum(self.load.values()) / len(self.load)
        return max(2.0 * UNIT, TRIGGER_SHARE * mean)

    def _gap(self) -> float:
        return max(self.load.values()) - min(self.load.values())

    def _move_one(self, stock: _Stock, least: float) -> bool:
        """Between two workers that are further apart than `least`, the fullest and the emptiest first."""
        by_load = sorted(self.workers, key=lambda w: (self.load[w], w))
        for giver in reversed(by_load):
            for taker in by_load:
                if taker == giver or self.load[taker] >= self.load[giver] - least - _EPSILON:
                    break
                task = stock.pick(giver, taker)
                if task is not None:
                    self.take(task)
                    self.give(task, taker)
                    stock.put(task, taker)
                    return True
        return False

    def gain(self, weight: int, giver: str, taker: str) -> float:
        """By how much the fuller of the two gets less full."""
        before = self.load[giver]
        after = max(before - weight / self.capacity[giver], self.load[taker] + weight / self.capacity[taker])
        return before - after

    def excess(self, connector: str, giver: str, taker: str) -> int:
        return self.connectors[giver][connector] - self.connectors[taker][connector]


class _Stock:
    """The tasks that workers could give away, by weight: for each pair a heap by how much the spread gains.

    Between one giver and one taker that gain only falls while tasks move from full to empty, so an entry that turns
    out too high is put back where it belongs.
    """

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self._held: dict[str, dict[int, set[TaskId]]] = {worker: defaultdict(set) for worker in plan.workers}
        for task, worker in plan.of.items():
            self._held[worker][plan.weight(task)].add(task)
        self._heaps: dict[tuple[str, str, int], list[tuple[int, TaskId]]] = {}

    def put(self, task: TaskId, worker: str) -> None:
        weight = self._plan.weight(task)
        self._held[worker][weight].add(task)
        for (giver, taker, heavy), heap in self._heaps.items():
            if giver == worker and heavy == weight and self._plan.fits(task, taker):
                heapq.heappush(heap, self._entry(task, giver, taker))

    def pick(self, giver: str, taker: str) -> TaskId | None:
        """The best task to move, taken out of the giver's; None when no move helps."""
        plan = self._plan
        weights = [weight for weight, tasks in self._held[giver].items() if tasks]
        gains = {weight: plan.gain(weight, giver, taker) for weight in weights}
        for weight in sorted(weights, key=lambda w: (-gains[w], w)):
            if gains[weight] <= _EPSILON:
                return None
            task = self._best(giver, taker, weight)
            if task is not None:
                self._held[giver][weight].discard(task)
                return task
        return None

    def _best(self, giver: str, taker: str, weight: int) -> TaskId | None:
        heap = self._heap(giver, taker, weight)
        held = self._held[giver][weight]
        while heap:
            _, task = entry = heapq.heappop(heap)
            if task not in held:
                continue
            now = self._entry(task, giver, taker)
            if now <= entry:
                return task
            heapq.heappush(heap, now)
        return None

    def _heap(self, giver: str, taker: str, weight: int) -> list[tuple[int, TaskId]]:
        key = (giver, taker, weight)
        if key not in self._heaps:
            fits = (task for task in self._held[giver][weight] if self._plan.fits(task, taker))
            heap = [self._entry(task, giver, taker) for task in fits]
            heapq.heapify(heap)
            self._heaps[key] = heap
        return self._heaps[key]

    def _entry(self, task: TaskId, giver: str, taker: str) -> tuple[int, TaskId]:
        return (-self._plan.excess(task.connector, giver, taker), task)
