"""Which worker runs which task: sticky, balanced by count, one connector's tasks spread; a pure function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from cdcworker.coordinator.model import TaskId


def assign(tasks: Iterable[TaskId], holders: Mapping[TaskId, str], workers: Collection[str]) -> dict[TaskId, str]:
    """A worker for every task; loads differ by at most one, and as few held tasks as possible change hands.

    `holders` says who holds a task now; a holder that is not among `workers` does not count. Same input, same output,
    on every worker: the order of the arguments does not matter.
    """
    wanted = sorted(set(tasks))
    if not workers:
        return {}
    plan = _Plan(workers)
    free = []
    for task in wanted:
        holder = holders.get(task)
        if holder is not None and holder in plan.held:
            plan.give(task, holder)
        else:
            free.append(task)
    for task in free:
        plan.give(task, plan.best_for(task))
    plan.level()
    return {task: worker for worker, held in plan.held.items() for task in held}


class _Plan:
    def __init__(self, workers: Collection[str]) -> None:
        self.held: dict[str, set[TaskId]] = {worker: set() for worker in sorted(workers)}
        self.of_connector: dict[str, Counter[str]] = {worker: Counter() for worker in self.held}

    def give(self, task: TaskId, worker: str) -> None:
        self.held[worker].add(task)
        self.of_connector[worker][task.connector] += 1

    def take(self, task: TaskId, worker: str) -> None:
        self.held[worker].remove(task)
        self.of_connector[worker][task.connector] -= 1

    def best_for(self, task: TaskId) -> str:
        """The least loaded worker; among equals the one with the fewest tasks of the same connector."""
        return min(self.held, key=lambda w: (len(self.held[w]), self.of_connector[w][task.connector], w))

    def level(self) -> None:
        """Move tasks from the fullest to the emptiest until loads differ by one; each move is one that balance needs."""
        while True:
            giver = max(self.held, key=lambda w: (len(self.held[w]), w))
            taker = min(self.held, key=lambda w: (len(self.held[w]), w))
            if len(self.held[giver]) - len(self.held[taker]) <= 1:
                return
            task = max(self.held[giver], key=lambda t: (self._excess(t, giver, taker), t))
            self.take(task, giver)
            self.give(task, taker)

    def _excess(self, task: TaskId, giver: str, taker: str) -> int:
        return self.of_connector[giver][task.connector] - self.of_connector[taker][task.connector]
