"""Does a figure grow in the course of a run? Faults start processes anew all the time, which hides a leak or looks like one.

Two tests, and either is enough. The level: medians of the first, second and last third of the run, which single high or low
samples do not move. The slope: of all pairs of samples of one and the same process, far enough apart, the median.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Word = Literal["flat", "grows", "too short"]
WARM_S: Final = 120.0
"""A process younger than this is still loading what it needs."""
APART_S: Final = 600.0
PAIRS_MIN: Final = 20
SAMPLES_MIN: Final = 12
SPAN_MIN_S: Final = 1800.0
SAMPLES_MAX: Final = 300
"""Of one process, evenly chosen: pairs are the square of it."""


@dataclass(frozen=True, slots=True)
class Point:
    """A sample: seconds of the run, the value, which process it is of, and how old that one is."""

    at_s: float
    value: float
    process: str = ""
    age_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a figure may rise by in a whole run: a share of its first level, and so much besides."""

    share: float
    more: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """`first` and `last` are the levels, `per_hour` the slope within processes, None where none lived long enough."""

    word: Word
    first: float
    last: float
    per_hour: float | None


def judge(points: Sequence[Point], allowed: Allowed) -> Verdict:
    """Returns whether the values grow. A run of less than half an hour is too short to say."""
    warm = [point for point in points if point.age_s >= WARM_S]
    if len(warm) < SAMPLES_MIN:
        return Verdict("too short", 0.0, 0.0, None)
    began, ended = min(p.at_s for p in warm), max(p.at_s for p in warm)
    span = ended - began
    thirds: list[list[float]] = [[], [], []]
    for point in warm:
        thirds[min(2, int(3 * (point.at_s - began) / (span or 1.0)))].append(point.value)
    first, middle, last = (statistics.median(part) if part else 0.0 for part in thirds)
    slope = _slope(warm)
    limit = first * allowed.share + allowed.more
    rises = last - first > limit and middle >= first and last >= middle
    leaks = slope is not None and slope * span > limit
    word: Word = "too short" if span < SPAN_MIN_S else "grows" if rises or leaks else "flat"
    return Verdict(word, first, last, None if slope is None else slope * 3600)


def _slope(points: Sequence[Point]) -> float | None:
    by_process: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        by_process[point.process].append(point)
    slopes = [slope for lived in by_process.values() for slope in _pairs(lived)]
    return statistics.median(slopes) if len(slopes) >= PAIRS_MIN else None


def _pairs(points: Sequence[Point]) -> Iterator[float]:
    some = sorted(points, key=lambda point: point.at_s)[:: 1 + len(points) // SAMPLES_MAX]
    for number, early in enumerate(some):
        for late in some[number + 1 :]:
            if late.at_s - early.at_s >= APART_S:
                yield (late.value - early.value) / (late.at_s - early.at_s)
