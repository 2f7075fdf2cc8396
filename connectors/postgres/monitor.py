"""What a source task tells of itself, and the warning before the server invalidates its slot."""

from __future__ import annotations

import logging
from typing import Any

from cdcworker.connectors.api import TaskContext
from cdcworker.connectors.postgres import slot as slots
from cdcworker.connectors.postgres.session import Session
from cdcworker.connectors.postgres.wire import parse_lsn
from cdcworker.schemas.change import JsonObject

log = logging.getLogger(__name__)

MONITOR_S = 30.0


class Monitor:
    """Numbers for the worker, and a warning before the server invalidates the slot."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._events = 0
        self._slot_at = 0.0
        self._slot: dict[str, Any] = {}
        self._written = 0
        """Where the server's log ended at the last look."""

    def count(self, events: int) -> None:
        self._events += events

    def tick(self, session: Session, now: float) -> None:
        if now - self._slot_at >= MONITOR_S:
            self._slot_at = now
            self._look_at_slot(session)
        report: JsonObject = {"events": self._events, "safe_lsn": session.position.safe_lsn, **self._slot}
        if session.stream:
            report["confirmed_lsn"] = session.stream.confirmed
            report["lag_bytes"] = max(0, self._written - session.stream.confirmed)
        if session.snapshot:
            progress = session.snapshot.progress
            report["snapshot_rows"] = progress.rows
            report["snapshot_tables_left"] = len(progress.todo)
            report["snapshot_tables_loaded"] = len(progress.loaded)
            report["snapshot_waits_for"] = session.snapshot.waits_for
        self._context.report(report)

    def _look_at_slot(self, session: Session) -> None:
        found = slots.find_slot(session.catalog, session.position.slot)
        if found is None:
            return
        row = session.catalog.execute("select pg_current_wal_lsn()::text").fetchone()
        self._written = parse_lsn(row[0]) if row and row[0] else 0
        retained = max(0, self._written - (found.restart_lsn or 0))
        self._slot = {"slot_retained_bytes": retained, "slot_wal_status": found.wal_status}
        if found.safe_wal_size is not None:
            self._slot["slot_safe_wal_bytes"] = found.safe_wal_size
        if found.wal_status not in (None, "reserved"):
            log.warning(
                "slot is in danger slot=%s wal_status=%s retained_bytes=%d safe_bytes=%s",
                *(found.name, found.wal_status, retained, found.safe_wal_size),
            )
