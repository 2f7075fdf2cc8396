"""The PostgreSQL warehouse: rows, deletes, DDL and ledger of one batch in one transaction."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_batch import SinkBatch, TableBatch, max_position, min_position, split_fresh
from cdcworker.connectors.api.table_writer import TargetRows
from cdcworker.connectors.sink_errors import TARGET_UNREACHABLE, from_psycopg
from cdcworker.connectors.warehouses import dropped_columns
from cdcworker.connectors.warehouses.postgres import copy, parallel_staging, statements, type_conflicts
from cdcworker.connectors.warehouses.postgres.catalog import TargetCatalog
from cdcworker.connectors.warehouses.postgres.connection import judged, opened
from cdcworker.connectors.warehouses.postgres.ledger import Epoch, PostgresLedger
from cdcworker.connectors.warehouses.postgres.snapshot_read import read
from cdcworker.connectors.warehouses.postgres.versions import ENDS, VersionTables
from cdcworker.connectors.warehouses.table_refusals import TableRefusals
from cdcworker.connectors.warehouses.target_columns import OutputForm, place_of
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit
from cdcworker.schemas.topics import source_of
from cdcworker.schemas.untrusted.driver_text import is_of_user_code

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from cdcworker.connectors.warehouses.postgres.connection import Connection
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

PRUNE_EVERY_S = 60.0
MERGING_BATCHES = 100
"""For how many batches all rows of a table are merged after a fresh row of it existed."""


class _BatchRepeated(Exception):
    """A topic's table is not as the writer took it to be: the transaction is rolled back and the batch is tried once more."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic


class _RowExists(_BatchRepeated):
    """A row that the batch calls fresh exists already, or the table takes no rows by COPY."""


class _TableChanged(_BatchRepeated):
    """Somebody has changed the table since its catalog entry was read. A failed transaction forgets what is known of all tables,
    so this is raised once at most: another look does not repair what fails after that."""


