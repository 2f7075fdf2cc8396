"""Debezium's offsets as our positions, and the way back.

Debezium stores with each record the LSN of its event, and that of the last commit before it. Of the transaction behind that commit
it has handed on what comes up to the event. We store how many messages of the transaction were handed on, so both ways need a look
at the transaction itself, which the slot still holds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

import psycopg
from cdcworker.connectors.api.source import TranslatedOffset
from cdcworker.connectors.capture import debezium_offset as debezium
from cdcworker.connectors.postgres import errors as e
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.errors import translate
from cdcworker.connectors.postgres.pgoutput import format_lsn
from cdcworker.connectors.postgres.position import StoredPosition, progress_of
from cdcworker.connectors.postgres.server import slot as slots
from cdcworker.connectors.postgres.server.replication_slot import ReplicationSlot
from cdcworker.connectors.postgres.server.slot_messages import SlotMessage, slot_reader
from cdcworker.connectors.postgres.transport.connection import APPLICATION, connect
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

LSN: Final = "lsn"
PROCESSED: Final = "lsn_proc"
COMMIT: Final = "lsn_commit"
EVENTS: Final = "lsn_events_processed"
TYPE: Final = "messageType"
_TYPES: Final = {ord("I"): "INSERT", ord("U"): "UPDATE", ord("D"): "DELETE", ord("T"): "TRUNCATE", ord("M"): "MESSAGE"}
_SHARED: Final = (
    "several changes have the LSN at which Debezium stopped, and its offset does not say how many it has written: those behind the "
    "first come again"
)
_CUT: Final = (
    "several changes have the LSN at which the connector stopped, and Debezium before 3.7 does not count them: those that are written "
    "already come again"
)


def is_debezium(offset: Mapping[str, Any]) -> bool:
    return LSN in offset and "v" not in offset


def to_position(settings: PostgresSettings, offset: Mapping[str, Any]) -> TranslatedOffset:
    """Returns the position from which a task goes on where Debezium has stopped. Raises CdcError; the slot must be free."""
    debezium.require_streaming(offset)
    event = debezium.number(offset, LSN)
    if event is None:
        raise CdcError(debezium.OFFSET_UNFIT, "lsn of the offset is missing", where={"member": LSN})
    marks = (debezium.number(offset, COMMIT), debezium.number(offset, PROCESSED))
    base = next((lsn for lsn in marks if lsn), event)
    try:
        with connect(settings, f"{APPLICATION}:position") as catalog:
            confirmed = confirmed_lsn(settings, slots.when_released(catalog, settings.slot))
            with slot_reader(settings, catalog) as reader:
                begun = _is_begun(offset)
                part, notes = _part(reader.messages(base), event, _events(offset)) if begun else (None, [])
                identity = reader.identity
    except psycopg.Error as exc:
        raise translate(exc, {"slot": settings.slot}) from exc
    if confirmed > base:
        log.info("slot is confirmed behind the offset slot=%s lsn=%s", settings.slot, format_lsn(confirmed))
    position = StoredPosition(
        identity.system_id,
        identity.timeline,
        settings.slot,
        mark_lsn=0,
        # A commit whose record begins before `base` has been handed on; the next one's may begin just there.
        commit_lsn=base - 1,
        safe_lsn=max(base, confirmed),
        ts_ms=(debezium.number(offset, "ts_usec") or 0) // 1000,
        part=part,
        orders=debezium.order_counts(offset) if part else None,
        timestamptz=settings.modes.timestamptz,
        key_nan=settings.modes.key_nan,
    )
    return TranslatedOffset(position.to_json(), (*debezium.notes_of(offset), *notes))


def to_offset(settings: PostgresSettings, position: StoredPosition) -> TranslatedOffset:
    """Returns the offset from which Debezium goes on. Raises CdcError; the slot must be free where a transaction was handed on in
    part."""
    if position.snapshot and progress_of(position.snapshot).loads:
        raise CdcError(debezium.SNAPSHOT_UNFINISHED, "the connector has not ended its snapshots")
    safe = position.safe_lsn
    # As after a snapshot: Debezium hands on whatever the slot sends from there. With the LSN of a commit it would look for the message
    # there, and before 3.7 it leaves out a transaction under way of which a change lies just behind the commit.
    offset: JsonObject = {LSN: safe, "ts_usec": position.ts_ms * 1000}
    if position.part is None:
        return TranslatedOffset(offset)
    try:
        with connect(settings, f"{APPLICATION}:position") as catalog, slot_reader(settings, catalog) as reader:
            last = _last_whole(reader.messages(safe), *position.part)
    except psycopg.Error as exc:
        raise translate(exc, {"slot": settings.slot}) from exc
    if last is None:
        return TranslatedOffset(offset, (_CUT,))
    found, events = last
    offset |= {
        LSN: found.lsn,
        PROCESSED: found.lsn,
        COMMIT: safe,
        TYPE: _TYPES[found.kind],
        "txId": found.begin.xid,
        EVENTS: events,
    }
    offset = debezium.with_orders(offset, f"{found.begin.xid}:{found.begin.final_lsn}", position.orders)
    return TranslatedOffset(offset, (_CUT,) if found.number < position.part[1] else ())


def confirmed_lsn(settings: PostgresSettings, slot: ReplicationSlot | None) -> int:
    """Returns up to where a free slot was confirmed. CdcError for one that is missing, lost, read by somebody else or of another kind."""
    where: dict[str, str | int] = {"slot": settings.slot}
    if slot is None:
        raise CdcError(e.SLOT_MISSING, "the replication slot does not exist", where=where)
    slots.check_kind(slot, settings.dbname)
    if slot.wal_status == "lost" or slot.confirmed_lsn is None:
        raise CdcError(e.SLOT_LOST, "the slot has lost WAL that it needed", where=where)
    if slot.active_pid is not None:
        text = "another program, connector or cluster reads the slot"
        raise CdcError(e.SLOT_IN_USE, text, where={**where, "pid": slot.active_pid})
    return slot.confirmed_lsn


def _events(offset: Mapping[str, Any]) -> int:
    """How many events at the offset's LSN were handed on; 0 where that is not said."""
    return debezium.number(offset, EVENTS) or 0


