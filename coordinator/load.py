"""What a task weighs when work is spread: its kind, and what it was measured to use, in coarse steps that noise does not climb."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeGuard

from cdcworker.coordinator.model import JsonObject

UNIT = 4
"""The weight of a source task that does little. Weights are whole numbers, so that sums do not depend on their order."""
KIND_WEIGHT: Mapping[str, int] = {"source": UNIT, "sink": 2 * UNIT}
"""A sink's batches run in an engine of its own."""
LEVEL_WEIGHT = (0, UNIT, 3 * UNIT, 7 * UNIT)
STEPS = (0.25, 0.5, 1.0)
"""Processor cores from which on a task is of level 1, 2 and 3; it falls back only below half of that."""
FALL = 0.5
EVENTS_PER_CORE = 20_000.0
"""Stands in where nothing measured the processor time."""
SMOOTHING = 0.02
"""Share of one report in the running mean: a burst of seconds does not move a task."""


@dataclass(frozen=True, slots=True)
class Load:
    """Running mean of the cores that a task uses, and the level that it stands for."""

    mean: float = 0.0
    level: int = 0


def metered(load: Load | None, metrics: JsonObject) -> Load | None:
    """The load after one more report; what says nothing about it changes nothing."""
    cores = _cores(metrics)
    if cores is None:
        return load
    old = load or Load()
    mean = old.mean + SMOOTHING * (cores - old.mean)
    level = old.level
    while level < len(STEPS) and mean >= STEPS[level]:
        level += 1
    while level > 0 and mean < FALL * STEPS[level - 1]:
        level -= 1
    return Load(mean, level)


def weight(kind: Literal["source", "sink"], load: Load | None) -> int:
    return KIND_WEIGHT.get(kind, UNIT) + (LEVEL_WEIGHT[load.level] if load else 0)


def _cores(metrics: JsonObject) -> float | None:
    cpu, events = metrics.get("cpu_cores"), metrics.get("events_per_s")
    if _is_number(cpu):
        return float(cpu)
    return float(events) / EVENTS_PER_CORE if _is_number(events) else None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
