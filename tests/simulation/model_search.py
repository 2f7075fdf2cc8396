"""Breadth-first search through all states of a small model; finds the shortest path to a violation."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

S = TypeVar("S", bound=Hashable)

Steps = Callable[[S], Iterator[tuple[str, S]]]
"""Yields the steps out of a state: what happens, and the next state. Raises Violation when a step breaks an
invariant."""


class Violation(Exception):
    """A step that must not be possible was possible."""


@dataclass
class Found:
    """The result of a search: how much was searched and, if something broke, the shortest way there."""

    states: int = 0
    steps: int = 0
    seconds: float = 0.0
    violation: str = ""
    trace: list[str] = field(default_factory=list)
    dead: int = 0
    """The number of states from which the goal cannot be reached."""

    def __str__(self) -> str:
        size = f"{self.states:,} states, {self.steps:,} steps, {self.seconds:.1f} s"
        if self.violation:
            return f"VIOLATION after {len(self.trace)} steps: {self.violation} ({size})\n    " + "\n    ".join(
                self.trace
            )
        return f"holds: {size}"


def search(start: S, steps: Steps[S], *, with_way: bool = True, states_max: int = 50_000_000) -> Found:
    """Visits every reachable state and only remembers it; the path to a violation is found by a second search.

    Models may keep interchangeable workers in one order: their numbers in the way are of the state before each step.
    """
    found, begun = Found(), time.monotonic()
    seen = {start}
    level = [start]
    try:
        while level:
            following = []
            for state in level:
                for _, after in steps(state):
                    found.steps += 1
                    if after not in seen:
                        seen.add(after)
                        following.append(after)
            level = following
            assert len(seen) <= states_max, "the model is larger than it was meant to be"
    except Violation as broken:
        found.violation = str(broken)
        found.trace = _way(start, steps) if with_way else []
    found.states, found.seconds = len(seen), time.monotonic() - begun
    return found


def _way(start: S, steps: Steps[S]) -> list[str]:
    """The actions on the shortest way to a violation, the violating one last."""
    came: dict[S, tuple[S, str] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        found = steps(state)
        while True:
            try:
                what, after = next(found)
            except StopIteration:
                break
            except Violation as broken:
                return [*_back(came, state), str(broken)]
            if after not in came:
                came[after] = (state, what)
                queue.append(after)
    raise AssertionError("the violation was not found again: a step is not a function of its state")


def _back(came: dict[S, tuple[S, str] | None], state: S) -> list[str]:
    out = []
    while (before := came[state]) is not None:
        state, what = before
        out.append(what)
    return out[::-1]


def unreachable(start: S, steps: Steps[S], calm: Steps[S], goal: Callable[[S], bool]) -> Found:
    """Returns the number of reachable states from which no path of `calm` steps (no further faults) leads to the
    goal."""
    found, begun = Found(), time.monotonic()
    number: dict[S, int] = {start: 0}
    states = [start]
    sources: list[list[int]] = [[]]
    good = deque()
    for here, state in enumerate(states):
        for _, after in steps(state):
            if after not in number:
                number[after] = len(states)
                states.append(after)
                sources.append([])
        for _, after in calm(state):
            found.steps += 1
            sources[number[after]].append(here)
        if goal(state):
            good.append(here)
    reached = set(good)
    while good:
        for before in sources[good.popleft()]:
            if before not in reached:
                reached.add(before)
                good.append(before)
    found.states, found.dead, found.seconds = len(states), len(states) - len(reached), time.monotonic() - begun
    return found
