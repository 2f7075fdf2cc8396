"""Without streaming for a while: the server keeps what cannot be taken ahead of its end, until that has been read."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdcworker.connectors.api import TaskContext
from cdcworker.connectors.postgres import safety, turning
from cdcworker.connectors.postgres import slot as slots
from cdcworker.connectors.postgres.socket_stream import connect_stream
from cdcworker.connectors.postgres.spool import NotAhead
from cdcworker.connectors.postgres.standby import END_OF_LOG, SNAPSHOT
from cdcworker.connectors.postgres.visibility import TxSnapshot
from cdcworker.connectors.postgres.wire import format_lsn, parse_lsn
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    from cdcworker.connectors.postgres.session import Session

log = logging.getLogger(__name__)

LOOK_S = 10.0
"""How often the server is asked whether the transaction that did not fit has ended."""


@dataclass(slots=True)
class Fallback:
    """The transaction that did not fit; `until`: the log's end when it was seen to have ended."""

    xid: int
    until: int = 0
    looked_at: float = 0.0


def fall_back(session: Session, context: TaskContext, application: str, cause: NotAhead) -> None:
    """Between two transactions: read on without any that is sent ahead."""
    log.warning("large transactions are left to the server for now xid=%d reason=%s", cause.xid, cause)
    session.fallback = Fallback(cause.xid)
    reconnect(session, context, application, ahead=False)


def recover(session: Session, context: TaskContext, application: str) -> None:
    """Between two transactions: read as before once what did not fit has been handed on, or was rolled back."""
    fallback, now = session.fallback, time.monotonic()
    if fallback is None:
        return
    if not fallback.until:
        if now - fallback.looked_at < LOOK_S:
            return
        fallback.looked_at = now
        row = session.catalog.execute(f"select {SNAPSHOT}").fetchone()
        if row is None or not TxSnapshot.parse(row[0]).sees(fallback.xid):
            return
        row = session.catalog.execute(f"select {END_OF_LOG}").fetchone()
        fallback.until = parse_lsn(row[0]) if row else 0
    if session.position.safe_lsn >= fallback.until:
        session.fallback = None
        turning.leave(session, context)
        reconnect(session, context, application, ahead=session.settings.raw["transaction.streaming"])


def reconnect(session: Session, context: TaskContext, application: str, *, ahead: bool) -> None:
    """Go on from where the stream stands; nothing of it may be under way."""
    settings, old, changes = session.settings, session.stream, session.changes
    assert old
    assert changes
    assert session.ahead
    old.close()
    session.ahead.close()
    slots.take_over(session.catalog, settings.slot, context.stopping)
    stream = connect_stream(session, application)
    session.stream = stream
    if session.readers:
        stream.watch(session.readers.signal)
    safety.check(
        session.position,
        stream.identify(),
        slots.find_slot(session.catalog, settings.slot),
        settings,
        stream.timeline_history,
    )
    changes.resume_lsn, changes.resume_part = session.position.commit_lsn, session.position.part
    if changes.orders:
        changes.orders.stored = session.position.orders
    hit("postgres.reconnected")
    # What was handed on may not be in Kafka yet: only what was confirmed before is. # INV-1
    lsn, confirmed = session.position.safe_lsn, old.confirmed
    stream.start(settings.slot, lsn, settings.publication, ahead=ahead, confirmed=confirmed)
    log.info("streaming again slot=%s lsn=%s ahead=%s", settings.slot, format_lsn(lsn), ahead)
