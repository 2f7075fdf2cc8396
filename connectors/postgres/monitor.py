"""What a source task tells of itself, and the warning before the server invalidates its slot."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from cdcworker.connectors.api import TaskContext
from cdcworker.connectors.postgres import failover
from cdcworker.connectors.postgres import slot as slots
from cdcworker.connectors.postgres.jobs import Jobs
from cdcworker.connectors.postgres.session import Session
from cdcworker.connectors.postgres.standby import WRITTEN
from cdcworker.connectors.postgres.wire import parse_lsn
from cdcworker.schemas.change import JsonObject

log = logging.getLogger(__name__)

TELL_S = 0.9
MONITOR_S = 30.0
FORECAST_S_MIN = 3600.0
"""A slot that will be lost within this time is worth a warning."""


class Monitor:
    """Numbers for the worker, and a warning before the server invalidates the slot."""

    def __init__(self, context: TaskContext, jobs: Jobs | None = None, more: Callable[[], JsonObject] = dict) -> None:
        """`more`: what goes with the numbers."""
        self._context = context
        self._jobs = jobs or Jobs(context.jobs)
        self._more = more
        self._events = 0
        self._told_at = self._slot_at = float("-inf")
        self._slot: dict[str, Any] = {}
        self._written = 0
        """Where the server's log ended at the last look."""
        self._looked_at = 0.0
        self._restart: int | None = None

    def count(self, events: int) -> None:
        self._events += events

    def tick(self, session: Session, now: float) -> None:
        """After each batch: a source that is never idle tells its numbers too."""
        if now - self._told_at < TELL_S:
            return
        self._told_at = now
        if now - self._slot_at >= MONITOR_S:
            self._slot_at = now
            self._look_at_slot(session)
        report: JsonObject = {
            "events": self._events,
            "safe_lsn": session.position.safe_lsn,
            **self._slot,
            **self._more(),
        }
        if session.stream:
            report["confirmed_lsn"] = session.stream.confirmed
            report["lag_bytes"] = max(0, self._written - session.stream.confirmed)
        if session.snapshot:
            progress = session.snapshot.progress
            report["snapshot_rows"] = progress.rows
            # Rows of moved keys are read again where the table has been loaded.
            report["snapshot_tables_left"] = sum(len(load.tables) for load in progress.loads if load.origin != "moved")
            report["snapshot_tables_loaded"] = len(progress.loaded)
            report["jobs"] = jobs = self._jobs.report(progress)
            left = [job["eta_s"] for job in jobs if job.get("eta_s") is not None]
            report["snapshot_left_s"] = max(left, default=None)
            report["snapshot_waits_for"] = session.snapshot.waits_for
        if session.identities_set:
            report["replica_identities_set"] = session.identities_set
        report["quarantine"] = session.quarantine.report() if session.quarantine else []
        report["tables_held"] = len(report["quarantine"])
        self._context.report(report)

    def _look_at_slot(self, session: Session) -> None:
        found = slots.find_slot(session.catalog, session.position.slot)
        if found is None:
            return
        row = session.catalog.execute(f"select {WRITTEN}").fetchone()
        written, now = parse_lsn(row[0]) if row and row[0] else 0, time.monotonic()
        retained = max(0, written - (found.restart_lsn or 0))
        self._slot = {"slot_retained_bytes": retained, "slot_wal_status": found.wal_status}
        if found.failover is not None:
            self._slot["slot_failover"] = found.failover
            self._slot["slot_failover_ready"] = int(failover.is_ready(session.catalog, found))
        lost_in = None
        if found.safe_wal_size is not None:
            self._slot["slot_safe_wal_bytes"] = found.safe_wal_size
            lost_in = self._forecast(found.restart_lsn, found.safe_wal_size, written, now)
            if lost_in is not None:
                self._slot["slot_lost_in_s"] = round(lost_in)
        self._written, self._looked_at, self._restart = written, now, found.restart_lsn
        bound = session.settings.raw["slot.retained.warn.bytes"]
        in_danger = found.wal_status not in (None, "reserved") or (lost_in is not None and lost_in < FORECAST_S_MIN)
        if in_danger or 0 < bound < retained:
            log.warning(
                "slot is in danger slot=%s wal_status=%s retained_bytes=%d safe_bytes=%s lost_in_s=%s",
                *(found.name, found.wal_status, retained, found.safe_wal_size),
                "unknown" if lost_in is None else round(lost_in),
            )

    def _forecast(self, restart: int | None, safe: int, written: int, now: float) -> float | None:
        """Seconds until the slot is lost, if the log grows as it has since the last look and the slot stays behind."""
        grown, moved = written - self._written, (restart or 0) - (self._restart or 0)
        if not self._written or now <= self._looked_at or grown <= max(moved, 0):
            return None
        return max(0, safe) * (now - self._looked_at) / (grown - moved)
