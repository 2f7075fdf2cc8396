"""What the publication says of the tables that are read: their column lists and row filters (PostgreSQL 15)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import psycopg
from cdcworker.connectors.postgres.errors import translate
from cdcworker.connectors.postgres.server.publication_members import ENTRY, SENT, members
from psycopg import sql

if TYPE_CHECKING:
    from cdcworker.connectors.postgres.server.catalog import TableInfo
    from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection

LISTED_S: Final = 10.0
"""How long the list of all tables is used before it is read again."""

# By index, and as `pg_get_publication_tables` has it, which opens the table. Of a partition its root may be published
# instead. To print a row filter the server locks its table.
_ASKED: Final = sql.SQL(
    "select (select array_agg(a.attname::text order by a.attnum) from pg_attribute a"
    f" where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and {SENT}),"
    " case when {locked} then pg_get_expr(r.prqual, r.prrelid) end,"
    " r.prrelid is not null and case when p.pubviaroot then not c.relispartition else c.relkind <> 'p' end"
    " from pg_publication p join pg_class c on c.oid = {oid} "
    f"{ENTRY}"
    " where p.pubname = {name}"
)
Entry = tuple[tuple[str, ...] | None, str | None]
"""Names of columns (None: all) and the row filter."""


class PublishedColumns:
    """Reads column lists and row filters over one connection, always as they are now. Whether a table that is not named itself is
    published is taken from the list of all tables, which is kept for a while; a list without the table is read again."""

    def __init__(self, connection: AdminConnection, publication: str) -> None:
        self._connection = connection
        self._name = publication
        self._all: frozenset[int] = frozenset()
        self._listed_at = float("-inf")

    def of(self, info: TableInfo, *, locked: bool) -> Entry | None:
        """Returns the columns and the row filter of a table; None: it is not published. The row filter only if the caller has `locked` the
        table: to print it the server waits for a lock."""
        if self._connection.info.server_version < 150000:
            return None, None
        for names, text, is_certain in self._ask(info, locked):
            if is_certain or self._lists(info):
                return tuple(names) if names else None, text
        return None

    def _lists(self, info: TableInfo) -> bool:
        if info.oid not in self._all or time.monotonic() - self._listed_at > LISTED_S:
            self._listed_at = time.monotonic()
            try:
                self._all = frozenset(oid for oid, _, _ in members(self._connection, self._name))
            except psycopg.Error as exc:
                raise translate(exc) from exc
        return info.oid in self._all

    def _ask(self, info: TableInfo, locked: bool) -> list[tuple[Any, ...]]:
        given = {"oid": info.oid, "name": self._name, "locked": locked}
        try:
            return self._connection.execute(
                _ASKED.format(**{name: sql.Literal(value) for name, value in given.items()})
            ).fetchall()
        except psycopg.Error as exc:
            raise translate(exc) from exc
