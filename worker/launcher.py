"""What the herder needs of whoever runs its tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from cdcworker.coordinator.events import Event
from cdcworker.coordinator.model import AssignedTask
from cdcworker.worker.taskspec import TaskSpec

Post = Callable[[Event], None]


class Launcher(Protocol):
    """What the herder needs of whoever runs tasks. No call blocks or raises; answers come as events.

    `TaskExited` is posted exactly once for every `start`.
    """

    failure: BaseException | None
    """Why it ended although nobody asked it to: its tasks have ended with it, and none can be started any more."""

    def open(self, post: Post) -> None: ...

    def start(self, task: AssignedTask, spec: TaskSpec) -> None: ...

    def send(self, task: AssignedTask, message: Mapping[str, Any]) -> None: ...

    def broadcast(self, message: Mapping[str, Any]) -> None: ...

    def stop(self, task: AssignedTask) -> None: ...

    def kill(self, task: AssignedTask) -> None: ...

    def close(self, timeout_s: float) -> None:
        """Stop all tasks, kill what is left after the time-out, and end."""
