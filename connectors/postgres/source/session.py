"""What an open task holds: its connections, the scope of what it captures, and how far it has read the stream."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import ModuleType

import psycopg
from cdcworker.connectors.capture.snapshot.load_host import LoadHost
from cdcworker.connectors.capture.snapshot.reader_pool import ReaderPool
from cdcworker.connectors.capture.snapshot.watermark_snapshot import LOADING_MAX, WatermarkSnapshot
from cdcworker.connectors.capture.stream.signal_table import SignalTable
from cdcworker.connectors.capture.tables.last_known_keys import LastKnownKeys
from cdcworker.connectors.capture.tables.schema_guard import SchemaGuard
from cdcworker.connectors.capture.tables.table_quarantine import TableQuarantine
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.decode.composite_types import CompositeTypes
from cdcworker.connectors.postgres.decode.decoder import PgoutputDecoder
from cdcworker.connectors.postgres.decode.streamed_transactions import StreamedTransactions
from cdcworker.connectors.postgres.errors import TABLE_RETURNS, translate
from cdcworker.connectors.postgres.position import StoredPosition
from cdcworker.connectors.postgres.snapshot.chunk_reader import ChunkReader
from cdcworker.connectors.postgres.snapshot.row_emitter import RowEmitter
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.connectors.postgres.transport.connection import connect
from cdcworker.connectors.postgres.transport.libpq_stream import FEEDBACK_S_MAX, ReplicationStream
from cdcworker.connectors.postgres.transport.socket_stream import connect_stream
from cdcworker.schemas.change import Change, EncodedRecords, JsonObject
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.record_layout import RecordLayouts

log = logging.getLogger(__name__)


@dataclass
class Connections:
    """The connections of one task to its server. `catalog` runs statements beside the stream."""

    settings: PostgresSettings
    application: str
    catalog: AdminConnection
    stream: ReplicationStream | None = None
    feedback_s: float = FEEDBACK_S_MAX
    """The longest time between two status updates to the server."""
    readers: ReaderPool | None = None
    _reader: ChunkReader | None = None

    def connect_stream(self) -> ReplicationStream:
        """Opens a replication connection in place of the present one, which the caller has closed."""
        self.stream = connect_stream(self.settings, self.catalog, self.application, self.feedback_s)
        return self.stream

    def require_stream(self) -> ReplicationStream:
        """The replication connection; only while there is one."""
        assert self.stream
        return self.stream

    def reader(self) -> ChunkReader:
        """The reader of tables without a key, which are read while the stream stands still; opened when first needed."""
        if self._reader is None or self._reader.is_broken():
            self._reader = ChunkReader(connect(self.settings, self.application), self.settings)
        return self._reader

    def drop_stream(self) -> None:
        """Nothing is to be streamed any more."""
        self.stream = None

    def close(self) -> None:
        """Closes every connection; never raises."""
        if self.stream:
            self.stream.close()
        if self.readers:
            with contextlib.suppress(psycopg.Error, OSError):
                self.readers.close()
        for connection in (self._reader.connection if self._reader else None, self.catalog):
            if connection is not None:
                try:
                    connection.close()
                except psycopg.Error as exc:
                    log.debug("close error=%s", translate(exc))


@dataclass
class Scope:
    """Which tables a task captures, and what it knows of them beside the stream."""

    settings: PostgresSettings
    connector: str = ""
    quarantine: TableQuarantine | None = None
    schema_guard: SchemaGuard | None = None
    last_keys: LastKnownKeys | None = None
    composites: CompositeTypes = field(default_factory=CompositeTypes)
    existing: frozenset[int] = field(default_factory=frozenset)
    """OIDs of the tables that were there when the task was opened."""
    returning: list[str] = field(default_factory=list)
    """Names of tables that come and of which readers may have rows of an earlier time."""
    look_due: bool = False
    """Whether the next periodic check looks for tables."""
    identities_set: int = 0
    _notices: set[tuple[int, str]] = field(default_factory=set)

    def guard(self, guard: SchemaGuard, keys: LastKnownKeys) -> None:
        """Sets what remembers the columns and keys of tables."""
        self.schema_guard, self.last_keys = guard, keys

    def is_first_notice(self, notice: tuple[int, str]) -> bool:
        """Returns whether nothing was logged under this key, a table's OID or 0 and a text, since the task was
        opened."""
        is_new = notice not in self._notices
        self._notices.add(notice)
        return is_new

    def expect(self, returning: list[str]) -> None:
        """Notes the tables that the next look behind a barrier takes up."""
        self.returning, self.look_due = returning, bool(returning)

    def put_off_look(self) -> None:
        """The next look waits for the interval of looks again."""
        self.look_due = False

    def refresh_existing(self, oids: frozenset[int]) -> None:
        """Sets the tables that count as having been there from the start."""
        self.existing = oids

    def count_identities(self, count: int) -> None:
        """Adds replica identities that were set."""
        self.identities_set += count

    def require_no_return(self) -> None:
        """Raises CdcError when a table in quarantine is asked for: it comes back with a new session."""
        if self.quarantine and self.quarantine.due:
            raise CdcError(TABLE_RETURNS, "a table that was held back is asked for")

    def expired(self, lsn: int) -> Iterable[int]:
        """OIDs of the tables that are planned anew for the transaction that commits at `lsn`."""
        keys, composites = self.last_keys, self.composites
        if keys is None or not (keys.until or composites.until):
            return ()
        return {*keys.expired(lsn), *composites.passed(lsn)}


@dataclass(slots=True)
class StreamingFallback:
    """The transaction that cannot be read while it is open, and `until` which LSN the stream goes on without any such: the
    log's end when the transaction was seen to have ended, 0 before."""

    xid: int
    until: int = 0
    looked_at: float = 0.0


