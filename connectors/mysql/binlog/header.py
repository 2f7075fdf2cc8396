"""The header that every event begins with."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from cdcworker.connectors.mysql.errors import MalformedError

HEADER_BYTES: Final = 19
EVENT_BYTES_MAX: Final = (1 << 30) + (1 << 20)
"""The largest max_allowed_packet, and room around it."""
_HEADER: Final = struct.Struct("<IBIIIH")
IN_USE: Final = 0x0001
"""Flag of a format description: its file is being written."""
ARTIFICIAL: Final = 0x0020
"""Flag of an event that the server makes for a reader, and that is in no file."""
IGNORABLE: Final = 0x0080
"""Flag of an event that a reader who does not know it may pass over."""


class EventType(IntEnum):
    """The types of events, by the names that both servers use."""

    UNKNOWN = 0
    START_V3 = 1
    QUERY = 2
    STOP = 3
    ROTATE = 4
    INTVAR = 5
    SLAVE = 7
    APPEND_BLOCK = 9
    DELETE_FILE = 11
    RAND = 13
    USER_VAR = 14
    FORMAT_DESCRIPTION = 15
    XID = 16
    BEGIN_LOAD_QUERY = 17
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    WRITE_ROWS_V1 = 23
    UPDATE_ROWS_V1 = 24
    DELETE_ROWS_V1 = 25
    INCIDENT = 26
    HEARTBEAT = 27
    IGNORABLE = 28
    ROWS_QUERY = 29
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    GTID = 33
    ANONYMOUS_GTID = 34
    PREVIOUS_GTIDS = 35
    TRANSACTION_CONTEXT = 36
    VIEW_CHANGE = 37
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_V2 = 41
    GTID_TAGGED = 42
    ANNOTATE_ROWS = 160
    BINLOG_CHECKPOINT = 161
    MARIADB_GTID = 162
    MARIADB_GTID_LIST = 163
    START_ENCRYPTION = 164
    QUERY_COMPRESSED = 165
    WRITE_ROWS_COMPRESSED_V1 = 166
    UPDATE_ROWS_COMPRESSED_V1 = 167
    DELETE_ROWS_COMPRESSED_V1 = 168
    WRITE_ROWS_COMPRESSED = 169
    UPDATE_ROWS_COMPRESSED = 170
    DELETE_ROWS_COMPRESSED = 171


class EventHeader(NamedTuple):
    """`timestamp` is in seconds since 1970. `log_pos` is where the next event begins in the file, in 32 bits; 0 for an event that
    is in no file. `size` counts header and checksum."""

    timestamp: int
    event_type: int
    server_id: int
    size: int
    log_pos: int
    flags: int

    @property
    def is_artificial(self) -> bool:
        return bool(self.flags & ARTIFICIAL)

    @property
    def is_ignorable(self) -> bool:
        return bool(self.flags & IGNORABLE)


def read_header(data: bytes, at: int = 0) -> EventHeader:
    """Reads the header at `at`. Raises MalformedError."""
    if len(data) - at < HEADER_BYTES:
        raise MalformedError("a header that is cut short")
    header = EventHeader(*_HEADER.unpack_from(data, at))
    if not HEADER_BYTES <= header.size <= EVENT_BYTES_MAX:
        raise MalformedError("a header with an impossible size")
    return header
