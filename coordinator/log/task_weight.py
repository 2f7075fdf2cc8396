"""The weight of a task in the assignment: by its kind, and by its measured CPU use in coarse steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeGuard

from cdcworker.coordinator.model import JsonObject

UNIT = 4
"""The weight of an idle source task. Weights are integers, so that their sums do not depend on the order."""
KIND_WEIGHT: Mapping[str, int] = {"source": UNIT, "sink": 2 * UNIT}
"""The base weight by kind: a sink task runs a Spark driver."""
LEVEL_WEIGHT = (0, UNIT, 3 * UNIT, 7 * UNIT)
"""The additional weight by level of CPU use."""
STEPS = (0.25, 0.5, 1.0)
"""The CPU cores from which a task is of level 1, 2 and 3."""
FALL = 0.5
"""A task falls back to a lower level only below this share of the step."""
EVENTS_PER_CORE = 20_000.0
"""Estimates the CPU use of a task whose processor time is not measured."""
SMOOTHING = 0.02
"""The share of one report in the running mean: a burst of a few seconds moves no task."""


@dataclass(frozen=True, slots=True)
class TaskWeight:
    """The running mean of the CPU cores that a task uses, and its level from 0 to 3."""

    mean: float = 0.0
    level: int = 0


def updated_weight(measured: TaskWeight | None, metrics: JsonObject) -> TaskWeight | None:
    """Returns the weight after one more report; a report without CPU or event metrics changes nothing."""
    cores = _cores(metrics)
    if cores is None:
        return measured
    old = measured or TaskWeight()
    mean = old.mean + SMOOTHING * (cores - old.mean)
    level = old.level
    while level < len(STEPS) and mean >= STEPS[level]:
        level += 1
    while level > 0 and mean < FALL * STEPS[level - 1]:
        level -= 1
    return TaskWeight(mean, level)


def weight(kind: Literal["source", "sink"], measured: TaskWeight | None) -> int:
    """Returns the weight of a task of this kind, with its measured use if there is any."""
    return KIND_WEIGHT.get(kind, UNIT) + (LEVEL_WEIGHT[measured.level] if measured else 0)


def _cores(metrics: JsonObject) -> float | None:
    cpu, events = metrics.get("cpu_cores"), metrics.get("events_per_s")
    if _is_number(cpu):
        return float(cpu)
    return float(events) / EVENTS_PER_CORE if _is_number(events) else None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
