"""A warehouse that speaks SQL: rows, deletes and ledger of one batch in one transaction."""

from __future__ import annotations

import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from cdcworker.connectors.api.table_batch import SinkBatch, TableBatch, max_position, min_position, split_fresh
from cdcworker.connectors.warehouses import dropped_columns
from cdcworker.connectors.warehouses.sql.connection import SqlConnection
from cdcworker.connectors.warehouses.sql.ledger import SqlLedger
from cdcworker.connectors.warehouses.sql.stage_rows import StageRows
from cdcworker.connectors.warehouses.sql.target_table import SqlTable, TombstonePlace
from cdcworker.connectors.warehouses.target_columns import OutputForm
from cdcworker.schemas.failpoints import hit
from cdcworker.schemas.topics import source_of

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)
C = TypeVar("C", bound=SqlConnection)
T = TypeVar("T", bound=SqlTable)
C_contra = TypeVar("C_contra", bound=SqlConnection, contravariant=True)
T_contra = TypeVar("T_contra", bound=SqlTable, contravariant=True)

PRUNE_EVERY_S: Final = 60.0
MERGING_BATCHES: Final = 100
"""For how many batches all rows of a table are merged after a fresh row of it existed."""


class BatchRepeatedError(Exception):
    """A topic's table is not as the writer took it to be: the transaction is rolled back and the batch is tried once more."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic


class FreshRowExistsError(BatchRepeatedError):
    """A row that the batch calls fresh exists already, or the table takes no rows without a merge."""


class TableChangedError(BatchRepeatedError):
    """Somebody has changed the table since its catalog entry was read. A failed transaction forgets what is known of all tables,
    so this is raised once at most: another look does not repair what fails after that."""


class RowStatements(Protocol[T_contra]):
    """A server's statements that bring staged rows into a table. `bits`: those of columns that some row did not bring."""

    def truncate(self, target: T_contra, floor: bytes) -> str:
        """Removes, or marks, rows from before a TRUNCATE."""

    def delete(self, target: T_contra, stage_name: str) -> str:
        """Removes, or marks, rows whose keys are staged, where they are older."""

    def orphans(self, target: T_contra, stage_name: str) -> str:
        """Counts staged rows that keep columns of a row that does not exist."""

    def copy_origin_row(self, target: T_contra, stage_name: str, bits: Mapping[str, int]) -> str:
        """Has rows under a new key take what they did not bring from the row under the old key, where it still stands."""

    def copy_origin_tombstone(
        self, target: T_contra, stage_name: str, bits: Mapping[str, int], place: TombstonePlace
    ) -> str:
        """Has them take it from the tombstone of the old key."""

    def insert_tombstones(self, stage_name: str, place: TombstonePlace) -> str:
        """Remembers deletes, so that an older row of another partition does not bring the key back."""

    def insert_moved_tombstones(
        self, target: T_contra, stage_name: str, bits: Mapping[str, int], place: TombstonePlace
    ) -> str:
        """Remembers rows that leave for another key as they were: what is staged, else what the target holds."""


class KnownTables(Protocol):
    """The tables of the target as a session has seen them."""

    def forget(self) -> None:
        """Forgets them all: a transaction has failed."""

    def begin(self) -> None:
        """Begins a transaction, for which no table has been looked at."""

    def is_old(self, topic: str) -> bool:
        """Returns whether a topic's table is known from an earlier transaction: somebody may have changed it since."""


class RemembersTruncates(Protocol[C_contra]):
    """What tables of versions need of a TRUNCATE that comes before they are there."""

    def remember(self, connection: C_contra, topic: str, truncates: pa.Table) -> None:
        """Remembers each TRUNCATE: what it ends may come yet."""


