"""Several tables of a lake at once: a table waits for Spark's planning, for small jobs and for the store most of the time."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Generic, Protocol, Self, TypeVar


class Lane(Protocol):
    def lane(self) -> Self:
        """Another one like it, for another thread."""

    def release(self) -> None:
        """It is used no more."""


Writer = TypeVar("Writer", bound=Lane)
Item = TypeVar("Item")
Result = TypeVar("Result")


class Lanes(Generic[Writer]):
    """Up to `count` writers, each of which one thread uses at a time. Threads stay: each has a thread of Java's."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._more: list[Writer] = []
        self._pool: ThreadPoolExecutor | None = None

    def each(self, first: Writer, work: Callable[[Writer, Item], Result], items: Sequence[Item]) -> list[Result]:
        """What it returns of each. When it fails for one those that have not begun do not, and the others end before that
        is raised."""
        count = min(self._count, len(items))
        if count < 2:
            return [work(first, item) for item in items]
        self._more += [first.lane() for _ in range(count - 1 - len(self._more))]
        self._pool = self._pool or ThreadPoolExecutor(self._count, "lane")
        free: queue.SimpleQueue[Writer] = queue.SimpleQueue()
        for writer in (first, *self._more[: count - 1]):
            free.put(writer)

        def one(item: Item) -> Result:
            writer = free.get()
            try:
                return work(writer, item)
            finally:
                free.put(writer)

        running = [self._pool.submit(one, item) for item in items]
        try:
            return [each.result() for each in running]
        finally:
            for each in running:
                each.cancel()
            wait(running)

    def drop(self) -> None:
        """They are made again when they are needed."""
        more, self._more = self._more, []
        for writer in more:
            writer.release()

    def close(self) -> None:
        self.drop()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)
