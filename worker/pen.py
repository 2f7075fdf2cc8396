"""A thread of its own for one writer: the client's calls may hang far beyond their time-outs, then it is left behind."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Job = Callable[[], None]


class Pen:
    """Runs jobs in order. The thread is a daemon: one that hangs keeps neither the herder nor the exit waiting."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def do(self, job: Job) -> None:
        self._jobs.put(job)

    def end(self) -> None:
        """After what is queued; never, if that hangs."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
