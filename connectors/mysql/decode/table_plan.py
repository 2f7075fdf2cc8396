"""From a table map to `Table`, and to what makes a row of it: which columns are captured, in which forms, under which key."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import Any, Final, Protocol

from cdcworker.connectors.capture.column_mapping import MappedType
from cdcworker.connectors.mysql.binlog.rows import UNSENT, Image
from cdcworker.connectors.mysql.binlog.table_map import Column as LoggedColumn
from cdcworker.connectors.mysql.binlog.table_map import TableMap
from cdcworker.connectors.mysql.catalog.completion import describes
from cdcworker.connectors.mysql.catalog.tables import CatalogColumn, CatalogTable
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.decode.value_types import length_of, map_type, source_type_of, type_parameters
from cdcworker.connectors.mysql.errors import CAPTURE, PARTIAL_JSON, TYPE_UNKNOWN, UnknownTypeError
from cdcworker.connectors.mysql.types.column import LARGE, STRINGS, ColumnType, TypeCode
from cdcworker.connectors.mysql.types.json_diff import JsonDiff
from cdcworker.schemas.change import NO_DEFAULT, Column, Row, Table
from cdcworker.schemas.errors import CdcError

Parse = Callable[[Any], Any]
"""From the value of a row image to the one that a record holds."""
WHOLE_ROWS: Final = "binlog_row_image = FULL"
_INTEGERS: Final = frozenset(
    {TypeCode.TINY, TypeCode.SHORT, TypeCode.INT24, TypeCode.LONG, TypeCode.LONGLONG, TypeCode.YEAR}
)
_DATES: Final = frozenset({TypeCode.DATE, TypeCode.NEWDATE})
_DATETIMES: Final = frozenset({TypeCode.DATETIME, TypeCode.DATETIME2})
_TEXTS: Final = STRINGS | {TypeCode.ENUM, TypeCode.SET}


@dataclass(frozen=True, slots=True)
class TablePlan:
    """How the rows of one table become rows of records. `out` is the table under its message key."""

    table: Table
    out: Table
    taken: tuple[int, ...]
    """Places of the captured columns among those of the log."""
    parsers: tuple[Parse, ...]
    types: tuple[ColumnType, ...]
    """Of the captured columns."""
    virtual: frozenset[int] = frozenset()
    """Places of columns that are computed when they are read."""
    masked: frozenset[int] = frozenset()
    """Indexes of the captured columns whose values have another form than their type's."""

    @property
    def name(self) -> str:
        return ".".join(self.table.path)

    def row(self, image: Image) -> Row:
        """Returns the captured values; UNSENT stands for what was not logged. Raises CdcError, without the value."""
        out = []
        for place, parse, column in zip(self.taken, self.parsers, self.table.columns, strict=True):
            value = image[place]
            if value is None or value is UNSENT:
                out.append(value)
            elif isinstance(value, JsonDiff):
                out.append(self._same(value, column))
            else:
                out.append(parse(value))
        return tuple(out)

    def has_key(self, before: Row | None, unchanged: Sequence[int]) -> bool:
        """Returns whether the key of a row's record was logged: an INSERT may leave a column of it to its default, and a log with
        minimal images has of an old row the columns of its primary key."""
        return all(i not in unchanged and (before is None or before[i] is not UNSENT) for i in self.out.key)

    def may_replace(self, image: Image, unchanged: Sequence[int]) -> bool:
        """Returns whether the new image of an update may be that of a REPLACE: it holds the key, which only a statement that inserts names,
        and lacks values, which then are defaults. Images that lack large values only always hold the key."""
        is_named = all(image[self.taken[place]] is not UNSENT for place in self.table.key)
        return is_named and any(self.types[place].code not in LARGE for place in unchanged)

    def _same(self, value: JsonDiff, column: Column) -> Any:
        """A difference without changes is the value as it was, which is not logged; others need a value that they are applied to."""
        if not value.changes:
            return UNSENT
        text = "a JSON value was logged as its difference from the value before"
        raise CdcError(PARTIAL_JSON, text, where={"table": self.name, "column": column.name})


class TablePlans(Protocol):
    """Knows how the rows of captured tables are read."""

    def plan(self, table: TableMap) -> TablePlan | None:
        """Returns the plan of a table as the log describes it; None when it is not captured."""

    def named(self, database: str, name: str) -> TablePlan | None:
        """Returns the plan of a table that a statement names; None when it is not captured."""

    def altered(self) -> None:
        """A statement may have changed any table."""


