"""A lake's table brought to the columns that a batch wants, in statements that each are a commit of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cdcworker.connectors.spark import lakesql, shaping
from cdcworker.connectors.spark.manifests import moved, schema_text

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.spark.columns import Where
    from cdcworker.connectors.spark.laketables import Found, Place, Tables
    from pyspark.sql import SparkSession


def shaped(session: SparkSession, tables: Tables, place: Place, found: Found, schema: pa.Schema, where: Where) -> Found:
    """As it is found then. Names that change hands make room first, and that is a state by itself: once columns have
    exchanged their names nothing but the sink's notes could tell whether they have. What is refused is so before that."""
    state, name = found.state, tables.name(place)
    assert state is not None
    have = state.arrow
    names = lakesql.room(have, schema)
    first = lakesql.renames(name, found.columns, names, where)
    between = None if have is None else shaping.under(have, names)
    there = {names.get(column, column): kind for column, kind in found.columns.items()}
    second = lakesql.changes(name, there, between, schema, where)
    for statement in first:
        session.sql(statement)
    if names and between is not None:
        made = replace(state, schema=schema_text(between)).next(state.epoch)
        tables.commit(place, found, "", made)
        again = tables.load(place)
        if again is None or again.note != made.text():
            raise moved(state)
        found = again
    for statement in second:
        session.sql(statement)
    return found
