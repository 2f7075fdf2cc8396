"""Connections that read rows beside the stream: threads that take orders and say when something is done."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import psycopg
from cdcworker.connectors.postgres.chunks import Reader, rights, trusted
from cdcworker.connectors.postgres.errors import translate
from cdcworker.connectors.postgres.members import TREE
from cdcworker.connectors.postgres.relations import Plan
from psycopg import sql

log = logging.getLogger(__name__)

IDLE_S: Final = 30.0
"""A connection that nobody needs for so long is given back to the server."""
CLOSE_S: Final = 5.0
QUEUED: Final = 32
"""Orders that are taken before a thread is free: with little ones it would wait for the next boundary each time."""
SAMPLE_PAGES: Final = 200
SAMPLE_ROWS_MAX: Final = 20_000
PAGE: Final = 8192

_REMEMBERED: Final = f"""
with recursive {TREE}
select coalesce(sum(c.relpages), 0)::bigint, coalesce(sum(b.relpages), 0)::bigint
from tree join pg_class r on r.oid = tree.root and (r.relkind = 'p' or r.relispartition)
join pg_class c on c.oid = tree.oid left join pg_class b on b.oid = c.reltoastrelid
"""

Order = Callable[[Reader], Any]


class Crew(Protocol):
    """Whoever carries out orders: threads, or in tests the caller."""

    def give(self, token: object, order: Order) -> None: ...

    def take(self) -> list[tuple[object, Any]]:
        """What was done since the last call: the order's token with its result, or the exception that ended it."""

    @property
    def free(self) -> int:
        """Orders that would be taken now."""

    def close(self) -> None: ...


class Readers:
    """At most `size` threads with a connection each, made when there is work and ended when there is none."""

    def __init__(self, make: Callable[[], Reader], size: int) -> None:
        self._make = make
        self._size = size
        self._orders: queue.SimpleQueue[tuple[object, Order] | None] = queue.SimpleQueue()
        self._done: deque[tuple[object, Any]] = deque()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._open: set[Reader] = set()
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
                thread = threading.Thread(target=self._run, name="snapshot-reader", daemon=True)
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
        """What is being read is broken off."""
        with self._lock:
            self._closed = True
            threads, readers = list(self._threads), list(self._open)
        for reader in readers:
            with contextlib.suppress(psycopg.Error):
                reader.connection.pgconn.get_cancel().cancel()
        for _ in threads:
            self._orders.put(None)
        for thread in threads:
            thread.join(CLOSE_S)
        self._near.close()
        self._far.close()

    # -- the threads ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        reader: Reader | None = None
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
            _close(reader)

    def _carry_out(self, reader: Reader | None, token: object, order: Order) -> Reader | None:
        try:
            if reader is None:
                reader = self._make()
                with self._lock:
                    self._open.add(reader)
            result: Any = order(reader)
        except psycopg.Error as exc:
            result = translate(exc)
        except Exception as exc:
            log.debug("a read ended early error=%s", type(exc).__name__, exc_info=True)
            result = exc
        if isinstance(result, BaseException) and reader is not None and reader.is_broken():
            with self._lock:
                self._open.discard(reader)
            _close(reader)
            reader = None
        with self._lock:
            self._under_way -= 1
        # Whoever is woken too early looks again; who is not woken at all would wait.
        with contextlib.suppress(OSError):
            self._far.send(b"d")
        self._done.append((token, result))
        return reader


def _close(reader: Reader | None) -> None:
    if reader is not None:
        with contextlib.suppress(psycopg.Error):
            reader.connection.close()


@dataclass(frozen=True, slots=True)
class Survey:
    """What is found out about a table before its first chunk."""

    keyless: bool
    bounds: tuple[tuple[str, ...], ...] = ()
    """Upper ends of its ranges but for the last one."""
    size: int | None = None
    """Bytes on disk, by what the server remembers of it."""


def survey(reader: Reader, oid: int, parts_max: int, bytes_min: int) -> Survey:
    """Divides a table that is worth it by a sample of its keys; how even the ranges are matters for speed only."""
    plan, info = reader.look(oid)
    if not plan.table.key:
        return Survey(keyless=True)
    pages, beside = _pages(reader, oid)
    size = None if info.partitioned else (pages + beside) * PAGE
    if parts_max < 2 or pages * PAGE < bytes_min:
        return Survey(keyless=False, size=size)
    return Survey(False, _bounds(_sample(reader, plan, info.partitioned, pages), parts_max), size)


def _pages(reader: Reader, oid: int) -> tuple[int, int]:
    """Of the table with its partitions, and of large values beside it."""
    row = reader.connection.execute(_REMEMBERED.encode(), {"oids": [oid]}).fetchone()
    if row and row[0]:
        return row[0], row[1]
    # Never looked at by the server itself. The size of a table is told to whoever may lock it.
    try:
        with reader.connection.transaction():
            reader.limit_locks()
            row = reader.connection.execute(
                "select pg_relation_size(c.oid) / %s, coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)) / %s, 0)"
                " from pg_class c where c.oid = %s",
                (PAGE, PAGE, oid),
            ).fetchone()
    except psycopg.errors.LockNotAvailable:
        raise reader.busy(oid) from None
    return (row[0] or 0, row[1]) if row else (0, 0)


def _sample(reader: Reader, plan: Plan, partitioned: bool, pages: int) -> list[tuple[str, ...]]:
    keys = [sql.Identifier(column.name) for column in plan.table.key_columns]
    share = min(100.0, 100.0 * SAMPLE_PAGES / pages)
    statement = sql.SQL("select {} from {} {} tablesample system ({}) order by {} limit {}").format(
        sql.SQL(", ").join(sql.SQL("{}::text").format(key) for key in keys),
        sql.SQL("" if partitioned else "only"),
        sql.Identifier(*plan.table.path),
        trusted(f"{share:.6f}"),
        sql.SQL(", ").join(keys),
        sql.Literal(SAMPLE_ROWS_MAX),
    )
    try:
        with rights(plan.table.path), reader.connection.transaction():
            reader.limit_locks()
            return [tuple(row) for row in reader.connection.execute(statement).fetchall()]
    except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
        raise reader.busy(plan.table.table_id) from None


def _bounds(sample: list[tuple[str, ...]], parts_max: int) -> tuple[tuple[str, ...], ...]:
    chosen = [sample[number * len(sample) // parts_max] for number in range(1, parts_max) if sample]
    return tuple(dict.fromkeys(chosen))
