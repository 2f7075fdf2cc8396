"""What a task may use and how long it may stand still, before its worker ends it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.taskspec import TaskSpec

TASK_MEMORY: Final = declare(
    "worker.task_memory",
    "transient",
    "A task used more memory than it may and was killed",
    "It is started again within its budget. Raise task.memory.limit.mb, or make batches and transactions smaller; memory"
    " that grows without end is a bug to report.",
)
TASK_HUNG: Final = declare(
    "worker.task_hung",
    "transient",
    "A task made no progress for too long and was killed",
    "It is started again within its budget. Its log holds where every thread stood; task.hang.timeout.ms gives it more"
    " time.",
)

MEMORY_LIMIT_MB: Final = "task.memory.limit.mb"
HANG_TIMEOUT_MS: Final = "task.hang.timeout.ms"
START_TIMEOUT_MS: Final = "task.start.timeout.ms"
HEAP: Final = "spark.driver.memory"

MEMORY_MB: Final = 2_048
HANG_MS: Final = 60_000
START_MS: Final = 600_000
HEAP_DEFAULT: Final = "1g"
EARLIER_S_MAX: Final = 2.0
EARLIER: Final = 0.25
"""The herd has the same limit for a start. We are a little earlier, because we can say where the task stood."""
MB: Final = 1_048_576
_UNITS: Final = {"": 1 / MB, "k": 1 / 1024, "m": 1, "g": 1024, "t": 1_048_576}


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """0 means without limit."""

    memory_mb: int = MEMORY_MB
    hang_s: float = HANG_MS / 1000
    start_s: float = START_MS / 1000 - EARLIER_S_MAX


def limits_of(spec: TaskSpec, memory_mb: int = MEMORY_MB) -> TaskLimits:
    """The connector's own keys over the worker's default. A sink's default leaves room for the heap of its JVM."""
    if spec.kind == "sink" and memory_mb:
        memory_mb += heap_mb(spec.config.get(HEAP, HEAP_DEFAULT))
    start_s = _number(spec, START_TIMEOUT_MS, START_MS) / 1000
    return TaskLimits(
        memory_mb=_number(spec, MEMORY_LIMIT_MB, memory_mb),
        hang_s=_number(spec, HANG_TIMEOUT_MS, HANG_MS) / 1000,
        start_s=start_s - min(EARLIER_S_MAX, EARLIER * start_s),
    )


def _number(spec: TaskSpec, key: str, default: int) -> int:
    """Values were validated when the connector was made; one from elsewhere counts as not given."""
    text = spec.config.get(key, "").strip()
    return int(text) if text.isascii() and text.isdigit() else default


def heap_mb(text: str) -> int:
    """Java's way to write a size: 512m, 2g."""
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", text.strip().lower())
    return int(int(found[1]) * _UNITS[found[2]]) if found else 1024


def memory_error(limit_mb: int, peak_bytes: int) -> CdcError:
    peak_mb = -(-peak_bytes // MB)
    return CdcError(
        TASK_MEMORY,
        f"the task used {peak_mb} MB and may use {limit_mb}",
        where={"limit_mb": limit_mb, "peak_mb": peak_mb},
    )


def hung_error(doing: str, still_s: float, limit_s: float, *, stopped: bool) -> CdcError:
    why = "its process is stopped" if stopped else f"it was at: {doing}"
    return CdcError(
        TASK_HUNG,
        f"no progress for {still_s:.0f} s; {why}",
        where={"doing": doing, "still_s": round(still_s), "limit_s": round(limit_s)},
    )
