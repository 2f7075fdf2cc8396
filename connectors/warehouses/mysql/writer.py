"""The MySQL warehouse: rows, deletes and ledger of one batch in one transaction; tables are altered before it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_batch import SinkBatch, TableBatch, max_position, min_position, split_fresh
from cdcworker.connectors.api.table_writer import TargetRows
from cdcworker.connectors.mysql_client.error_numbers import number_of
from cdcworker.connectors.mysql_client.login import Login
from cdcworker.connectors.sink_errors import TARGET_UNREACHABLE
from cdcworker.connectors.warehouses import dropped_columns
from cdcworker.connectors.warehouses.mysql import staging, statements
from cdcworker.connectors.warehouses.mysql.catalog import TargetCatalog
from cdcworker.connectors.warehouses.mysql.connection import opened, transaction
from cdcworker.connectors.warehouses.mysql.errors import STALE, from_pymysql
from cdcworker.connectors.warehouses.mysql.ledger import Epoch, MySqlLedger
from cdcworker.connectors.warehouses.mysql.load import RowExistsError
from cdcworker.connectors.warehouses.mysql.snapshot_read import read
from cdcworker.connectors.warehouses.table_refusals import TableRefusals
from cdcworker.connectors.warehouses.target_columns import OutputForm, place_of
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit
from cdcworker.schemas.topics import source_of

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.mysql_client.client import Connection

log = logging.getLogger(__name__)

PRUNE_EVERY_S: Final = 60.0
MERGING_BATCHES: Final = 100
"""For how many batches all rows of a table are merged after a fresh row of it existed."""


class _BatchRepeatedError(Exception):
    """A topic's table is not as the writer took it to be: the transaction is rolled back and the batch is tried once more."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic


class _FreshRowExistsError(_BatchRepeatedError):
    """A row that the batch calls fresh exists already."""


class _TableChangedError(_BatchRepeatedError):
    """Somebody has changed the table since its catalog entry was read. A failed transaction forgets what is known of all tables,
    so this is raised once at most: another look does not repair what fails after that."""


