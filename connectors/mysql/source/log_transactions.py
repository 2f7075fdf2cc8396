"""The transactions in the files of a server's log: which there are in a file, where each begins and ends, and how many rows it has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final, NamedTuple

from cdcworker.connectors.mysql.binlog import gtid_events as gtids
from cdcworker.connectors.mysql.binlog.event_reader import Event, EventReader, Place
from cdcworker.connectors.mysql.binlog.format_description import FormatDescription
from cdcworker.connectors.mysql.binlog.header import EventType
from cdcworker.connectors.mysql.binlog.plain_events import Checkpoint, Heartbeat, Rotate, Stop
from cdcworker.connectors.mysql.binlog.rows import UnreadRows
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.decode.transaction import gtid_of, gtid_text
from cdcworker.connectors.mysql.decode.uncaptured_rows import countable
from cdcworker.connectors.mysql.errors import CONNECTION_LOST
from cdcworker.connectors.mysql.gtid.executed import Gtids, OwnGtid
from cdcworker.connectors.mysql.gtid.mariadb import MariaDbPosition
from cdcworker.connectors.mysql.server.connection import opened
from cdcworker.connectors.mysql.transport.commands import FIRST_POSITION, FileStart, Reader, Start
from cdcworker.connectors.mysql.transport.dump_stream import DumpStream
from cdcworker.schemas.errors import CdcError

READ_S_MAX: Final = 40.0
_HELD_MAX: Final = 1_000
_BETWEEN: Final = (
    FormatDescription, gtids.MariaDbGtidList, gtids.PreviousGtids, Checkpoint, Heartbeat, Rotate, Stop,
)  # fmt: skip
"""Events that belong to no transaction."""


class ReadEvent(NamedTuple):
    """An event, where the next one begins, and whether the log holds it compressed among others of its transaction."""

    event: Event
    following: Place
    is_packed: bool = False


@dataclass(slots=True)
class LoggedTransaction:
    """`gtid` is empty, and `own` None, for one without a GTID; `rows` are those of the tables that are asked for."""

    gtid: str
    own: OwnGtid | None
    begin: Place
    end: Place
    commit_s: int = 0
    rows: int = 0

    @property
    def name(self) -> str:
        """What people know it by: its GTID, or its place."""
        return self.gtid or f"{self.begin.file}:{self.begin.position}"


class FileHead(NamedTuple):
    """When a file was begun, in seconds since 1970, and the transactions in the files before it."""

    made: int
    before: Gtids


def logged_transactions(
    events: Iterable[ReadEvent], is_asked: Callable[[str, str], bool]
) -> Iterator[LoggedTransaction]:
    """Yields the transactions of events that begin between two of them. `is_asked` takes database and name of a table."""
    current: LoggedTransaction | None = None
    for event, following, _ in events:
        body = event.body
        if isinstance(body, gtids.Gtid | gtids.MariaDbTransaction):
            if current is not None:
                yield current
            current = LoggedTransaction(gtid_text(body), gtid_of(body), event.place, following)
        if current is None or isinstance(body, _BETWEEN):
            continue
        current.end, current.commit_s = following, max(current.commit_s, event.header.timestamp)
        if isinstance(body, UnreadRows) and is_asked(body.table.schema, body.table.table):
            current.rows += len(body.read().rows)
    if current is not None:
        yield current


def transactions_from(settings: MySqlSettings, file: str) -> Iterator[LoggedTransaction]:
    """Yields the transactions in a file of the log and in all behind it, those that were there at the beginning. Raises CdcError."""
    return logged_transactions(read_events(settings, FileStart(file, FIRST_POSITION)), settings.filters.table)


def head_of(settings: MySqlSettings, file: str) -> FileHead:
    """Reads the beginning of a file. Raises CdcError."""
    made = 0
    for event, *_ in read_events(settings, FileStart(file, FIRST_POSITION)):
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


def read_events(settings: MySqlSettings, start: Start, *, statements: bool = False) -> Iterator[ReadEvent]:
    """Yields what is in the log from a start up to its end; rows events are left unread. `statements`: with the texts of statements,
    where MariaDB has them. Raises CdcError, also after `READ_S_MAX`."""
    held: list[bytes] = []

    def take(data: bytes, _wants_answer: bool) -> bool:
        held.append(data)
        return len(held) < _HELD_MAX

    reader, deadline = Reader(settings.server_id, wait=False, statements=statements), time.monotonic() + READ_S_MAX
    with closing(DumpStream.start(opened(settings), reader, start)) as stream:
        events = EventReader(stream.checksum, countable)
        events.leaves_rows = True
        while held or not stream.ended:
            if time.monotonic() > deadline:
                raise CdcError(CONNECTION_LOST, f"the log was not read to its end within {READ_S_MAX:.0f} s")
            if not held:
                stream.wait(1.0)
                stream.receive(take)
            taken = held.copy()
            held.clear()
            for data in taken:
                is_packed = data[4] == EventType.TRANSACTION_PAYLOAD
                for event in events.read(data):
                    yield ReadEvent(event, events.place, is_packed)
