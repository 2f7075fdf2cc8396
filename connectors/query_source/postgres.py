"""Queries of PostgreSQL, each page in one transaction that may not write. Values have the types that the stream's records have."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from cdcworker.connectors.api.plugin_errors import Unavailable
from cdcworker.connectors.api.small_source import AvroType
from cdcworker.connectors.capture.column_mapping import Parser
from cdcworker.connectors.jdbc_url import Address, conninfo
from cdcworker.connectors.postgres.server.catalog import SourceCatalog
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.connectors.postgres.types.mapping import HandlingModes, PgType, TypeRegistry, map_type
from cdcworker.connectors.postgres.types.text_values import SESSION_OPTIONS
from cdcworker.connectors.query_source.database import Mark, Order, QueryColumn, QueryRequest, QueryRow
from cdcworker.connectors.query_source.deadline import SLACK_S, ended_after
from cdcworker.connectors.query_source.errors import as_query_error, refused, too_slow
from cdcworker.connectors.query_source.statements import QueryTable, derived, quoted
from cdcworker.connectors.query_source.values import mark_of, value_of
from cdcworker.connectors.sink_errors import from_psycopg
from cdcworker.connectors.warehouses.postgres.connection import CONNECT_TIMEOUT_S, judged
from cdcworker.schemas.errors import CdcError
from psycopg.adapt import Buffer, Loader

_FORMS: Final = (
    "DateStyle",
    "IntervalStyle",
    "TimeZone",
    "extra_float_digits",
    "bytea_output",
    "lc_monetary",
    "xmloption",
)
"""Settings that decide on texts of values. What decides on the meaning of the query stays as the user's session has it."""
_NUMBERS: Final = ("int2", "int4", "int8")
_TIMES: Final = ("timestamp", "timestamptz")
_CANCELLED: Final = "57014"
_MISSING: Final = ("42P01", "42703", "42883", "3F000")
"""A table, a column, a function or a schema is not there: the message quotes its name and no value."""
_NUMERIC_HEAD: Final = 4
_SCALE_MASK: Final = 0x7FF
"""What a type modifier of numeric holds besides precision and scale, and the bits of the scale."""
_MODES: Final = HandlingModes()
"""Values as the source of changes writes them by default."""


class _Raw(Loader):
    """Leaves a value as the bytes of its text."""

    def load(self, data: Buffer) -> bytes:
        return bytes(data)


@dataclass(frozen=True, slots=True)
class _Reader:
    """A column, and what makes a value of its text."""

    column: QueryColumn
    oid: int
    parse: Parser


class QueriedPostgres:
    """One database of a server. Each session is a connection of its own."""

    def __init__(self, request: QueryRequest) -> None:
        assert isinstance(request.address, Address)
        self._address = request.address
        self._conninfo = conninfo(request.address, request.user, request.password)
        self._table = QueryTable(derived(request.query).replace("%", "%%"), _quoted)
        self._timeout_s = request.timeout_s

    @contextmanager
    def session(self) -> Iterator[PostgresSession]:
        try:
            connection = _connected(self._conninfo)
        except psycopg.Error as error:
            raise _explained(error, was_cut=False) from None
        begun, end = time.monotonic(), self._timeout_s + SLACK_S
        with closing(connection), ended_after(end, lambda: _cut(connection)) as ended:
            try:
                connection.execute(self._begin())
                yield PostgresSession(connection, self._table)
            except psycopg.Error as error:
                is_late = time.monotonic() - begun >= self._timeout_s
                raise _explained(error, was_cut=ended.is_set(), is_late=is_late) from None

    def _begin(self) -> str:
        """Returns what begins a session's only transaction. Settings go with it, also where a pooler hands the connection on."""
        forms = {name: SESSION_OPTIONS[name] for name in _FORMS}
        limit = f"{int(self._timeout_s * 1000)}ms"
        limits = {"statement_timeout": limit, "idle_in_transaction_session_timeout": "60s"}
        path = {} if self._address.schema == "public" else {"search_path": self._address.schema}
        settings = {**forms, **limits, **path}
        lines = [f"set local {name} = {_literal(value)}" for name, value in settings.items()]
        return "; ".join(["begin isolation level repeatable read read only", *lines])


