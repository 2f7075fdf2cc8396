"""Connections that read rows beside the stream: threads that take orders and say when something is done."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from cdcworker.connectors.capture.snapshot.chunks import RowReader
from cdcworker.schemas.threads import SupervisedThread

log = logging.getLogger(__name__)

IDLE_S: Final = 30.0
"""A connection that nobody needs for so long is given back to the server."""
CLOSE_S: Final = 5.0
QUEUED: Final = 32
"""Orders that are taken before a thread is free: with little ones it would wait for the next boundary each time."""
Order = Callable[[RowReader], Any]


class Executor(Protocol):
    """Whoever carries out orders: threads, or in tests the caller."""

    def give(self, token: object, order: Order) -> None: ...

    def take(self) -> list[tuple[object, Any]]:
        """Returns what was done since the last call: each order's token with its result, or the exception that ended
        it."""

    @property
    def free(self) -> int:
        """Orders that would be taken now."""

    def close(self) -> None: ...


class ReaderPool:
    """At most `size` threads with a connection each, made when there is work and ended when there is none. `translate`
    makes a CdcError of what the database's own library raises, and returns any other exception as it is."""

    def __init__(self, make: Callable[[], RowReader], size: int, translate: Callable[[Exception], Exception]) -> None:
        self._make = make
        self._translate = translate
        self._size = size
        self._orders: queue.SimpleQueue[tuple[object, Order] | None] = queue.SimpleQueue()
        self._done: deque[tuple[object, Any]] = deque()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._open: set[RowReader] = set()
        self._under_way = 0
        self._closed = False
        self._near, self._far = socket.socketpair()
        for end in (self._near, self._far):
            end.setblocking(False)

    @property
    def signal(self) -> int:
        """A descriptor that can be read from when something was done."""
        return self._near.fileno()

    @property
    def free(self) -> int:
        return self._size + QUEUED - self._under_way

    def give(self, token: object, order: Order) -> None:
        with self._lock:
            self._under_way += 1
            if len(self._threads) < min(self._size, self._under_way):
                thread = SupervisedThread(self._run, name="snapshot-reader")
                self._threads.append(thread)
                thread.start()
        self._orders.put((token, order))

    def take(self) -> list[tuple[object, Any]]:
        out: list[tuple[object, Any]] = []
        if self._done:
            with contextlib.suppress(BlockingIOError):
                self._near.recv(4096)
        while self._done:
            out.append(self._done.popleft())
        return out

    def close(self) -> None:
        """Ends the threads and breaks off what they read."""
        with self._lock:
            self._closed = True
            threads, readers = list(self._threads), list(self._open)
        for reader in readers:
            reader.cancel()
        for _ in threads:
            self._orders.put(None)
        for thread in threads:
            thread.join(CLOSE_S)
        self._near.close()
        self._far.close()

    # -- the threads ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        reader: RowReader | None = None
        try:
            while not self._closed:
                try:
                    order = self._orders.get(timeout=IDLE_S)
                except queue.Empty:
                    with self._lock:
                        if self._orders.empty():
                            return
                    continue
                if order is None:
                    return
                reader = self._carry_out(reader, *order)
        finally:
            with self._lock:
                self._threads.remove(threading.current_thread())
            if reader is not None:
                reader.close()

    def _carry_out(self, reader: RowReader | None, token: object, order: Order) -> RowReader | None:
        try:
            if reader is None:
                reader = self._make()
                with self._lock:
                    self._open.add(reader)
            result: Any = order(reader)
        except Exception as exc:
            result = self._translate(exc)
            if result is exc:
                log.debug("a read ended early error=%s", type(exc).__name__, exc_info=True)
        if reader is not None and reader.is_broken():
            with self._lock:
                self._open.discard(reader)
            reader.close()
            reader = None
        with self._lock:
            self._under_way -= 1
        # Whoever is woken too early looks again; who is not woken at all would wait.
        with contextlib.suppress(OSError):
            self._far.send(b"d")
        self._done.append((token, result))
        return reader
