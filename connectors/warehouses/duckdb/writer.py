"""The DuckDB warehouse: rows, deletes, columns and ledger of one batch in one transaction, for which the file is opened."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_batch import SinkBatch, TableBatch
from cdcworker.connectors.api.table_writer import TargetRows
from cdcworker.connectors.sink_errors import gone
from cdcworker.connectors.warehouses.duckdb import staging, statements, version_statements
from cdcworker.connectors.warehouses.duckdb.catalog import TargetCatalog
from cdcworker.connectors.warehouses.duckdb.connection import Connection, session, transaction
from cdcworker.connectors.warehouses.duckdb.errors import from_duckdb
from cdcworker.connectors.warehouses.duckdb.ledger import DuckDbLedger
from cdcworker.connectors.warehouses.duckdb.snapshot_read import read
from cdcworker.connectors.warehouses.sql.ledger import Epoch
from cdcworker.connectors.warehouses.sql.stage_rows import StageRows
from cdcworker.connectors.warehouses.sql.target_table import TombstonePlace
from cdcworker.connectors.warehouses.sql.versions import SqlVersions
from cdcworker.connectors.warehouses.sql.writer import PRUNE_EVERY_S, SqlWriter
from cdcworker.connectors.warehouses.table_refusals import TableRefusals
from cdcworker.connectors.warehouses.target_columns import OutputForm, place_of
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


class DuckDbWriter(SqlWriter[Connection, statements.TargetTable]):
    """The TableWriter of a DuckDB warehouse. It has the file open only while it writes: DuckDB lets one process at a time."""

    _ledger: DuckDbLedger
    _versions: SqlVersions[Connection, statements.TargetTable]
    _catalog: TargetCatalog

    def __init__(
        self, path: str, sink: str, task: int = 0, *, schema: str = "", output: OutputForm | None = None
    ) -> None:
        ledger = DuckDbLedger(sink, task)
        super().__init__(ledger, TargetCatalog(ledger, schema, output), statements, schema, output)
        self._path = path
        self._seen: set[str] = set()
        self._versions = SqlVersions(sink, version_statements, staging.VersionStages())

    # -- the seam -----------------------------------------------------------------------------------------------------

    def expect(self, topics: Collection[str]) -> None:
        """Their tables were there: where the file is not now it is away."""
        self._seen.update(topics)

    def fence(self, epoch: Epoch) -> None:
        if self._seen and not os.path.exists(self._path):
            raise gone(min(self._seen))
        with session(self._path, creates=True) as connection, transaction(connection):
            self._ledger.create(connection)
            self._ledger.fence(connection, epoch)

    def _apply(self, batches: Iterable[SinkBatch], copies_fresh: bool) -> Mapping[str, Any]:
        counts: dict[str, Any] = {"rows": 0, "changes": 0, "orphans": 0, "tables": {}}
        fresh = replayed = 0
        refusals = TableRefusals()
        due = time.monotonic() - self._pruned > PRUNE_EVERY_S
        with self._transaction() as connection:
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
                self._pruned = time.monotonic()
            if fresh:
                hit("sink.before_commit")
        if fresh:
            hit("sink.after_commit")
        return {**counts, "replayed": replayed > 0 and not fresh}

    def _batch(self, connection: Connection, batch: SinkBatch, counts: dict[str, Any], refusals: TableRefusals) -> None:
        for at, table in enumerate(batch.tables, 1):
            with refusals.of_a_table():
                self._table(connection, table, counts)
            hit("sink.table_done")
            if refusals:
                self._check_others(connection, batch.tables[at:], refusals)
                return
        self._advance(connection, batch)

    def _check_others(self, connection: Connection, tables: Sequence[TableBatch], refusals: TableRefusals) -> None:
        """Finds out whether further tables of a batch are refused, as far as DuckDB still answers: nothing of it stays."""
        for table in tables:
            if not connection.is_broken and table.table not in refusals.topics:
                with refusals.of_a_table():
                    self._catalog.target(connection, table)

    def rows(self, topic: str) -> TargetRows | None:
        """Reads the table in a session of its own; the file stays open until the rows are closed."""
        return read(self._path, self._ledger, topic, place_of(topic, (), self._schema))

    def cancel(self) -> None:
        """Breaks off the statement that runs in another thread."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.session.interrupt()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Connection]:
        self._catalog.begin()
        try:
            with session(self._path) as connection:
                self._connection = connection
                with transaction(connection):
                    yield connection
        except BaseException as exc:
            self._forget()
            if isinstance(exc, CdcError) and exc.__cause__ is not None:
                log.warning("warehouse refused a statement error=%s code=%s", type(exc.__cause__).__name__, exc.code)
            raise
        finally:
            self._connection = None

    # -- one table ----------------------------------------------------------------------------------------------------

    def _table(self, connection: Connection, batch: TableBatch, counts: dict[str, Any], number: int = 0) -> None:
        import duckdb

        target = self._catalog.target(connection, batch)
        try:
            self._write_table(connection, target, batch, counts, number)
        except duckdb.Error as exc:
            raise from_duckdb(exc, {"table": target.plain_name} if target else None) from exc

    def _apply_versions(
        self, connection: Connection, target: statements.TargetTable, batch: TableBatch, counts: dict[str, Any]
    ) -> None:
        self._versions.apply(connection, target, batch, counts)

    def _append(self, connection: Connection, target: statements.TargetTable, batch: TableBatch) -> None:
        staging.append(connection, target, batch)

    def _insert(self, connection: Connection, target: statements.TargetTable, topic: str, rows: pa.Table) -> None:
        """Not called: no index keeps a second row of a key out, so all rows are merged."""
        raise NotImplementedError

    def _stage(
        self, connection: Connection, target: statements.TargetTable, kind: str, staged: StageRows, number: int = 0
    ) -> str:
        return staging.fill(connection, target, kind, staged)

    def _merge_stage(
        self,
        connection: Connection,
        target: statements.TargetTable,
        batch: TableBatch,
        stage: str,
        staged: StageRows,
    ) -> int:
        place = TombstonePlace(self._ledger.sink, batch.table) if staged.keep_key else None
        merged = connection.do(statements.merged(target, stage, staged.bits, place, self._floors.get(batch.table)))
        for statement in statements.put(target):
            connection.do(statement)
        return merged
