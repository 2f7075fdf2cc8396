"""Queries of a SQLite file, which is opened anew for each look at it, and only to be read."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

from cdcworker.connectors.api.plugin_errors import Unavailable
from cdcworker.connectors.api.small_source import FieldType
from cdcworker.connectors.query_source.database import Mark, Order, QueryColumn, QueryRequest, QueryRow
from cdcworker.connectors.query_source.errors import refused, too_slow
from cdcworker.connectors.query_source.files import path_of, require_file
from cdcworker.connectors.query_source.statements import ALIAS, QueryTable, quoted
from cdcworker.schemas.errors import CdcError

LOCKED_S: Final = 5.0
STEPS: Final = 10_000
"""After so many steps of a statement its time is looked at."""
_BUSY: Final = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_PROTOCOL", "SQLITE_READONLY")
"""Errors that pass. Where a writer ended in the middle, a file that is only read stays as it is until the next writer comes."""
_ORDERS: Final[dict[FieldType, Order]] = {"int64": "number", "string": "time"}


class QueriedSqlite:
    """One file."""

    def __init__(self, request: QueryRequest) -> None:
        self._path = path_of(request)
        self._query = request.query
        self._timeout_s = request.timeout_s

    @contextlib.contextmanager
    def session(self) -> Iterator[SqliteSession]:
        require_file(self._path)
        deadline = time.monotonic() + self._timeout_s
        try:
            uri = f"file:{quote(str(self._path))}?mode=ro"
            with contextlib.closing(sqlite3.connect(uri, LOCKED_S, uri=True, isolation_level=None)) as session:
                session.set_progress_handler(lambda: time.monotonic() > deadline, STEPS)
                # All statements see the file, and its tables' columns, at one moment.
                session.execute("begin")
                # A view takes one statement, and none but a SELECT; it names the columns with the types they are declared with.
                session.execute(f"create temp view {ALIAS} as {self._query}")
                yield SqliteSession(session)
        except sqlite3.Error as error:
            raise _explained(error) from None


class SqliteSession:
    """A session in which the query is a view."""

    def __init__(self, session: sqlite3.Connection) -> None:
        self._session = session
        self._table = QueryTable(f"temp.{ALIAS}", quoted)
        self.columns: Sequence[QueryColumn] = [
            QueryColumn(name, kind.upper(), found := _type(kind.upper()), _ORDERS.get(found, ""))
            for _, name, kind, *_ in session.execute(f"pragma table_info({ALIAS})")
        ]

    def has_unplaced(self, column: str) -> bool:
        name, found = quoted(column), next(each for each in self.columns if each.name == column)
        # To SQLite numbers lie below all texts.
        below = f" or typeof({name}) in ('integer', 'real')" if found.order == "time" else ""
        text = self._table.some(f"{name} is null{below}")
        return self._session.execute(text).fetchone() is not None

    def rows(self, limit: int, column: str = "", low: Mark | None = None) -> Iterator[QueryRow]:
        text = self._table.rows("*", "?", column, "" if low is None else "?")
        place = [each.name for each in self.columns].index(column) if column else None
        for row in self._session.execute(text, (*(() if low is None else (low,)), limit)):
            values = [_value(value, each) for value, each in zip(row, self.columns, strict=True)]
            yield QueryRow(values, None if place is None else values[place])


def _type(kind: str) -> FieldType:
    """Returns the type of a column by the words that SQLite itself looks for; others are text, and numbers in them as well."""
    if "INT" in kind:
        return "int64"
    if "BOOL" in kind:
        return "boolean"
    if "BLOB" in kind:
        return "bytes"
    return "float64" if any(word in kind for word in ("REAL", "FLOA", "DOUB")) else "string"


def _value(value: Any, column: QueryColumn) -> Any:
    """Returns a value as its field has it. SQLite's columns hold values of any type: the engine refuses what does not fit."""
    if column.type == "boolean" and value in (0, 1) and isinstance(value, int):
        return bool(value)
    if column.type == "string" and isinstance(value, int | float):
        return repr(value)
    return value


def _explained(error: sqlite3.Error) -> CdcError:
    """Returns the error without the database's text, but for that about a name of the query."""
    name = getattr(error, "sqlite_errorname", "") or type(error).__name__
    if name.startswith("SQLITE_INTERRUPT"):
        return too_slow()
    if name.startswith(_BUSY):
        return Unavailable(f"the file cannot be read now ({name})")
    return refused(str(error) if str(error).startswith("no such ") else name)
