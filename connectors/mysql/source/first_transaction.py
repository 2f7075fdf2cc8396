"""The first transaction behind a place of the log, event by event: Debezium counts its events, and we count its rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cdcworker.connectors.mysql.binlog import plain_events as plain
from cdcworker.connectors.mysql.binlog.event_reader import Body, Event, EventPlace
from cdcworker.connectors.mysql.binlog.gtid_events import Gtid, MariaDbTransaction
from cdcworker.connectors.mysql.binlog.rows import UnreadRows
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.decode.statements import keyword, words
from cdcworker.connectors.mysql.decode.transaction import gtid_text
from cdcworker.connectors.mysql.decode.uncaptured_rows import countable
from cdcworker.connectors.mysql.server.log_events import read_events
from cdcworker.connectors.mysql.transport.commands import Start


class CountedEvent(NamedTuple):
    """An event of the transaction: how many of its events and of its rows come before this one, and how many rows it has.
    `place` is where Debezium says that the transaction begins; `is_packed`: the log holds its events compressed, in one."""

    gtid: str
    place: EventPlace
    begun_us: int
    event: int
    before: int
    rows: int
    is_packed: bool


def first_transaction(settings: MySqlSettings, start: Start) -> Iterator[CountedEvent]:
    """Yields the events of the first transaction. One that is a single statement has no rows. Raises CdcError."""
    gtid, begun, events, rows, is_group = "", None, 0, 0, True
    # As the server sends them to Debezium: texts of statements only where it is configured to ask for them.
    has_texts = bool(settings.raw["include.query"])
    for event, _, is_packed in read_events(settings, start, countable, statements=has_texts):
        body = event.body
        if isinstance(body, Gtid | MariaDbTransaction):
            gtid = gtid_text(body)
        if begun is None and isinstance(body, MariaDbTransaction | plain.Query):
            # MariaDB logs no BEGIN, and Debezium begins with the event of the GTID.
            begun = event
            is_group = not body.is_standalone if isinstance(body, MariaDbTransaction) else _word(body) == "BEGIN"
        if begun is None:
            continue
        found = len(body.read().rows) if isinstance(body, UnreadRows) else 0
        at_us = begun.header.timestamp * 1_000_000
        yield CountedEvent(gtid, _place(begun), at_us, events, rows, found, is_packed)
        events, rows = events + 1, rows + found
        if _ends(body, is_group=is_group):
            return


def _place(event: Event) -> EventPlace:
    """Returns where an event begins: the first one that is sent behind GTIDs may stand anywhere in the file that was named."""
    header = event.header
    return EventPlace(event.place.file, header.log_pos - header.size) if header.log_pos else event.place


def _ends(body: Body, *, is_group: bool) -> bool:
    if isinstance(body, plain.Query):
        return not is_group or _word(body) in ("COMMIT", "ROLLBACK")
    return isinstance(body, plain.Xid)


def _word(body: plain.Query) -> str:
    return keyword(words(body.statement.decode(errors="replace"), 2))
