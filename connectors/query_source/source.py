"""The source of a query: runs it again and again, and keeps in its cursor what was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal

from cdcworker.connectors.api.kit import (
    CheckFinding,
    Misconfigured,
    SourceField,
    SourcePage,
    SourcePlace,
    SourceRecord,
    SourceTable,
)
from cdcworker.connectors.kit.list_comparison import LIST_BYTES_MAX, LIST_ROWS_MAX, compared, is_too_long
from cdcworker.connectors.query_source.address import FileAddress, parsed
from cdcworker.connectors.query_source.config import COLUMN_KEYS
from cdcworker.connectors.query_source.database import Order, QueriedDatabase, QueryColumn, QuerySession
from cdcworker.connectors.query_source.databases import open_database
from cdcworker.connectors.query_source.window import WINDOW_ROWS_MAX, Reading, window_of
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError, declare

LIST_TOO_LONG: Final = declare(
    "query.list_too_long",
    "config",
    "The result is too long to be compared with what it was",
    "Use mode=incrementing or mode=timestamp, or several connectors with a part of the rows each.",
)
CURSOR_NULL: Final = declare(
    "query.cursor_null",
    "data",
    "A row has no value in the cursor column, so it would never be read",
    "Give it one, or leave such rows out with a condition in the query.",
)
NEW_ROWS: Final = 2_000
"""So many rows that were not read before fit into a page, whatever the look-back holds."""
PAGE_ROWS: Final = WINDOW_ROWS_MAX + NEW_ROWS
PAGE_BYTES: Final = 16 * 1024 * 1024
"""What rows that were not read before may hold in texts and bytes before a page ends."""
LIST_VALUES_BYTES_MAX: Final = 4 * PAGE_BYTES
"""The same of all rows that are compared."""
_ORDERED: Final[Mapping[str, Order]] = {"incrementing": "number", "timestamp": "time"}
_WORDS: Final = {"number": "whole numbers", "time": "times"}
_STRANGE: Final = "the stored position is not one of this source: reset the connector's offsets"


class QueryRows:
    """The rows of one query. With a cursor column its cursor holds how far rows were read, else digests of all of them."""

    def __init__(self, place: SourcePlace) -> None:
        self._config = place.config
        self._place = place
        self._mode: str = self._config["mode"]
        self._name: str = self._config["query.table"]
        self._key: Sequence[str] = list(self._config["query.key"] or ())
        self._opened: QueriedDatabase | None = None
        self._columns: Sequence[QueryColumn] = ()

    def tables(self) -> Sequence[SourceTable]:
        with self._database.session() as session:
            columns = session.columns
        by_name = {column.name: column for column in columns}
        if len(by_name) < len(columns):
            raise Misconfigured("two columns have one name: give them others with AS", key="query")
        for name in self._key:
            if name not in by_name or not by_name[name].fits_key:
                text = "names a column that the query does not have, or whose type is neither text nor a whole number nor boolean"
                raise Misconfigured(text, key="query.key")
        if self._mode in COLUMN_KEYS:
            key = COLUMN_KEYS[self._mode]
            self._require_ordered(by_name.get(self._config[key]), key)
        self._columns = columns
        return [SourceTable(self._name, [SourceField(each.name, each.type) for each in columns], self._key)]

    def read(self, cursor: JsonObject | None) -> SourcePage:
        return self._whole(cursor or {}) if self._mode == "diff" else self._behind(cursor or {})

    def check(self) -> Sequence[CheckFinding]:
        """Asks a server for the columns of the query. Which files may be read only the worker that runs the task knows."""
        if isinstance(parsed(self._config["connection.url"]), FileAddress):
            return []
        try:
            self.tables()
        except CdcError as error:
            key = str(error.where.get("key", "connection.url"))
            severity: Literal["warning", "error"] = "warning" if error.kind == "transient" else "error"
            return [CheckFinding(key, severity, error.code, error.message, error.hint)]
        return []

    def _require_ordered(self, column: QueryColumn | None, key: str) -> None:
        wanted = _ORDERED[self._mode]
        if column is None or column.order != wanted:
            text = (
                f"has to hold {_WORDS[wanted]}, and is {column.declared or 'of no type'}"
                if column
                else "is no column of the query"
            )
            raise Misconfigured(f"the cursor column {text}", key=key)

    @property
    def _database(self) -> QueriedDatabase:
        if self._opened is None:
            self._opened = open_database(self._place)
        return self._opened

    @contextmanager
    def _session(self) -> Iterator[QuerySession]:
        with self._database.session() as session:
            if list(session.columns) != list(self._columns):
                text = "the query has other columns than when the task began: start the task again"
                raise Misconfigured(text, key="query")
            yield session

    def _behind(self, cursor: JsonObject) -> SourcePage:
        column, lookback = self._config[COLUMN_KEYS[self._mode]], self._config["query.lookback"]
        try:
            window = window_of(cursor)
        except (ValueError, TypeError):
            raise Misconfigured(_STRANGE) from None
        if window.high is not None and isinstance(window.high, int) != (self._mode == "incrementing"):
            raise Misconfigured("the stored position is one of another mode: reset the connector's offsets", key="mode")
        reading, records, size = Reading(window, lookback), list[SourceRecord](), 0
        with self._session() as session:
            if session.has_unplaced(column):
                text = "a row has NULL there, or a value below all others, as an infinite or a zero time"
                raise CdcError(CURSOR_NULL, text, where={"key": COLUMN_KEYS[self._mode]})
            for row in session.rows(PAGE_ROWS, column, window.low(lookback)):
                if reading.take(row):
                    records.append(SourceRecord(self._name, self._row(row.values)))
                    size += _size(row.values)
                if size > PAGE_BYTES:
                    break
        more = size > PAGE_BYTES or reading.count == PAGE_ROWS
        return SourcePage(records, reading.after(whole=not more).stored(), more=more)

    def _whole(self, cursor: JsonObject) -> SourcePage:
        known = cursor.get("rows")
        if known is not None and not isinstance(known, dict):
            raise Misconfigured(_STRANGE)
        rows = self._all_rows()
        places = [[each.name for each in self._columns].index(name) for name in self._key]
        keys = [[row[place] for place in places] for row in rows]
        found, changes = compared(known, list(zip(keys, rows, strict=True)))
        if any(len(change.key) != len(self._key) for change in changes):
            text = "the stored position is one of another query.key: reset the connector's offsets"
            raise Misconfigured(text, key="query.key")
        if is_too_long(found):
            raise _too_long(f"their keys and digests have more than {LIST_BYTES_MAX} bytes")
        if len(found) != len(rows):
            raise Misconfigured("two rows of the result have one key", key="query.key")
        records = [
            SourceRecord(
                self._name,
                dict(zip(self._key, change.key, strict=True)) if change.at is None else self._row(rows[change.at]),
                change.op,
            )
            for change in changes
        ]
        return SourcePage(records, {"rows": dict(found)})

    def _all_rows(self) -> Sequence[Sequence[Any]]:
        rows, size = list[Sequence[Any]](), 0
        with self._session() as session:
            for row in session.rows(LIST_ROWS_MAX + 1):
                rows.append(row.values)
                size += _size(row.values)
                if len(rows) > LIST_ROWS_MAX:
                    raise _too_long(f"it has more than {LIST_ROWS_MAX} rows")
                if size > LIST_VALUES_BYTES_MAX:
                    raise _too_long(f"its values have more than {LIST_VALUES_BYTES_MAX} bytes")
        return rows

    def _row(self, row: Sequence[Any]) -> Mapping[str, Any]:
        return {column.name: value for column, value in zip(self._columns, row, strict=True)}


def _size(value: Any) -> int:
    """Returns how long the texts and bytes of a value are together, in arrays and in values of several parts as well."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        return _size(list(value.values()))
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 0


def _too_long(text: str) -> CdcError:
    return CdcError(LIST_TOO_LONG, text, where={"key": "query"})
