"""Queries of MySQL and MariaDB, each page in one transaction that may not write. Values have the types that the log's records have."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdcworker.connectors.api.plugin_errors import MISCONFIGURED, UNAVAILABLE, Unavailable
from cdcworker.connectors.api.small_source import AvroType
from cdcworker.connectors.capture.column_mapping import Parser
from cdcworker.connectors.jdbc_url import Address
from cdcworker.connectors.mysql.binlog.table_map import Column
from cdcworker.connectors.mysql.decode.value_types import map_type, source_type_of
from cdcworker.connectors.mysql.errors import UnknownTypeError
from cdcworker.connectors.mysql.server.grants import quoted
from cdcworker.connectors.mysql.snapshot.selected_values import converter, selected
from cdcworker.connectors.mysql.types.column import ColumnType, TypeCode
from cdcworker.connectors.mysql.types.modes import HandlingModes
from cdcworker.connectors.mysql_client.error_numbers import number_of
from cdcworker.connectors.mysql_client.login import Login, LoginRefusals, connected
from cdcworker.connectors.query_source.database import Mark, Order, QueryColumn, QueryRequest, QueryRow
from cdcworker.connectors.query_source.deadline import SLACK_S, ended_after
from cdcworker.connectors.query_source.errors import LOGIN_REFUSED, as_query_error, driver_missing, refused, too_slow
from cdcworker.connectors.query_source.statements import QueryTable, derived
from cdcworker.connectors.query_source.values import mark_of, value_of
from cdcworker.connectors.warehouses.mysql.errors import CERTIFICATE, WEAK_LOGIN, from_pymysql
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import MySqlConnection
    from pymysql.protocol import FieldDescriptorPacket

REFUSALS: Final = LoginRefusals(UNAVAILABLE, MISCONFIGURED, "connection.url", "sslrootcert")
_MODE: Final = "NO_ENGINE_SUBSTITUTION"
_SESSION: Final = (
    "set session transaction isolation level repeatable read",
    # Times do not depend on the server's zone, and no read leaves rows out.
    "set session time_zone = '+00:00', sql_select_limit = 18446744073709551615, completion_type = 'NO_CHAIN'",
    "start transaction with consistent snapshot, read only",
)
_TOO_SLOW: Final = (1969, 3024)
"""MariaDB's max_statement_time and MySQL's max_execution_time."""
_MISSING: Final = (1054, 1060, 1146, 1305)
"""A column, a table or a function is not there, or two columns have one name: the message quotes the name and no value."""
_CUT_SHORT: Final = b"1931"
"""MariaDB's warning that it has left rows out, for LIMIT ROWS EXAMINED says so."""
_UNSIGNED, _ENUM, _SET = 1 << 5, 1 << 8, 1 << 11
_DIGITS_MAX: Final = 6
_UTF8: Final = 45
"""A collation of the character set in which all texts come."""
_LONG_MAX: Final = 2**63 - 1
_TIMES: Final = {
    TypeCode.TIMESTAMP: TypeCode.TIMESTAMP2,
    TypeCode.DATETIME: TypeCode.DATETIME2,
    TypeCode.TIME: TypeCode.TIME2,
}
"""The codes of results, and those of types with a fraction."""
_NUMBERS: Final = frozenset({TypeCode.TINY, TypeCode.SHORT, TypeCode.INT24, TypeCode.LONG, TypeCode.LONGLONG})
_MOMENTS: Final = frozenset({TypeCode.TIMESTAMP2, TypeCode.DATETIME2})
_TEXT: Final = ColumnType(TypeCode.VARCHAR, 0, collation=_UTF8)
_TLS_HINT: Final = (
    "Set sslmode=verify-full in connection.url, with sslrootcert for an authority of your own; or give the user a plugin that never needs"
    " the password itself, such as mysql_native_password."
)
_MODES: Final = HandlingModes()
"""Values as the source of changes writes them by default."""


@dataclass(frozen=True, slots=True)
class _Reader:
    """A column: what it is selected as, and what makes a value of its text."""

    column: QueryColumn
    selected: str
    parse: Parser


class QueriedMySql:
    """One database of a server. Each session is a connection of its own."""

    def __init__(self, request: QueryRequest) -> None:
        address = request.address
        assert isinstance(address, Address)
        self._login = Login(
            ",".join(address.hosts), address.ports[0], request.user, request.password, address.sslmode,
            address.sslrootcert or None,
        )  # fmt: skip
        self._database = address.database
        self._table = QueryTable(derived(request.query), quoted)
        self._timeout_s = request.timeout_s

    @contextmanager
    def session(self) -> Iterator[MySqlSession]:
        try:
            import pymysql
        except ImportError:
            raise driver_missing("PyMySQL") from None
        try:
            connection = connected(self._login, "cdcworker-query", REFUSALS, sql_mode=_MODE)
        except pymysql.Error as error:
            raise _explained(error, was_cut=False) from None
        end = self._timeout_s + SLACK_S
        with closing(connection), ended_after(end, lambda: _cut(connection)) as ended:
            try:
                self._begin(connection)
                yield MySqlSession(connection, self._table)
            except (pymysql.Error, OSError) as error:
                raise _explained(error, was_cut=ended.is_set()) from None

    def _begin(self, connection: MySqlConnection) -> None:
        connection.select_db(self._database)
        found = connection.one("select version()")
        is_mariadb = "mariadb" in str(found[0] if found else "").lower()
        limit = (
            f"max_statement_time = {self._timeout_s}"
            if is_mariadb
            else f"max_execution_time = {int(self._timeout_s * 1000)}"
        )
        connection.do(f"set session {limit}")
        for statement in _SESSION:
            connection.do(statement)


