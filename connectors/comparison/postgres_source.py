"""A PostgreSQL source as one side of a comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.verify.databases import PostgresSide
from cdcworker.connectors.verify.sql import Statement
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

PAGE: Final = 8192
PAGE_HEAD_MAX: Final = 40
"""Bytes of a log page's head at most: where the next record begins right behind it, nothing has been written since the
page's start."""


class PostgresSourceSide(PostgresSide):
    """The source of a comparison. `end_of_log` is the SQL expression for the end of the server's log, which differs on a standby."""

    def __init__(self, connection: Connection, translate: Callable[[Exception], CdcError], end_of_log: str) -> None:
        super().__init__(connection, "source", translate)
        self._end_of_log = end_of_log

    def begin(self) -> int:
        """Begins a snapshot and returns the log position before which everything that it shows was committed."""
        self.begin_snapshot()
        ((position,),) = self.ask(Statement(f"SELECT ({self._end_of_log}::pg_lsn - '0/0')::bigint", ()))
        return settled(int(position))


def settled(position: int) -> int:
    """Returns the position, or its page's start when it is right behind the head of a page, which no record ever reaches."""
    rest = position % PAGE
    return position - rest if rest <= PAGE_HEAD_MAX else position
