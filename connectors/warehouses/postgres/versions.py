"""Versions of rows in a PostgreSQL warehouse: what a batch ends, what it makes, and what of it comes late."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_batch import (
    BEGAN,
    OP,
    POSITION,
    VALID_FROM,
    VALID_TO_POSITION,
    TableBatch,
    max_position,
)
from cdcworker.connectors.warehouses.postgres import copy, statements, version_statements
from cdcworker.connectors.warehouses.postgres.catalog import VERSIONS, TargetCatalog
from cdcworker.connectors.warehouses.row_versions.merge import READ
from cdcworker.connectors.warehouses.sql.target_table import TombstonePlace
from cdcworker.connectors.warehouses.sql.writer import written
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

    Connection = psycopg.Connection[tuple[Any, ...]]

DDL = (
    """create table if not exists _cdcworker.version_end (
        sink text, topic text, key bytea, position bytea, ended_at timestamptz not null,
        at timestamptz not null default now(), primary key (sink, topic, key, position))""",
    """create table if not exists _cdcworker.version_newest (
        sink text, topic text, position bytea not null, primary key (sink, topic)) with (fillfactor = 50)""",
)
"""Deletes and, with an empty key, each TRUNCATE; and how far the versions of each topic have come. In the ledger's schema, of sinks
that keep versions only."""
ENDS = "version_end"
ANYWHERE = b"\xff" * 16
"""How far the versions of a topic have come once a tombstone without a position has ended one: whichever comes next ends it anew."""
_NEWEST = "select position from _cdcworker.version_newest where sink = %s and topic = %s"
_ENDED = "select position from _cdcworker.version_end where sink = %s and topic = %s order by position desc limit 1"
_STORE_NEWEST = """insert into _cdcworker.version_newest as n (sink, topic, position) values (%s, %s, %s)
    on conflict (sink, topic) do update set position = excluded.position where n.position < excluded.position"""


@dataclass(slots=True)
class VersionTables:
    """The tables of versions of one sink. `newest` has by topic a position behind which there is neither a version nor an end."""

    sink: str
    catalog: TargetCatalog
    newest: dict[str, bytes] = field(default_factory=dict)

    @staticmethod
    def create(connection: Connection) -> None:
        for statement in DDL:
            connection.execute(statement)

    def forget(self) -> None:
        """Other sessions may have written since."""
        self.newest.clear()

    def apply(
        self,
        connection: Connection,
        target: statements.TargetTable,
        batch: TableBatch,
        counts: dict[str, Any],
        fresh: bool,
    ) -> None:
        """Applies a batch of versions. `fresh`: versions that the target can have nothing of are copied without a look at it;
        psycopg's UniqueViolation where it has."""
        place = TombstonePlace(self.sink, batch.table)
        newest = self._newest(connection, target, batch.table)
        if batch.truncates is not None:
            self._truncate(connection, target, place, batch.truncates, counts)
        else:
            fresh = fresh and target.unique and not target.stamps
            fresh = fresh and {column.field for column in target.columns} <= set(batch.upserts.column_names)
            made, left = _split(batch, newest if fresh else None)
            if made is not None:
                copy.insert_versions(connection, target, made)
                written(counts, made.num_rows)
            if left.upserts.num_rows or left.deletes.num_rows:
                self._stage(connection, target, place, left, newest, counts)
        ended = self._end_without_position(connection, target, batch, counts)
        parts = [max_position(part) for part in (batch.upserts, batch.deletes) if part.num_rows]
        now = max([newest, batch.floor or b"", *(at or b"" for at in parts), ANYWHERE if ended else b""])
        if now > newest:
            connection.execute(_STORE_NEWEST, (self.sink, batch.table, now))
            self.newest[batch.table] = now

    def remember(self, connection: Connection, topic: str, truncates: pa.Table) -> None:
        """Remembers each TRUNCATE: what it ends may come yet."""
        place = TombstonePlace(self.sink, topic)
        for row in truncates.to_pylist():
            connection.execute(version_statements.remember_truncate(place, row[POSITION]), (row[VALID_FROM],))
        self.newest.pop(topic, None)

    def _newest(self, connection: Connection, target: statements.TargetTable, topic: str) -> bytes:
        """The ledger does not tell: a reset of offsets sets it back. Where nothing is stored all rows are looked at, once."""
        if topic not in self.newest:
            place = (self.sink, topic)
            rows = [connection.execute(_NEWEST, place).fetchone()]
            if rows[0] is None:
                texts = [statements.newest(target, name) for name in (target.position, VALID_TO_POSITION)]
                rows = [
                    *(connection.execute(text).fetchone() for text in texts),
                    connection.execute(_ENDED, place).fetchone(),
                ]
            self.newest[topic] = max((bytes(row[0]) for row in rows if row is not None), default=b"")
        return self.newest[topic]

    def _truncate(
        self,
        connection: Connection,
        target: statements.TargetTable,
        place: TombstonePlace,
        truncates: pa.Table,
        counts: dict[str, Any],
    ) -> None:
        for row in truncates.to_pylist():
            connection.execute(version_statements.remember_truncate(place, row[POSITION]), (row[VALID_FROM],))
            written(counts, connection.execute(version_statements.truncate(target, place, row[POSITION])).rowcount)

    def _stage(
        self,
        connection: Connection,
        target: statements.TargetTable,
        place: TombstonePlace,
        batch: TableBatch,
        newest: bytes,
        counts: dict[str, Any],
    ) -> None:
        import pyarrow.compute as pc

        batch = replace(batch, deletes=batch.deletes.filter(batch.deletes[POSITION].is_valid()))
        if not batch.upserts.num_rows and not batch.deletes.num_rows:
            return
        stage = self.catalog.stage(connection, target, VERSIONS)
        bits = copy.stage_versions(connection, target, stage, batch)
        if bits:
            connection.execute(version_statements.copy_kept(target, stage, bits))
            found = connection.execute(version_statements.take_rowless(stage)).fetchone()
            counts["orphans"] += found[0] if found else 0
        hit("sink.merge")
        self._merge(connection, target, place, stage, newest, counts)
        if batch.upserts.num_rows and pc.any(pc.equal(batch.upserts[OP], READ)).as_py():
            _drop_repeated(connection, target, stage)

    def _end_without_position(
        self, connection: Connection, target: statements.TargetTable, batch: TableBatch, counts: dict[str, Any]
    ) -> int:
        """Ends what is current of the keys of tombstones without a position; returns how many versions that were."""
        lone = batch.deletes.filter(batch.deletes[POSITION].is_null()) if batch.deletes.num_rows else batch.deletes
        if not lone.num_rows:
            return 0
        stage = self.catalog.stage(connection, target, "d")
        copy.stage(connection, target, stage, lone, {}, None, True)
        ended = connection.execute(version_statements.end_without_position(target, stage)).rowcount
        written(counts, ended)
        return ended

    @staticmethod
    def _merge(
        connection: Connection,
        target: statements.TargetTable,
        place: TombstonePlace,
        stage: str,
        newest: bytes,
        counts: dict[str, Any],
    ) -> None:
        connection.execute(version_statements.mark_late(target, stage, place, newest))
        some = connection.execute(version_statements.has_late(stage)).fetchone()
        connection.execute(version_statements.end_current(target, stage))
        connection.execute(version_statements.remember_deletes(stage, place))
        written(counts, connection.execute(version_statements.insert(target, stage)).rowcount)
        if some and some[0]:
            connection.execute(version_statements.remember_ends(target, stage, place))
            connection.execute(version_statements.end_again(target, stage, place))
            written(counts, connection.execute(version_statements.insert_late(target, stage, place)).rowcount)


def _split(batch: TableBatch, newest: bytes | None) -> tuple[pa.Table | None, TableBatch]:
    """Returns the versions that are fresh and newer than all of the target, and the batch without them."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if newest is None or batch.fresh is None or not batch.fresh.any():
        return None, batch

    newer = pc.greater(batch.upserts[BEGAN], pa.scalar(newest, pa.binary())).to_numpy()
    made = np.asarray(batch.fresh, np.bool_) & newer
    rest = pa.array(~made)
    left = replace(
        batch,
        upserts=batch.upserts.filter(rest),
        unchanged={name: np.asarray(flags)[~made] for name, flags in batch.unchanged.items()},
        origins=None if batch.origins is None else batch.origins.filter(rest),
        fresh=None,
    )
    return batch.upserts.filter(pa.array(made)), left


def _drop_repeated(connection: Connection, target: statements.TargetTable, stage: str) -> None:
    while connection.execute(version_statements.compare_read(target, stage)).rowcount:
        for statement in version_statements.drop_repeated(target, stage):
            connection.execute(statement)
