"""A lake's table brought to the columns that a batch wants, in statements that each are a commit of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from cdcworker.connectors.sink_errors import SCHEMA_REFUSED, TARGET_FAILED, from_lake, is_of_files
from cdcworker.connectors.warehouses import target_columns
from cdcworker.connectors.warehouses.lake import statements
from cdcworker.connectors.warehouses.lake.tables import DeclaresTypes
from cdcworker.connectors.warehouses.table_state import Manifest, moved, schema_text
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.warehouses.column_changes import Where
    from cdcworker.connectors.warehouses.lake.tables import LakeName, LakeTables, TableVersion
    from pyspark.sql import SparkSession


PLAIN = (
    "a column is renamed, widened or to be deleted in a Delta table without column mapping or type widening: set its"
    " properties delta.columnMapping.mode=name and delta.enableTypeWidening=true, which older readers do not know"
)
_OF_PLAIN_TABLES = (
    *(
        "DELTA_UNSUPPORTED_RENAME_COLUMN",
        "DELTA_UNSUPPORTED_DROP_COLUMN",
        "DELTA_UNSUPPORTED_ALTER_TABLE_CHANGE_COL_OP",
    ),
    "DELTA_INVALID_CHARACTERS_IN_COLUMN_NAMES",
)


def noted(found: TableVersion) -> Manifest:
    """The sink's notes, with the types that the table has: somebody may have made a column one that the source's fits."""
    assert found.state is not None
    have = found.state.arrow
    if have is None:
        return found.state
    fields = []
    for field in have:
        real = found.columns.get(field.name, "")
        kind = statements.arrow_of(real) if real != statements.type_of(field.type) else None
        fields.append(field if kind is None else field.with_type(kind))
    made = target_columns.schema_of(fields)
    return found.state if made.equals(have) else replace(found.state, schema=schema_text(made))


def shaped(
    session: SparkSession,
    tables: LakeTables,
    place: LakeName,
    found: TableVersion,
    schema: pa.Schema,
    where: Where,
) -> TableVersion:
    """Brings a table to the schema and returns its version after that. Columns that `schema` has no more go first, and names
    that change hands make room next; either is a state by itself: once another column has the name nothing but the sink's
    notes could tell which of them it is.
    What is refused for its names or types is so before anything else changes."""
    found = _without(session, tables, place, found, schema, where)
    state, name = found.state, tables.name(place)
    assert state is not None
    have = state.arrow
    names = statements.room(have, schema)
    first = statements.renames(name, found.columns, names, where)
    between = None if have is None else target_columns.under(have, names)
    there = {names.get(column, column): kind for column, kind in found.columns.items()}
    second = statements.changes(name, there, between, schema, where)
    with _refused(where):
        for statement in first:
            session.sql(statement)
    if names and between is not None:
        found = _noted(tables, place, found, between)
    with _refused(where):
        if second and isinstance(tables, DeclaresTypes):
            tables.declare(place, found, {statements.type_of(field.type) for field in schema})
        for statement in second:
            session.sql(statement)
    return found


def _without(
    session: SparkSession,
    tables: LakeTables,
    place: LakeName,
    found: TableVersion,
    schema: pa.Schema,
    where: Where,
) -> TableVersion:
    assert found.state is not None
    have = found.state.arrow
    gone = target_columns.gone(have, schema)
    if have is None or not gone:
        return found
    with _refused(where):
        for statement in statements.drops(tables.name(place), found.columns, gone):
            session.sql(statement)
    return _noted(tables, place, found, target_columns.less(have, gone))


def _noted(tables: LakeTables, place: LakeName, found: TableVersion, schema: pa.Schema) -> TableVersion:
    """The sink's notes say that the table has these columns. As it is found then."""
    assert found.state is not None
    made = replace(found.state, schema=schema_text(schema)).next(found.state.epoch)
    tables.commit(place, found, "", made)
    again = tables.load(place)
    if again is None or again.note != made.text():
        raise moved(found.state)
    return again


@contextlib.contextmanager
def _refused(where: Where) -> Iterator[None]:
    """Makes an error of what a lake does not do to a column, such as one that a table is partitioned by. It stops that
    table alone."""
    try:
        yield
    except Exception as exc:
        found = from_lake(exc)
        if found is None or found.code not in (SCHEMA_REFUSED, TARGET_FAILED) or is_of_files(exc):
            raise
        plain = any(name in str(exc) for name in _OF_PLAIN_TABLES)
        raise CdcError(SCHEMA_REFUSED, PLAIN if plain else found.message, where=where) from exc
