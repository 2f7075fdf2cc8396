"""The limits of a task: the memory that it may use, and how long it may make no progress before its worker kills it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.protocol.task_spec import TaskSpec

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
"""The core of the cluster has the same start timeout. The worker kills the task a little earlier, because it can say
where the task hung."""
MB: Final = 1_048_576
_UNITS: Final = {"": 1 / MB, "k": 1 / 1024, "m": 1, "g": 1024, "t": 1_048_576}


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """The limits of one task; 0 means no limit."""

    memory_mb: int = MEMORY_MB
    hang_s: float = HANG_MS / 1000
    start_s: float = START_MS / 1000 - EARLIER_S_MAX


def limits_of(spec: TaskSpec, memory_mb: int = MEMORY_MB) -> TaskLimits:
    """Returns the limits by the connector's own keys, else the worker's defaults. A sink's default leaves room for the
    heap of its JVM."""
    if spec.kind == "sink" and memory_mb:
        memory_mb += heap_mb(spec.config.get(HEAP, HEAP_DEFAULT))
    start_s = _number(spec, START_TIMEOUT_MS, START_MS) / 1000
    return TaskLimits(
        memory_mb=_number(spec, MEMORY_LIMIT_MB, memory_mb),
        hang_s=_number(spec, HANG_TIMEOUT_MS, HANG_MS) / 1000,
        start_s=start_s - min(EARLIER_S_MAX, EARLIER * start_s),
    )


def _number(spec: TaskSpec, key: str, default: int) -> int:
    """Returns the number of a key. Configs were validated when the connector was created; any other value counts as not
    set."""
    text = spec.config.get(key, "").strip()
    return int(text) if text.isascii() and text.isdigit() else default


def heap_mb(text: str) -> int:
    """Returns a size in Java's notation (512m, 2g) in MB."""
    match = re.fullmatch(r"(\d+)([kmgt]?)b?", text.strip().lower())
    return int(int(match[1]) * _UNITS[match[2]]) if match else 1024


def memory_error(limit_mb: int, peak_bytes: int) -> CdcError:
    """Returns the error for a task that has exceeded its memory limit."""
    peak_mb = -(-peak_bytes // MB)
    return CdcError(
        TASK_MEMORY,
        f"the task used {peak_mb} MB and may use {limit_mb}",
        where={"limit_mb": limit_mb, "peak_mb": peak_mb},
    )


def hung_error(doing: str, stalled_s: float, limit_s: float, *, stopped: bool) -> CdcError:
    """Returns the error for a task that has made no progress for `stalled_s` seconds. `stopped`: its process is stopped
    (SIGSTOP)."""
    why = "its process is stopped" if stopped else f"it was at: {doing}"
    return CdcError(
        TASK_HUNG,
        f"no progress for {stalled_s:.0f} s; {why}",
        where={"doing": doing, "still_s": round(stalled_s), "limit_s": round(limit_s)},
    )
