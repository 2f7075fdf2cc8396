"""Debezium's offsets as our positions, and the way back.

Debezium stores with each record where its transaction begins, how many events of the transaction it has passed, and how many rows of the
next event it has handed on. We store how many rows of the transaction were handed on, so both ways need a look at the transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cdcworker.connectors.api.source import TranslatedOffset
from cdcworker.connectors.capture import debezium_offset as debezium
from cdcworker.connectors.mysql import errors as e
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.gtid.executed import Gtids, parse_gtids
from cdcworker.connectors.mysql.gtid.mariadb import MariaDbPosition
from cdcworker.connectors.mysql.server.facts import ServerFacts, read_facts
from cdcworker.connectors.mysql.server.log_events import made_at
from cdcworker.connectors.mysql.server.log_files import gtids_at, log_files
from cdcworker.connectors.mysql.server.steady_connection import SteadyConnection, translated
from cdcworker.connectors.mysql.source.first_transaction import CountedEvent, first_transaction
from cdcworker.connectors.mysql.source.position import NO_PLACE, FilePlace, StoredPosition, TransactionPart, progress_of
from cdcworker.connectors.mysql.transport.commands import FileStart, GtidStart, MariaDbStart, Start
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError, Where

FILE: Final = "file"
POSITION: Final = "pos"
GTIDS: Final = "gtids"
EVENTS: Final = "event"
ROWS: Final = "row"
HISTORY_NOTE: Final = "Debezium's schema history lacks what changed the tables meanwhile; where anything did, start it with snapshot.mode=recovery"


def is_debezium(offset: Mapping[str, Any]) -> bool:
    return FILE in offset and "v" not in offset


def to_position(settings: MySqlSettings, offset: Mapping[str, Any]) -> TranslatedOffset:
    """Returns the position from which a task goes on where Debezium has stopped. Raises CdcError."""
    debezium.require_streaming(offset)
    place, position = str(offset[FILE] or ""), debezium.number(offset, POSITION)
    if not place or position is None:
        raise CdcError(debezium.OFFSET_UNFIT, "file or pos of the offset is missing", where={"member": POSITION})
    with translated():
        catalog = SteadyConnection(settings)
        try:
            facts = read_facts(catalog.get())
            found = _stored(settings, catalog, facts, offset)
        finally:
            catalog.close()
    events, rows = debezium.number(offset, EVENTS) or 0, debezium.number(offset, ROWS) or 0
    if events or rows:
        found.part = _part(settings, found, events, rows)
        found.orders = debezium.order_counts(offset) if found.part else None
    return TranslatedOffset(found.to_json(), debezium.notes_of(offset))


def to_offset(settings: MySqlSettings, position: StoredPosition) -> TranslatedOffset:
    """Returns the offset from which Debezium goes on. Raises CdcError."""
    if position.snapshot and progress_of(position.snapshot).loads:
        raise CdcError(debezium.SNAPSHOT_UNFINISHED, "the connector has not ended its snapshots")
    if not position.place.file:
        raise CdcError(debezium.TRANSACTION_MISSING, "the position has no place in the files of the server's log")
    offset: JsonObject = {FILE: position.place.file, POSITION: position.place.position}
    if position.has_gtids and position.gtids:
        offset[GTIDS] = position.gtids
    if position.ts_ms:
        offset["ts_sec"] = position.ts_ms // 1000
    if position.part is None:
        return TranslatedOffset(offset, (HISTORY_NOTE,))
    with translated():
        begun, skipped = _skipped(settings, position, position.part)
    offset |= {FILE: begun.place.file, POSITION: begun.place.position, **skipped}
    return TranslatedOffset(
        debezium.with_orders(
            offset, begun.gtid or f"file={begun.place.file},pos={begun.place.position}", position.orders
        ),
        (HISTORY_NOTE,),
    )


def _stored(
    settings: MySqlSettings, catalog: SteadyConnection, facts: ServerFacts, offset: Mapping[str, Any]
) -> StoredPosition:
    """Returns the position at the beginning of the offset's transaction."""
    file, position = str(offset[FILE]), int(offset[POSITION])
    has_place = log_files(catalog.get()).get(file, -1) >= position
    gtids: Gtids | None = parse_gtids(str(offset.get(GTIDS) or ""), is_mariadb=facts.is_mariadb)
    if facts.is_mariadb and has_place:
        # Of the first transaction after a snapshot Debezium says the GTIDs with its own.
        gtids = gtids_at(catalog.get(), file, position) or gtids
    where: Where = {"file": file, "position": position}
    if not has_place and not gtids:
        raise CdcError(e.LOG_PURGED, "the server does not have the place of the offset in its log", where=where)
    if facts.has_gtids and not facts.is_mariadb and not gtids:
        text = "the offset has no GTIDs, and the server has"
        raise CdcError(debezium.OFFSET_UNFIT, text, where={"member": GTIDS})
    place = FilePlace(file, position, made_at(settings, file)) if has_place else NO_PLACE
    return StoredPosition(
        product=facts.connector,
        server=facts.identity if has_place else "",
        gtids=str(gtids),
        has_gtids=facts.has_gtids,
        place=place,
        number=0,
        ts_ms=(debezium.number(offset, "ts_sec") or 0) * 1000,
    )


def _part(settings: MySqlSettings, at: StoredPosition, events: int, rows: int) -> TransactionPart | None:
    """Returns what was handed on of the transaction: the rows of its first events, and some of the event behind them."""
    last: CountedEvent | None = None
    done = 0
    with translated():
        for found in first_transaction(settings, _start(at)):
            if found.is_packed:
                text = "Debezium has stopped inside a transaction that the log holds compressed"
                raise CdcError(debezium.TRANSACTION_MISSING, text)
            last = found
            if found.event >= events:
                # Rows are left out of the first event that has any.
                done = found.before + min(rows, found.rows)
                if found.rows or not rows:
                    break
            else:
                done = found.before + found.rows
    if last is None:
        raise CdcError(debezium.TRANSACTION_MISSING, "the log ends before the transaction of the offset")
    return TransactionPart(last.gtid, last.begun_us, done) if done else None


def _skipped(
    settings: MySqlSettings, position: StoredPosition, part: TransactionPart
) -> tuple[CountedEvent, dict[str, int]]:
    """Returns an event of the transaction, and the events and rows that Debezium leaves out of it."""
    for found in first_transaction(settings, _start(position)):
        if found.gtid != part.gtid or found.is_packed:
            break
        if found.before + found.rows >= part.rows:
            return found, {EVENTS: found.event, ROWS: part.rows - found.before}
    raise CdcError(debezium.TRANSACTION_MISSING, "the log does not hold the transaction, or holds it compressed")


def _start(position: StoredPosition) -> Start:
    """Where the server begins to send, as it does for a task."""
    gtids = position.executed()
    if not position.has_gtids or (not gtids and position.place.file):
        return FileStart(position.place.file, position.place.position)
    return MariaDbStart(gtids) if isinstance(gtids, MariaDbPosition) else GtidStart(gtids)
