"""The files of a server's binary log: where it ends, which there are, and when one of them was begun."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from cdcworker.connectors.mysql.binlog.event_reader import EventReader
from cdcworker.connectors.mysql.binlog.format_description import FormatDescription
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.errors import CONNECTION_LOST, LOG_OFF
from cdcworker.connectors.mysql.gtid.executed import Gtids, parse_gtids
from cdcworker.connectors.mysql.server.connection import opened
from cdcworker.connectors.mysql.server.facts import ServerFacts
from cdcworker.connectors.mysql.server.steady_connection import translated
from cdcworker.connectors.mysql.transport.commands import FIRST_POSITION, FileStart, Reader
from cdcworker.connectors.mysql.transport.dump_stream import DumpStream
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import Connection

_BINARY_LOG_STATUS: Final = (8, 2)
"""MySQL's version from which on the statement has its new name; the former one ends with 8.4."""
READ_S_MAX: Final = 30.0


class LogEnd(NamedTuple):
    """Where the log ends: the place, and the transactions before it."""

    file: str
    position: int
    gtids: Gtids


def end_place(connection: Connection, facts: ServerFacts) -> tuple[str, int]:
    """Returns file and position at which the log ends. Raises CdcError."""
    return _status(connection, facts)[:2]


def log_end(connection: Connection, facts: ServerFacts) -> LogEnd:
    """Returns where the log ends; MariaDB looks through its last file for it. Raises CdcError."""
    file, position, executed = _status(connection, facts)
    if not facts.is_mariadb:
        return LogEnd(file, position, parse_gtids(executed, is_mariadb=False))
    return LogEnd(file, position, gtids_at(connection, file, position) or parse_gtids("", is_mariadb=True))


def _status(connection: Connection, facts: ServerFacts) -> tuple[str, int, str]:
    """Returns file, position, and for MySQL the transactions before them."""
    is_new = not facts.is_mariadb and facts.version >= _BINARY_LOG_STATUS
    with translated():
        found = connection.one("show binary log status" if is_new else "show master status")
        if found is None:
            raise CdcError(LOG_OFF, "log_bin is off")
    return str(found[0]), int(found[1]), "" if facts.is_mariadb else str(found[4] or "")


def gtids_at(connection: Connection, file: str, position: int) -> Gtids | None:
    """MariaDB: returns the last transactions before a place of the log; None where there is no such place."""
    with translated():
        found = connection.one("select binlog_gtid_pos(%s, %s)", (file, position))
    return None if found is None or found[0] is None else parse_gtids(_text(found[0]), is_mariadb=True)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def log_files(connection: Connection) -> Mapping[str, int]:
    """Returns the bytes of each file, in their order."""
    with translated():
        return {str(row[0]): int(row[1]) for row in connection.ask("show binary logs")}


def file_number(name: str) -> int:
    """Returns the number of a file, which rises from file to file; 0 for a name without one."""
    digits = name.rpartition(".")[2]
    return int(digits) if digits.isascii() and digits.isdecimal() else 0


def made_at(settings: MySqlSettings, file: str) -> int:
    """Returns when a file of the log was begun, in seconds since 1970, as its first event says it. Reads the file's beginning over a
    connection of its own; nobody else may read with the same server id meanwhile."""
    found: list[int] = []
    reader = Reader(settings.server_id, wait=False)
    with closing(DumpStream.start(opened(settings), reader, FileStart(file, FIRST_POSITION))) as stream:
        events = EventReader(stream.checksum)

        def take(data: bytes, _wants_answer: bool) -> bool:
            read = events.read(data)
            found.extend(event.header.timestamp for event in read if isinstance(event.body, FormatDescription))
            return not found

        deadline = time.monotonic() + READ_S_MAX
        while not found and not stream.ended:
            if time.monotonic() > deadline:
                raise CdcError(CONNECTION_LOST, "the server does not send the beginning of its log's file")
            stream.wait(1.0)
            stream.receive(take)
    return found[0] if found else 0
