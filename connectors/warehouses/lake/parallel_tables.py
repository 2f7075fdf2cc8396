"""Writes several tables of a lake in parallel, because one waits for Spark's planning, for small jobs and for the store most of the time."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Generic, Protocol, Self, TypeVar

from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import thread_pool

log = logging.getLogger(__name__)


class ThreadWriter(Protocol):
    def thread_copy(self) -> Self:
        """Another one like it, for another thread."""

    def release(self) -> None:
        """Frees what it holds; it is not used again."""


Writer = TypeVar("Writer", bound=ThreadWriter)
Item = TypeVar("Item")
Result = TypeVar("Result")


class ParallelTables(Generic[Writer]):
    """Runs work for several tables on up to `count` writers, each used by one thread at a time. Threads are reused,
    because Py4J binds each to a thread of Java's."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._extra_writers: list[Writer] = []
        self._pool: ThreadPoolExecutor | None = None

    def run_all(
        self, own_writer: Writer, work: Callable[[Writer, Item], Result], items: Sequence[Item]
    ) -> list[Result]:
        """Returns the result of the work for each item. When it fails for one, those that have not begun are not begun, and
        the others end before that is raised."""
        count = min(self._count, len(items))
        if count < 2:
            return [work(own_writer, item) for item in items]
        self._extra_writers += [own_writer.thread_copy() for _ in range(count - 1 - len(self._extra_writers))]
        self._pool = self._pool or thread_pool(self._count, "table-writer")
        free: queue.SimpleQueue[Writer] = queue.SimpleQueue()
        for writer in (own_writer, *self._extra_writers[: count - 1]):
            free.put(writer)

        def one(item: Item) -> Result:
            writer = free.get()
            try:
                return work(writer, item)
            finally:
                free.put(writer)

        running = [self._pool.submit(one, item) for item in items]
        wait(running, return_when=FIRST_EXCEPTION)
        for future in running:
            future.cancel()
        wait(running)
        failed = [exc for future in running if not future.cancelled() and (exc := future.exception()) is not None]
        # A fenced error is raised before the others: the task no longer owns the tables.
        failed.sort(key=lambda exc: not (isinstance(exc, CdcError) and exc.kind == "fenced"))
        for exc in failed if len(failed) > 1 else ():
            log.warning("a table was not written error=%s", exc if isinstance(exc, CdcError) else type(exc).__name__)
        if failed:
            raise failed[0]
        return [future.result() for future in running]

    def drop(self) -> None:
        """Frees the extra writers; they are created again when they are needed."""
        writers, self._extra_writers = self._extra_writers, []
        for writer in writers:
            writer.release()

    def close(self) -> None:
        self.drop()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)


class TableLocks:
    """Keeps threads of this process apart that write to the same table."""

    def __init__(self) -> None:
        self._locks: dict[tuple[str, str], threading.RLock] = {}

    @contextlib.contextmanager
    def exclusive(self, table: tuple[str, str]) -> Iterator[None]:
        """Holds the lock of a table, named by schema and name."""
        with self._locks.setdefault(table, threading.RLock()):
            yield


class TablesInProgress:
    """The tables that are being written now. `step` gets their names, in the order in which they began, before and after each:
    what the hang detector says that the task is doing."""

    def __init__(self, step: Callable[[str], None] = lambda _doing: None) -> None:
        self._step = step
        self._names: list[str] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """Lists a table while the context lasts."""
        with self._lock:
            self._names.append(name)
            self._tell()
        try:
            yield
        finally:
            with self._lock:
                self._names.remove(name)
                self._tell()

    def _tell(self) -> None:
        # A table that hangs stays first in the list.
        self._step("table " + ", ".join(self._names) if self._names else "the next table")
