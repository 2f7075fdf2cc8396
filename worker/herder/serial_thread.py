"""A thread for the calls of one writer. A call of a Kafka client may hang far beyond its timeouts; the thread is then
abandoned."""

from __future__ import annotations

import queue
from collections.abc import Callable

from cdcworker.schemas.threads import SupervisedThread

Job = Callable[[], None]


class SerialThread:
    """Runs jobs in order on a daemon thread, so that a job that hangs delays neither the herder nor the exit of the
    process."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = SupervisedThread(self._run, name=name)
        self._thread.start()

    def do(self, job: Job) -> None:
        """Queues a job."""
        self._jobs.put(job)

    def end(self) -> None:
        """Ends the thread after the jobs that are queued; a thread whose job hangs never ends."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            self._thread.works()
