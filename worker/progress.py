"""Whether a task comes along: it counts its steps, a thread tells its worker, and the worker measures the time between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

BEAT_S: Final = 1.0
STARTING: Final = "starting"
RUNNING: Final = "running"
DOING_CHARS_MAX: Final = 80
TURN_S_MAX: Final = 3.0
"""The most that one look may add to a task's standstill: a worker that was paused itself has not watched."""


class Progress:
    """The task's side. `beat` is for the task's own loop; a wait that is not bounded must not call it by itself."""

    def __init__(self) -> None:
        self._state: tuple[int, str, str, float] = (0, STARTING, "the start", 0.0)

    def beat(self, doing: str = "", allow_s: float = 0.0) -> None:
        """A step was made. What follows may take `allow_s` longer than the task's limit."""
        count, phase, _, _ = self._state
        self._state = (count + 1, phase, doing, allow_s)

    def enter(self, phase: str) -> None:
        count, _, _, _ = self._state
        self._state = (count + 1, phase, "", 0.0)

    def message(self) -> dict[str, Any]:
        count, phase, doing, allow_s = self._state
        return {"type": "beat", "n": count, "phase": phase, "doing": doing, "allow_s": allow_s}


OWN: Final = Progress()
"""Of this process: it runs one task."""


def tell(progress: Progress, send: Callable[[Mapping[str, Any]], None], interval_s: float = BEAT_S) -> None:
    """Start the thread that tells the worker. It says what the count is, not that all is well."""

    def run() -> None:
        while True:
            send(progress.message())
            time.sleep(interval_s)

    threading.Thread(target=run, name="beats", daemon=True).start()


class Pulse:
    """The worker's side: how long a task has made no step, by the worker's own looks at it."""

    def __init__(self, hang_s: float, start_s: float) -> None:
        self._hang_s = hang_s
        self._start_s = start_s
        self._seen: tuple[int, str] | None = None
        self._phase = STARTING
        self._allow_s = 0.0
        self.doing = "the start"
        self.still_s = 0.0

    @property
    def beats(self) -> bool:
        """It has said so once: then it also knows how to show its stacks."""
        return self._seen is not None

    def heard(self, message: Mapping[str, Any]) -> None:
        """A message of the task. Before its first beat anything that it says is a sign of life."""
        if message.get("type") != "beat":
            started = message.get("type") == "status" and message.get("state") == RUNNING.upper()
            if self._seen is None or (started and self._phase == STARTING):
                self.still_s = 0.0
            if started and self._seen is not None:
                # The next beat may never come.
                self._phase = RUNNING
            return
        count, phase, allow_s = message.get("n"), message.get("phase"), message.get("allow_s")
        if not isinstance(count, int) or (count, phase) == self._seen:
            return
        self._seen, self._phase = (count, str(phase)), str(phase)
        self._allow_s = float(allow_s) if isinstance(allow_s, int | float) else 0.0
        self.doing = str(message.get("doing") or phase)[:DOING_CHARS_MAX]
        self.still_s = 0.0

    def passed(self, seconds: float) -> None:
        self.still_s += min(seconds, TURN_S_MAX)

    @property
    def limit_s(self) -> float:
        """0: none."""
        limit = self._start_s if self._phase == STARTING else self._hang_s
        return limit + self._allow_s if limit else 0.0

    @property
    def hangs(self) -> bool:
        return bool(self.limit_s) and self.still_s > self.limit_s