class MySqlWriter:
    """The TableWriter of a MySQL warehouse: one connection, used by one thread."""

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
        self._login = login
        self._schema = schema
        self._ledger = ledger or MySqlLedger(sink, task)
        self._catalog = TargetCatalog(self._ledger, schema, output)
        self._stages = staging.Stages()
        self._connection: Connection | None = None
        self._floors: dict[str, bytes] = {}
        self._tombstones: dict[str, bytes] = {}
        """The highest position among the tombstones of each topic that has any: newer rows need not look for one."""
        self._merging: dict[str, int] = {}
        """Topics with a fresh row that existed, and for how many more batches all their rows are merged."""
        self._loads_fresh = False
        """Whether the batch's fresh rows go straight into their tables, without a merge."""
        self._pruned = time.monotonic()

    # -- the seam -----------------------------------------------------------------------------------------------------

    def fence(self, epoch: Epoch) -> None:
        with self._session() as connection:
            if not self._ledger.is_there(connection):
                with self._ledger.altering(connection):
                    self._ledger.create(connection)
            # A task that alters tables is waited for: behind the fence it cannot begin to.
            with self._ledger.altering(connection), transaction(connection):
                self._ledger.fence(connection, epoch)

    def claim(self, topics: Iterable[str]) -> None:
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

    def _read_guards(self, connection: Connection) -> None:
        """Reads the positions of truncates and deletes, with which the next rows are compared besides the existing rows."""
        self._floors = self._ledger.floors(connection)
        self._tombstones = self._ledger.tombstones(connection)

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
            except _FreshRowExistsError as exc:
                log.info("rows to insert exist already and are merged topic=%s", exc.topic)
                self._merging[exc.topic] = MERGING_BATCHES
            except _TableChangedError:
                continue

    def apply_all(self, batches: Iterable[SinkBatch]) -> Mapping[str, Any]:
        """Applies batches that commit together: no reader sees a part. They are iterated more than once."""
        try:
            return self._apply(batches, False)
        except _TableChangedError:
            return self._apply(batches, False)

    def _apply(self, batches: Iterable[SinkBatch], loads_fresh: bool) -> Mapping[str, Any]:
        """Applies batches in one transaction. `loads_fresh`: fresh rows are loaded without a merge, which may raise
        _FreshRowExistsError."""
        if self._connection is None or not self._connection.open:
            # A server that went down may have lost batches that it had committed: only its ledger knows.
            raise CdcError(TARGET_UNREACHABLE, "the connection was lost after the ledger had been read")
        counts: dict[str, Any] = {"rows": 0, "changes": 0, "orphans": 0, "tables": {}}
        fresh = replayed = 0
        self._loads_fresh = loads_fresh
        due = time.monotonic() - self._pruned > PRUNE_EVERY_S
        with self._session() as connection:
            self._catalog.begin()
            self._prepare(connection, batches)
            self._stages.empty(connection)
            with transaction(connection):
                for batch in batches:
                    if self._ledger.lock(connection, batch):
                        if self._ledger.touched():
                            self._read_guards(connection)
                        fresh += 1
                        self._batch(connection, batch, counts)
                    else:
                        replayed += 1
                if fresh and due:
                    self._ledger.prune(connection)
                    self._pruned = time.monotonic()
                if fresh:
                    hit("sink.before_commit")
        if fresh:
            hit("sink.after_commit")
        return {**counts, "replayed": replayed > 0 and not fresh}

    def _prepare(self, connection: Connection, batches: Iterable[SinkBatch]) -> None:
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

    def _batch(self, connection: Connection, batch: SinkBatch, counts: dict[str, Any]) -> None:
        for table in batch.tables:
            with self._as_known(table.table):
                self._table(connection, table, counts)
            hit("sink.table_done")
        if batch.dead:
            self._ledger.add_dead_letters(connection, batch.dead)
        hit("sink.staged")
        self._ledger.advance(connection, batch)
        if batch.through:
            self._ledger.publish(connection, batch.through)

    def rows(self, topic: str) -> TargetRows | None:
        """Reads the table over a connection of its own, so that `apply` may go on meanwhile."""
        return read(opened(self._login), self._ledger.sink, topic, place_of(topic, (), self._schema))

    def cancel(self) -> None:
        """Cancels the statement that runs in another thread."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(Exception), contextlib.closing(opened(self._login, "cdcworker-cancel")) as other:
                other.do(f"kill query {int(connection.thread_id())}")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    # -- connection ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _session(self) -> Iterator[Connection]:
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
    def _transaction(self) -> Iterator[Connection]:
        with self._session() as connection, transaction(connection):
            yield connection

    # -- one table ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _as_known(self, topic: str) -> Iterator[None]:
        """Turns errors of statements into _TableChangedError, where the table's catalog entry may have been read long ago."""
        import pymysql

        try:
            yield
        except (pymysql.Error, CdcError) as exc:
            number = number_of(exc) if isinstance(exc, pymysql.Error) else number_of(exc.__cause__ or exc)
            if number not in STALE or not self._catalog.is_old(topic):
                raise
            log.info("the columns of a table are read again topic=%s error=%d", topic, number)
            raise _TableChangedError(topic) from exc

    def _table(self, connection: Connection, batch: TableBatch, counts: dict[str, Any]) -> None:
        target, batch = self._catalog.placed(batch)
        if batch.floor is not None:
            if target is not None:
                _written(counts, connection.do(statements.truncate(target, batch.floor)))
            self._ledger.set_floor(connection, batch.table, batch.floor)
            self._floors[batch.table] = max(batch.floor, self._floors.get(batch.table, b""))
        if target is None:
            return
        gone = {column.name for column in dropped_columns.wanted(batch)}.difference(target.names)
        batch = dropped_columns.without(batch, gone)
        if not batch.key:
            if not batch.bare:
                staging.append(connection, target, batch)
            _written(counts, batch.upserts.num_rows)
        else:
            self._upsert(connection, target, batch, counts)
        counts["rows"] += batch.upserts.num_rows + batch.deletes.num_rows
        counts["changes"] += batch.changes
        counts["tables"][target.plain_name] = counts["tables"].get(target.plain_name, 0) + batch.changes

    def _upsert(
        self, connection: Connection, target: statements.TargetTable, batch: TableBatch, counts: dict[str, Any]
    ) -> None:
        """Old rows are copied under their new keys and remembered before any delete; deletes go before upserts."""
        late = self._may_have_tombstones(batch)
        fresh, batch = self._split_fresh(target, batch, late)
        place = statements.TombstonePlace(self._ledger.sink, batch.table)
        bits: dict[str, int] = {}
        stage = ""
        if batch.upserts.num_rows:
            stage = self._stages.take(connection, target, "u")
            bits = staging.fill(connection, target, stage, batch.upserts, batch.unchanged, batch.origins, late)
            if batch.origins is not None and bits:
                connection.do(statements.copy_origin_row(target, stage, bits))
                connection.do(statements.copy_origin_tombstone(target, stage, bits, place))
        if batch.moved is not None and batch.moved.num_rows:
            self._remember_moved(connection, target, batch, place)
        if batch.deletes.num_rows:
            gone = self._stages.take(connection, target, "d")
            staging.fill(connection, target, gone, batch.deletes, {}, None, True)
            _written(counts, connection.do(statements.delete(target, gone)))
            connection.do(statements.insert_tombstones(gone, place))
            newest = max_position(batch.deletes)
            if newest is not None:
                self._tombstones[batch.table] = max(newest, self._tombstones.get(batch.table, b""))
        if fresh is not None:
            self._insert(connection, target, batch.table, fresh)
        if batch.upserts.num_rows:
            self._merge(connection, target, batch.table, stage, bits, counts, late)

    def _remember_moved(
        self,
        connection: Connection,
        target: statements.TargetTable,
        batch: TableBatch,
        place: statements.TombstonePlace,
    ) -> None:
        assert batch.moved is not None
        moved = self._stages.take(connection, target, "m")
        kept, origins = batch.moved_unchanged, batch.moved_origins
        bits = staging.fill(connection, target, moved, batch.moved, kept, origins, True)
        if origins is not None and bits:
            connection.do(statements.copy_origin_row(target, moved, bits))
            connection.do(statements.copy_origin_tombstone(target, moved, bits, place))
        connection.do(statements.insert_moved_tombstones(target, moved, bits, place))

    def _split_fresh(
        self, target: statements.TargetTable, batch: TableBatch, late: bool
    ) -> tuple[pa.Table | None, TableBatch]:
        """The rows that can go straight into the table, and the batch without them."""
        import numpy as np

        if (
            not self._loads_fresh
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

    def _insert(self, connection: Connection, target: statements.TargetTable, topic: str, rows: pa.Table) -> None:
        try:
            staging.insert(connection, target, rows)
        except RowExistsError as exc:
            raise _FreshRowExistsError(topic) from exc

    def _may_have_tombstones(self, batch: TableBatch) -> bool:
        """Returns whether a row of the batch may be older than a delete of its key. In a batch a key is put or deleted,
        not both, so its own deletes are no concern of its rows."""
        newest = self._tombstones.get(batch.table)
        return newest is not None and min_position(batch.upserts) <= newest

    def _merge(
        self,
        connection: Connection,
        target: statements.TargetTable,
        topic: str,
        stage: str,
        bits: Mapping[str, int],
        counts: dict[str, Any],
        late: bool,
    ) -> None:
        hit("sink.merge")
        floor = self._floors.get(topic)
        if bits:
            found = connection.one(statements.orphans(target, stage))
            counts["orphans"] += found[0] if found else 0
        if late:
            connection.do(statements.drop_buried(stage, statements.TombstonePlace(self._ledger.sink, topic)))
        if floor is not None:
            connection.do(statements.drop_older(stage, floor))
        _written(counts, connection.do(statements.update(target, stage, bits)))
        _written(counts, connection.do(statements.insert(target, stage, bits)))


def _written(counts: dict[str, Any], rows: int) -> None:
    """Counts the rows that a statement changed: rows that it left alone because they are newer do not count."""
    counts["written"] = counts.get("written", 0) + max(0, rows)
