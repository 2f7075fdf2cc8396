"""What a lake's sink keeps beside the tables: tombstones of deleted rows, and records that were set aside.

Both are written before the rows that they belong to. A tombstone that is there ahead of its delete does no harm: what it
keeps out is older than the delete, which comes again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_batch import KEY, POSITION, DeadLetter
from cdcworker.connectors.warehouses import merge, target_columns
from cdcworker.connectors.warehouses.dead_letters import headers_text
from cdcworker.connectors.warehouses.lake import statements
from cdcworker.connectors.warehouses.lake.affected_rows import StagedFiles, read_arrow
from cdcworker.connectors.warehouses.lake.tables import LakeName, RowChange, WritesRowFiles
from cdcworker.connectors.warehouses.row_versions import packed_ends
from cdcworker.connectors.warehouses.row_versions.timeline import ALL, empty_ends

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.warehouses.lake.tables import LakeTables, TableVersion
    from cdcworker.connectors.warehouses.table_state import Manifest
    from pyspark.sql import SparkSession

OWN = "_cdcworker"
"""Schema of the sink's own tables."""
LETTERS = "dead_letter"
ROW = "row"
VIEW = "cdc_side"


class SideTables:
    def __init__(self, tables: LakeTables, sink: str) -> None:
        self._tables = tables
        self._sink = sink
        self._there: set[LakeName] = set()
        self._found: dict[LakeName, TableVersion] = {}
        """Tables of tombstones that take files, as they were found for the batch that is being applied."""

    # -- tombstones -------------------------------------------------------------------------------------------------------

    def tombstones(self, session: SparkSession, place: LakeName, keys: str, schema: pa.Schema, some: bool) -> pa.Table:
        """Returns the tombstones of the keys in a view, in the form of `merge`; for a table of versions the ends of those."""
        if not some:
            return _no_tombstones(schema)
        table, same = (
            self._tables.name(tombstones_place(place)),
            f"g.{statements.quoted(KEY)} = k.{statements.quoted(KEY)}",
        )
        found = read_arrow(session, f"SELECT g.* FROM {table} g LEFT SEMI JOIN {keys} k ON {same}")
        return _tombstones(found, schema)

    def find_tombstones(self, place: LakeName, keys: pa.Array, schema: pa.Schema, some: bool) -> pa.Table | None:
        """Returns the same without a job of Spark's; None where their table cannot be read so."""
        tables, side, form = self._tables, tombstones_place(place), tombstone_schema()
        self._found.pop(side, None)
        if not some:
            return _no_tombstones(schema)
        found = tables.load(side)
        if found is None or not isinstance(tables, WritesRowFiles) or not tables.writes_rows(side, found, form):
            return None
        self._found[side] = found
        return _tombstones(tables.current(side, found, form, keys, (ROW,)).rows, schema)

    def add_tombstones(self, session: SparkSession, place: LakeName, tombstones: pa.Table, stage: StagedFiles) -> bool:
        """Stores the tombstones of a batch; returns whether it had any."""
        if not tombstones.num_rows:
            return False
        rows = _packed(tombstones) if merge.ROW in tombstones.column_names else packed_ends.packed(tombstones, ROW)
        self._append(session, tombstones_place(place), rows, stage, ())
        return True

    def tend(self, session: SparkSession, place: LakeName, state: Manifest) -> None:
        """Prunes tombstones, unless the topic has dead letters: one that is applied again may be older than all
        tombstones."""
        if state.tombstones and state.applied and not self.has_letters(session, state.topic):
            self.prune(session, place, min(at for at, _ in state.applied.values()))

    def prune(self, session: SparkSession, place: LakeName, least: str) -> None:
        """Deletes tombstones before the position `least` (hexadecimal): no row that is still to come is older."""
        side = tombstones_place(place)
        older = f"{statements.quoted(POSITION)} < X'{least}'"
        # What a TRUNCATE ends may come again at any time, when offsets are reset: of versions each stays.
        session.sql(
            f"DELETE FROM {self._tables.name(side)} WHERE {older} AND {statements.quoted(KEY)} <> X'{ALL.hex()}'"
        )

    # -- dead letters -------------------------------------------------------------------------------------------------

    def add_dead_letters(self, session: SparkSession, letters: Sequence[DeadLetter], stage: StagedFiles) -> None:
        """Stores dead letters, each once however often its batch comes."""
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
        """Deletes dead letters at or behind the ledger's offsets: their records are read again."""
        if self._tables.load(letters_place()) is None:
            return
        letters, mine = self._tables.name(letters_place()), f"sink = {statements.literal(self._sink)}"
        for row in read_arrow(
            session, f"SELECT topic, partition, max(offset) AS last FROM {letters} WHERE {mine} GROUP BY 1, 2"
        ).to_pylist():
            end = ledger.get((row["topic"], row["partition"]), 0)
            if row["topic"] in topics and row["last"] >= end:
                same = f"{mine} AND topic = {statements.literal(row['topic'])} AND partition = {row['partition']}"
                session.sql(f"DELETE FROM {letters} WHERE {same} AND offset >= {end}")

    def has_letters(self, session: SparkSession, topic: str) -> bool:
        if self._tables.load(letters_place()) is None:
            return False
        same = f"sink = {statements.literal(self._sink)} AND topic = {statements.literal(topic)}"
        found = read_arrow(session, f"SELECT 1 FROM {self._tables.name(letters_place())} WHERE {same} LIMIT 1")
        return bool(found.num_rows)

    # -- both ---------------------------------------------------------------------------------------------------------

    def _append(
        self, session: SparkSession, place: LakeName, rows: pa.Table, stage: StagedFiles, unique: Sequence[str]
    ) -> None:
        if place not in self._there:
            self._tables.create(place, statements.definition(rows.schema), None)
            found = self._tables.load(place)
            there = {} if found is None else found.columns
            for field in rows.schema if found is not None else ():
                if field.name not in there:
                    # An older version made it.
                    name, kind = statements.quoted(field.name), statements.type_of(field.type)
                    session.sql(f"ALTER TABLE {self._tables.name(place)} ADD COLUMN {name} {kind}")
            self._there.add(place)
        if not unique and self._added(place, rows):
            return
        target, source = self._tables.name(place), stage.view(session, VIEW, rows)
        names = ", ".join(map(statements.quoted, rows.schema.names))
        if unique:
            same = " AND ".join(f"t.{statements.quoted(name)} = s.{statements.quoted(name)}" for name in unique)
            values = ", ".join(f"s.{statements.quoted(name)}" for name in rows.schema.names)
            session.sql(
                f"MERGE INTO {target} t USING {source} s ON {same} WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({values})"
            )
        else:
            session.sql(f"INSERT INTO {target} ({names}) SELECT {names} FROM {source}")

    def _added(self, place: LakeName, rows: pa.Table) -> bool:
        """Adds rows as a file, where the table takes that."""
        tables, found = self._tables, self._found.pop(place, None)
        if not isinstance(tables, WritesRowFiles):
            return False
        if found is None:
            found = tables.load(place)
            if found is None or not tables.writes_rows(place, found, rows.schema):
                return False
        tables.commit_rows(place, found, RowChange(rows), None)
        return True


