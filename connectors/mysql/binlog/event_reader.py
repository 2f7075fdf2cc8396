"""The reader of a log: one event's bytes in, its value out, with what earlier events have said of files, checksums and tables."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Final, NamedTuple, NoReturn

from cdcworker.connectors.mysql.binlog import compression, gtid_events, plain_events
from cdcworker.connectors.mysql.binlog.byte_reader import ByteReader
from cdcworker.connectors.mysql.binlog.format_description import (
    CHECKSUM_BYTES,
    Checksum,
    FormatDescription,
    read_format_description,
)
from cdcworker.connectors.mysql.binlog.header import HEADER_BYTES, IN_USE, EventHeader, EventType, read_header
from cdcworker.connectors.mysql.binlog.rows import (
    DUMMY_TABLE_ID,
    OPERATIONS,
    FieldError,
    RowsEvent,
    UnreadRows,
    read_rows_head,
)
from cdcworker.connectors.mysql.binlog.table_map import TableMap
from cdcworker.connectors.mysql.binlog.tables import TABLE_ID_BYTES, Tables
from cdcworker.connectors.mysql.binlog.tagged_gtid import read_tagged_gtid
from cdcworker.connectors.mysql.errors import (
    CHECKSUM,
    EVENT_UNKNOWN,
    LOG_ENCRYPTED,
    MALFORMED_EVENT,
    ROW_METADATA,
    TYPE_UNKNOWN,
    VALUE,
    MalformedError,
    MissingMetadataError,
    UndecodableError,
    UnknownTypeError,
)
from cdcworker.schemas.errors import CdcError, Where

Body = (
    FormatDescription
    | gtid_events.Gtid
    | gtid_events.MariaDbGtidList
    | gtid_events.MariaDbTransaction
    | gtid_events.PreviousGtids
    | plain_events.CheckpointEvent
    | plain_events.HeartbeatEvent
    | plain_events.Incident
    | plain_events.OtherEvent
    | plain_events.Query
    | plain_events.Rotate
    | plain_events.StartEncryption
    | plain_events.StatementTextEvent
    | plain_events.Stop
    | plain_events.XaPrepare
    | plain_events.Xid
    | RowsEvent
    | TableMap
    | UnreadRows
)


class EventPlace(NamedTuple):
    """Where an event begins in the log. The events of a compressed transaction have the place of the one that holds them."""

    file: str
    position: int


class Event(NamedTuple):
    """One event: its header, what it says, and its place."""

    header: EventHeader
    body: Body
    place: EventPlace


_SIMPLE: Final[Mapping[int, Callable[[ByteReader], Body]]] = {
    EventType.ROTATE: plain_events.read_rotate,
    EventType.QUERY: plain_events.read_query,
    EventType.EXECUTE_LOAD_QUERY: lambda body: plain_events.read_query(body, loads_file=True),
    EventType.XID: plain_events.read_xid,
    EventType.XA_PREPARE: plain_events.read_xa_prepare,
    EventType.ROWS_QUERY: plain_events.read_rows_query,
    EventType.ANNOTATE_ROWS: plain_events.read_annotate_rows,
    EventType.HEARTBEAT_V2: plain_events.read_heartbeat_v2,
    EventType.BINLOG_CHECKPOINT: plain_events.read_checkpoint,
    EventType.INCIDENT: plain_events.read_incident,
    EventType.START_ENCRYPTION: plain_events.read_start_encryption,
    EventType.STOP: lambda _: plain_events.Stop(),
    EventType.GTID: lambda body: gtid_events.read_gtid(body, anonymous=False),
    EventType.ANONYMOUS_GTID: lambda body: gtid_events.read_gtid(body, anonymous=True),
    EventType.GTID_TAGGED: read_tagged_gtid,
    EventType.PREVIOUS_GTIDS: gtid_events.read_previous_gtids,
    EventType.MARIADB_GTID_LIST: gtid_events.read_mariadb_gtid_list,
}
_PASSED_OVER: Final = frozenset(
    {
        *(
            EventType.UNKNOWN,
            EventType.INTVAR,
            EventType.RAND,
            EventType.USER_VAR,
            EventType.SLAVE,
            EventType.IGNORABLE,
        ),
        *(EventType.APPEND_BLOCK, EventType.DELETE_FILE, EventType.BEGIN_LOAD_QUERY),
        *(EventType.TRANSACTION_CONTEXT, EventType.VIEW_CHANGE),
    }
)
"""Events of statements that are logged as text, of which the row format has none, and of group replication."""
_NEVER_INSIDE: Final = frozenset({EventType.TRANSACTION_PAYLOAD, EventType.ROTATE, EventType.FORMAT_DESCRIPTION})
_TYPE_AT: Final = 4
"""Where a header holds the type of its event."""
_CODES: Final = {MissingMetadataError: ROW_METADATA, UnknownTypeError: TYPE_UNKNOWN, UndecodableError: VALUE}
"""By what is wrong with a column's values, the error's code."""


class EventReader:
    """Reads events in the order in which they come. `checksum` holds until the first format description; `complete` adds to a table
    map what the log does not say, such as names and signs without binlog_row_metadata = FULL."""

    def __init__(
        self, checksum: Checksum = Checksum.OFF, complete: Callable[[TableMap], TableMap] | None = None
    ) -> None:
        self._checksum = checksum
        self._format: FormatDescription | None = None
        self.tables = Tables(complete)
        self._file, self._position = "", 0
        self._reading = self.place
        self.leaves_rows = False
        """Whether rows events are given as `UnreadRows`."""
        self.reads = 0
        """How many events were given to be read."""

    def begin(self, checksum: Checksum) -> None:
        """Sets how events are checked until the first format description says it."""
        self._checksum = checksum

    @property
    def place(self) -> EventPlace:
        """Where the next event begins."""
        return EventPlace(self._file, self._position)

    @property
    def has_checksums(self) -> bool:
        return self._checksum is not Checksum.OFF

    @property
    def has_usual_ids(self) -> bool:
        """Tells whether tables have numbers of six bytes, as all but very old servers write them."""
        return self._format is None or self._format.has_usual_ids

    def pass_to(self, position: int) -> None:
        """Somebody else has read the events up to this place of the file."""
        self._position = position

    def read(self, data: bytes) -> Iterable[Event]:
        """Returns the event; for a compressed transaction its events, each of which is inflated when its turn comes. Raises CdcError,
        with the place."""
        self.reads += 1
        place = self._reading = self.place
        with self._named(data, place):
            header = read_header(data)
            if header.size != len(data):
                raise MalformedError("a size that is not that of the event")
            content = self._verified(header, data, place)
            if header.event_type == EventType.TRANSACTION_PAYLOAD:
                payload = compression.read_payload(ByteReader(content, HEADER_BYTES))
                self._pass(header, None)
                return self._payload(payload, place)
            body = self._body(header, content)
            self._pass(header, body)
            return (Event(header, body, place),)

    def _payload(self, payload: compression.Payload, place: EventPlace) -> Iterator[Event]:
        """Events of a compressed transaction have no checksums, and there are none of other files among them."""
        events = compression.inflated_events(payload)
        while True:
            with self._named(b"", place):
                inner = next(events, None)
                if inner is None:
                    return
                header = read_header(inner)
                if header.event_type in _NEVER_INSIDE:
                    raise MalformedError("a compressed transaction with an event that no transaction has")
                event = Event(header, self._body(header, inner), place)
            yield event

    @contextmanager
    def _named(self, data: bytes, place: EventPlace) -> Iterator[None]:
        """Raises what is wrong with an event as CdcError, with its place."""
        where: dict[str, str | int] = {"file": place.file, "position": place.position}
        try:
            yield
        except FieldError as exc:
            raise self._of_value(exc, where) from exc
        except MalformedError as exc:
            if len(data) > _TYPE_AT:
                where["event"] = _name_of(data[_TYPE_AT])
            raise CdcError(MALFORMED_EVENT, f"the event is malformed: {exc}", where=where) from exc
        except (UnknownTypeError, UndecodableError) as exc:
            raise CdcError(TYPE_UNKNOWN, f"the table has a column that cannot be read: {exc}", where=where) from exc

    def _verified(self, header: EventHeader, data: bytes, place: EventPlace) -> bytes:
        """Returns the event without its checksum, once that is found right."""
        if header.event_type == EventType.FORMAT_DESCRIPTION:
            self._checksum = read_format_description(data).checksum
        elif self._checksum is Checksum.OFF:
            return data
        content, given = data[:-CHECKSUM_BYTES], int.from_bytes(data[-CHECKSUM_BYTES:], "little")
        if self._checksum is Checksum.CRC32:
            if len(content) < HEADER_BYTES:
                raise MalformedError("an event without its checksum")
            found = zlib.crc32(content)
            if found != given and header.event_type == EventType.FORMAT_DESCRIPTION and header.flags & IN_USE:
                # The flag is set in the file while it is written, and is not part of the checksum.
                found = zlib.crc32(content[:17] + (header.flags & ~IN_USE).to_bytes(2, "little") + content[19:])
            if found != given:
                where: Where = {"file": place.file, "position": place.position}
                raise CdcError(CHECKSUM, "the checksum of an event is wrong", where=where)
        # A format description keeps the place of its checksum, which is told from where it ends.
        return data if header.event_type == EventType.FORMAT_DESCRIPTION else content

    def _body(self, header: EventHeader, content: bytes) -> Body:
        kind = header.event_type
        if kind in OPERATIONS:
            return self._rows(EventType(kind), content)
        if kind == EventType.TABLE_MAP:
            return self.tables.add(content, HEADER_BYTES, self._table_id_bytes(kind))
        body = ByteReader(content, HEADER_BYTES)
        if kind in _SIMPLE:
            if kind == EventType.START_ENCRYPTION and not header.is_ignorable:
                # A server that decrypts what it sends marks the event; without the mark encrypted events follow.
                raise CdcError(LOG_ENCRYPTED, "the events of the file are encrypted", where=self._where())
            return _SIMPLE[kind](body)
        if kind == EventType.FORMAT_DESCRIPTION:
            self._format = read_format_description(content)
            self.tables.begin_file(is_mariadb=self._format.is_mariadb)
            return self._format
        if kind == EventType.MARIADB_GTID:
            return gtid_events.read_mariadb_transaction(body, header.server_id)
        if kind == EventType.HEARTBEAT:
            return plain_events.HeartbeatEvent(body.rest().decode(errors="replace"), header.log_pos)
        if kind == EventType.QUERY_COMPRESSED:
            return plain_events.read_query(ByteReader(compression.inflated_query(body)))
        if kind in _PASSED_OVER or header.is_ignorable:
            return plain_events.OtherEvent(kind)
        return self._unknown(kind)

    def _unknown(self, kind: int) -> NoReturn:
        text = f"event type {kind} is not known and may not be passed over"
        raise CdcError(EVENT_UNKNOWN, text, where=self._where())

    def _where(self) -> Where:
        return {"file": self._file, "position": self._position}

    def _rows(self, kind: EventType, content: bytes) -> RowsEvent | UnreadRows:
        head = read_rows_head(kind, content, HEADER_BYTES, self._table_id_bytes(kind))
        if head.table_id == DUMMY_TABLE_ID and head.rows_at == len(content):
            self.tables.end_statement()
            return RowsEvent(head.operation, None, (), ends_statement=True)
        reader = self.tables.reader(head.table_id)
        if kind in compression.COMPRESSED_ROWS:
            content = content[: head.rows_at] + compression.inflated(content[head.rows_at :])
        if self.leaves_rows:
            rows: RowsEvent | UnreadRows = UnreadRows(
                head, content, reader, partial(self._named, _type_of(kind), self._reading)
            )
        else:
            rows = reader.read(head, content)
        if head.ends_statement:
            self.tables.end_statement()
        return rows

    def _table_id_bytes(self, kind: int) -> int:
        return self._format.table_id_bytes(kind) if self._format else TABLE_ID_BYTES

    def _pass(self, header: EventHeader, body: Body | None) -> None:
        """Moves on to the place after an event. Headers hold 32 bits of it, and those of MariaDB's transactions nothing but at
        their end; files may be longer."""
        if isinstance(body, plain_events.Rotate):
            self._file, self._position = body.file, body.position
        elif header.is_artificial or isinstance(body, plain_events.HeartbeatEvent):
            return
        elif header.log_pos:
            place = self._position >> 32 << 32 | header.log_pos
            self._position = place + (1 << 32) if place < self._position else place
        elif not isinstance(body, FormatDescription):
            self._position += header.size

    def _of_value(self, exc: FieldError, where: dict[str, str | int]) -> CdcError:
        table = self.tables.last
        if table is not None:
            where["table"] = f"{table.schema}.{table.table}"
            where["column"] = table.columns[exc.column].name or exc.column + 1
        code = _CODES.get(type(exc.cause), MALFORMED_EVENT)
        return CdcError(code, f"a column's values cannot be read: {exc.cause}", where=where)


@cache
def _type_of(kind: EventType) -> bytes:
    """Returns as much of an event's header as tells its type."""
    return bytes(_TYPE_AT) + bytes([kind])


def _name_of(event_type: int) -> str:
    try:
        return EventType(event_type).name
    except ValueError:
        return str(event_type)
