"""The transactions in the files of a server's log: which there are in a file, where each begins and ends, and how many rows it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from cdcworker.connectors.mysql.binlog import gtid_events as gtids
from cdcworker.connectors.mysql.binlog.event_reader import EventPlace
from cdcworker.connectors.mysql.binlog.format_description import FormatDescription
from cdcworker.connectors.mysql.binlog.plain_events import CheckpointEvent, HeartbeatEvent, Rotate, Stop
from cdcworker.connectors.mysql.binlog.rows import UnreadRows
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.decode.transaction import gtid_of, gtid_text
from cdcworker.connectors.mysql.decode.uncaptured_rows import countable
from cdcworker.connectors.mysql.gtid.executed import OwnGtid
from cdcworker.connectors.mysql.server.log_events import ReadEvent, read_events
from cdcworker.connectors.mysql.transport.commands import FIRST_POSITION, FileStart

_BETWEEN: Final = (
    FormatDescription, gtids.MariaDbGtidList, gtids.PreviousGtids, CheckpointEvent, HeartbeatEvent, Rotate, Stop,
)  # fmt: skip
"""Events that belong to no transaction."""


@dataclass(slots=True)
class LoggedTransaction:
    """`gtid` is empty, and `own` None, for one without a GTID; `rows` are those of the tables that are asked for."""

    gtid: str
    own: OwnGtid | None
    begin: EventPlace
    end: EventPlace
    commit_s: int = 0
    rows: int = 0

    @property
    def name(self) -> str:
        """What people know it by: its GTID, or its place."""
        return self.gtid or f"{self.begin.file}:{self.begin.position}"


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
    events = read_events(settings, FileStart(file, FIRST_POSITION), countable)
    return logged_transactions(events, settings.filters.table)
