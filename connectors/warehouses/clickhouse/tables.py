"""Tables of ClickHouse as the sink makes and alters them. A row is the newest of its versions (ReplacingMergeTree), the version is its
position in the source, and a deleted row is a version that FINAL leaves out. A column is known by its comment."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cdcworker.connectors.api.table_batch import DELETED, KEY
from cdcworker.connectors.sink_errors import SCHEMA_REFUSED, TARGET_FAILED, TARGET_VALUE
from cdcworker.connectors.warehouses import merge, target_columns
from cdcworker.connectors.warehouses.clickhouse import types
from cdcworker.connectors.warehouses.clickhouse.client import Client, quote
from cdcworker.connectors.warehouses.column_changes import steps
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.warehouses.column_changes import Where

log = logging.getLogger(__name__)

VERSION: Final = "_cdc_version"
"""The position in the source as a number: of the rows of a key the one with the highest is the row."""
GONE: Final = "_cdc_gone"
"""1 in versions that say that the row was deleted."""
KEYS_AT_ONCE: Final = 10_000
_COMMENT: Final = "cdc.colid="
_REFUSED: Final = (SCHEMA_REFUSED, TARGET_FAILED, TARGET_VALUE)


class TablePlace(NamedTuple):
    """Database and table."""

    database: str
    table: str

    @property
    def sql(self) -> str:
        return f"{quote(self.database)}.{quote(self.table)}"

    @property
    def plain(self) -> str:
        return f"{self.database}.{self.table}"


@dataclass(frozen=True, slots=True)
class FoundColumn:
    """A column as it stands in a table. `id`: the source's identity of it, which the sink has written into its comment."""

    name: str
    type: str
    id: str = ""
    in_key: bool = False


