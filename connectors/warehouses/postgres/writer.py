"""The PostgreSQL warehouse: rows, deletes, DDL and ledger of one batch in one transaction."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_batch import SinkBatch, TableBatch
from cdcworker.connectors.api.table_writer import TargetRows
from cdcworker.connectors.sink_errors import TARGET_UNREACHABLE, from_psycopg
from cdcworker.connectors.warehouses.postgres import copy, parallel_staging, statements, type_conflicts
from cdcworker.connectors.warehouses.postgres.catalog import TargetCatalog
from cdcworker.connectors.warehouses.postgres.connection import judged, opened
from cdcworker.connectors.warehouses.postgres.ledger import PostgresLedger
from cdcworker.connectors.warehouses.postgres.snapshot_read import read
from cdcworker.connectors.warehouses.postgres.versions import ENDS, VersionTables
from cdcworker.connectors.warehouses.sql.ledger import Epoch
from cdcworker.connectors.warehouses.sql.stage_rows import StageRows
from cdcworker.connectors.warehouses.sql.target_table import TombstonePlace
from cdcworker.connectors.warehouses.sql.writer import (
    PRUNE_EVERY_S,
    FreshRowExistsError,
    SqlWriter,
    TableChangedError,
)
from cdcworker.connectors.warehouses.table_refusals import TableRefusals
from cdcworker.connectors.warehouses.target_columns import OutputForm, place_of
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit
from cdcworker.schemas.untrusted.driver_text import is_of_user_code

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from cdcworker.connectors.warehouses.postgres.client import Connection
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


class PostgresWriter(SqlWriter["Connection", statements.TargetTable]):
    """The TableWriter of a PostgreSQL warehouse: one connection, used by one thread."""

    _ledger: PostgresLedger
    _catalog: TargetCatalog

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
        catalog = TargetCatalog(schema, output, sink)
        super().__init__(PostgresLedger(sink, task), catalog, statements, schema, output)
        self._conninfo = conninfo
        self._versions: VersionTables = VersionTables(sink, catalog)
        self._staging = parallel_staging.ParallelStaging(
            conninfo, self._ledger, staging or parallel_staging.StagingPlan()
        )

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
        super()._read_guards(connection)
        self._versions.forget()

    def _apply(self, batches: Iterable[SinkBatch], copies_fresh: bool) -> Mapping[str, Any]:
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
                elif self._lock(connection, batch):
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
        self._advance(connection, batch)

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

    # -- connection ---------------------------------------------------------------------------------------------------

    def _connect(self) -> Connection:
        return opened(judged(self._conninfo))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Connection]:
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
        super()._forget()
        self._versions.forget()

    # -- one table ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _as_known(self, topic: str) -> Iterator[None]:
        """Turns errors of statements into TableChangedError, where the table's catalog entry may have been read long ago."""
        import psycopg

        try:
            yield
        except psycopg.Error as exc:
            if not (exc.sqlstate or "").startswith(type_conflicts.STALE) or not self._catalog.is_old(topic):
                raise
            log.info("the columns of a table are read again topic=%s sqlstate=%s", topic, exc.sqlstate)
            raise TableChangedError(topic) from exc

    def _table(self, connection: Connection, batch: TableBatch, counts: dict[str, Any], number: int = 0) -> None:
        self._write_table(connection, self._target(connection, batch), batch, counts, number)

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
            raise FreshRowExistsError(batch.table) from exc

    def _target(self, connection: Connection, batch: TableBatch) -> statements.TargetTable | None:
        catalog = self._catalog
        return catalog.standing(connection, batch) if batch.bare else catalog.prepare(connection, batch)

    def _append(self, connection: Connection, target: statements.TargetTable, batch: TableBatch) -> None:
        copy.append(connection, target, batch)

    def _stage(
        self, connection: Connection, target: statements.TargetTable, kind: str, staged: StageRows, number: int = 0
    ) -> str:
        rows, unchanged, origins, keep_key = staged.rows, staged.unchanged, staged.origins, staged.keep_key
        if kind == "u" and self._staging.wants(rows):
            part = parallel_staging.StagingPart("", target, keep_key, unchanged)
            found = self._staging.stage(connection, part, rows, origins, number)
            if found is not None:
                return found
        name = self._catalog.stage(connection, target, kind)
        copy.stage(connection, target, name, rows, unchanged, origins, keep_key)
        return name

    def _insert(self, connection: Connection, target: statements.TargetTable, topic: str, rows: pa.Table) -> None:
        import psycopg

        try:
            copy.insert(connection, target, rows)
        except (psycopg.errors.UniqueViolation, psycopg.errors.FeatureNotSupported) as exc:
            raise FreshRowExistsError(topic) from exc

    def _merge_stage(
        self,
        connection: Connection,
        target: statements.TargetTable,
        batch: TableBatch,
        stage: str,
        staged: StageRows,
    ) -> int:
        bits, floor = staged.bits, self._floors.get(batch.table)
        place = TombstonePlace(self._ledger.sink, batch.table) if staged.keep_key else None
        if not bits and floor is None and place is None and self._catalog.is_empty(connection, target):
            return connection.do(statements.insert(target, stage))
        return connection.do(statements.merge(target, stage, bits, place, floor))


def _said(exc: psycopg.Error) -> str:
    """Returns the server's words for an error in the text of a statement of the sink's, which hold names only; others may quote a
    value, and so may a trigger."""
    of_names = (exc.sqlstate or "").startswith("42") and not is_of_user_code(exc.diag.context)
    return (exc.diag.message_primary if of_names else None) or type(exc).__name__
