"""Queries of a file of DuckDB, which is opened anew for each look at it, and only to be read. Values come as DuckDB's texts, whose forms are
PostgreSQL's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.plugin_errors import Unavailable
from cdcworker.connectors.api.small_source import AvroType
from cdcworker.connectors.capture.avro_types import connect
from cdcworker.connectors.postgres.types.mapping import ENTRIES, HandlingModes
from cdcworker.connectors.postgres.types.text_values import timestamp_us
from cdcworker.connectors.query_source.database import Mark, Order, QueryColumn, QueryRequest, QueryRow
from cdcworker.connectors.query_source.deadline import ended_after
from cdcworker.connectors.query_source.errors import driver_missing, refused, too_slow
from cdcworker.connectors.query_source.files import path_of, require_file
from cdcworker.connectors.query_source.statements import QueryTable, derived, quoted
from cdcworker.connectors.query_source.values import mark_of, value_of
from cdcworker.connectors.warehouses.duckdb.connection import SETTINGS
from cdcworker.connectors.warehouses.duckdb.errors import is_locked
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import duckdb

Parse = Callable[[Any], Any]
FETCHED_ROWS: Final = 200
_PLAIN: Final = {
    "TINYINT": "int2", "SMALLINT": "int2", "INTEGER": "int4", "BIGINT": "int8", "UTINYINT": "int2",
    "USMALLINT": "int4", "UINTEGER": "int8", "FLOAT": "float4", "DOUBLE": "float8", "DATE": "date", "TIME": "time",
    "TIME WITH TIME ZONE": "timetz", "TIMESTAMP_S": "timestamp", "TIMESTAMP_MS": "timestamp", "TIMESTAMP": "timestamp",
    "TIMESTAMP WITH TIME ZONE": "timestamptz", "INTERVAL": "interval", "UUID": "uuid", "JSON": "json",
}  # fmt: skip
"""DuckDB's types that PostgreSQL has too, by its names."""
_WHOLE: Final = {"UBIGINT": 20, "HUGEINT": 39, "UHUGEINT": 39}
"""Types of whole numbers beyond a long, with their digits."""
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_NUMBERS: Final = frozenset(
    {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "HUGEINT"}
)
_TIMES: Final = frozenset({"TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE"})
_MICROSECOND_CHARS: Final = len("YYYY-MM-DD HH:MM:SS.ffffff")
_NAMES: Final = ("CatalogException", "BinderException")
"""Errors about tables and columns, whose first line quotes names and no value."""
_MODES: Final = HandlingModes()


@dataclass(frozen=True, slots=True)
class _Reader:
    """A column, whether it is selected as its text, and what makes a value of what is selected."""

    column: QueryColumn
    is_text: bool
    parse: Parse


class QueriedDuckDb:
    """One file."""

    def __init__(self, request: QueryRequest) -> None:
        self._path = path_of(request)
        self._table = QueryTable(derived(request.query), quoted)
        self._timeout_s = request.timeout_s

    @contextmanager
    def session(self) -> Iterator[DuckSession]:
        try:
            import duckdb
        except ImportError:
            raise driver_missing("duckdb") from None
        require_file(self._path)
        try:
            opened = duckdb.connect(str(self._path), read_only=True, config=dict(SETTINGS))
            with closing(opened) as session, ended_after(self._timeout_s, session.interrupt):
                session.execute("set timezone = 'UTC'")
                _require_one(session, self._table.described())
                yield DuckSession(session, self._table)
        except duckdb.Error as error:
            raise _explained(error) from None


