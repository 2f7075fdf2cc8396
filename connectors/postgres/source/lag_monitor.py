"""The numbers that a source task reports, and the warning before the server invalidates its slot."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.capture.snapshot.jobs import SnapshotJobs
from cdcworker.connectors.capture.snapshot.report import snapshot_numbers
from cdcworker.connectors.postgres.server import slot as slots
from cdcworker.connectors.postgres.server.slot_lag import LogLook, reaches, slot_numbers, written_lsn
from cdcworker.connectors.postgres.source.session import Session
from cdcworker.schemas.change import JsonObject

log = logging.getLogger(__name__)

TELL_S = 0.9
MONITOR_S = 30.0
FORECAST_S_MIN = 3600.0
"""A slot that will be lost within this time is worth a warning."""


class LagMonitor:
    """Reports the task's numbers to the worker, and warns before the server invalidates the slot."""

    def __init__(
        self, context: TaskContext, jobs: SnapshotJobs | None = None, more: Callable[[], JsonObject] = dict
    ) -> None:
        """`more` returns further numbers."""
        self._context = context
        self._jobs = jobs or SnapshotJobs(context.jobs)
        self._more = more
        self.events = 0
        """How many changes the task has handed on."""
        self.due_at = float("-inf")
        """When the next numbers are due, on the monotonic clock."""
        self._slot_at = float("-inf")
        self._slot: dict[str, Any] = {}
        self._look = LogLook()
        """The last look at the slot."""
        self._log_end = (0, 0)
        """Where the server's log ended at the last tick, and when that was asked, in microseconds of the wall clock."""

    def caught_up_us(self, safe_lsn: int) -> int:
        """Returns when nothing was written that lies behind this position, in microseconds; 0 where that is not known. A
        server to which nobody writes sends nothing that would tell it."""
        written, at_us = self._log_end
        return at_us if written and reaches(safe_lsn, written) else 0

    def tick(self, session: Session, now: float) -> None:
        """Called after a batch: a source that is never idle tells its numbers too."""
        if now < self.due_at:
            return
        self.due_at = now + TELL_S
        if now - self._slot_at >= MONITOR_S:
            self._slot_at = now
            self._look_at_slot(session)
        report: JsonObject = {
            "events": self.events,
            "safe_lsn": session.position.safe_lsn,
            **self._slot,
            **self._more(),
        }
        if stream := session.connections.stream:
            asked_us = time.time_ns() // 1000
            # At each report: beside an older end of the log, what was confirmed since would be no lag at all.
            self._log_end = (written_lsn(session.catalog), asked_us)
            report["confirmed_lsn"] = stream.confirmed
            report["lag_bytes"] = max(0, self._log_end[0] - stream.confirmed)
        if session.snapshot:
            report |= snapshot_numbers(session.snapshot, self._jobs)
        scope = session.scope
        if scope.identities_set:
            report["replica_identities_set"] = scope.identities_set
        report["quarantine"] = scope.quarantine.report() if scope.quarantine else []
        report["tables_held"] = len(report["quarantine"])
        self._context.report(report)

    def _look_at_slot(self, session: Session) -> None:
        found = slots.find_slot(session.catalog, session.position.slot)
        if found is None:
            return
        self._slot, self._look = slot_numbers(session.catalog, found, self._look, time.monotonic())
        retained, lost_in = self._slot["slot_retained_bytes"], self._slot["slot_lost_in_s"]
        bound = session.settings.raw["slot.retained.warn.bytes"]
        in_danger = found.wal_status not in (None, "reserved") or (lost_in is not None and lost_in < FORECAST_S_MIN)
        if in_danger or 0 < bound < retained:
            log.warning(
                "slot is in danger slot=%s wal_status=%s retained_bytes=%d safe_bytes=%s lost_in_s=%s",
                *(found.name, found.wal_status, retained, found.safe_wal_size),
                "unknown" if lost_in is None else lost_in,
            )