class PostgresSession:
    """A transaction that sees the database at one moment."""

    def __init__(self, connection: AdminConnection, table: QueryTable) -> None:
        self._connection = connection
        self._table = table
        self._readers = _readers(connection, _alone(connection, table.described()))
        self.columns: Sequence[QueryColumn] = [reader.column for reader in self._readers]

    def has_unplaced(self, column: str) -> bool:
        name = self._table.quote(column)
        below = f" or {name} = '-infinity'" if self._reader(column).column.order == "time" else ""
        return _alone(self._connection, self._table.some(f"{name} is null{below}")).fetchone() is not None

    def rows(self, limit: int, column: str = "", low: Mark | None = None) -> Iterator[QueryRow]:
        cursor = self._connection.cursor()
        for reader in self._readers:
            cursor.adapters.register_loader(reader.oid, _Raw)
        text = self._table.rows("*", "%s", column, "" if low is None else "%s")
        place = self.columns.index(self._reader(column).column) if column else None
        # Row by row, as the server sends them: memory holds one.
        for row in cursor.stream(text, (*(() if low is None else (low,)), limit)):
            mark = None if place is None else mark_of(row[place].decode(), self.columns[place].order)
            values = [value_of(value, each.parse, each.column) for value, each in zip(row, self._readers, strict=True)]
            yield QueryRow(values, mark)

    def _reader(self, name: str) -> _Reader:
        return next(reader for reader in self._readers if reader.column.name == name)


def _connected(text: str) -> AdminConnection:
    return psycopg.connect(
        judged(text), autocommit=True, connect_timeout=CONNECT_TIMEOUT_S, client_encoding="UTF8",
        application_name="cdcworker-query", prepare_threshold=None,
    )  # fmt: skip


def _alone(connection: AdminConnection, text: str) -> psycopg.Cursor[tuple[Any, ...]]:
    """Executes a statement with a parameter, and thus by itself: none can stand behind it."""
    statement = text + " offset %s"
    return connection.execute(statement, (0,))


def _cut(connection: AdminConnection) -> None:
    """Ends the connection of a server that does not answer; whoever waits for it learns so at once."""
    with socket.socket(fileno=os.dup(connection.fileno())) as link:
        link.shutdown(socket.SHUT_RDWR)


def _readers(connection: AdminConnection, described: psycopg.Cursor[tuple[Any, ...]]) -> Sequence[_Reader]:
    result = described.pgresult
    assert result is not None
    fields = [(result.fname(at), result.ftype(at), result.fmod(at)) for at in range(result.nfields)]
    try:
        known = SourceCatalog(connection).types((oid, typmod) for _, oid, typmod in fields)
    except CdcError as error:
        # Its codes are those of the source of changes.
        raise error.__cause__ if isinstance(error.__cause__, psycopg.Error) else error from None
    types = TypeRegistry(known.types)
    out = []
    for name, oid, typmod in fields:
        pg = known.types.get(oid) or PgType(oid, "")
        mapped = map_type(pg, typmod, _MODES, types)
        declared = known.names.get((oid, typmod), str(oid))
        column = QueryColumn((name or b"").decode(), declared, AvroType(mapped.avro), _order(pg, typmod, known.types))
        out.append(_Reader(column, oid, mapped.parse))
    return out


def _order(pg: PgType, typmod: int, known: Mapping[int, PgType]) -> Order:
    while pg.kind == "d" and pg.base in known:
        typmod = pg.base_typmod if typmod < 0 else typmod
        pg = known[pg.base]
    if pg.name in _NUMBERS or (pg.name == "numeric" and _has_no_fraction(typmod)):
        return "number"
    return "time" if pg.name in _TIMES else ""


def _has_no_fraction(typmod: int) -> bool:
    return typmod >= _NUMERIC_HEAD and (typmod - _NUMERIC_HEAD) & _SCALE_MASK == 0


def _quoted(name: str) -> str:
    """Returns a name for a statement with parameters, in which a % stands for one."""
    return quoted(name).replace("%", "%%")


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _explained(error: psycopg.Error, *, was_cut: bool, is_late: bool = False) -> CdcError:
    """Returns the error without the server's text, but for that about a name of the query."""
    state = error.sqlstate or ""
    if was_cut:
        return Unavailable("the server does not answer")
    # Who has ended a statement the server says only in words, of its own language.
    if state == _CANCELLED and is_late:
        return too_slow()
    if state in _MISSING:
        return refused(str(error.diag.message_primary))
    return as_query_error(from_psycopg(error))
