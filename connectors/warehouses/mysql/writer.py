"""The MySQL warehouse: rows, deletes and ledger of one batch in one transaction; tables are altered before it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_batch import SinkBatch, TableBatch
from cdcworker.connectors.api.table_writer import TargetRows
from cdcworker.connectors.mysql_client.error_numbers import number_of
from cdcworker.connectors.mysql_client.login import Login
from cdcworker.connectors.sink_errors import TARGET_UNREACHABLE
from cdcworker.connectors.warehouses.mysql import staging, statements, version_statements
from cdcworker.connectors.warehouses.mysql.catalog import TargetCatalog
from cdcworker.connectors.warehouses.mysql.connection import opened, transaction
from cdcworker.connectors.warehouses.mysql.errors import STALE, from_pymysql
from cdcworker.connectors.warehouses.mysql.ledger import MySqlLedger
from cdcworker.connectors.warehouses.mysql.load import RowExistsError
from cdcworker.connectors.warehouses.mysql.snapshot_read import read
from cdcworker.connectors.warehouses.sql.ledger import Epoch
from cdcworker.connectors.warehouses.sql.stage_rows import StageRows
from cdcworker.connectors.warehouses.sql.target_table import KEPT, TombstonePlace
from cdcworker.connectors.warehouses.sql.versions import SqlVersions
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

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.mysql_client.client import MySqlConnection

log = logging.getLogger(__name__)


class MySqlWriter(SqlWriter["MySqlConnection", statements.TargetTable]):
    """The TableWriter of a MySQL warehouse: one connection, used by one thread."""

    _ledger: MySqlLedger
    _versions: SqlVersions[MySqlConnection, statements.TargetTable]
    _catalog: TargetCatalog

    def __init__(
        self,
        login: Login,
        sink: str,
        task: int = 0,
        *,
        schema: str = "",
        output: OutputForm | None = None,
        ledger: MySqlLedger | None = None,
    ) -> None:
        ledger = ledger or MySqlLedger(sink, task)
        super().__init__(ledger, TargetCatalog(ledger, schema, output), statements, schema, output)
        self._login = login
        self._stages = staging.Stages()
        self._versions = SqlVersions(ledger.sink, version_statements, staging.VersionStages(self._stages))
        self._ahead = staging.TextAhead()

    # -- the seam -----------------------------------------------------------------------------------------------------

    def fence(self, epoch: Epoch) -> None:
        with self._session() as connection:
            if not self._ledger.is_there(connection):
                with self._ledger.altering(connection):
                    self._ledger.create(connection)
            if self._output.versions:
                with self._ledger.altering(connection):
                    self._ledger.create_ends(connection)
            # A task that alters tables is waited for: behind the fence it cannot begin to.
            with self._ledger.altering(connection), transaction(connection):
                self._ledger.fence(connection, epoch)

    def _apply(self, batches: Iterable[SinkBatch], copies_fresh: bool) -> Mapping[str, Any]:
        if self._connection is None or not self._connection.open:
            # A server that went down may have lost batches that it had committed: only its ledger knows.
            raise CdcError(TARGET_UNREACHABLE, "the connection was lost after the ledger had been read")
        counts: dict[str, Any] = {"rows": 0, "changes": 0, "orphans": 0, "tables": {}}
        fresh = replayed = 0
        self._copies_fresh = copies_fresh
        due = time.monotonic() - self._pruned > PRUNE_EVERY_S
        with self._session() as connection:
            self._catalog.begin()
            self._prepare(connection, batches)
            self._stages.empty(connection)
            with transaction(connection):
                for batch in batches:
                    if self._lock(connection, batch):
                        fresh += 1
                        self._batch(connection, batch, counts)
                    else:
                        replayed += 1
                if fresh and due:
                    self._ledger.prune(connection)
                    if self._output.versions:
                        self._ledger.prune(connection, version_statements.TABLE)
                    self._pruned = time.monotonic()
                if fresh:
                    hit("sink.before_commit")
        if fresh:
            hit("sink.after_commit")
        return {**counts, "replayed": replayed > 0 and not fresh}

    def _prepare(self, connection: MySqlConnection, batches: Iterable[SinkBatch]) -> None:
        """Creates and alters what the batches need; CdcError of all tables that are refused."""
        refusals = TableRefusals()
        for batch in batches:
            if not self._ledger.is_fresh(connection, batch):
                continue
            for table in batch.tables:
                if table.table not in refusals.topics:
                    with refusals.of_a_table():
                        self._catalog.prepare(connection, table)
        refusals.tell()

    def _batch(self, connection: MySqlConnection, batch: SinkBatch, counts: dict[str, Any]) -> None:
        for table in batch.tables:
            with self._as_known(table.table):
                self._table(connection, table, counts)
            hit("sink.table_done")
        self._advance(connection, batch)

    def rows(self, topic: str) -> TargetRows | None:
        """Reads the table over a connection of its own, so that `apply` may go on meanwhile."""
        return read(opened(self._login), self._ledger.sink, topic, place_of(topic, (), self._schema))

    def cancel(self) -> None:
        """Cancels the statement that runs in another thread."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(Exception), contextlib.closing(opened(self._login, "cdcworker-cancel")) as other:
                other.do(f"kill query {int(connection.thread_id())}")

    # -- connection ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _session(self) -> Iterator[MySqlConnection]:
        """The connection. Errors in it are translated, and what the catalog remembers is forgotten."""
        import pymysql

        try:
            if self._connection is None or not self._connection.open:
                self._catalog.forget()
                self._stages.forget()
                self._connection = opened(self._login)
            yield self._connection
        except pymysql.Error as exc:
            self._catalog.forget()
            log.warning("warehouse refused a statement error=%d kind=%s", number_of(exc), type(exc).__name__)
            raise from_pymysql(exc) from exc
        except BaseException:
            self._catalog.forget()
            raise

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[MySqlConnection]:
        with self._session() as connection, transaction(connection):
            yield connection

    # -- one table ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _as_known(self, topic: str) -> Iterator[None]:
        """Turns errors of statements into TableChangedError, where the table's catalog entry may have been read long ago."""
        import pymysql

        try:
            yield
        except (pymysql.Error, CdcError) as exc:
            number = number_of(exc) if isinstance(exc, pymysql.Error) else number_of(exc.__cause__ or exc)
            if number not in STALE or not self._catalog.is_old(topic):
                raise
            log.info("the columns of a table are read again topic=%s error=%d", topic, number)
            raise TableChangedError(topic) from exc

    def _table(self, connection: MySqlConnection, batch: TableBatch, counts: dict[str, Any], number: int = 0) -> None:
        target, batch = self._catalog.placed(batch)
        self._write_table(connection, target, batch, counts, number)

    def _apply_versions(
        self, connection: MySqlConnection, target: statements.TargetTable, batch: TableBatch, counts: dict[str, Any]
    ) -> None:
        self._versions.apply(connection, target, batch, counts)

    def _append(self, connection: MySqlConnection, target: statements.TargetTable, batch: TableBatch) -> None:
        staging.append(connection, target, batch)

    def _stage(
        self, connection: MySqlConnection, target: statements.TargetTable, kind: str, staged: StageRows, number: int = 0
    ) -> str:
        name = self._stages.take(connection, target, kind)
        rows, unchanged, origins = staged.rows, staged.unchanged, staged.origins
        staging.fill(connection, target, name, rows, unchanged, origins, staged.keep_key)
        return name

    def _split_fresh(
        self, target: statements.TargetTable, batch: TableBatch, late: bool
    ) -> tuple[pa.Table | None, TableBatch]:
        fresh, rest = super()._split_fresh(target, batch, late)
        if fresh is not None:
            self._ahead.begin(self._connection, target, fresh)
        return fresh, rest

    def close(self) -> None:
        super().close()
        self._ahead.close()

    def _insert(self, connection: MySqlConnection, target: statements.TargetTable, topic: str, rows: pa.Table) -> None:
        try:
            self._ahead.insert(connection, target, rows)
        except RowExistsError as exc:
            raise FreshRowExistsError(topic) from exc

    def _merge_stage(
        self,
        connection: MySqlConnection,
        target: statements.TargetTable,
        batch: TableBatch,
        stage: str,
        staged: StageRows,
    ) -> int:
        floor = self._floors.get(batch.table)
        if staged.keep_key:
            connection.do(statements.drop_buried(stage, TombstonePlace(self._ledger.sink, batch.table)))
        if floor is not None:
            connection.do(statements.drop_older(stage, floor))
        update, insert = (each(target, stage, staged.bits) for each in (statements.update, statements.insert))
        if not target.unique:
            return connection.do(update) + connection.do(insert)
        # Rows that keep what is there find it before whole rows of the same batch, which are of other keys, come.
        kept = connection.do(f"{update} and s.{statements.quote(KEPT)} is not null") if staged.bits else 0
        return kept + connection.put(statements.upsert(target, stage, staged.bits))