def literal(text: str) -> str:
    """Returns a text in SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def binary(value: bytes) -> str:
    """Returns bytes in SQL."""
    return f"unhex('{value.hex()}')"


def number_of(position: bytes) -> int:
    """Returns a position as the version of a row."""
    return int.from_bytes(position, "big")


class ClickHouseTables:
    """The tables of one server."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def columns(self, place: TablePlace) -> list[FoundColumn]:
        """Returns the columns of a table; empty: there is none."""
        found = self.client.ask(
            "SELECT name, type, comment, is_in_sorting_key FROM system.columns"
            f" WHERE database = {literal(place.database)} AND table = {literal(place.table)} ORDER BY position"
        )
        return [_found(row) for row in found.to_pylist()]

    def create(self, place: TablePlace, schema: pa.Schema, key: Sequence[str], optional: Collection[str]) -> None:
        """Makes a table unless it is there. `optional`: columns of the key that may be null."""
        self.client.do(f"CREATE DATABASE IF NOT EXISTS {quote(place.database)}")
        parts = [_declared(field, field.name in key and field.name not in optional) for field in schema]
        parts.append(f"{quote(VERSION)} UInt128")
        engine, order = "ReplacingMergeTree", VERSION
        if key:
            parts += [f"{quote(GONE)} UInt8 DEFAULT 0", f"{quote(merge.ROW)} Bool DEFAULT false"]
            engine, order = f"ReplacingMergeTree({quote(VERSION)}, {quote(GONE)})", ""
        order = ", ".join(map(quote, _order(schema, key))) or quote(order)
        self.client.do(
            f"CREATE TABLE IF NOT EXISTS {place.sql} ({', '.join(parts)}) ENGINE = {engine}"
            f" ORDER BY ({order}) SETTINGS allow_nullable_key = 1"
        )

    def known(self, columns: Sequence[FoundColumn], schema: pa.Schema, where: Where) -> pa.Schema:
        """Returns the columns of the last state with the names and types that the table has for them now, without those that it has no
        more: somebody may have changed them."""
        import pyarrow as pa

        fields = []
        for field in schema:
            there = _column_of(columns, field)
            if there is None:
                continue
            kind = types.arrow_of(there.type, field.type)
            if kind is None:
                text = f"the column has the type {there.type}, which the sink does not fill"
                raise CdcError(SCHEMA_REFUSED, text, where={**where, "column": field.name})
            fields.append(pa.field(there.name, kind, metadata=field.metadata))
        return target_columns.schema_of(fields)

    def alter(self, place: TablePlace, have: pa.Schema | None, schema: pa.Schema, where: Where) -> None:
        """Gives a table the columns of a schema, and takes those that `have` has and that schema has not. Whatever of it was done before
        somebody died is not done again: what a column is its comment says. Columns that neither knows are left alone."""
        columns = self.columns(place)
        found = {column.name: field for field in schema if (column := _column_of(columns, field)) is not None}
        wanted = {field.name for field in schema}
        names = {column.name: found[column.name].name for column in columns if column.name in found}
        added = [field for field in schema if field.name not in names.values()]
        self._check_key(columns, names, found, where)
        before = set() if have is None else {_id(field) for field in have if _id(field)}
        gone = [column.name for column in columns if column.id in before and column.name not in found]
        taken = {column.name for column in columns if column.name not in names} - set(gone)
        if clash := taken.intersection(wanted):
            text = "a column of the table that is not the sink's has the name of one of the source's"
            raise CdcError(SCHEMA_REFUSED, text, where={**where, "column": min(clash)})
        hit("sink.before_alter")
        with self._refused(where):
            self._each(place, [f"DROP COLUMN {quote(name)}" for name in gone])
            for step in steps(names, [field.name for field in added]):
                self._each(place, [f"RENAME COLUMN {quote(old)} TO {quote(new)}" for old, new in step])
            kinds = {names[column.name]: column.type for column in columns if column.name in names}
            self._each(place, [f"ADD COLUMN IF NOT EXISTS {_declared(field, False)}" for field in added])
            self._each(place, [_modified(field) for field in schema if _differs(field, kinds.get(field.name))])
        hit("sink.after_alter")

    def truncate(self, place: TablePlace, floor: bytes, soft: bool, stamps: Mapping[str, str]) -> None:
        """Removes rows from before a TRUNCATE, or marks them. `stamps`: expressions of columns that are written with each row."""
        older = f"{quote(VERSION)} < {number_of(floor)}"
        if not soft:
            self.client.do(f"DELETE FROM {place.sql} WHERE {older}")
            return
        sets = ", ".join(f"{value} AS {quote(name)}" for name, value in {DELETED: "true", **stamps}.items())
        self.client.do(f"INSERT INTO {place.sql} SELECT * REPLACE({sets}) FROM {place.sql} FINAL WHERE {older}")

    def newest(self, place: TablePlace, keys: Sequence[bytes], names: Sequence[str]) -> Iterator[pa.Table]:
        """Returns the newest versions of the rows of these keys, deleted ones too."""
        listed = ", ".join(map(quote, names))
        for start in range(0, len(keys), KEYS_AT_ONCE):
            some = ", ".join(map(binary, keys[start : start + KEYS_AT_ONCE]))
            yield self.client.ask(
                f"SELECT {listed} FROM {place.sql} WHERE {quote(KEY)} IN ({some})"
                f" ORDER BY {quote(VERSION)} DESC LIMIT 1 BY {quote(KEY)}"
            )

    def insert(self, place: TablePlace, rows: pa.Table, numbers: Mapping[str, Any]) -> None:
        """Appends rows, with the columns `numbers` that say which of the versions they are."""
        import pyarrow as pa

        stored = types.to_stored(rows)
        self.client.insert(place.sql, pa.table({**{n: stored[n] for n in stored.column_names}, **numbers}))

    def read(self, place: TablePlace, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Returns all rows as readers see them."""
        import pyarrow as pa

        listed = ", ".join(quote(field.name) for field in schema)
        for batch in self.client.stream(f"SELECT {listed} FROM {place.sql} FINAL"):
            yield from types.from_stored(pa.Table.from_batches([batch]), schema).to_batches()

    def _each(self, place: TablePlace, clauses: Sequence[str]) -> None:
        if clauses:
            self.client.do(f"ALTER TABLE {place.sql} {', '.join(clauses)}")

    @staticmethod
    def _check_key(
        columns: Sequence[FoundColumn], names: Mapping[str, str], found: Mapping[str, pa.Field], where: Where
    ) -> None:
        for column in columns:
            field = found.get(column.name)
            if field is None or not column.in_key:
                continue
            if names[column.name] != column.name or _differs(field, column.type):
                text = "ClickHouse cannot change the name or the type of a column of the key"
                raise CdcError(SCHEMA_REFUSED, text, where={**where, "column": column.name})

    @contextlib.contextmanager
    def _refused(self, where: Where) -> Iterator[None]:
        """Errors of an ALTER TABLE are the table's."""
        try:
            yield
        except CdcError as exc:
            if exc.code not in _REFUSED:
                raise
            raise CdcError(SCHEMA_REFUSED, f"the table cannot be altered: {exc.message}", where=where) from exc


def _order(schema: pa.Schema, key: Sequence[str]) -> list[str]:
    """Returns the columns by which rows of a key are one. Days and times that ClickHouse cannot hold become others, which another row
    may have: the key as the source has it tells those rows apart."""
    return [*key, KEY] if any(types.is_bounded(schema.field(name).type) for name in key) else [*key]


def _found(row: Mapping[str, Any]) -> FoundColumn:
    name, kind, comment = (bytes(row[part]).decode() for part in ("name", "type", "comment"))
    id = comment.removeprefix(_COMMENT) if comment.startswith(_COMMENT) else ""
    return FoundColumn(name, kind, id, bool(row["is_in_sorting_key"]))


def _column_of(columns: Sequence[FoundColumn], field: pa.Field) -> FoundColumn | None:
    """Returns the column that a field of the sink's is: by the source's identity, or by its name where there is none."""
    id = _id(field)
    if id:
        mine = next((column for column in columns if column.id == id), None)
        if mine is not None:
            return mine
    return next((column for column in columns if column.name == field.name and not (id and column.id)), None)


def _id(field: pa.Field) -> str:
    found = target_columns.id_of(field)
    return found.decode() if found else ""


def _declared(field: pa.Field, is_set: bool) -> str:
    """Returns the declaration of a column. `is_set`: it is never null."""
    kind = types.type_of(field.type)
    text = f"{quote(field.name)} {kind if is_set or field.name == KEY else f'Nullable({kind})'}"
    default = (field.metadata or {}).get(target_columns.DEFAULT)
    if default is not None and not is_set:
        # Rows that stand already got the source's default without an event; those to come bring their values.
        text += f" DEFAULT CAST({literal(types.default_of(default.decode(), field.type))} AS {kind})"
    return text + (f" COMMENT {literal(_COMMENT + _id(field))}" if _id(field) else "")


def _modified(field: pa.Field) -> str:
    return f"MODIFY COLUMN {quote(field.name)} Nullable({types.type_of(field.type)})"


def _differs(field: pa.Field, kind: str | None) -> bool:
    return kind is not None and types.plain_type(kind) != types.type_of(field.type)
