"""What an open task holds: its connections, the scope of what it captures, and how far it has read the log."""

from __future__ import annotations

from dataclasses import dataclass, field

from cdcworker.connectors.capture.config.table_names import TableName
from cdcworker.connectors.capture.native.compiled import NATIVE
from cdcworker.connectors.capture.snapshot.load_host import LoadHost
from cdcworker.connectors.capture.snapshot.reader_pool import ReaderPool
from cdcworker.connectors.capture.snapshot.watermark_snapshot import LOADING_MAX, WatermarkSnapshot
from cdcworker.connectors.capture.stream.signal_table import SignalTable
from cdcworker.connectors.capture.tables.schema_guard import SchemaGuard
from cdcworker.connectors.capture.tables.table_quarantine import TableQuarantine
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.decode.decoder import BinlogDecoder
from cdcworker.connectors.mysql.decode.native_log import StreamParts
from cdcworker.connectors.mysql.decode.native_rows import native
from cdcworker.connectors.mysql.decode.row_writer import RowWriter
from cdcworker.connectors.mysql.decode.table_plan import TablePlanner
from cdcworker.connectors.mysql.decode.transaction import Transaction
from cdcworker.connectors.mysql.errors import TABLE_RETURNS
from cdcworker.connectors.mysql.server.connection import opened
from cdcworker.connectors.mysql.server.facts import ServerFacts
from cdcworker.connectors.mysql.server.steady_connection import SteadyConnection
from cdcworker.connectors.mysql.snapshot.chunk_reader import ChunkReader, NameOf
from cdcworker.connectors.mysql.snapshot.read_view import GtidPlace
from cdcworker.connectors.mysql.snapshot.row_emitter import RowEmitter
from cdcworker.connectors.mysql.source.position import FilePlace, StoredPosition, TransactionPart
from cdcworker.connectors.mysql.transport.dump_stream import DumpStream
from cdcworker.schemas.change import Change, EncodedRecords, JsonObject
from cdcworker.schemas.errors import CdcError


def opened_reader(settings: MySqlSettings, planner: TablePlanner, name_of: NameOf) -> ChunkReader:
    """Returns a reader of rows with a connection of its own. Raises CdcError."""
    core = native() if settings.raw[NATIVE] else None
    return ChunkReader(opened(settings), planner, name_of, settings.raw["snapshot.lock.timeout.ms"], core)


@dataclass
class Connections:
    """The connections of one task to its server. `catalog` runs statements beside the stream."""

    settings: MySqlSettings
    catalog: SteadyConnection
    stream: DumpStream | None = None
    readers: ReaderPool | None = None
    _reader: ChunkReader | None = None

    def reader(self, planner: TablePlanner, name_of: NameOf) -> ChunkReader:
        """The reader of tables without a key, which are read while the stream stands still; opened when first needed."""
        if self._reader is None or self._reader.is_broken():
            self._reader = opened_reader(self.settings, planner, name_of)
        return self._reader

    def close(self) -> None:
        """Closes every connection; never raises."""
        if self.stream is not None:
            self.stream.close()
        if self.readers is not None:
            self.readers.close()
        if self._reader is not None:
            # What it reads is broken off: the rest of a large table would be read to its end.
            self._reader.cancel()
        self.catalog.close()


@dataclass
class Scope:
    """Which tables a task captures, and what it knows of them beside the stream."""

    settings: MySqlSettings
    quarantine: TableQuarantine
    guard: SchemaGuard
    names: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Database and name of each captured table, by its number; threads look at it."""
    returning: dict[int, GtidPlace] = field(default_factory=dict)
    """Tables that come and of which readers may have rows of an earlier time: they are emptied once the stream is at this place."""

    def capture(self, tables: list[TableName]) -> None:
        """Sets the tables that are captured now."""
        self.names = {number: (database, name) for number, database, name in tables}

    def name_of(self, number: int) -> tuple[str, str] | None:
        """Returns database and name of a table; None: it is not captured any more. Called by any thread."""
        return self.names.get(number)

    def require_no_return(self) -> None:
        """Raises CdcError when a table in quarantine is asked for: it comes back with a new session."""
        if self.quarantine.due:
            raise CdcError(TABLE_RETURNS, "a table that was held back is asked for")


@dataclass
class StreamState(StreamParts):
    """How the log is read. `executed` and `place` are those of the last boundary between two transactions."""

    planner: TablePlanner


@dataclass
class Session:
    """An open task, put together of its parts. `complete`: only rows were to be read, and all have been handed on."""

    position: StoredPosition
    connections: Connections
    scope: Scope
    facts: ServerFacts
    state: StreamState
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
    def settings(self) -> MySqlSettings:
        """The connector's settings, without the tables in quarantine."""
        return self.scope.settings

    @property
    def catalog(self) -> SteadyConnection:
        """The connection for statements beside the stream."""
        return self.connections.catalog

    @property
    def decoder(self) -> BinlogDecoder:
        return self.state.decoder

    @property
    def log_place(self) -> GtidPlace:
        """All transactions that were read to their end."""
        return GtidPlace(self.state.executed.gtids)

    @property
    def place(self) -> FilePlace:
        """Where the stream stands."""
        return self.position.place

    @property
    def boundary(self) -> int:
        """Every transaction whose commit has a lower number has been handed on."""
        return self.position.number + 1

    @property
    def is_loading(self) -> bool:
        """Returns whether there are tables of which readers do not have all rows."""
        return self.snapshot is not None and bool(self.snapshot.progress.loads or self.scope.returning)

    @property
    def loading(self) -> list[str]:
        """Names of the tables of which readers do not have all rows; at most `LOADING_MAX`."""
        found = list(self.snapshot.loading) if self.snapshot else []
        found += [".".join(self.scope.names[number]) for number in self.scope.returning if number in self.scope.names]
        return found[:LOADING_MAX]

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

    def write_natively(self, writer: RowWriter) -> None:
        """Rows become records by this writer from now on, those that it can write."""
        self.state.events.leaves_rows = True
        self.decoder.write_natively(writer)

    def observe(self) -> None:
        """Shows the snapshot every event from now on."""
        self.decoder.observe(self.snapshot)

    def passed(self, place: FilePlace) -> None:
        """The stream stands between two transactions, at this place of the log."""
        self.position.place = place

    def ended(self, transaction: Transaction) -> None:
        """A transaction has been read to its end."""
        if transaction.own is not None:
            self.state.executed.add(transaction.own)
        self.position.number = transaction.number
        self.position.part = self.position.orders = None

    def position_json(self, ts_us: int) -> JsonObject:
        """The position as it is stored; `ts_us`: commit time of the last transaction, 0 where none is known."""
        position, scope = self.position, self.scope
        if ts_us:
            position.ts_ms = ts_us // 1000
        position.gtids = str(self.state.executed.gtids)
        if self.snapshot:
            position.snapshot = self.snapshot.to_json()
        position.quarantine = scope.quarantine.to_json()
        position.shapes = scope.guard.to_json()
        return position.to_json()

    def part_json(self, transaction: Transaction, ts_us: int) -> JsonObject:
        """The position inside a transaction, of which all rows that were read are handed on."""
        position, decoder = self.position, self.decoder
        stored = position.part, position.orders
        position.part = TransactionPart(transaction.gtid, transaction.number, decoder.index)
        position.orders = decoder.order_counts()
        found = self.position_json(ts_us)
        position.part, position.orders = stored
        return found

    def close(self) -> None:
        """Closes every connection; never raises."""
        self.connections.close()
