"""A MySQL or MariaDB source as one side of a comparison: rows are read as snapshots read them, and their texts are made here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cdcworker.connectors.capture.tables.compared_source import SentColumns
from cdcworker.connectors.mysql.catalog.tables import CatalogTable, read_table
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.decode.captured_plans import map_of
from cdcworker.connectors.mysql.decode.table_plan import TablePlan, TablePlanner
from cdcworker.connectors.mysql.decode.value_forms import span_text
from cdcworker.connectors.mysql.doctor.sent_columns import sent_type
from cdcworker.connectors.mysql.server.connection import opened, translate
from cdcworker.connectors.mysql.server.facts import read_facts
from cdcworker.connectors.mysql.server.grants import quoted
from cdcworker.connectors.mysql.server.log_files import end_place, file_number
from cdcworker.connectors.mysql.snapshot.row_packets import value_rows
from cdcworker.connectors.mysql.snapshot.selected_values import beyond, compared, converter, literal, selected
from cdcworker.connectors.mysql.source_block import source_schema
from cdcworker.connectors.mysql.types.column import ColumnType, TypeCode
from cdcworker.connectors.verify import sent_texts
from cdcworker.connectors.verify.canonical_text import SourceModes, VerifiedColumn
from cdcworker.connectors.verify.client_hashes import hash_of, parts_of, short_hash
from cdcworker.connectors.verify.databases import KeyState, SpanSum, TableFailed, VerifyLimits, states_of, sums_of
from cdcworker.connectors.verify.plan import ComparedColumn, ComparisonPlan, Key, SideTable
from cdcworker.connectors.verify.sql import KeySpan

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import MySqlConnection

APPLICATION: Final = "cdcworker-verify"
POSITION_BITS: Final = 40
"""Of a place's number those of the position in its file; above them stands the number of the file."""
VERSIONLESS: Final = "the source's database shows no versions of rows: one that is changed and changed back meanwhile may be called different"
_SUMMED: Final = 1000
"""Rows whose checksums are put together at a time."""


class _Column(NamedTuple):
    """A compared column: how it is selected, and how its text is made of what the server returns."""

    select: str
    text: Callable[[bytes], str | None]


@dataclass(frozen=True)
class _Known:
    """A table with the plan by which records are made of its rows."""

    catalog: CatalogTable
    plan: TablePlan | None
    """None: it has a column of a type that is not known."""

    def column(self, name: str) -> tuple[ColumnType, Any, Callable[[Any], Any]]:
        """Returns type, Avro type and form of a column that is handed on."""
        assert self.plan is not None
        at = next(at for at, column in enumerate(self.plan.table.columns) if column.name == name)
        return self.plan.types[at], self.plan.table.columns[at].type, self.plan.parsers[at]