def letters_place() -> LakeName:
    return LakeName(OWN, LETTERS)


def tombstones_place(place: LakeName) -> LakeName:
    """Returns the name of the table that holds the tombstones of another one."""
    return LakeName(OWN, f"graves_{place.schema}~2e{place.table}")


def tombstone_schema() -> pa.Schema:
    """Returns the columns of such a table."""
    import pyarrow as pa

    return pa.schema([(KEY, pa.binary()), (POSITION, pa.binary()), (ROW, pa.binary())])


def _no_tombstones(schema: pa.Schema) -> pa.Table:
    if target_columns.keeps_versions(schema):
        return empty_ends()
    return merge.tombstones_of(schema.empty_table(), False)


def _tombstones(found: pa.Table, schema: pa.Schema) -> pa.Table:
    if not found.num_rows:
        return _no_tombstones(schema)
    if target_columns.keeps_versions(schema):
        return packed_ends.unpacked(found, ROW)
    return merge.newest(_no_tombstones(schema), _unpacked(found, schema))


def _packed(tombstones: pa.Table) -> pa.Table:
    """Rows that a tombstone keeps as bytes: their columns change, those of tombstones never."""
    import pyarrow as pa

    rows: list[bytes | None] = []
    for at, whole in enumerate(tombstones[merge.ROW].to_pylist()):
        if not whole:
            rows.append(None)
            continue
        sink = pa.BufferOutputStream()
        one = tombstones.slice(at, 1).drop_columns([merge.ROW])
        with pa.ipc.new_stream(sink, one.schema) as writer:
            writer.write_table(one)
        rows.append(sink.getvalue().to_pybytes())
    columns = {KEY: tombstones[KEY], POSITION: tombstones[target_columns.position_of(tombstones.schema)]}
    return pa.table(columns).append_column(ROW, pa.array(rows, pa.binary()))


def _unpacked(found: pa.Table, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    whole = [pa.ipc.open_stream(row).read_all() for row in found[ROW].to_pylist() if row is not None]
    rows = [merge.tombstones_of(target_columns.conform(row, schema, defaults=False), True) for row in whole]
    bare = found.filter(found[ROW].is_null()).select([KEY, POSITION])
    bare = bare.rename_columns([KEY, target_columns.position_of(schema)])
    rows.append(merge.tombstones_of(merge.shaped(bare, schema), False))
    return pa.concat_tables(rows)
