"""Ends a task's process whose Kafka client does not come back: its calls can hang far beyond their time-outs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from cdcworker.schemas.threads import SupervisedThread
from cdcworker.worker.protocol.heartbeat import HEARTBEAT

CHECK_S: Final = 1.0
GRACE_S: Final = 15.0
"""Beyond the call's own time-out. A process that ends here is as safe as one that was killed."""


class ClientWatchdog:
    """Guards one call at a time, all of one thread. `on_hang` gets what the call was doing and must not return."""

    def __init__(self, on_hang: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._on_hang = on_hang
        self._clock = clock
        self._guarded: tuple[float, str] | None = None

    def start(self) -> ClientWatchdog:
        SupervisedThread(self._run, name="watchdog").start()
        return self

    def guard(self, timeout_s: float, doing: str) -> ClientWatchdog:
        """Begins to watch a call of the client, until the guard is left or `release` is called; `timeout_s`: how long the call
        may take by itself."""
        self._guarded = (self._clock() + timeout_s + GRACE_S, doing)
        HEARTBEAT.beat(doing, timeout_s + GRACE_S)
        return self

    def __enter__(self) -> None:
        """The call begins."""

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """The call is over."""
        self._guarded = None
        HEARTBEAT.beat()

    def check(self) -> None:
        guarded = self._guarded
        if guarded is not None and self._clock() > guarded[0]:
            self._on_hang(guarded[1])

    def _run(self) -> None:
        while True:
            time.sleep(CHECK_S)
            self.check()
