"""How late changes are, counted by steps: what a task reports of it in a few numbers, whatever it has seen."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the steps; one more step holds what is later still."""
REPORTED: Final = "latency"
"""Among a task's numbers."""


@dataclass(slots=True)
class LatencyHistogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: float = 0.0

    def note(self, seconds: float, times: int = 1) -> None:
        """Counts changes that are so late. Clocks of two machines differ: what seems to come before its cause counts as 0."""
        seconds = max(0.0, seconds)
        self.counts[bisect_left(BOUNDS_S, seconds)] += times
        self.sum_s += seconds * times

    def note_all(self, moments_ms: Mapping[int, int], now_s: float) -> None:
        """Counts changes by the moments of their commits: `moments_ms` tells how many there were at each."""
        for moment_ms, times in moments_ms.items():
            self.note(now_s - moment_ms / 1000, times)

    def numbers(self) -> dict[str, Any]:
        return {"counts": list(self.counts), "sum_s": round(self.sum_s, 3)}
