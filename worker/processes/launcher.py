"""The seam between the herder and whatever runs its tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from cdcworker.coordinator.core.events import Event
from cdcworker.coordinator.model import AssignedTask
from cdcworker.worker.protocol.task_spec import TaskSpec

Post = Callable[[Event], None]


class Launcher(Protocol):
    """Runs tasks for the herder. No call blocks or raises; results arrive as events.

    `TaskExited` is posted exactly once for every `start`.
    """

    failure: BaseException | None
    """The error that ended the launcher, with all its tasks; no further task can be started. None while it works."""

    def open(self, post: Post) -> None: ...

    def start(self, task: AssignedTask, spec: TaskSpec) -> None: ...

    def send(self, task: AssignedTask, message: Mapping[str, Any]) -> None: ...

    def broadcast(self, message: Mapping[str, Any]) -> None: ...

    def stop(self, task: AssignedTask) -> None: ...

    def kill(self, task: AssignedTask) -> None: ...

    def close(self, timeout_s: float) -> None:
        """Stops all tasks, kills those that run after the timeout, and ends."""
