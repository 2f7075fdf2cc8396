"""What a connector and its tasks are given: a configuration, and what they may know of their surroundings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cdcworker.schemas.change import JsonObject

Config = Mapping[str, str]
"""A connector's configuration as submitted: Kafka Connect's flat string map, secrets already resolved."""


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """One result of a live check, tied to the config key that causes it."""

    key: str
    severity: Literal["error", "warning", "note"]
    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What a task may know of its surroundings. The callables may be called from the task's thread at any time."""

    connector: str
    task: int
    task_epoch: int
    incarnation: str
    state_dir: str
    stopping: Callable[[], bool] = field(default=lambda: False)
    """Whether the task shall return soon: it is stopped, paused or moved to another worker."""
    ending: Callable[[], bool] = field(default=lambda: False)
    """Whether the task shall end for good; while it is paused or tried again after an error this stays false."""
    report: Callable[[JsonObject], None] = field(default=lambda _: None)
    """Sends metrics or progress (a JSON object without row values) to the worker."""
    beat: Callable[[str, float], None] = field(default=lambda _doing, _allow_s: None)
    """Says that the task has made a step, what follows, and how many seconds longer than task.hang.timeout.ms that may
    take. A poll that returns is a step by itself; a task that makes none is killed and started again."""
    jobs: Callable[[], Sequence[JsonObject]] = field(default=lambda: ())
    """Returns the jobs that the task is asked to run beside its usual work and has not ended: `id`, `kind`, `wanted`
    (RUNNING, PAUSED, CANCELLED), `spec`, and `own` (false: the task began it by itself). The same object until something
    changes; how far each has come is reported under `jobs`."""
    file_roots: tuple[str, ...] = ()
    """Folders in which connectors may read and write files."""
    record_bytes_max: int = 0
    """The most bytes that the Kafka client sends in one record; 0: not known."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What a task leaves for its next opening in this process; a task must also run without any of it."""
    attempt: int = 0
    """Counts the processes of one task epoch: a restart that was asked for, or that follows a failure, has the next
    number."""
    group: str = ""
    """The cluster's group.id: with the connector's name and the task's number it says who this is."""
