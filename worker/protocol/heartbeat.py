"""Heartbeats of tasks: a task counts its steps, a thread of it sends the count, and the worker measures the time
without a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from cdcworker.schemas.threads import SupervisedThread

BEAT_S: Final = 1.0
STARTING: Final = "starting"
RUNNING: Final = "running"
DOING_CHARS_MAX: Final = 80
ALLOW_S_MAX: Final = 30 * 86_400.0
CHECK_S_MAX: Final = 3.0
"""Seconds that one check may add to a task's time without progress: a worker that was suspended itself has not
measured."""


class TaskHeartbeat:
    """The step counter of one task. Only the task's own loop calls `beat`; a wait without a limit must not."""

    def __init__(self) -> None:
        self._state: tuple[int, str, str, float] = (0, STARTING, "the start", 0.0)

    def beat(self, doing: str = "", allow_s: float = 0.0) -> None:
        """Counts a step. The next one may take `allow_s` seconds longer than the task's limit; `doing` names it."""
        count, phase, _, _ = self._state
        self._state = (count + 1, phase, doing, allow_s)

    def enter(self, phase: str) -> None:
        """Begins a phase: `starting` or `running`."""
        count, _, _, _ = self._state
        self._state = (count + 1, phase, "", 0.0)

    def message(self) -> dict[str, Any]:
        """Returns the heartbeat message for the worker."""
        count, phase, doing, allow_s = self._state
        return {"type": "beat", "n": count, "phase": phase, "doing": doing, "allow_s": allow_s}


HEARTBEAT: Final = TaskHeartbeat()
"""The heartbeat of this process, which runs one task."""


def start_heartbeats(
    progress: TaskHeartbeat, send: Callable[[Mapping[str, Any]], None], interval_s: float = BEAT_S
) -> None:
    """Starts the thread that sends heartbeats to the worker. They carry the count of steps, not a claim that all is
    well."""

    def run() -> None:
        while True:
            send(progress.message())
            time.sleep(interval_s)

    SupervisedThread(run, name="has_heartbeat", ends_process=True).start()


class HangDetector:
    """Measures on the worker's side for how long a task has made no step."""

    def __init__(self, hang_s: float, start_s: float) -> None:
        self._hang_s = hang_s
        self._start_s = start_s
        self._seen: tuple[int, str] | None = None
        self._phase = STARTING
        self._allow_s = 0.0
        self.doing = "the start"
        self.stalled_s = 0.0

    @property
    def has_heartbeat(self) -> bool:
        """True if a heartbeat has arrived: such a task can also write the stacks of its threads."""
        return self._seen is not None

    def message_received(self, message: Mapping[str, Any]) -> None:
        """Notes a message of the task. Before its first heartbeat any message counts as a step."""
        if message.get("type") != "beat":
            started = message.get("type") == "status" and message.get("state") == RUNNING.upper()
            if self._seen is None or (started and self._phase == STARTING):
                self.stalled_s = 0.0
            if started and self._seen is not None:
                # The next beat may never come.
                self._phase = RUNNING
            return
        count, phase, allow_s = message.get("n"), message.get("phase"), message.get("allow_s")
        if not isinstance(count, int) or (count, phase) == self._seen:
            return
        self._seen, self._phase = (count, str(phase)), str(phase)
        # What is no number, and no number at all (NaN), counts as none.
        self._allow_s = min(allow_s, ALLOW_S_MAX) if isinstance(allow_s, int | float) and allow_s > 0 else 0.0
        self.doing = str(message.get("doing") or phase)[:DOING_CHARS_MAX]
        self.stalled_s = 0.0

    def add_elapsed(self, seconds: float) -> None:
        """Adds the seconds since the last check."""
        self.stalled_s += min(seconds, CHECK_S_MAX)

    @property
    def limit_s(self) -> float:
        """The limit in seconds for the present phase; 0: no limit."""
        limit = self._start_s if self._phase == STARTING else self._hang_s
        return limit + self._allow_s if limit else 0.0

    @property
    def hangs(self) -> bool:
        """True if the task has made no step for longer than its limit."""
        return bool(self.limit_s) and self.stalled_s > self.limit_s
