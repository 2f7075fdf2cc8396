"""Ends a task's process whose Kafka client does not come back: its calls can hang far beyond their time-outs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from cdcworker.worker.progress import OWN

CHECK_S: Final = 1.0
GRACE_S: Final = 15.0
"""Beyond the call's own time-out. A process that ends here is as safe as one that was killed."""


class Watchdog:
    """Guards one call at a time, all of one thread. `on_hang` gets what the call was doing and must not return."""

    def __init__(self, on_hang: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._on_hang = on_hang
        self._clock = clock
        self._guarded: tuple[float, str] | None = None

    def start(self) -> Watchdog:
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()
        return self

    @contextlib.contextmanager
    def guard(self, timeout_s: float, doing: str) -> Iterator[None]:
        self._guarded = (self._clock() + timeout_s + GRACE_S, doing)
        OWN.beat(doing, timeout_s + GRACE_S)
        try:
            yield
        finally:
            self._guarded = None
            OWN.beat()

    def check(self) -> None:
        guarded = self._guarded
        if guarded is not None and self._clock() > guarded[0]:
            self._on_hang(guarded[1])

    def _run(self) -> None:
        while True:
            time.sleep(CHECK_S)
            self.check()