@dataclass(frozen=True, slots=True)
class TablePlanner:
    """Makes the plans of one connector. `catalog` gives what is known of a table beside the log; `whole_rows`: old rows are logged
    with all their columns."""

    settings: MySqlSettings
    source_schema: Mapping[str, Any]
    catalog: Callable[[str, str], CatalogTable | None]
    whole_rows: bool = True

    def captures(self, database: str, name: str) -> bool:
        return self.settings.filters.table(database, name)

    def plan(self, logged: TableMap) -> TablePlan | None:
        """Returns the plan of a table that is captured. Raises CdcError for one whose config cannot be carried out."""
        if not self.captures(logged.schema, logged.table):
            return None
        known = self.catalog(logged.schema, logged.table)
        by_name = {column.name: column for column in known.columns} if known else {}
        key_names = key_of(logged, known)
        taken = [
            i
            for i, column in enumerate(logged.columns)
            if column.name in key_names or self.settings.filters.column(logged.schema, logged.table, column.name)
        ]
        made = [self._column(logged, i, by_name.get(logged.columns[i].name), key_names) for i in taken]
        names = [column.name for column, _, _ in made]
        path = (logged.schema, logged.table)
        key = tuple(names.index(name) for name in key_names)
        table = Table(path, table_number(*path), tuple(column for column, _, _ in made), key, self.source_schema)
        old_row = names if self.whole_rows or not key_names else key_names
        out = self.settings.keys.rekeyed(table, old_row, WHOLE_ROWS, CAPTURE)
        types = tuple(logged.columns[i].type for i in taken)
        virtual = frozenset(i for i, name in enumerate(names) if name in by_name and by_name[name].is_virtual)
        masked = frozenset(i for i, (_, _, is_masked) in enumerate(made) if is_masked)
        parsers = tuple(parse for _, parse, _ in made)
        return TablePlan(table, out, tuple(taken), parsers, types, virtual, masked)

    def _column(
        self, logged: TableMap, place: int, known: CatalogColumn | None, key: Sequence[str]
    ) -> tuple[Column, Parse, bool]:
        """Returns a column, what makes its values, and whether they are masked."""
        column = logged.columns[place]
        full = (logged.schema, logged.table, column.name)
        where = {"table": f"{logged.schema}.{logged.table}", "column": column.name}
        if known is not None and not describes(known, column.type):
            # The log is of a time at which the column had another type.
            known = None
        try:
            plain = map_type(column, known, self.settings.modes)
        except UnknownTypeError as exc:
            raise CdcError(TYPE_UNKNOWN, f"the column has a type that is not known: {exc}", where=where) from exc
        in_key = column.name in key
        is_exact = in_key or column.name in self.settings.keys.columns_of(logged.schema, logged.table)
        masked = self._masked(plain, full, length_of(column.type), in_key=is_exact)
        type_name = column.type.code.name if known is None else known.source_type.partition("(")[0]
        shown = self.settings.propagated.apply(masked, full, type_name, partial(type_parameters, column, known))
        source_type = source_type_of(column.type) if known is None else without_width(known.source_type)
        if masked is not plain and not in_key:
            source_type = "text"
        is_required = not column.is_nullable or in_key
        default = _default(column, known, shown)
        made = Column(column.name, shown.avro, not is_required, default, 0, source_type, None, shown.zero)
        return made, shown.parse, masked is not plain

    def _masked(self, plain: MappedType, full: tuple[str, str, str], length: int, *, in_key: bool) -> MappedType:
        """Masks read a value's text as bytes, as other databases send it."""
        if plain.avro == "bytes":
            return self.settings.masks.apply(plain, *full, length=length, in_key=in_key)
        texts = MappedType(plain.avro, bytes.decode, zero=plain.zero)
        masked = self.settings.masks.apply(texts, *full, length=length, in_key=in_key)
        if masked is texts:
            return plain

        def parse(value: Any) -> Any:
            shown = plain.parse(value)
            # A date that is none.
            return None if shown is None else masked.parse(shown.encode())

        return replace(masked, parse=parse)


def key_of(logged: TableMap, known: CatalogTable | None) -> tuple[str, ...]:
    """Returns the columns that tell rows apart: the primary key, as the log says it; else a unique index of the catalog, where its
    columns are in the log and hold no nulls."""
    columns: Sequence[LoggedColumn] = logged.columns
    if logged.key:
        return tuple(columns[part.column].name for part in logged.key)
    required = {column.name for column in columns if not column.is_nullable}
    return known.key if known is not None and required.issuperset(known.key) else ()


def table_number(database: str, name: str) -> int:
    """Returns the number of a table, by its name: those of the server change with each start."""
    digest = hashlib.blake2b(f"{database}\0{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def without_width(text: str) -> str:
    """Returns a type without the width in which some servers show integers: it says nothing of the values."""
    head, sign, rest = text.partition("(")
    return (
        head + rest.partition(")")[2]
        if sign and head.lower().endswith("int") and text.lower() != "tinyint(1)"
        else text
    )


def _default(column: LoggedColumn, known: CatalogColumn | None, mapped: MappedType) -> Any:
    """Returns a constant default in the form of the column's values; NO_DEFAULT for one that is computed, is a span of time, or is a
    moment, whose text depends on the zone of a session."""
    if known is None or known.default is NO_DEFAULT:
        return NO_DEFAULT
    if known.default is None:
        return None if column.is_nullable else NO_DEFAULT
    code, text = column.type.code, str(known.default)
    try:
        if code in _INTEGERS:
            return mapped.parse(int(text))
        if code is TypeCode.NEWDECIMAL:
            number = Decimal(text)
            return mapped.parse(number) if number.is_finite() else NO_DEFAULT
        if code in (TypeCode.FLOAT, TypeCode.DOUBLE):
            return mapped.parse(float(text))
        if code in _DATES:
            return mapped.parse(date.fromisoformat(text))
        if code in _DATETIMES:
            return mapped.parse(datetime.fromisoformat(text))
        if code in _TEXTS and mapped.avro != "bytes" and not column.type.declared:
            return mapped.parse(text)
    except (ValueError, ArithmeticError, AttributeError):
        return NO_DEFAULT
    return NO_DEFAULT
