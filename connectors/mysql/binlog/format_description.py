"""The first event of a file: which server wrote it, how long the fixed parts of events are, and whether events have checksums."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from cdcworker.connectors.mysql.binlog.byte_reader import ByteReader
from cdcworker.connectors.mysql.binlog.header import HEADER_BYTES, EventType
from cdcworker.connectors.mysql.errors import MalformedError

CHECKSUM_BYTES: Final = 4
BINLOG_VERSION: Final = 4
_VERSION_BYTES: Final = 50
_SHORT_TABLE_ID: Final = 6
"""Length of the fixed part of a rows event whose table id has four bytes, as very old servers write it."""


class Checksum(IntEnum):
    """How the events of a file are checked."""

    OFF = 0
    CRC32 = 1


class FormatDescription(NamedTuple):
    """What holds for all events of a file. `post_header_lengths` has the length of the fixed part of each event type from 1 on."""

    server_version: str
    created: int
    post_header_lengths: bytes
    checksum: Checksum

    @property
    def is_mariadb(self) -> bool:
        return "mariadb" in self.server_version.lower()

    @property
    def has_usual_ids(self) -> bool:
        """Tells whether no event has table ids of four bytes."""
        return _SHORT_TABLE_ID not in self.post_header_lengths[EventType.TABLE_MAP - 1 : EventType.DELETE_ROWS]

    def table_id_bytes(self, event_type: int) -> int:
        """Returns how many bytes the table id has in events of a type."""
        lengths = self.post_header_lengths
        return 4 if event_type <= len(lengths) and lengths[event_type - 1] == _SHORT_TABLE_ID else 6


def read_format_description(event: bytes) -> FormatDescription:
    """Reads a whole event. The byte before its last four tells the checksum of the file; the last four are always there."""
    body = ByteReader(event, HEADER_BYTES)
    if body.number(2) != BINLOG_VERSION:
        raise MalformedError("the format of a server before MySQL 5.0")
    version = body.take(_VERSION_BYTES).partition(b"\0")[0]
    created = body.number(4)
    if body.number(1) != HEADER_BYTES:
        raise MalformedError("headers of another length")
    if body.left < CHECKSUM_BYTES + 1 + EventType.FORMAT_DESCRIPTION:
        raise MalformedError("a format description without a checksum's kind, as servers before MySQL 5.6 write it")
    lengths = body.take(body.left - CHECKSUM_BYTES - 1)
    kind = body.number(1)
    try:
        checksum = Checksum(kind)
    except ValueError:
        raise MalformedError("a checksum of an unknown kind") from None
    return FormatDescription(version.decode("ascii", "replace"), created, lengths, checksum)