class MySqlSession:
    """A transaction that sees the database at one moment."""

    def __init__(self, connection: MySqlConnection, table: QueryTable) -> None:
        self._connection = connection
        self._table = table
        fields, rows = connection.stream(table.described())
        list(rows)
        self._readers = [_reader(field) for field in fields]
        self.columns: Sequence[QueryColumn] = [reader.column for reader in self._readers]

    def has_unplaced(self, column: str) -> bool:
        name, order = quoted(column), self.columns[self._place(column)].order
        # A time whose parts are zero.
        below = f" or {name} < '0001-01-01 00:00:00'" if order == "time" else ""
        _, rows = self._connection.stream(self._table.some(f"{name} is null{below}"))
        return bool(list(rows))

    def rows(self, limit: int, column: str = "", low: Mark | None = None) -> Iterator[QueryRow]:
        listed = ", ".join(reader.selected for reader in self._readers)
        place = self._place(column) if column else None
        _, rows = self._connection.stream(self._table.rows(listed, str(int(limit)), column, _literal(low)))
        for row in rows:
            mark = None if place is None else mark_of((row[place] or b"").decode(), self.columns[place].order)
            yield QueryRow(
                [value_of(value, each.parse, each.column) for value, each in zip(row, self._readers, strict=True)], mark
            )
        self._require_whole()

    def _require_whole(self) -> None:
        """CdcError where the result lacks rows: those that were not read are not gone."""
        if any(number == _CUT_SHORT for _, number, _ in self._connection.ask("show warnings")):
            raise refused("LIMIT ROWS EXAMINED leaves rows out")

    def _place(self, name: str) -> int:
        return [column.name for column in self.columns].index(name)


def _cut(connection: MySqlConnection) -> None:
    """Ends the connection of a server that does not answer; whoever waits for it learns so at once."""
    if connection._sock is not None:
        connection._sock.shutdown(socket.SHUT_RDWR)


def _reader(field: FieldDescriptorPacket) -> _Reader:
    kind = _kind(field)
    try:
        mapped = map_type(Column(field.name, kind, is_nullable=True), None, _MODES)
        convert, parse, name = converter(kind), mapped.parse, selected(field.name, kind)
    except UnknownTypeError:
        kind = _TEXT
        mapped = map_type(Column(field.name, kind, is_nullable=True), None, _MODES)
        convert, parse, name = converter(kind), mapped.parse, quoted(field.name)
    if kind.code is TypeCode.LONGLONG and kind.is_unsigned:
        # The log's form of a number beyond a long is a negative one.
        parse = _long
    declared = source_type_of(kind) or f"{kind.code.name.lower()}({field.length})"
    column = QueryColumn(field.name, declared, AvroType(mapped.avro), _order(kind))
    return _Reader(column, f"{name} as {quoted(field.name)}", lambda value: parse(convert(value)))


def _kind(field: FieldDescriptorPacket) -> ColumnType:
    """Returns a column's type by what a result says of it."""
    try:
        code = TypeCode(field.type_code)
    except ValueError:
        return _TEXT
    if code is TypeCode.NULL or field.flags & (_ENUM | _SET):
        # A result does not name the members.
        return _TEXT
    if code in _TIMES:
        return ColumnType(_TIMES[code], field.scale if field.scale <= _DIGITS_MAX else _DIGITS_MAX)
    is_unsigned = bool(field.flags & _UNSIGNED)
    if code in (TypeCode.NEWDECIMAL, TypeCode.DECIMAL):
        # Its length counts the sign and the point too.
        precision = field.length - (not is_unsigned) - bool(field.scale)
        return ColumnType(TypeCode.NEWDECIMAL, precision, field.scale, is_unsigned)
    return ColumnType(code, field.length, 0, is_unsigned, field.charsetnr)


def _order(kind: ColumnType) -> Order:
    if kind.code in _NUMBERS or (kind.code is TypeCode.NEWDECIMAL and not kind.scale):
        return "number"
    return "time" if kind.code in _MOMENTS else ""


def _literal(low: Mark | None) -> str:
    if low is None:
        return ""
    # A time is of the form that the mark was made with, or that the window has checked.
    return str(low) if isinstance(low, int) else f"timestamp'{low}'"


def _long(value: int) -> int:
    if value > _LONG_MAX:
        raise ValueError("beyond a long")
    return value


def _explained(error: Exception, *, was_cut: bool) -> CdcError:
    """Returns the error without the server's text, but for that about a name of the query."""
    number = number_of(error)
    if was_cut or isinstance(error, OSError):
        return Unavailable(f"the server does not answer ({type(error).__name__})")
    if number in _TOO_SLOW:
        return too_slow()
    if number in _MISSING:
        return refused(str(error.args[1]))
    found = from_pymysql(error)
    if found.code in (WEAK_LOGIN, CERTIFICATE):
        return CdcError(LOGIN_REFUSED, found.message, where={"key": "connection.url"}, hint=_TLS_HINT)
    return as_query_error(found)
