"""Versions of rows in a warehouse that speaks SQL: what is known of the keys of a batch is asked for, and what becomes of their versions
is written in a few statements. Values of columns stay in the server."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from cdcworker.connectors.api.table_batch import (
    KEY,
    OP,
    POSITION,
    VALID_FROM,
    VALID_TO,
    VALID_TO_POSITION,
    TableBatch,
)
from cdcworker.connectors.arrow.array_ops import one
from cdcworker.connectors.warehouses.row_versions.merge import READ
from cdcworker.connectors.warehouses.row_versions.timeline import (
    KnownVersions,
    Timeline,
    ends_schema,
    timeline,
)
from cdcworker.connectors.warehouses.sql.connection import SqlConnection
from cdcworker.connectors.warehouses.sql.target_table import SqlTable, TombstonePlace
from cdcworker.connectors.warehouses.sql.writer import written
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

C = TypeVar("C", bound=SqlConnection)
C_contra = TypeVar("C_contra", bound=SqlConnection, contravariant=True)
T = TypeVar("T", bound=SqlTable)
T_contra = TypeVar("T_contra", bound=SqlTable, contravariant=True)

KIND: Final = "_cdc_kind"
"""Column of a plan: what becomes of the version."""
ENDS, NEW, GONE, REMEMBERED = "ends", "new", "gone", "remembered"


@dataclass(frozen=True, slots=True)
class VersionStageTables:
    """A batch in the stage tables of a session, whose names are SQL's: its versions and deletes, and what becomes of them."""

    stage: str
    plan: str
    bits: Mapping[str, int]
    """Of columns that some version did not bring."""


class VersionStatements(Protocol[T_contra]):
    """A server's statements. Queries of changes return their keys as they are staged, and positions."""

    def copy_kept(self, target: T_contra, staged: VersionStageTables) -> str:
        """Has versions take the columns that their change left out from the version that it was made on."""

    def rowless(self, staged: VersionStageTables) -> str:
        """Asks for the versions that found none: key, position."""

    def known_versions(self, target: T_contra, staged: VersionStageTables) -> str:
        """Asks for the versions of the target that a batch has to know: key, position, when they began, when and with which
        position they ended."""

    def known_ends(self, staged: VersionStageTables, place: TombstonePlace) -> str:
        """Asks for remembered ends of the keys of a batch, and for each TRUNCATE under the key ALL: key, position, time."""

    def remember(self, staged: VersionStageTables, place: TombstonePlace) -> str:
        """Stores the ends of a plan that are to be remembered."""

    def end(self, target: T_contra, staged: VersionStageTables) -> str:
        """Ends versions of the target as a plan says."""

    def insert(self, target: T_contra, staged: VersionStageTables) -> str:
        """Adds the new versions of a plan."""

    def repeated(self, target: T_contra, staged: VersionStageTables) -> str:
        """Asks for the rows of a snapshot that say what the version before them says: key, position."""

    def remove(self, target: T_contra, staged: VersionStageTables) -> str:
        """Removes the versions that are none, as a plan says."""

    def truncate(self, target: T_contra, at: bytes, moment_us: int) -> str:
        """Ends every version that was current at a TRUNCATE."""

    def remember_truncate(self, place: TombstonePlace, at: bytes, moment_us: int) -> str:
        """Stores a TRUNCATE among the remembered ends."""


class StagesVersions(Protocol[C_contra, T_contra]):
    """Fills the stage tables of a session."""

    def fill(self, connection: C_contra, target: T_contra, batch: TableBatch) -> VersionStageTables:
        """Stages versions and deletes in an empty table."""

    def keys(self, rows: pa.Table) -> pa.Array:
        """Returns the keys of rows as they are staged."""

    def plan(self, connection: C_contra, target: T_contra, staged: VersionStageTables, rows: pa.Table) -> None:
        """Stages KEY, POSITION, VALID_TO_POSITION, VALID_TO and KIND in the table of plans, which loses what it had."""


