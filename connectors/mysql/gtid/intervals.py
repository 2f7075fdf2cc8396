"""Sets of whole numbers as sorted intervals that do not touch: both ends belong to an interval."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

Intervals = tuple[tuple[int, int], ...]


def normalized(intervals: Iterable[tuple[int, int]]) -> Intervals:
    """Returns the same numbers in order, with intervals joined that overlap or touch."""
    out: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if out and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], last))
        else:
            out.append((first, last))
    return tuple(out)


def holds(intervals: Intervals, number: int) -> bool:
    at = bisect_right(intervals, (number, number))
    return (at < len(intervals) and intervals[at][0] == number) or (at > 0 and intervals[at - 1][1] >= number)


def subtracted(intervals: Intervals, others: Intervals) -> Intervals:
    """Returns the numbers of `intervals` that are not in `others`."""
    out: list[tuple[int, int]] = []
    at = 0
    for first, last in intervals:
        while at < len(others) and others[at][1] < first:
            at += 1
        start, other = first, at
        while other < len(others) and others[other][0] <= last:
            if others[other][0] > start:
                out.append((start, others[other][0] - 1))
            start = others[other][1] + 1
            other += 1
        if start <= last:
            out.append((start, last))
    return tuple(out)