@dataclass
class StreamState:
    """How the stream is decoded. `fallback`: large transactions are not streamed, or the stream is in binary, for now."""

    decoder: PgoutputDecoder
    streamed: StreamedTransactions
    fallback: StreamingFallback | None = None

    def fall_back(self, xid: int) -> None:
        """Large transactions are left to the server until the one with this id has been read."""
        self.fallback = StreamingFallback(xid)

    def recover(self) -> None:
        """The stream that starts next is read as configured: in text, and large transactions before their end."""
        self.fallback = None
        self.decoder.read_text()


@dataclass
class Session:
    """An open task, put together of its parts. `complete`: only rows were to be read, and all have been handed on."""

    position: StoredPosition
    connections: Connections
    scope: Scope
    state: StreamState | None = None
    snapshot: WatermarkSnapshot | None = None
    emitter: RowEmitter | None = None
    loads: LoadHost | None = None
    """What requests and signals change."""
    signals: SignalTable = field(default_factory=SignalTable)
    complete: bool = False
    position_changed: bool = False
    """Whether the position differs from the stored one before anything was read."""
    emptied: list[Change | EncodedRecords] = field(default_factory=list)
    """Truncates to be handed on first: the position was lost, and all rows are read again."""

    @property
    def settings(self) -> PostgresSettings:
        """The connector's settings, without the tables in quarantine."""
        return self.scope.settings

    @property
    def catalog(self) -> AdminConnection:
        """The connection for statements beside the stream."""
        return self.connections.catalog

    @property
    def decoder(self) -> PgoutputDecoder:
        """The decoder of the stream; only once the stream's state is there."""
        assert self.state
        return self.state.decoder

    @property
    def place(self) -> int:
        """Where the stream stands."""
        return self.position.safe_lsn

    @property
    def boundary(self) -> int:
        """Every transaction whose commit record lies before it has been handed on."""
        return self.position.safe_lsn

    @property
    def is_loading(self) -> bool:
        """Returns whether there are tables of which readers do not have all rows."""
        return bool(self.scope.returning or (self.snapshot and self.snapshot.progress.loads))

    @property
    def loading(self) -> list[str]:
        """Names of the tables of which readers do not have all rows; at most `LOADING_MAX`."""
        return [*(self.snapshot.loading if self.snapshot else ()), *self.scope.returning][:LOADING_MAX]

    @property
    def moves(self) -> int:
        """Steps of the snapshot's progress; 0 without one."""
        return self.snapshot.loader.moves if self.snapshot else 0

    def note_position_change(self) -> None:
        """The position is to be stored at once."""
        self.position_changed = True

    def hand_on_first(self, truncates: list[Change | EncodedRecords]) -> None:
        """These come before anything that is read."""
        self.emptied = truncates

    def finish(self) -> None:
        """All rows have been handed on, and nothing else is to be read."""
        self.complete = True

    def observe(self) -> None:
        """Shows the snapshot every event from now on."""
        self.decoder.observe(self.snapshot)

    def write_natively(self, layouts: RecordLayouts, module: ModuleType) -> None:
        """The native core makes records of rows that are read beside the stream."""
        if self.emitter:
            self.emitter.use_layouts(layouts, module)

    def position_json(self, ts_us: int) -> JsonObject:
        """The position as it is stored; `ts_us`: commit time of the last transaction, 0 where none is known."""
        position, scope = self.position, self.scope
        if ts_us:
            position.ts_ms = ts_us // 1000
        if self.snapshot:
            position.snapshot = self.snapshot.to_json()
        if self.state:
            position.mark_lsn = self.state.decoder.marked_lsn
        position.quarantine = dict(scope.quarantine.held) or None if scope.quarantine else None
        position.shapes = dict(scope.schema_guard.shapes) or None if scope.schema_guard else None
        if scope.last_keys:
            position.keys = scope.last_keys.to_json() if scope.last_keys.keys else None
        return position.to_json()

    def close(self) -> None:
        """Closes every connection and file; never raises."""
        if self.state:
            self.state.streamed.close()
        self.connections.close()
