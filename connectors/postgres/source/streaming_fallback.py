"""The fallback to a stream without open transactions: where one cannot be kept here, the server keeps it until it commits. The
fallback ends when that transaction has been read."""

from __future__ import annotations

import logging
import time

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.capture.stream.transaction_spool import NotStreamable
from cdcworker.connectors.postgres.doctor import position_checks
from cdcworker.connectors.postgres.pgoutput import format_lsn, parse_lsn
from cdcworker.connectors.postgres.server import slot as slots
from cdcworker.connectors.postgres.snapshot.tx_snapshot import TransactionSnapshot
from cdcworker.connectors.postgres.source import binary_fallback
from cdcworker.connectors.postgres.source.session import Session
from cdcworker.connectors.postgres.transport.server_functions import END_OF_LOG, SNAPSHOT
from cdcworker.schemas.failpoints import hit

log = logging.getLogger(__name__)

LOOK_S = 10.0
"""How often the server is asked whether the transaction that did not fit has ended."""


def fall_back(session: Session, context: TaskContext, cause: NotStreamable) -> None:
    """Reopens the stream so that no transaction is sent before it commits. Called between two transactions."""
    log.warning("large transactions are left to the server for now xid=%d reason=%s", cause.xid, cause)
    assert session.state
    session.state.fall_back(cause.xid)
    reconnect(session, context, streaming=False)


def recover(session: Session, context: TaskContext) -> None:
    """Reopens the stream as configured once the transaction that did not fit has been handed on, or was rolled back. Called
    between two transactions."""
    assert session.state
    fallback, now = session.state.fallback, time.monotonic()
    if fallback is None:
        return
    if not fallback.until:
        if now - fallback.looked_at < LOOK_S:
            return
        fallback.looked_at = now
        row = session.catalog.execute(f"select {SNAPSHOT}").fetchone()
        if row is None or not TransactionSnapshot.parse(row[0]).sees(fallback.xid):
            return
        row = session.catalog.execute(f"select {END_OF_LOG}").fetchone()
        fallback.until = parse_lsn(row[0]) if row else 0
    if session.position.safe_lsn >= fallback.until:
        session.state.recover()
        binary_fallback.read_text(context)
        reconnect(session, context, streaming=session.settings.raw["transaction.streaming"])


def reconnect(session: Session, context: TaskContext, *, streaming: bool) -> None:
    """Opens the stream again at the present position; no transaction may be half read."""
    settings, connections, old = session.settings, session.connections, session.connections.stream
    assert old
    assert session.state
    old.close()
    session.state.streamed.close()
    slots.take_over(session.catalog, settings.slot, context.stopping)
    stream = connections.connect_stream()
    if connections.readers:
        stream.watch(connections.readers.signal)
    position_checks.check(
        session.position,
        stream.identify(),
        slots.find_slot(session.catalog, settings.slot),
        settings,
        stream.timeline_history,
    )
    position = session.position
    session.decoder.resume(position.commit_lsn, position.part, position.orders)
    hit("postgres.reconnected")
    # What was handed on may not be in Kafka yet: only what was confirmed before is. # INV-1
    lsn, confirmed = session.position.safe_lsn, old.confirmed
    stream.start(settings.slot, lsn, settings.publication, ahead=streaming, confirmed=confirmed)
    log.info("stream reopened slot=%s lsn=%s streaming=%s", settings.slot, format_lsn(lsn), streaming)
