"""What the publication says of the tables that are read: their column lists and row filters (PostgreSQL 15)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import psycopg
from cdcworker.connectors.postgres.errors import translate
from psycopg import sql

if TYPE_CHECKING:
    from cdcworker.connectors.postgres.catalog import TableInfo
    from cdcworker.connectors.postgres.connection import AdminConnection

LISTED_S: Final = 10.0
"""How long the list of all tables is taken for what it was."""

# By index, and as `pg_get_publication_tables` has it: of a table whose schema is published too neither is looked at, and of
# a partition its root may be published instead.
_MEMBER: Final = sql.SQL(
    "select (select array_agg(a.attname::text order by a.attnum) from pg_attribute a"
    " where a.attrelid = r.prrelid and a.attnum > 0 and not a.attisdropped"
    " and case when r.prattrs is not null then a.attnum = any (r.prattrs::int2[])"
    " else a.attgenerated = '' or (a.attgenerated = 's' and to_jsonb(p) ->> 'pubgencols' = 's') end),"
    " pg_get_expr(r.prqual, r.prrelid)"
    " from pg_publication p join pg_publication_rel r on r.prpubid = p.oid join pg_class c on c.oid = r.prrelid"
    " where p.pubname = {} and r.prrelid = {} and not (c.relispartition and p.pubviaroot) and not exists"
    " (select from pg_publication_namespace n where n.pnpubid = p.oid and n.pnnspid = c.relnamespace)"
)
_ALL: Final = sql.SQL(
    "select c.oid, p.attnames::text[], p.rowfilter from pg_publication_tables p"
    " join pg_namespace n on n.nspname = p.schemaname"
    " join pg_class c on c.relnamespace = n.oid and c.relname = p.tablename where p.pubname = {}"
)
Entry = tuple[tuple[str, ...] | None, str | None]
"""Names of columns (None: all) and the row filter."""


class Published:
    """Over one connection. What a table that is a member itself says is always of now. For any other the server makes the list
    of all tables, so that is kept for a while; one that does not name the table, or not all of its columns, is no answer."""

    def __init__(self, connection: AdminConnection, publication: str) -> None:
        self._connection = connection
        self._name = sql.Literal(publication)
        self._all: dict[int, Entry] = {}
        self._listed_at = float("-inf")

    def of(self, info: TableInfo) -> Entry | None:
        """None: it is not published."""
        if self._connection.info.server_version < 150000:
            return None, None
        for names, text in self._ask(_MEMBER.format(self._name, sql.Literal(info.oid))):
            return tuple(names) if names else None, text
        if not self._names_all(info) or time.monotonic() - self._listed_at > LISTED_S:
            self._listed_at = time.monotonic()
            self._all = {
                oid: (tuple(names) if names else None, text) for oid, names, text in self._ask(_ALL.format(self._name))
            }
        return self._all.get(info.oid)

    def _names_all(self, info: TableInfo) -> bool:
        if info.oid not in self._all:
            return False
        names, _ = self._all[info.oid]
        return names is None or set(info.columns).issubset(names)

    def _ask(self, statement: sql.Composed) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(statement).fetchall()
        except psycopg.Error as exc:
            raise translate(exc) from exc
