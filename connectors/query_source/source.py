"""The source of a query: runs it again and again, and keeps in its cursor what was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.api.kit import (
    Misconfigured,
    SourceField,
    SourcePage,
    SourcePlace,
    SourceRecord,
    SourceTable,
)
from cdcworker.connectors.config.allowed_paths import allowed_path
from cdcworker.connectors.kit.list_comparison import LIST_BYTES_MAX, LIST_ROWS_MAX, compared, is_too_long
from cdcworker.connectors.query_source.config import COLUMN_KEYS, path_of
from cdcworker.connectors.query_source.database import Database, QueryColumn
from cdcworker.connectors.query_source.sqlite import SqliteDatabase
from cdcworker.connectors.query_source.window import WINDOW_ROWS_MAX, behind, window_of
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
_ORDERED: Final = {"incrementing": "int64", "timestamp": "string"}
_KEYS: Final = ("string", "int64", "boolean")
_STRANGE: Final = "the stored position is not one of this source: reset the connector's offsets"


class QueryRows:
    """The rows of one query. With a cursor column its cursor holds how far rows were read, else digests of all of them."""

    def __init__(self, place: SourcePlace) -> None:
        self._config = place.config
        self._place = place
        self._mode: str = self._config["mode"]
        self._name: str = self._config["query.table"]
        self._key: Sequence[str] = list(self._config["query.key"] or ())
        self._opened: Database | None = None
        self._columns: Sequence[QueryColumn] = ()

    def tables(self) -> Sequence[SourceTable]:
        self._columns = self._database.columns()
        types = {column.name: column.type for column in self._columns}
        for name in self._key:
            if types.get(name) not in _KEYS:
                text = f"names a column that the query does not have, or whose type is none of {', '.join(_KEYS)}"
                raise Misconfigured(text, key="query.key")
        if self._mode in COLUMN_KEYS:
            key = COLUMN_KEYS[self._mode]
            found = types.get(self._config[key])
            if found != _ORDERED[self._mode]:
                text = f"has to be {_ORDERED[self._mode]}, and is {found}" if found else "is no column of the query"
                raise Misconfigured(f"the cursor column {text}", key=key)
        return [SourceTable(self._name, [SourceField(each.name, each.type) for each in self._columns], self._key)]

    def read(self, cursor: JsonObject | None) -> SourcePage:
        return self._whole(cursor or {}) if self._mode == "diff" else self._behind(cursor or {})

    @property
    def _database(self) -> Database:
        if self._opened is None:
            path = allowed_path(path_of(self._config["connection.url"]), self._place.file_roots, "connection.url")
            self._opened = SqliteDatabase(path, self._config["query"], self._config["query.timeout.ms"] / 1000)
        return self._opened

    def _behind(self, cursor: JsonObject) -> SourcePage:
        column, lookback = self._config[COLUMN_KEYS[self._mode]], self._config["query.lookback"]
        place = [each.name for each in self._columns].index(column)
        try:
            window = window_of(cursor)
        except (ValueError, TypeError):
            raise Misconfigured(_STRANGE) from None
        if window.high is not None and isinstance(window.high, int) != (self._mode == "incrementing"):
            raise Misconfigured("the stored position is one of another mode: reset the connector's offsets", key="mode")
        if self._database.has_null(column):
            raise CdcError(CURSOR_NULL, "a row has NULL there", where={"key": COLUMN_KEYS[self._mode]})
        rows = self._database.rows(PAGE_ROWS, column, window.low(lookback))
        after, news = behind(window, rows, place, lookback)
        records = [SourceRecord(self._name, self._row(row)) for row, is_news in zip(rows, news, strict=True) if is_news]
        return SourcePage(records, after.stored(), more=len(rows) == PAGE_ROWS)

    def _whole(self, cursor: JsonObject) -> SourcePage:
        known = cursor.get("rows")
        if known is not None and not isinstance(known, dict):
            raise Misconfigured(_STRANGE)
        rows = self._database.rows(LIST_ROWS_MAX + 1)
        places = [[each.name for each in self._columns].index(name) for name in self._key]
        keys = [[row[place] for place in places] for row in rows]
        found, changes = compared(known, list(zip(keys, rows, strict=True)))
        if is_too_long(found) or len(rows) > LIST_ROWS_MAX:
            text = f"it has more than {LIST_ROWS_MAX} rows, or their keys and digests more than {LIST_BYTES_MAX} bytes"
            raise CdcError(LIST_TOO_LONG, text, where={"key": "query"})
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

    def _row(self, row: Sequence[Any]) -> Mapping[str, Any]:
        return {column.name: value for column, value in zip(self._columns, row, strict=True)}
