"""A snapshot beside the stream of a real server, by hand: what a task will do, with readers in threads of their own."""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from types import ModuleType
from typing import Any

from cdcworker.connectors.capture.snapshot.chunk_scheduler import ChunkScheduler, ReadLimits
from cdcworker.connectors.capture.snapshot.progress import SnapshotLoad, SnapshotProgress, TableLoad
from cdcworker.connectors.capture.snapshot.reader_pool import ReaderPool
from cdcworker.connectors.capture.snapshot.watermark_snapshot import WatermarkSnapshot
from cdcworker.connectors.mysql.binlog.event_reader import EventReader
from cdcworker.connectors.mysql.catalog.completion import TableCatalog
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.decode.captured_plans import CapturedPlans
from cdcworker.connectors.mysql.decode.commit_numbers import CommitNumbers
from cdcworker.connectors.mysql.decode.decoder import BinlogDecoder
from cdcworker.connectors.mysql.decode.table_plan import TablePlanner, table_number
from cdcworker.connectors.mysql.errors import CAPTURE
from cdcworker.connectors.mysql.gtid.mariadb import MariaDbGtid, MariaDbPosition
from cdcworker.connectors.mysql.server.connection import opened, translate
from cdcworker.connectors.mysql.snapshot.chunk_reader import ChunkReader
from cdcworker.connectors.mysql.snapshot.read_view import GtidPlace
from cdcworker.connectors.mysql.snapshot.row_emitter import RowEmitter
from cdcworker.connectors.mysql.transport.commands import MariaDbStart, Reader
from cdcworker.schemas.change import Change

from tests.unit.connectors.native_records import Registry

from ..decode.decoded import SCHEMA, TEMPLATE, check_record, read_now
from ..logged import LoggedServer

DEADLINE_S = 60.0


class Loading:
    """One stream with a snapshot of some tables beside it."""

    def __init__(
        self,
        server: LoggedServer,
        settings: MySqlSettings,
        *names: str,
        threads: int = 2,
        size: int = 2_000,
        module: ModuleType | None = None,
    ) -> None:
        """`module`: the native core, by which rows become records."""
        catalog = TableCatalog(partial(read_now, settings), is_mariadb=True)
        planner = TablePlanner(settings, SCHEMA, catalog.table)
        self.server = server
        self.plans = CapturedPlans(planner, catalog)
        self.numbers = CommitNumbers(time.time_ns() // 1000)
        self.decoder = BinlogDecoder(self.plans, TEMPLATE, self.numbers)
        self.executed = server.position()
        numbers = {table_number("shop", name): ("shop", name) for name in names}
        self.progress = SnapshotProgress(
            loads=[SnapshotLoad("initial", "start", [TableLoad(number, *path) for number, path in numbers.items()])]
        )
        self.pool = ReaderPool(
            lambda: ChunkReader(opened(settings), planner, numbers.get, 1000, module), threads, lambda exc: translate(exc) if type(exc).__module__.startswith("pymysql") else exc
        )  # fmt: skip
        loader = ChunkScheduler(self.progress, self.pool, ReadLimits(threads, size, 4 * size), CAPTURE)
        emitter = RowEmitter(self.progress, TEMPLATE, self.numbers, self._unasked, is_mariadb=True)
        self.registry = Registry()
        if module is not None:
            emitter.use_layouts(self.registry, module)
        self.snapshot = WatermarkSnapshot(loader, emitter)
        self.decoder.observer = self.snapshot
        self.changes: list[Change] = []

    def _unasked(self) -> Any:
        raise AssertionError("not asked for")

    def run(self, until: Any) -> None:
        """Reads the stream and the rows until both are done and `until()` holds."""
        deadline = time.monotonic() + DEADLINE_S
        reader = Reader(server_id=94, heartbeat_s=0.1)
        with self.server.stream(MariaDbStart(self.executed), reader) as stream, closing(self.pool):
            events = EventReader(stream.checksum, self.plans.complete)
            while not (self.snapshot.finished and until() and self.executed.contains(self.server.position())):
                assert time.monotonic() < deadline, self.snapshot.waits_for
                stream.wait(0.02)
                stream.receive(lambda data, _: self._take(events, data))
                if self.decoder.transaction is None:
                    self._boundary()
        for change in self.changes:
            check_record(change)

    def _take(self, events: EventReader, data: bytes) -> bool:
        for event in events.read(data):
            self.decoder.feed(event)
            ended = self.decoder.ended
            if ended is not None and self.decoder.transaction is None:
                assert isinstance(ended.own, MariaDbGtid)
                self.executed = self.executed.union(MariaDbPosition.of([ended.own]))
                self.snapshot.committed(ended.identity)
                self.decoder.ended = None
                self._boundary()
        return True

    def _boundary(self) -> None:
        self.changes += [change for change in self.decoder.take() if isinstance(change, Change)]
        self.changes += self.registry.changes(self.snapshot.step(GtidPlace(self.executed)))

    def state(self, name: str) -> dict[Any, Any]:
        """What a reader of the changes has of a table, by key."""
        rows: dict[Any, Any] = {}
        for change in self.changes:
            if change.table.path[1] != name:
                continue
            key = change.table.key
            if change.op == "t":
                rows.clear()
            elif change.op == "d":
                rows.pop(tuple(change.before[i] for i in key), None)
            else:
                rows[tuple(change.after[i] for i in key)] = change.after
        return rows
