"""What a lake's sink keeps beside the tables: graves of deleted rows, and records that were set aside.

Both are written before the rows that they belong to. A grave that is there ahead of its delete does no harm: what it
keeps out is older than the delete, which comes again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api import KEY, POSITION, DeadLetter
from cdcworker.connectors.spark import lakesql, merging, shaping
from cdcworker.connectors.spark.lakerows import Stage, read_arrow
from cdcworker.connectors.spark.ledger import headers_text

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.spark.laketables import Place, Tables
    from cdcworker.connectors.spark.manifests import Manifest
    from pyspark.sql import SparkSession

OWN = "_cdcworker"
"""Schema of the sink's own tables."""
LETTERS = "dead_letter"
ROW = "row"
VIEW = "cdc_side"


class Side:
    def __init__(self, tables: Tables, sink: str) -> None:
        self._tables = tables
        self._sink = sink
        self._there: set[Place] = set()

    # -- graves -------------------------------------------------------------------------------------------------------

    def graves(self, session: SparkSession, place: Place, keys: str, schema: pa.Schema, some: bool) -> pa.Table:
        """Of the keys of a view, as `merging` has them."""
        empty = merging.graves_of(schema.empty_table(), False)
        if not some:
            return empty
        table, same = self._tables.name(_side_of(place)), f"g.{lakesql.quoted(KEY)} = k.{lakesql.quoted(KEY)}"
        found = read_arrow(session, f"SELECT g.* FROM {table} g LEFT SEMI JOIN {keys} k ON {same}")
        return merging.newest(empty, _unpacked(found, schema)) if found.num_rows else empty

    def bury(self, session: SparkSession, place: Place, graves: pa.Table, stage: Stage) -> bool:
        """Whether there were any."""
        if not graves.num_rows:
            return False
        rows = _packed(graves)
        self._append(session, _side_of(place), rows, stage, ())
        return True

    def tend(self, session: SparkSession, place: Place, state: Manifest) -> None:
        """A letter that is sent again may be older than all graves."""
        if state.graves and state.applied and not self.has_letters(session, state.topic):
            self.prune(session, place, min(at for at, _ in state.applied.values()))

    def prune(self, session: SparkSession, place: Place, least: str) -> None:
        """Without graves that no row still to come can be older than: positions are hexadecimal."""
        side = _side_of(place)
        session.sql(f"DELETE FROM {self._tables.name(side)} WHERE {lakesql.quoted(POSITION)} < X'{least}'")
        self._tables.tend(side)

    # -- dead letters -------------------------------------------------------------------------------------------------

    def bury_letters(self, session: SparkSession, letters: Sequence[DeadLetter], stage: Stage) -> None:
        """Once each, however often the batch comes."""
        import pyarrow as pa

        if not letters:
            return
        texts, numbers = ("topic", "code", "cause"), {"partition": pa.int32(), "offset": pa.int64()}
        columns: dict[str, Any] = {"sink": pa.array([self._sink] * len(letters))}
        now_ms = time.time_ns() // 1_000_000
        for name in ("topic", "partition", "offset", "code", "cause", "key", "value"):
            kind = pa.string() if name in texts else numbers.get(name, pa.binary())
            columns[name] = pa.array([getattr(letter, name) for letter in letters], kind)
        columns["headers"] = pa.array([headers_text(letter.headers) for letter in letters], pa.string())
        columns["at_ms"] = pa.array([now_ms] * len(letters), pa.int64())
        self._append(session, letters_place(), pa.table(columns), stage, ("sink", "topic", "partition", "offset"))

    def forget_letters(
        self, session: SparkSession, topics: Sequence[str], ledger: Mapping[tuple[str, int], int]
    ) -> None:
        """Those that the offsets stand before: their records are read again."""
        if self._tables.load(letters_place()) is None:
            return
        letters, mine = self._tables.name(letters_place()), f"sink = {lakesql.literal(self._sink)}"
        for row in read_arrow(
            session, f"SELECT topic, partition, max(offset) AS last FROM {letters} WHERE {mine} GROUP BY 1, 2"
        ).to_pylist():
            end = ledger.get((row["topic"], row["partition"]), 0)
            if row["topic"] in topics and row["last"] >= end:
                same = f"{mine} AND topic = {lakesql.literal(row['topic'])} AND partition = {row['partition']}"
                session.sql(f"DELETE FROM {letters} WHERE {same} AND offset >= {end}")

    def has_letters(self, session: SparkSession, topic: str) -> bool:
        if self._tables.load(letters_place()) is None:
            return False
        same = f"sink = {lakesql.literal(self._sink)} AND topic = {lakesql.literal(topic)}"
        found = read_arrow(session, f"SELECT 1 FROM {self._tables.name(letters_place())} WHERE {same} LIMIT 1")
        return bool(found.num_rows)

    # -- both ---------------------------------------------------------------------------------------------------------

    def _append(self, session: SparkSession, place: Place, rows: pa.Table, stage: Stage, unique: Sequence[str]) -> None:
        if place not in self._there:
            self._tables.create(place, lakesql.definition(rows.schema), None)
            found = self._tables.load(place)
            there = {} if found is None else found.columns
            for field in rows.schema if found is not None else ():
                if field.name not in there:
                    # An older version made it.
                    name, kind = lakesql.quoted(field.name), lakesql.type_of(field.type)
                    session.sql(f"ALTER TABLE {self._tables.name(place)} ADD COLUMN {name} {kind}")
            self._there.add(place)
        target, source = self._tables.name(place), stage.view(session, VIEW, rows)
        names = ", ".join(map(lakesql.quoted, rows.schema.names))
        if unique:
            same = " AND ".join(f"t.{lakesql.quoted(name)} = s.{lakesql.quoted(name)}" for name in unique)
            values = ", ".join(f"s.{lakesql.quoted(name)}" for name in rows.schema.names)
            session.sql(
                f"MERGE INTO {target} t USING {source} s ON {same} WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({values})"
            )
        else:
            session.sql(f"INSERT INTO {target} ({names}) SELECT {names} FROM {source}")


def letters_place() -> Place:
    from cdcworker.connectors.spark.laketables import Place

    return Place(OWN, LETTERS)


def _side_of(place: Place) -> Place:
    return type(place)(OWN, f"graves_{place.schema}~2e{place.table}")


def _packed(graves: pa.Table) -> pa.Table:
    """Rows that a grave keeps as bytes: their columns change, those of graves never."""
    import pyarrow as pa

    rows: list[bytes | None] = []
    for at, whole in enumerate(graves[merging.ROW].to_pylist()):
        if not whole:
            rows.append(None)
            continue
        sink = pa.BufferOutputStream()
        one = graves.slice(at, 1).drop_columns([merging.ROW])
        with pa.ipc.new_stream(sink, one.schema) as writer:
            writer.write_table(one)
        rows.append(sink.getvalue().to_pybytes())
    columns = {KEY: graves[KEY], POSITION: graves[shaping.position_of(graves.schema)]}
    return pa.table(columns).append_column(ROW, pa.array(rows, pa.binary()))


def _unpacked(found: pa.Table, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    whole = [pa.ipc.open_stream(row).read_all() for row in found[ROW].to_pylist() if row is not None]
    rows = [merging.graves_of(shaping.conform(row, schema, defaults=False), True) for row in whole]
    bare = found.filter(found[ROW].is_null()).select([KEY, POSITION])
    bare = bare.rename_columns([KEY, shaping.position_of(schema)])
    rows.append(merging.graves_of(merging.shaped(bare, schema.empty_table()), False))
    return pa.concat_tables(rows)