class MySqlSourceSide:
    """One connection, which reads one snapshot after another."""

    keys_at_once: Final = 200
    modes: Final = SourceModes()
    notes: Final = (VERSIONLESS,)
    is_all_published: Final = True

    def __init__(self, settings: MySqlSettings) -> None:
        self.settings = settings
        self._connection: MySqlConnection = opened(settings, APPLICATION)
        self._facts = read_facts(self._connection)
        self._tables: dict[tuple[str, str], _Known] = {}

    def prepare(self, limits: VerifyLimits) -> None:
        seconds = limits.statement_timeout_ms / 1000
        with self._translated() as connection:
            if self._facts.is_mariadb:
                connection.do("set session max_statement_time = %s", (seconds,))
            else:
                connection.do("set session max_execution_time = %s", (limits.statement_timeout_ms,))

    # -- the log ------------------------------------------------------------------------------------------------------

    def begin(self) -> int:
        """Begins a snapshot and returns the place of the log before which everything that it shows was committed."""
        self.end()
        with self._translated() as connection:
            connection.do("start transaction with consistent snapshot, read only")
            # What is visible is in the log already.
            return place_number(*end_place(connection, self._facts))

    def end(self) -> None:
        with self._translated() as connection:
            connection.rollback()

    def reached(self, watermark: Mapping[str, Any]) -> int:
        """A place in the files of another server says nothing of this one's."""
        log = watermark.get("log")
        if not isinstance(log, dict) or log.get("server") != self._facts.identity or not log.get("file"):
            return -1
        return place_number(str(log["file"]), int(log["pos"]))

    def position_text(self, position: int) -> str:
        """Returns file and position, the file by its number."""
        return f"{position >> POSITION_BITS:06}:{position & (1 << POSITION_BITS) - 1}"

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._connection.close()

    # -- tables -------------------------------------------------------------------------------------------------------

    def published(self) -> Mapping[tuple[str, str], SentColumns]:
        """The server logs the changes of every table."""
        chosen = self.settings.filters.table
        with self._translated() as connection:
            rows = connection.ask(
                "select table_schema, table_name from information_schema.tables where table_type = 'BASE TABLE'"
            )
        paths = [(str(database), str(name)) for database, name in rows]
        return {path: SentColumns() for path in paths if chosen(*path)}

    def hands_on_deletions(self) -> bool:
        return True

    def keyed_table(self, schema: str, name: str) -> SideTable | None:
        with self._translated() as connection:
            found = read_table(connection, schema, name, is_mariadb=self._facts.is_mariadb)
            if found is None:
                return None
            (estimate,) = connection.one(_ESTIMATE, (schema, name)) or (0,)
            some = connection.one(f"select 1 from {quoted(schema, name)} limit 1")
        known = self._tables[schema, name] = _Known(found, self._planned(found))
        columns = tuple(self._verified(known, column.name, column.source_type) for column in found.columns)
        nullable = frozenset(column.name for column in found.columns if column.is_nullable)
        rows = max(1, int(estimate or 0)) if some else 0
        return SideTable(schema, name, columns, found.key, rows, nullable=nullable)

    def _planned(self, found: CatalogTable) -> TablePlan | None:
        schema = source_schema(self._facts.connector)
        logged = map_of(found)
        return None if logged is None else TablePlanner(self.settings, schema, lambda *_: found).plan(logged)

    def _verified(self, known: _Known, name: str, declared: str) -> VerifiedColumn:
        if known.plan is None or name not in {column.name for column in known.plan.table.columns}:
            return VerifiedColumn(name, sent_texts.UNSENT, sent_texts.SENT, declared=declared)
        kind, avro, _ = known.column(name)
        word, _ = sent_type(avro)
        return VerifiedColumn(name, "wrapped" if _wraps(kind, word) else word, sent_texts.SENT, declared=declared)

    def has_values(self, table: SideTable, column: str) -> bool:
        statement = f"select 1 from {quoted(table.schema, table.name)} where {quoted(column)} is not null limit 1"
        try:
            with self._of_table() as connection:
                return connection.one(statement) is not None
        except TableFailed:
            return False

    # -- rows ---------------------------------------------------------------------------------------------------------

    def sums(self, plan: ComparisonPlan, span: KeySpan, chosen: Sequence[int] | None = None) -> Mapping[int, SpanSum]:
        found: dict[int, SpanSum] = {}
        piece: list[tuple[int, int, int]] = []
        for key, texts in self._rows(plan, self._where(plan, span)):
            coarse, fine = parts_of(key, span.coarse)
            if chosen is None or coarse in chosen:
                piece.append((coarse if chosen is None else fine, 1, hash_of(texts)))
            if len(piece) >= _SUMMED:
                found, piece = sums_of([*_pieces(found), *piece]), []
        return sums_of([*_pieces(found), *piece])

    def rows(self, plan: ComparisonPlan, span: KeySpan, chosen: Sequence[int]) -> Mapping[Key, KeyState]:
        parts = frozenset(chosen)
        found = self._rows(plan, self._where(plan, span))
        return states_of((key, hash_of(texts), "") for key, texts in found if parts_of(key, span.coarse)[1] in parts)

    def rows_of(self, plan: ComparisonPlan, keys: Sequence[Key]) -> Mapping[Key, KeyState]:
        wanted = set(keys)
        conditions = [found for key in keys if (found := self._is(plan, key))]
        if not conditions:
            return {}
        # To the server texts are equal that are not the same.
        rows = self._rows(plan, " or ".join(conditions))
        return states_of((key, hash_of(texts), "", [*map(short_hash, texts)]) for key, texts in rows if key in wanted)

    def bound(self, plan: ComparisonPlan, after: Key | None, rows: int) -> Key | None:
        names = ", ".join(self._compared(plan))
        tail = f"order by {names} limit {rows - 1}, 1"
        found = list(self._rows(plan, self._where(plan, KeySpan(after)), tail))
        return found[0][0] if found else None

    def key_texts(self, plan: ComparisonPlan, keys: Sequence[Key]) -> list[tuple[str, ...] | None]:
        out: list[tuple[str, ...] | None] = []
        for key in keys:
            values = self._values(plan, key)
            out.append(None if values is None else tuple(text for text, _ in values))
        return out

    def _rows(self, plan: ComparisonPlan, where: str, tail: str = "") -> Iterator[tuple[Key, list[str | None]]]:
        """Yields key and texts of the rows."""
        columns = [self._column(plan, item) for item in plan.columns]
        names = [item.name for item in plan.columns]
        places = [names.index(item.name) for item in plan.key]
        select = ", ".join(column.select for column in columns)
        table = quoted(plan.source.schema, plan.source.name)
        statement = f"select {select} from {table}{f' where {where}' if where else ''} {tail}"
        with self._of_table() as connection, contextlib.closing(value_rows(connection, statement)) as rows:
            for values in rows:
                pairs = zip(columns, values, strict=True)
                texts = [None if value is None else column.text(value) for column, value in pairs]
                yield tuple(texts[place] for place in places), texts

    def _column(self, plan: ComparisonPlan, item: ComparedColumn) -> _Column:
        kind, avro, parse = self._known(plan).column(item.name)
        _, convert = sent_type(avro)
        read, make = converter(kind), sent_texts.TEXTS[item.text.source]

        def text(value: bytes) -> str | None:
            sent = parse(read(value))
            return None if sent is None else make(convert(sent))

        return _Column(selected(item.name, kind), text)

    def _known(self, plan: ComparisonPlan) -> _Known:
        return self._tables[plan.source.schema, plan.source.name]

    def _where(self, plan: ComparisonPlan, span: KeySpan) -> str:
        names = self._compared(plan)
        conditions = []
        for sign, last, bound in ((">", ">", span.low), ("<", "<=", span.high)):
            if bound is not None:
                values = self._values(plan, bound)
                assert values is not None, "a bound is a key of the table itself"
                conditions.append(beyond(names, [value for _, value in values], sign, last=last))
        return " and ".join(conditions)

    def _is(self, plan: ComparisonPlan, key: Key) -> str:
        """Returns the condition for one key; empty for a key that no row can have."""
        values = self._values(plan, key)
        if values is None:
            return ""
        return f"({' and '.join(f'{name} = {v}' for name, (_, v) in zip(self._compared(plan), values, strict=True))})"

    def _compared(self, plan: ComparisonPlan) -> list[str]:
        """Returns the expressions by which the columns of a key are compared and sorted."""
        known = self._known(plan)
        return [compared(item.name, known.column(item.name)[0]) for item in plan.key]

    def _values(self, plan: ComparisonPlan, key: Key) -> list[tuple[str, str]] | None:
        """Returns the texts of a key as the source writes them, with their literals; None where one is no value of its column's type."""
        known = self._known(plan)
        try:
            texts = [_own_text(item, text) for item, text in zip(plan.key, key, strict=True)]
            kinds = [known.column(item.name)[0] for item in plan.key]
            return [(text, literal(kind, text)) for kind, text in zip(kinds, texts, strict=True)]
        except (ValueError, ArithmeticError):
            return None

    # -- errors -------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _of_table(self) -> Iterator[MySqlConnection]:
        import pymysql

        try:
            yield self._connection
        except (ValueError, ArithmeticError, TypeError) as exc:
            # The kind of the error only: a message may hold a row's value.
            raise TableFailed(f"a value is not readable in the source ({type(exc).__name__})") from None
        except pymysql.Error as exc:
            if self._connection.open:
                raise TableFailed(f"not readable in the source ({type(exc).__name__})") from None
            raise translate(exc) from exc

    @contextlib.contextmanager
    def _translated(self) -> Iterator[MySqlConnection]:
        import pymysql

        try:
            yield self._connection
        except pymysql.Error as exc:
            raise translate(exc) from exc


_ESTIMATE: Final = "select table_rows from information_schema.tables where table_schema = %s and table_name = %s"


def place_number(file: str, position: int) -> int:
    """Returns a place of the log as one number, which rises from file to file."""
    return file_number(file) << POSITION_BITS | position


def _wraps(kind: ColumnType, word: str) -> bool:
    """Returns whether records hold a number as negative that is none."""
    return kind.code is TypeCode.LONGLONG and bool(kind.is_unsigned) and word == "integer"


def _own_text(item: ComparedColumn, text: str | None) -> str:
    """Returns a key's text as the source writes it, in the form in which snapshots take keys."""
    if text is None:
        raise ValueError("no key is null")
    if item.text.source == "boolean":
        return str(("false", "true").index(text))
    if item.source.type == "wrapped":
        number = int(text)
        return str(number + (1 << 64) if number < 0 else number)
    if item.source.type in ("time", "span"):
        micros = int(text) if item.text.source == "micros" else sent_texts.micros_of(text)
        return span_text(timedelta(microseconds=micros)).removesuffix("Z")
    return text


def _pieces(found: Mapping[int, SpanSum]) -> Iterable[tuple[int, int, int]]:
    return ((part, one.rows, one.hash) for part, one in found.items())
