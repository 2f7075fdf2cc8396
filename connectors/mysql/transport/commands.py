"""What a reader of the binary log tells the server: the session's variables, and the payloads of the replication commands."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from cdcworker.connectors.mysql.gtid.mariadb import MariaDbPosition
from cdcworker.connectors.mysql.gtid.mysql import GtidSet

REGISTER_SLAVE: Final = 0x15
BINLOG_DUMP: Final = 0x12
BINLOG_DUMP_GTID: Final = 0x1E
FIRST_POSITION: Final = 4
"""Where the first event of a file begins."""
SERVER_ID_MAX: Final = (1 << 32) - 1
_NON_BLOCK: Final = 0x01
_SEND_ANNOTATE_ROWS: Final = 0x02
_THROUGH_GTID: Final = 0x04
_MARIADB_CAPABILITY: Final = 4
"""MariaDB: the reader knows GTIDs, and events of other sizes."""
SEMI_SYNC_ACK: Final = 0xEF


@dataclass(frozen=True, slots=True)
class FileStart:
    """Where reading begins: at an event's place in a file. Without a file it is the server's first one."""

    file: str = ""
    position: int = FIRST_POSITION


@dataclass(frozen=True, slots=True)
class GtidStart:
    """Where reading begins: MySQL sends the transactions that are not in the set."""

    executed: GtidSet


@dataclass(frozen=True, slots=True)
class MariaDbStart:
    """Where reading begins: MariaDB sends what comes after the position in each domain."""

    position: MariaDbPosition
    is_strict: bool = True
    """Whether the server refuses a position whose transaction it does not have, and one whose numbers do not rise."""


Start = FileStart | GtidStart | MariaDbStart


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads: the server id, which no other reader and no replica may have, and how the stream is to be."""

    server_id: int
    uuid: str = ""
    """A server that a reader of the same UUID comes back to ends the connection that it had."""
    heartbeat_s: float = 10.0
    """How often the server says that there is nothing new; 0 for never."""
    semi_sync: bool = False
    """Whether commits at the server wait for acknowledgements."""
    statements: bool = False
    """MariaDB: whether the text of the statements is sent before their rows. MySQL's server decides that by itself."""
    wait: bool = True
    """Whether the server waits for new events at the end of its log; else it ends the stream there."""

    def __post_init__(self) -> None:
        if not 0 < self.server_id <= SERVER_ID_MAX:
            raise ValueError("a server id is from 1 to 4294967295")


def session_statements(reader: Reader, start: Start, *, is_mariadb: bool) -> list[str]:
    """Returns the statements before the dump. User variables that a server does not know have no effect; checksums are sent as
    they are in the files."""
    nanoseconds = round(reader.heartbeat_s * 1_000_000_000)
    names = ("master",) if is_mariadb else ("master", "source")
    statements = []
    for name in names:
        statements.append(f"SET @{name}_binlog_checksum = @@global.binlog_checksum")
        statements.append(f"SET @{name}_heartbeat_period = {nanoseconds}")
    if reader.uuid:
        statements.append(f"SET @slave_uuid = {_quoted(reader.uuid)}, @replica_uuid = {_quoted(reader.uuid)}")
    if reader.semi_sync:
        statements.append("SET @rpl_semi_sync_slave = 1, @rpl_semi_sync_replica = 1")
    if is_mariadb:
        statements.append(f"SET @mariadb_slave_capability = {_MARIADB_CAPABILITY}")
    if isinstance(start, MariaDbStart):
        statements.append(f"SET @slave_connect_state = {_quoted(str(start.position))}")
        statements.append(f"SET @slave_gtid_strict_mode = {int(start.is_strict)}, @slave_gtid_ignore_duplicates = 0")
    return statements


def _quoted(text: str) -> str:
    """Returns a text as a literal in hexadecimal, in which nothing has to be escaped."""
    return f"CONVERT(X'{text.encode().hex()}' USING utf8mb4)" if text else "''"


def register(reader: Reader) -> bytes:
    """Returns COM_REGISTER_SLAVE, by which the reader is in SHOW REPLICAS. It names no host, user and password."""
    return bytes([REGISTER_SLAVE]) + struct.pack("<IBBBHII", reader.server_id, 0, 0, 0, 0, 0, 0)


def dump(reader: Reader, start: Start) -> bytes:
    """Returns the command that the stream of events answers."""
    flags = 0 if reader.wait else _NON_BLOCK
    if isinstance(start, GtidStart):
        data = start.executed.encode()
        head = struct.pack("<HII", flags | _THROUGH_GTID, reader.server_id, 0)
        return bytes([BINLOG_DUMP_GTID]) + head + struct.pack("<QI", FIRST_POSITION, len(data)) + data
    flags |= _SEND_ANNOTATE_ROWS if reader.statements else 0
    place = start if isinstance(start, FileStart) else FileStart()
    head = struct.pack("<IHI", place.position, flags, reader.server_id)
    return bytes([BINLOG_DUMP]) + head + place.file.encode()


def acknowledgement(file: str, position: int) -> bytes:
    """Returns the payload that tells a semi-synchronous server up to where events have been taken."""
    return struct.pack("<BQ", SEMI_SYNC_ACK, position) + file.encode()
