"""Events of the server's log, read over a connection of their own: from a place on, and those with which a file begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Final, NamedTuple

from cdcworker.connectors.mysql.binlog import gtid_events as gtids
from cdcworker.connectors.mysql.binlog.event_reader import Event, EventPlace, EventReader
from cdcworker.connectors.mysql.binlog.format_description import FormatDescription
from cdcworker.connectors.mysql.binlog.header import EventType
from cdcworker.connectors.mysql.binlog.table_map import TableMap
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.errors import CONNECTION_LOST, LOG_TOO_LONG
from cdcworker.connectors.mysql.gtid.executed import Gtids
from cdcworker.connectors.mysql.gtid.mariadb import MariaDbPosition
from cdcworker.connectors.mysql.server.connection import opened
from cdcworker.connectors.mysql.transport.commands import FIRST_POSITION, FileStart, Reader, Start
from cdcworker.connectors.mysql.transport.dump_stream import DumpStream
from cdcworker.schemas.errors import CdcError

READ_S_MAX: Final = 40.0
_HELD_MAX: Final = 1_000
_HELD_BYTES_MAX: Final = 4_194_304


class ReadEvent(NamedTuple):
    """An event, where the next one begins, and whether the log holds it compressed among others of its transaction."""

    event: Event
    following: EventPlace
    is_packed: bool = False


class FileHead(NamedTuple):
    """When a file was begun, in seconds since 1970, and the transactions in the files before it."""

    made: int
    before: Gtids


def head_of(settings: MySqlSettings, file: str) -> FileHead:
    """Reads the beginning of a file. Raises CdcError; nobody else may read with the same server id meanwhile."""
    made = 0
    with closing(read_events(settings, FileStart(file, FIRST_POSITION))) as events:
        for event, *_ in events:
            body = event.body
            if isinstance(body, FormatDescription):
                made = made or event.header.timestamp
            elif isinstance(body, gtids.PreviousGtids):
                return FileHead(made, body.executed)
            elif isinstance(body, gtids.MariaDbGtidList):
                return FileHead(made, MariaDbPosition.of(body.gtids))
            elif isinstance(body, gtids.Gtid | gtids.MariaDbTransaction):
                break
    raise CdcError(CONNECTION_LOST, "the server does not send the beginning of its log's file", where={"file": file})


def made_at(settings: MySqlSettings, file: str) -> int:
    """Returns when a file was begun, in seconds since 1970, as its first event says it. Raises CdcError as `head_of` does."""
    with closing(read_events(settings, FileStart(file, FIRST_POSITION))) as events:
        found = (event.header.timestamp for event, *_ in events if isinstance(event.body, FormatDescription))
        return next(found, 0)


def read_events(
    settings: MySqlSettings,
    start: Start,
    complete: Callable[[TableMap], TableMap] | None = None,
    *,
    statements: bool = False,
) -> Generator[ReadEvent, None, None]:
    """Yields what is in the log from a start up to its end; rows events are left unread. `complete` is that of an `EventReader`;
    `statements`: with the texts of statements, where MariaDB has them. Raises CdcError, `mysql.log_too_long` after `READ_S_MAX`."""
    held: list[bytes] = []
    size = 0

    def take(data: bytes, _wants_answer: bool) -> bool:
        nonlocal size
        held.append(data)
        size += len(data)
        return len(held) < _HELD_MAX and size < _HELD_BYTES_MAX

    reader, deadline = Reader(settings.server_id, wait=False, statements=statements), time.monotonic() + READ_S_MAX
    with closing(DumpStream.start(opened(settings), reader, start)) as stream:
        events = EventReader(stream.checksum, complete)
        events.leaves_rows = True
        while held or not stream.ended:
            if time.monotonic() > deadline:
                raise _too_late(events)
            if not held:
                stream.wait(1.0)
                stream.receive(take)
            taken = held.copy()
            held.clear()
            size = 0
            for data in taken:
                is_packed = data[4] == EventType.TRANSACTION_PAYLOAD
                for event in events.read(data):
                    yield ReadEvent(event, events.place, is_packed)


def _too_late(events: EventReader) -> CdcError:
    if not events.reads:
        return CdcError(CONNECTION_LOST, "the server does not send its log")
    file, position = events.place
    text = f"within {READ_S_MAX:.0f} s the log was read up to this place"
    return CdcError(LOG_TOO_LONG, text, where={"file": file, "position": position})
