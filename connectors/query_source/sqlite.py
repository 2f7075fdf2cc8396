"""Queries of a SQLite file, which is opened anew for each of them, and only to be read."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from cdcworker.connectors.api.plugin_errors import Misconfigured, Unavailable
from cdcworker.connectors.api.small_source import FieldType
from cdcworker.connectors.query_source.database import QUERY_REFUSED, QUERY_TOO_SLOW, QueryColumn
from cdcworker.schemas.errors import CdcError

_VIEW: Final = "temp.cdcworker_rows"
LOCKED_S: Final = 5.0
STEPS: Final = 10_000
"""After so many steps of a statement its time is looked at."""
_BUSY: Final = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_CANTOPEN", "SQLITE_IOERR")


class SqliteDatabase:
    """One file. `path` is one that the worker lets connectors read."""

    def __init__(self, path: Path, query: str, timeout_s: float) -> None:
        self._path = path
        self._query = query
        self._timeout_s = timeout_s
        self._columns: Sequence[QueryColumn] = ()

    def columns(self) -> Sequence[QueryColumn]:
        with self._opened() as session:
            self._columns = _columns(session)
        return self._columns

    def rows(self, limit: int, column: str = "", low: int | str | None = None) -> Sequence[Sequence[Any]]:
        name = _quoted(column)
        where = f" where {name} >= ?" if low is not None else ""
        order = f" order by {name}" if column else ""
        text = f"select * from {_VIEW}{where}{order} limit ?"
        with self._opened() as session:
            if _columns(session) != self._columns:
                raise Misconfigured(
                    "the query has other columns than when the task began: start the task again", key="query"
                )
            found = session.execute(text, (*(() if low is None else (low,)), limit))
            return [
                [_value(value, each) for value, each in zip(row, self._columns, strict=True)]
                for row in found
            ]  # fmt: skip

    def has_null(self, column: str) -> bool:
        with self._opened() as session:
            text = f"select 1 from {_VIEW} where {_quoted(column)} is null limit 1"
            return session.execute(text).fetchone() is not None

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        self._require_file()
        deadline = time.monotonic() + self._timeout_s
        try:
            uri = f"file:{quote(str(self._path))}?mode=ro"
            with contextlib.closing(sqlite3.connect(uri, LOCKED_S, uri=True, isolation_level=None)) as session:
                session.set_progress_handler(lambda: time.monotonic() > deadline, STEPS)
                # A view takes one statement, and none but a SELECT; it names the columns with the types they are declared with.
                session.execute(f"create temp view cdcworker_rows as {self._query}")
                yield session
        except sqlite3.Error as error:
            raise _explained(error) from None

    def _require_file(self) -> None:
        try:
            found = os.lstat(self._path)
        except OSError as error:
            raise Unavailable(f"the file cannot be read ({type(error).__name__})", key="connection.url") from None
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise Misconfigured("is no regular file, a link, or has a second name", key="connection.url")


def _columns(session: sqlite3.Connection) -> Sequence[QueryColumn]:
    return [
        QueryColumn(name, _type(kind.upper())) for _, name, kind, *_ in session.execute("pragma table_info(cdcworker_rows)")
    ]  # fmt: skip


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


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _explained(error: sqlite3.Error) -> CdcError:
    """Returns the error without the database's text, but for that about a name of the query."""
    name = getattr(error, "sqlite_errorname", "") or type(error).__name__
    if name.startswith("SQLITE_INTERRUPT"):
        return CdcError(QUERY_TOO_SLOW, "the query was ended", where={"key": "query.timeout.ms"})
    if name.startswith(_BUSY):
        return Unavailable(f"the file cannot be read now ({name})")
    text = str(error) if str(error).startswith("no such ") else name
    return CdcError(QUERY_REFUSED, f"the database refuses the query: {text}", where={"key": "query"})