class PostgresWriter:
    """The TableWriter of a PostgreSQL warehouse: one connection, used by one thread."""

    def __init__(
        self,
        conninfo: str,
        sink: str,
        task: int = 0,
        *,
        schema: str = "",
        output: OutputForm | None = None,
        staging: parallel_staging.StagingPlan | None = None,
    ) -> None:
        self._conninfo = conninfo
        self._schema = schema
        self._ledger = PostgresLedger(sink, task)
        self._output = output or OutputForm()
        self._catalog = TargetCatalog(schema, self._output, sink)
        self._versions = VersionTables(sink, self._catalog)
        self._staging = parallel_staging.ParallelStaging(
            conninfo, self._ledger, staging or parallel_staging.StagingPlan()
        )
        self._connection: Connection | None = None
        self._floors: dict[str, bytes] = {}
        self._tombstones: dict[str, bytes] = {}
        """The highest position among the tombstones of each topic that has any: newer rows need not look for one."""
        self._merging: dict[str, int] = {}
        """Topics with a fresh row that existed, and for how many more batches all their rows are merged."""
        self._copies_fresh = False
        """Whether the batch's fresh rows go into their tables by COPY, without a merge."""
        self._pruned = time.monotonic()

    # -- the seam -----------------------------------------------------------------------------------------------------

    def fence(self, epoch: Epoch) -> None:
        with self._transaction() as connection:
            # A batch may be lost with its server and is read again; the fence may not.
            connection.execute("set local synchronous_commit = on")
            self._ledger.create(connection)
            if self._output.versions:
                self._versions.create(connection)
            self._ledger.fence(connection, epoch)
        self._sweep()

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

    def attach(self, session: Callable[[], SparkSession], _step: Callable[[str], None] | None = None) -> None:
        """`session` waits for Spark, whose executors may stage large tables."""
        self._staging.attach(session)

    def _sweep(self) -> None:
        import psycopg

        connection = self._connection
        if connection is not None and not connection.closed:
            with contextlib.suppress(psycopg.Error):
                parallel_staging.sweep(connection, self._ledger)

    def _read_guards(self, connection: Connection) -> None:
        """Reads the positions of truncates and deletes, with which the next rows are compared besides the existing rows."""
        self._floors = self._ledger.floors(connection)
        self._tombstones = self._ledger.tombstones(connection)
        self._versions.forget()

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
            except _RowExists as exc:
                log.info("rows to insert exist already and are merged topic=%s", exc.topic)
                self._merging[exc.topic] = MERGING_BATCHES
            except _TableChanged:
                continue

    def apply_all(self, batches: Iterable[SinkBatch]) -> Mapping[str, Any]:
        """Applies batches that commit together: no reader sees a part. They may be iterated twice."""
        try:
            return self._apply(batches, False)
        except _TableChanged:
            return self._apply(batches, False)

    def _apply(self, batches: Iterable[SinkBatch], copies_fresh: bool) -> Mapping[str, Any]:
        """Applies batches in one transaction. `copies_fresh`: fresh rows are copied without a merge, which may raise _RowExists."""
        if self._connection is None or self._connection.closed:
            # A server that went down may have lost batches that it had committed: only its ledger knows.
            raise CdcError(TARGET_UNREACHABLE, "the connection was lost after the ledger had been read")
        counts: dict[str, Any] = {"rows": 0, "changes": 0, "orphans": 0, "tables": {}}
        fresh = replayed = 0
        refusals = TableRefusals()
        self._copies_fresh = copies_fresh
        due = time.monotonic() - self._pruned > PRUNE_EVERY_S
        if due:
            self._sweep()
        with self._transaction() as connection:
            self._catalog.begin()
            for batch in batches:
                if refusals:
                    self._check_others(connection, batch.tables, refusals)
                elif self._ledger.lock(connection, batch):
                    if self._ledger.touched():
                        self._read_guards(connection)
                    fresh += 1
                    self._batch(connection, batch, counts, refusals)
                else:
                    replayed += 1
            refusals.tell()
            if fresh and due:
                self._ledger.prune(connection)
                if self._output.versions:
                    self._ledger.prune(connection, ENDS)
                self._pruned = time.monotonic()
            if fresh:
                hit("sink.before_commit")
        if fresh:
            hit("sink.after_commit")
        return {**counts, "replayed": replayed > 0 and not fresh}

    def _batch(self, connection: Connection, batch: SinkBatch, counts: dict[str, Any], refusals: TableRefusals) -> None:
        for at, table in enumerate(batch.tables, 1):
            with refusals.of_a_table(), self._as_known(table.table):
                self._table(connection, table, counts, batch.batch_id)
            hit("sink.table_done")
            if refusals:
                self._check_others(connection, batch.tables[at:], refusals)
                return
        self._staging.drop(connection)
        if batch.dead:
            self._ledger.add_dead_letters(connection, batch.dead)
        hit("sink.staged")
        self._ledger.advance(connection, batch)
        if batch.through:
            self._ledger.publish(connection, batch.through)

    def _check_others(self, connection: Connection, tables: Sequence[TableBatch], refusals: TableRefusals) -> None:
        """Finds out whether further tables of a batch are refused. Nothing of it stays once one is."""
        for table in tables:
            if table.table not in refusals.topics:
                with refusals.of_a_table(), self._as_known(table.table):
                    self._target(connection, table)

    def rows(self, topic: str) -> TargetRows | None:
        """Reads the table over a connection of its own, so that `apply` may go on meanwhile."""
        return read(self._connect(), self._ledger.sink, topic, place_of(topic, (), self._schema))

    def cancel(self) -> None:
        """Cancels the statement that runs in another thread."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.cancel_safe(timeout=1.0)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    # -- connection ---------------------------------------------------------------------------------------------------

    def _connect(self) -> Connection:
        return opened(judged(self._conninfo))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Opens one transaction. Errors in it are translated, and what the catalog remembers is forgotten."""
        import psycopg

        try:
            if self._connection is None or self._connection.closed:
                self._forget()
                self._connection = self._connect()
            with self._connection.transaction():
                yield self._connection
        except psycopg.Error as exc:
            self._forget()
            log.warning("warehouse refused a statement sqlstate=%s error=%s", exc.sqlstate, _said(exc))
            raise from_psycopg(exc) from exc
        except BaseException:
            self._forget()
            raise

    def _forget(self) -> None:
        self._catalog.forget()
        self._versions.forget()

    # -- one table ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _as_known(self, topic: str) -> Iterator[None]:
        """Turns errors of statements into _TableChanged, where the table's catalog entry may have been read long ago."""
        import psycopg

        try:
            yield
        except psycopg.Error as exc:
            if not (exc.sqlstate or "").startswith(type_conflicts.STALE) or not self._catalog.is_old(topic):
                raise
            log.info("the columns of a table are read again topic=%s sqlstate=%s", topic, exc.sqlstate)
            raise _TableChanged(topic) from exc

    def _table(self, connection: Connection, batch: TableBatch, counts: dict[str, Any], number: int = 0) -> None:
        target = self._target(connection, batch)
        if batch.truncates is not None and (target is None or not target.versions):
            self._versions.remember(connection, batch.table, batch.truncates)
        if batch.floor is not None and not (target is not None and target.versions):
            if target is not None:
                _written(counts, connection.execute(statements.truncate(target, batch.floor)).rowcount)
            self._ledger.set_floor(connection, batch.table, batch.floor)
            self._floors[batch.table] = max(batch.floor, self._floors.get(batch.table, b""))
        if target is None:
            return
        batch = dropped_columns.without(
            batch, {column.name for column in dropped_columns.wanted(batch)}.difference(target.names)
        )
        if target.versions:
            self._apply_versions(connection, target, batch, counts)
        elif not batch.key:
            if not batch.bare:
                copy.append(connection, target, batch)
            _written(counts, batch.upserts.num_rows)
        else:
            self._upsert(connection, target, batch, counts, number)
        rows = batch.upserts.num_rows + batch.deletes.num_rows
        counts["rows"] += rows
        counts["changes"] += batch.changes
        name = f"{target.schema}.{target.table}"
        counts["tables"][name] = counts["tables"].get(name, 0) + batch.changes

    def _apply_versions(
        self, connection: Connection, target: statements.TargetTable, batch: TableBatch, counts: dict[str, Any]
    ) -> None:
        import psycopg

        copies = self._copies_fresh and batch.table not in self._merging
        try:
            self._versions.apply(connection, target, batch, counts, copies)
        except (psycopg.errors.UniqueViolation, psycopg.errors.FeatureNotSupported) as exc:
            if not copies:
                raise
            raise _RowExists(batch.table) from exc

    def _target(self, connection: Connection, batch: TableBatch) -> statements.TargetTable | None:
        catalog = self._catalog
        return catalog.standing(connection, batch) if batch.bare else catalog.prepare(connection, batch)

    def _upsert(
        self,
        connection: Connection,
        target: statements.TargetTable,
        batch: TableBatch,
        counts: dict[str, Any],
        number: int,
    ) -> None:
        """Old rows are copied under their new keys and remembered before any delete; deletes go before upserts."""
        late = self._may_have_tombstones(batch)
        fresh, batch = self._split_fresh(target, batch, late)
        place = statements.TombstonePlace(self._ledger.sink, batch.table)
        bits: dict[str, int] = {}
        if batch.upserts.num_rows:
            stage, bits = self._stage(connection, target, batch, late, number)
            if batch.origins is not None and bits:
                connection.execute(statements.copy_origin_row(target, stage, bits))
                connection.execute(statements.copy_origin_tombstone(target, stage, bits, place))
        if batch.moved is not None and batch.moved.num_rows:
            moved = self._catalog.stage(connection, target, "m")
            kept, origins = batch.moved_unchanged, batch.moved_origins
            moved_bits = copy.stage(connection, target, moved, batch.moved, kept, origins, True)
            if origins is not None and moved_bits:
                connection.execute(statements.copy_origin_row(target, moved, moved_bits))
                connection.execute(statements.copy_origin_tombstone(target, moved, moved_bits, place))
            connection.execute(statements.insert_moved_tombstones(target, moved, moved_bits, place))
        if batch.deletes.num_rows:
            gone = self._catalog.stage(connection, target, "d")
            copy.stage(connection, target, gone, batch.deletes, {}, None, True)
            _written(counts, connection.execute(statements.delete(target, gone)).rowcount)
            connection.execute(statements.insert_tombstones(gone, place))
            newest = max_position(batch.deletes)
            if newest is not None:
                self._tombstones[batch.table] = max(newest, self._tombstones.get(batch.table, b""))
        if fresh is not None:
            self._insert(connection, target, batch.table, fresh)
        if batch.upserts.num_rows:
            self._merge(connection, target, batch, stage, bits, counts, late)

    def _stage(
        self, connection: Connection, target: statements.TargetTable, batch: TableBatch, late: bool, number: int
    ) -> tuple[str, dict[str, int]]:
        """Writes the rows into a stage table. Returns its name in SQL, and the bit of each column that some row did not bring."""
        if self._staging.wants(batch.upserts):
            part = parallel_staging.StagingPart("", target, late, batch.unchanged)
            found = self._staging.stage(connection, part, batch.upserts, batch.origins, number)
            if found is not None:
                return found, copy.bits_of(batch.unchanged)
        stage = self._catalog.stage(connection, target, "s")
        return stage, copy.stage(connection, target, stage, batch.upserts, batch.unchanged, batch.origins, late)

    def _split_fresh(
        self, target: statements.TargetTable, batch: TableBatch, late: bool
    ) -> tuple[pa.Table | None, TableBatch]:
        """Returns the fresh rows, or None where all are merged, and the batch without them. COPY into a table costs half of what MERGE
        from another does."""
        if (
            not self._copies_fresh
            or batch.fresh is None
            or late
            or target.stamps
            or not target.unique
            or batch.table in self._floors
            or batch.table in self._merging
            or not {column.field for column in target.columns} <= set(batch.upserts.column_names)
            or not batch.fresh.any()
        ):
            return None, batch
        return split_fresh(batch)

    def _insert(self, connection: Connection, target: statements.TargetTable, topic: str, rows: pa.Table) -> None:
        import psycopg

        try:
            copy.insert(connection, target, rows)
        except (psycopg.errors.UniqueViolation, psycopg.errors.FeatureNotSupported) as exc:
            raise _RowExists(topic) from exc

    def _may_have_tombstones(self, batch: TableBatch) -> bool:
        """Returns whether a row of the batch may be older than a delete of its key. In a batch a key is put or deleted,
        not both, so its own deletes are no concern of its rows."""
        newest = self._tombstones.get(batch.table)
        return newest is not None and min_position(batch.upserts) <= newest

    def _merge(
        self,
        connection: Connection,
        target: statements.TargetTable,
        batch: TableBatch,
        stage: str,
        bits: Mapping[str, int],
        counts: dict[str, Any],
        late: bool,
    ) -> None:
        hit("sink.merge")
        floor = self._floors.get(batch.table)
        tombstones = statements.TombstonePlace(self._ledger.sink, batch.table) if late else None
        if not bits and floor is None and tombstones is None and self._catalog.is_empty(connection, target):
            _written(counts, connection.execute(statements.insert(target, stage)).rowcount)
            return
        if bits:
            found = connection.execute(statements.orphans(target, stage)).fetchone()
            counts["orphans"] += found[0] if found else 0
        _written(counts, connection.execute(statements.merge(target, stage, bits, tombstones, floor)).rowcount)


def _said(exc: psycopg.Error) -> str:
    """Returns the server's words for an error in the text of a statement of the sink's, which hold names only; others may quote a
    value, and so may a trigger."""
    of_names = (exc.sqlstate or "").startswith("42") and not is_of_user_code(exc.diag.context)
    return (exc.diag.message_primary if of_names else None) or type(exc).__name__


def _written(counts: dict[str, Any], rows: int) -> None:
    """Counts the rows that a statement changed: rows that it left alone because they are newer do not count."""
    counts["written"] = counts.get("written", 0) + max(0, rows)