class DuckSession:
    """A session over the file, which nobody writes meanwhile."""

    def __init__(self, session: duckdb.DuckDBPyConnection, table: QueryTable) -> None:
        self._session = session
        self._table = table
        found = session.execute(table.explained()).fetchall()
        self._readers = [_reader(name, declared) for name, declared, *_ in found]
        self.columns: Sequence[QueryColumn] = [reader.column for reader in self._readers]

    def has_unplaced(self, column: str) -> bool:
        name, found = quoted(column), self.columns[self._place(column)]
        below = f" or {name} = cast('-infinity' as {found.declared})" if found.order == "time" else ""
        text = self._table.some(f"{name} is null{below}")
        return self._session.execute(text).fetchone() is not None

    def rows(self, limit: int, column: str = "", low: Mark | None = None) -> Iterator[QueryRow]:
        place = self._place(column) if column else None
        listed = ", ".join(map(_selected, self._readers))
        bound = "" if low is None or place is None else f"cast(? as {self._bound_type(place)})"
        text = self._table.rows(listed, "?", column, bound)
        found = self._session.execute(text, (*((str(low),) if bound else ()), limit))
        while rows := found.fetchmany(FETCHED_ROWS):
            for row in rows:
                mark = None if place is None else mark_of(str(row[place]), self.columns[place].order)
                yield QueryRow(
                    [value_of(value, each.parse, each.column) for value, each in zip(row, self._readers, strict=True)],
                    mark,
                )

    def _place(self, name: str) -> int:
        return [column.name for column in self.columns].index(name)

    def _bound_type(self, place: int) -> str:
        """Returns the type in which a column is compared. A number may lie below all that the column can have."""
        column = self.columns[place]
        return column.declared if column.order == "time" else "HUGEINT"


def _require_one(session: duckdb.DuckDBPyConnection, text: str) -> None:
    """CdcError unless a query is one statement, and ends where the source says so."""
    found = session.extract_statements(text)
    if len(found) != 1:
        raise refused("it is more than one statement")


def _reader(name: str, declared: str) -> _Reader:
    order: Order = "number" if declared in _NUMBERS else "time" if declared in _TIMES else ""
    found, decimal = _PLAIN.get(declared), _DECIMAL.fullmatch(declared)
    if declared == "BLOB":
        return _Reader(QueryColumn(name, declared, "bytes"), False, bytes)
    if declared == "BOOLEAN":
        return _Reader(QueryColumn(name, declared, "boolean"), False, bool)
    if declared == "TIMESTAMP_NS":
        return _Reader(
            QueryColumn(name, declared, AvroType(connect("long", "io.debezium.time.NanoTimestamp")), order),
            True,
            _nanoseconds,
        )
    if decimal or declared in _WHOLE:
        precision, scale = map(int, decimal.groups()) if decimal else (_WHOLE[declared], 0)
        found, typmod = "numeric", (precision << 16 | scale) + 4
        order = "number" if decimal and not scale else order
    else:
        typmod = 0 if declared == "TIMESTAMP_S" else 3 if declared == "TIMESTAMP_MS" else -1
    if found is None:
        # Enums, lists, structs, maps and all else that has no form of its own.
        return _Reader(QueryColumn(name, declared, "string"), True, str)
    mapped = ENTRIES[found](typmod, _MODES)
    return _Reader(QueryColumn(name, declared, AvroType(mapped.avro), order), True, partial(_parsed, mapped.parse))


def _parsed(parse: Parse, value: str) -> Any:
    """Returns the value of a text in DuckDB's form, where it differs from PostgreSQL's: eras and months."""
    text = value.replace(" (BC)", " BC") if value.endswith(")") else value.replace("month", "mon")
    return parse(text.encode())


def _nanoseconds(value: str) -> int:
    whole, rest = value[:_MICROSECOND_CHARS], value[_MICROSECOND_CHARS:]
    micros: int = timestamp_us(whole.encode())
    return micros * 1000 + int(rest or 0)


def _selected(reader: _Reader) -> str:
    name = quoted(reader.column.name)
    return f"cast({name} as varchar) as {name}" if reader.is_text else name


def _explained(error: duckdb.Error) -> CdcError:
    """Returns the error without DuckDB's text, but for that about a name of the query."""
    name = type(error).__name__
    if name == "InterruptException":
        return too_slow()
    if is_locked(error):
        return Unavailable("another process has the file open to write")
    if name in ("IOException", "ConnectionException", "FatalException", "OutOfMemoryException"):
        return Unavailable(f"the file cannot be read now ({name})")
    return refused(str(error).partition("\n")[0] if name in _NAMES else name)