class SqlWriter(ABC, Generic[C, T]):
    """What the TableWriters of warehouses that speak SQL have in common: one connection, used by one thread."""

    _versions: RemembersTruncates[C]

    def __init__(
        self,
        ledger: SqlLedger[C],
        catalog: KnownTables,
        statements: RowStatements[T],
        schema: str = "",
        output: OutputForm | None = None,
    ) -> None:
        self._ledger = ledger
        self._catalog = catalog
        self._statements = statements
        self._schema = schema
        self._output = output or OutputForm()
        self._connection: C | None = None
        self._floors: dict[str, bytes] = {}
        self._tombstones: dict[str, bytes] = {}
        """The highest position among the tombstones of each topic that has any: newer rows need not look for one."""
        self._merging: dict[str, int] = {}
        """Topics with a fresh row that existed, and for how many more batches all their rows are merged."""
        self._copies_fresh = False
        """Whether the batch's fresh rows go straight into their tables, without a merge."""
        self._pruned = time.monotonic()

    # -- what each server does ----------------------------------------------------------------------------------------

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[C]:
        """Opens one transaction. Errors in it are translated, and what the catalog remembers is forgotten."""

    @abstractmethod
    def _apply(self, batches: Iterable[SinkBatch], copies_fresh: bool) -> Mapping[str, Any]:
        """Applies batches in one transaction. `copies_fresh`: fresh rows go into their tables without a merge, which may raise
        FreshRowExistsError."""

    @abstractmethod
    def _table(self, connection: C, batch: TableBatch, counts: dict[str, Any], number: int = 0) -> None:
        """Applies the batch of one table. `number`: of the batch that it is of."""

    @abstractmethod
    def _apply_versions(self, connection: C, target: T, batch: TableBatch, counts: dict[str, Any]) -> None:
        """Applies the batch of one table that holds each version of a row."""

    @abstractmethod
    def _append(self, connection: C, target: T, batch: TableBatch) -> None:
        """Adds the rows of a table without a key."""

    @abstractmethod
    def _insert(self, connection: C, target: T, topic: str, rows: pa.Table) -> None:
        """Adds fresh rows straight to their table. FreshRowExistsError where it holds a row of one of the keys."""

    @abstractmethod
    def _stage(self, connection: C, target: T, kind: str, staged: StageRows, number: int = 0) -> str:
        """Fills an empty stage table; returns its name in SQL. `kind`: u for rows, m for moved ones, d for deletes."""

    @abstractmethod
    def _merge_stage(self, connection: C, target: T, batch: TableBatch, stage: str, staged: StageRows) -> int:
        """Merges staged rows into their table, newer positions only, without those behind a tombstone (where their keys are kept) or
        at or below a floor. Returns how many rows are other now."""

    # -- the seam -----------------------------------------------------------------------------------------------------

    def claim(self, topics: Sequence[str]) -> None:
        """Fences off the task that applied these topics before under another number."""
        with self._transaction() as connection:
            self._ledger.claim(connection, list(topics))

    def ledger(self) -> Mapping[tuple[str, int], int]:
        with self._transaction() as connection:
            self._ledger.forget_letters(connection)
            self._read_guards(connection)
            return self._ledger.read(connection)

    def topic_ids(self) -> Mapping[str, str]:
        with self._transaction() as connection:
            return self._ledger.topic_ids(connection)

    def know(self, ids: Mapping[str, str]) -> None:
        with self._transaction() as connection:
            self._ledger.know(connection, ids)

    def through(self) -> Mapping[str, int]:
        """Returns, by source, the position before which readers see every transaction whole, or else what eventual batches
        have reached."""
        with self._transaction() as connection:
            out = self._ledger.through(connection)
            for topic, position in self._ledger.applied(connection).items():
                source = source_of(topic)
                out[source] = max(out.get(source, 0), int.from_bytes(position[:8], "big") + 1)
            return out

    def apply(self, batch: SinkBatch) -> Mapping[str, Any]:
        """Rows and ledger commit together (INV-8). Fresh rows go straight into their tables; where one of them turns out
        to be there, all is undone and the table's rows are merged."""
        for topic, left in list(self._merging.items()):
            self._merging[topic] = left - 1
            if left <= 1:
                del self._merging[topic]
        while True:
            try:
                return self._apply([batch], True)
            except FreshRowExistsError as exc:
                log.info("rows to insert exist already and are merged topic=%s", exc.topic)
                self._merging[exc.topic] = MERGING_BATCHES
            except TableChangedError:
                continue

    def apply_all(self, batches: Iterable[SinkBatch]) -> Mapping[str, Any]:
        """Applies batches that commit together: no reader sees a part. They may be iterated more than once."""
        try:
            return self._apply(batches, False)
        except TableChangedError:
            return self._apply(batches, False)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    def _forget(self) -> None:
        """Forgets what a failed transaction may have taken back."""
        self._catalog.forget()

    # -- one batch ----------------------------------------------------------------------------------------------------

    def _read_guards(self, connection: C) -> None:
        """Reads the positions of truncates and deletes, with which the next rows are compared besides the existing rows."""
        self._floors = self._ledger.floors(connection)
        self._tombstones = self._ledger.tombstones(connection)

    def _lock(self, connection: C, batch: SinkBatch) -> bool:
        """Locks the ledger for a batch; returns whether it is still to be applied."""
        if not self._ledger.lock(connection, batch):
            return False
        if self._ledger.touched():
            self._read_guards(connection)
        return True

    def _advance(self, connection: C, batch: SinkBatch) -> None:
        """Writes what belongs to a batch besides its rows."""
        if batch.dead:
            self._ledger.add_dead_letters(connection, batch.dead)
        hit("sink.staged")
        self._ledger.advance(connection, batch)
        if batch.through:
            self._ledger.publish(connection, batch.through)

    # -- one table ----------------------------------------------------------------------------------------------------

    def _write_table(
        self, connection: C, target: T | None, batch: TableBatch, counts: dict[str, Any], number: int = 0
    ) -> None:
        """Applies the batch of one table to it as it stands; None: there is none, and the batch needs none."""
        has_versions = target is not None and target.versions
        if not has_versions:
            if batch.truncates is not None:
                self._versions.remember(connection, batch.table, batch.truncates)
            self._truncate(connection, target, batch, counts)
        if target is None:
            return
        batch = of_table(batch, target)
        if has_versions:
            self._apply_versions(connection, target, batch, counts)
        else:
            self._write_rows(connection, target, batch, counts, number)
        counted(counts, target, batch)

    def _truncate(self, connection: C, target: T | None, batch: TableBatch, counts: dict[str, Any]) -> None:
        """Applies the last TRUNCATE of a batch, and keeps older rows out from here on."""
        if batch.floor is None:
            return
        if target is not None:
            written(counts, connection.do(self._statements.truncate(target, batch.floor)))
        self._ledger.set_floor(connection, batch.table, batch.floor)
        self._floors[batch.table] = max(batch.floor, self._floors.get(batch.table, b""))

    def _write_rows(self, connection: C, target: T, batch: TableBatch, counts: dict[str, Any], number: int = 0) -> None:
        if batch.key:
            self._upsert(connection, target, batch, counts, number)
            return
        if not batch.bare:
            self._append(connection, target, batch)
        written(counts, batch.upserts.num_rows)

    def _upsert(self, connection: C, target: T, batch: TableBatch, counts: dict[str, Any], number: int) -> None:
        """Old rows are copied under their new keys and remembered before any delete; deletes go before upserts."""
        late = self._may_have_tombstones(batch)
        fresh, batch = self._split_fresh(target, batch, late)
        place = TombstonePlace(self._ledger.sink, batch.table)
        staged, stage = StageRows(batch.upserts, batch.unchanged, batch.origins, late), ""
        if batch.upserts.num_rows:
            stage = self._stage_moved(connection, target, "u", staged, place, number)
        if batch.moved is not None and batch.moved.num_rows:
            moved = StageRows(batch.moved, batch.moved_unchanged, batch.moved_origins)
            name = self._stage_moved(connection, target, "m", moved, place)
            connection.do(self._statements.insert_moved_tombstones(target, name, moved.bits, place))
        if batch.deletes.num_rows:
            name = self._stage(connection, target, "d", StageRows(batch.deletes))
            written(counts, connection.do(self._statements.delete(target, name)))
            connection.do(self._statements.insert_tombstones(name, place))
            newest = max_position(batch.deletes)
            if newest is not None:
                self._tombstones[batch.table] = max(newest, self._tombstones.get(batch.table, b""))
        if fresh is not None:
            self._insert(connection, target, batch.table, fresh)
        if batch.upserts.num_rows:
            hit("sink.merge")
            if staged.bits:
                found = connection.one(self._statements.orphans(target, stage))
                counts["orphans"] += found[0] if found else 0
            written(counts, self._merge_stage(connection, target, batch, stage, staged))

    def _stage_moved(
        self, connection: C, target: T, kind: str, staged: StageRows, place: TombstonePlace, number: int = 0
    ) -> str:
        """Stages rows, some of which may come from another key; returns the stage's name in SQL."""
        name, bits = self._stage(connection, target, kind, staged, number), staged.bits
        if staged.origins is not None and bits:
            connection.do(self._statements.copy_origin_row(target, name, bits))
            connection.do(self._statements.copy_origin_tombstone(target, name, bits, place))
        return name

    def _split_fresh(self, target: T, batch: TableBatch, late: bool) -> tuple[pa.Table | None, TableBatch]:
        """Returns the fresh rows, or None where all are merged, and the batch without them. To add rows to a table costs half of what
        a merge from another does."""
        import numpy as np

        if (
            not self._copies_fresh
            or batch.fresh is None
            or late
            or target.stamps
            or not target.unique
            or batch.table in self._floors
            or batch.table in self._merging
            or not {column.field for column in target.columns} <= set(batch.upserts.column_names)
            or not np.asarray(batch.fresh, np.bool_).any()
        ):
            return None, batch
        return split_fresh(batch)

    def _may_have_tombstones(self, batch: TableBatch) -> bool:
        """Returns whether a row of the batch may be older than a delete of its key. In a batch a key is put or deleted,
        not both, so its own deletes are no concern of its rows."""
        newest = self._tombstones.get(batch.table)
        return newest is not None and min_position(batch.upserts) <= newest


def of_table(batch: TableBatch, target: SqlTable) -> TableBatch:
    """Returns the batch without the columns that its table has dropped."""
    gone = {column.name for column in dropped_columns.wanted(batch)}.difference(target.names)
    return dropped_columns.without(batch, gone)


def counted(counts: dict[str, Any], target: SqlTable, batch: TableBatch) -> None:
    """Counts the changes that a table's batch was."""
    counts["rows"] += batch.upserts.num_rows + batch.deletes.num_rows
    counts["changes"] += batch.changes
    counts["tables"][target.plain_name] = counts["tables"].get(target.plain_name, 0) + batch.changes


def written(counts: dict[str, Any], rows: int) -> None:
    """Counts the rows that a statement changed: rows that it left alone because they are newer do not count."""
    counts["written"] = counts.get("written", 0) + max(0, rows)
