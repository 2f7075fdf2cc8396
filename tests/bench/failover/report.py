"""Distributions: percentiles by nearest rank, and a histogram in text."""

from __future__ import annotations

import math
from collections.abc import Sequence

BAR_WIDTH = 40
BINS_MAX = 14
STEPS = (0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: a value that was measured, never one between two."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def summary(values: Sequence[float]) -> str:
    parts = [("min", min(values)), ("p50", percentile(values, 0.5)), ("p90", percentile(values, 0.9))]
    parts += [("p99", percentile(values, 0.99)), ("max", max(values))]
    return f"n={len(values)} " + " ".join(f"{name}={value:.2f}" for name, value in parts)


def histogram(values: Sequence[float]) -> list[str]:
    """One line per bin, empty ones between the first and the last included."""
    low, high = min(values), max(values)
    step = next((s for s in STEPS if (high - low) / s <= BINS_MAX - 1), math.ceil((high - low) / BINS_MAX) or 1)
    first, last = math.floor(low / step), math.floor(high / step)
    counts = [sum(1 for v in values if math.floor(v / step) == n) for n in range(first, last + 1)]
    top = max(counts)
    return [
        f"  {n * step:7.2f} s |{'#' * math.ceil(BAR_WIDTH * count / top) if count else '':<{BAR_WIDTH}}| {count}"
        for n, count in zip(range(first, last + 1), counts, strict=True)
    ]


def show(title: str, values: Sequence[float]) -> None:
    if not values:
        print(f"\n{title}: none")
        return
    print(f"\n{title}: {summary(values)}")
    for line in histogram(values):
        print(line)


def figures(name: str, values: Sequence[float]) -> dict[str, float | int]:
    """What the last line says of a distribution."""
    if not values:
        return {f"{name}_count": 0}
    return {
        f"{name}_p50_s": round(percentile(values, 0.5), 3),
        f"{name}_p99_s": round(percentile(values, 0.99), 3),
        f"{name}_max_s": round(max(values), 3),
        f"{name}_count": len(values),
    }