def _is_begun(offset: Mapping[str, Any]) -> bool:
    """Whether the record of the offset is one of inside a transaction. The first transaction behind a snapshot has no commit before
    it, and an offset of the snapshot itself has no kind of message either."""
    kind = offset.get(TYPE)
    return kind not in ("BEGIN", "COMMIT") and (kind or offset.get(COMMIT)) is not None


def _part(messages: Iterable[SlotMessage], lsn: int, events: int) -> tuple[tuple[int, int] | None, list[str]]:
    """Returns the commit LSN of the transaction whose event is at `lsn`, and how many of its messages were handed on; None where the
    next transaction has no such event. Without `events` only the first event there is taken as handed on."""
    found: SlotMessage | None = None
    at_lsn = 0
    for message in messages:
        if not message.is_commit and message.lsn == lsn:
            at_lsn += 1
            if at_lsn <= max(events, 1):
                found = message
                continue
            return (message.begin.final_lsn, message.number - 1), [] if events else [_SHARED]
        if found or message.is_commit:
            break
    return ((found.begin.final_lsn, found.number) if found else None), []


def _last_whole(messages: Iterable[SlotMessage], commit_lsn: int, count: int) -> tuple[SlotMessage, int] | None:
    """Returns the last of a transaction's first messages, so many, behind which another LSN follows, and how many there are at its
    LSN; None where there is none, since the first LSN goes on behind them."""
    last: SlotMessage | None = None
    found: tuple[SlotMessage, int] | None = None
    at_lsn = 0
    for message in messages:
        if message.begin.final_lsn != commit_lsn:
            continue
        if last and message.lsn != last.lsn:
            found, at_lsn = (last, at_lsn), 0
        if last and last.number == count:
            return found
        last, at_lsn = message, at_lsn + 1
    where = {"commit_lsn": format_lsn(commit_lsn)}
    raise CdcError(debezium.TRANSACTION_MISSING, "the slot does not hold the transaction", where=where)
