"""Positions by their meaning: the earliest that the slot still has, now, a time, an LSN, or behind the next transaction.

The slot is looked at, and nothing of it is confirmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

import psycopg
from cdcworker.connectors.api.source import EARLIEST, NOW, TranslatedOffset
from cdcworker.connectors.capture.moved_positions import TransactionSum, changes_text
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.doctor.debezium_offsets import confirmed_lsn
from cdcworker.connectors.postgres.errors import translate
from cdcworker.connectors.postgres.pgoutput import format_lsn
from cdcworker.connectors.postgres.position import StoredPosition, progress_of
from cdcworker.connectors.postgres.server import slot as slots
from cdcworker.connectors.postgres.server.slot_lag import written_lsn
from cdcworker.connectors.postgres.server.slot_messages import SlotMessage, slot_reader
from cdcworker.connectors.postgres.transport.connection import APPLICATION, connect
from cdcworker.schemas.errors import CdcError, declare

NOT_THERE: Final = declare(
    "postgres.place_not_there",
    "config",
    "The slot does not lead to this place",
    "Take `earliest`, `now`, or an LSN between them; what lies before `earliest` can only be read again by a snapshot.",
)
SNAPSHOT_RUNS: Final = declare(
    "postgres.place_in_snapshot",
    "config",
    "A snapshot that has not ended keeps the place in the stream",
    "Let the connector run until its snapshots have ended, or cancel them, and stop it again.",
)


@dataclass(frozen=True, slots=True)
class LogTime:
    """A time in microseconds since 1970, as a place of the log."""

    us: int


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A transaction that the slot holds: the LSN and the time of its commit, and how many changes it has beside marks of our own."""

    commit_lsn: int
    commit_us: int
    count: int


def moved(settings: PostgresSettings, stored: StoredPosition, to: str | int | LogTime) -> TranslatedOffset:
    """Returns the position for one of `MEANINGS`, an LSN or a time, and in sentences what is missed and what comes again. Raises
    CdcError; the slot must be free."""
    if stored.snapshot and progress_of(stored.snapshot).loads:
        raise CdcError(SNAPSHOT_RUNS, "the connector has not ended its snapshots")
    try:
        with connect(settings, f"{APPLICATION}:position") as catalog:
            first, last = confirmed_lsn(settings, slots.when_released(catalog, settings.slot)), written_lsn(catalog)
            place = first if to == EARLIEST else last if to == NOW else to
            if isinstance(place, int):
                _require_held(place, first, last)
            with slot_reader(settings, catalog) as reader:
                slots.verify_server(stored, reader.identity, settings)
                held = _transactions(reader.messages(first))
                return _behind_the_next(stored, held) if isinstance(place, str) else _at(place, last, stored, held)
    except psycopg.Error as exc:
        raise translate(exc, {"slot": settings.slot}) from exc


def _require_held(lsn: int, first: int, last: int) -> None:
    if not first <= lsn <= last:
        where = {"lsn": format_lsn(lsn), "earliest": format_lsn(first), "now": format_lsn(last)}
        raise CdcError(NOT_THERE, "the slot does not have this LSN", where=where)


def _transactions(messages: Iterable[SlotMessage]) -> Iterator[_Waiting]:
    commits = (message for message in messages if message.is_commit)
    waiting = (
        _Waiting(message.begin.final_lsn, message.begin.commit_us, message.number - message.marks)
        for message in commits
    )
    return (one for one in waiting if one.count)


def _at(place: int | LogTime, end: int, stored: StoredPosition, held: Iterable[_Waiting]) -> TranslatedOffset:
    """Returns the position at an LSN, or before the first transaction that commits at a time or later; `end` is where the log ends."""
    lsn = place if isinstance(place, int) else None
    missed, again, is_first = TransactionSum("missed"), TransactionSum("handed on again"), True
    notes = []
    # The reader may hand on what has been committed since the look at the log's end, behind which it is still to come.
    for one in takewhile(lambda one: one.commit_lsn < end, held):
        if lsn is None and isinstance(place, LogTime) and one.commit_us >= place.us:
            lsn = one.commit_lsn
            notes += ["the slot holds no transaction of before this time"] if is_first else []
        is_first = False
        is_behind = lsn is None or one.commit_lsn < lsn
        if is_behind and one.commit_lsn > stored.commit_lsn:
            missed.add(format_lsn(one.commit_lsn), one.count)
        elif not is_behind and one.commit_lsn <= stored.commit_lsn:
            again.add(format_lsn(one.commit_lsn), one.count)
    if is_first and isinstance(place, LogTime):
        notes.append("the slot holds no transaction")
    lsn = end if lsn is None else lsn
    # A commit whose record begins before the LSN counts as handed on; the next one's may begin just there.
    found = replace(stored, commit_lsn=lsn - 1, safe_lsn=lsn, part=None, orders=None)
    notes += [text for text in (missed.text(), again.text()) if text] or ["nothing is missed, and nothing comes again"]
    if stored.part and stored.part[0] > found.commit_lsn:
        notes.append(f"{stored.part[1]} changes of the transaction at {format_lsn(stored.part[0])} are handed on again")
    return TranslatedOffset(found.to_json(), notes)


def _behind_the_next(stored: StoredPosition, held: Iterable[_Waiting]) -> TranslatedOffset:
    following = next((one for one in held if one.commit_lsn > stored.commit_lsn), None)
    if following is None:
        where = {"lsn": format_lsn(stored.commit_lsn)}
        raise CdcError(NOT_THERE, "no transaction waits behind the position", where=where)
    found = replace(stored, commit_lsn=following.commit_lsn, part=None, orders=None)
    count = changes_text(following.count)
    text = f"the transaction that commits at {format_lsn(following.commit_lsn)} is missed, with {count}"
    rest = [f"{stored.part[1]} of them were handed on already"] if stored.part else []
    return TranslatedOffset(found.to_json(), (text, *rest))