@dataclass(frozen=True, slots=True)
class SqlVersions(Generic[C, T]):
    """The tables of versions of one sink."""

    sink: str
    statements: VersionStatements[T]
    stages: StagesVersions[C, T]

    def remember(self, connection: C, topic: str, truncates: pa.Table) -> None:
        """Remembers each TRUNCATE: what it ends may come yet."""
        for at, moment in _moments(truncates):
            connection.do(self.statements.remember_truncate(TombstonePlace(self.sink, topic), at, moment))

    def apply(self, connection: C, target: T, batch: TableBatch, counts: dict[str, Any]) -> None:
        if batch.truncates is not None:
            self.remember(connection, batch.table, batch.truncates)
            for at, moment in _moments(batch.truncates):
                written(counts, connection.do(self.statements.truncate(target, at, moment)))
            return
        if not batch.upserts.num_rows and not batch.deletes.num_rows:
            return
        staged = self.stages.fill(connection, target, batch)
        puts, orphans = self._completed(connection, target, staged, batch)
        counts["orphans"] += orphans
        hit("sink.merge")
        self._write(connection, target, staged, (batch, puts), counts)

    def _completed(
        self, connection: C, target: T, staged: VersionStageTables, batch: TableBatch
    ) -> tuple[pa.Table, int]:
        """Returns the versions, with their staged keys, that are whole, and how many are not."""
        import pyarrow as pa

        if not batch.upserts.num_rows:
            return _empty_changes().append_column(OP, pa.nulls(0, pa.string())), 0
        puts = self._changes(batch.upserts).append_column(OP, one(batch.upserts[OP]))
        if not staged.bits:
            return puts, 0
        connection.do(self.statements.copy_kept(target, staged))
        rowless = {(bytes(key), bytes(at)) for key, at in connection.ask(self.statements.rowless(staged))}
        if not rowless:
            return puts, 0
        pairs = zip(puts[KEY].to_pylist(), puts[POSITION].to_pylist(), strict=True)
        return puts.filter(pa.array([pair not in rowless for pair in pairs], pa.bool_())), len(rowless)

    def _changes(self, rows: pa.Table) -> pa.Table:
        import pyarrow as pa

        columns = [self.stages.keys(rows), one(rows[POSITION]), one(rows[VALID_FROM])]
        return pa.table(columns, schema=ends_schema())

    def _write(
        self,
        connection: C,
        target: T,
        staged: VersionStageTables,
        batch: tuple[TableBatch, pa.Table],
        counts: dict[str, Any],
    ) -> None:
        import pyarrow.compute as pc

        part, puts = batch
        place = TombstonePlace(self.sink, part.table)
        have = _versions(connection.ask(self.statements.known_versions(target, staged)))
        ends = _ends(connection.ask(self.statements.known_ends(staged, place)))
        deletes = self._changes(part.deletes) if part.deletes.num_rows else _empty_changes()
        found = timeline(KnownVersions(have, ends), puts, deletes, time.time_ns() // 1000)
        self.stages.plan(connection, target, staged, _first_plan(found, have, puts))
        connection.do(self.statements.remember(staged, place))
        written(counts, connection.do(self.statements.end(target, staged)))
        written(counts, connection.do(self.statements.insert(target, staged)))
        if puts.num_rows and pc.any(pc.equal(puts[OP], READ)).as_py():
            self._drop_repeated(connection, target, staged, found, (have, puts))

    def _drop_repeated(
        self, connection: C, target: T, staged: VersionStageTables, found: Timeline, parts: tuple[pa.Table, pa.Table]
    ) -> None:
        """A row of a snapshot that says what the version before it says makes none: that one goes on."""
        import numpy as np

        repeated = {(bytes(key), bytes(at)) for key, at in connection.ask(self.statements.repeated(target, staged))}
        if not repeated:
            return
        pairs = [zip(part[KEY].to_pylist(), part[POSITION].to_pylist(), strict=True) for part in parts]
        marks = np.array([pair in repeated for part in pairs for pair in part], np.bool_)
        self.stages.plan(connection, target, staged, _second_plan(found, found.without(marks), *parts))
        connection.do(self.statements.remove(target, staged))
        connection.do(self.statements.end(target, staged))


def _moments(truncates: pa.Table) -> list[tuple[bytes, int]]:
    import pyarrow as pa

    return list(zip(truncates[POSITION].to_pylist(), truncates[VALID_FROM].cast(pa.int64()).to_pylist(), strict=True))


def _empty_changes() -> pa.Table:
    return ends_schema().empty_table()


def _versions(rows: Iterable[Sequence[Any]]) -> pa.Table:
    import pyarrow as pa

    moment = pa.timestamp("us", "UTC")
    kinds = {
        KEY: pa.binary(),
        POSITION: pa.binary(),
        VALID_FROM: moment,
        VALID_TO: moment,
        VALID_TO_POSITION: pa.binary(),
    }
    return _table(rows, kinds)


def _ends(rows: Iterable[Sequence[Any]]) -> pa.Table:
    return _table(rows, {field.name: field.type for field in ends_schema()})


def _table(rows: Iterable[Sequence[Any]], kinds: Mapping[str, pa.DataType]) -> pa.Table:
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) or [()] * len(kinds)
    return pa.table({name: pa.array(column, kind) for (name, kind), column in zip(kinds.items(), columns, strict=True)})


def _plan(found: Timeline, rows: pa.Table, kinds: Mapping[str, np.ndarray[Any, Any]]) -> pa.Table:
    """Returns those of the versions, given in the order of their numbers, that a mask has, with the kind that it is for."""
    import numpy as np
    import pyarrow as pa

    ends, times = found.ends()
    every = pa.table(
        {KEY: rows[KEY], POSITION: rows[POSITION], VALID_TO_POSITION: ends, VALID_TO: times}
    ).combine_chunks()
    parts = []
    for kind, mask in kinds.items():
        some = every.take(pa.array(np.flatnonzero(mask)))
        parts.append(some.append_column(KIND, pa.array([kind] * some.num_rows, pa.string())))
    return pa.concat_tables(parts)


def _numbered(have: pa.Table, puts: pa.Table) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables([part.select([KEY, POSITION]) for part in (have, puts)])


def _first_plan(found: Timeline, have: pa.Table, puts: pa.Table) -> pa.Table:
    """Versions that end, those that are new, and ends that are remembered."""
    import numpy as np
    import pyarrow as pa

    old, new = np.zeros(len(found.end), np.bool_), np.zeros(len(found.end), np.bool_)
    old[: found.held], new[found.held :] = found.changed, found.made
    made = _plan(found, _numbered(have, puts), {ENDS: old, NEW: new})
    kept = found.remember
    count = kept.num_rows
    columns = [kept[KEY], kept[POSITION], pa.nulls(count, pa.binary()), kept[VALID_FROM]]
    rows = pa.table([*columns, pa.array([REMEMBERED] * count, pa.string())], schema=made.schema)
    return pa.concat_tables([made, rows])


def _second_plan(before: Timeline, found: Timeline, have: pa.Table, puts: pa.Table) -> pa.Table:
    """What repeated rows of a snapshot change: versions that go on, and those that are none."""
    longer = (found.end != before.end) & ~found.dropped
    return _plan(found, _numbered(have, puts), {ENDS: longer, GONE: found.dropped})
