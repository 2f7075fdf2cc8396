"""Maintenance of a task's tables, in a thread of its own, while batches continue."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.sink_engine.maintenance_metrics import MAINTENANCE_FAILED, MaintenanceMetrics
from cdcworker.connectors.sink_engine.metrics import SinkMetrics
from cdcworker.connectors.snapshot_jobs import MAINTENANCE
from cdcworker.connectors.warehouses.kind import TableMaintenance
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CODES, CdcError
from cdcworker.schemas.threads import SupervisedThread

log = logging.getLogger(__name__)

POLL_S: Final = 0.5
END_S_MAX: Final = 5.0
"""How long a stop waits for the step that runs. Files that it has already written are orphans then, which the next
maintenance removes."""


class MaintenanceThread:
    """Runs maintenance again and again, from a task's first batch on, and when it is asked for, while the context lasts. What
    goes wrong is told by metrics and the log: batches go on."""

    def __init__(self, maintenance: TableMaintenance | None, metrics: SinkMetrics, context: TaskContext) -> None:
        """`maintenance` None: there is nothing to run."""
        self._maintenance = maintenance
        self._metrics = metrics
        self._context = context
        self._jobs = MaintenanceJobs(context.jobs, metrics.maintenance)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._maintenance is not None:
            self._thread = SupervisedThread(self._work, self._maintenance, name="maintenance")
            self._thread.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(END_S_MAX)

    def _stopping(self) -> bool:
        return self._ended.is_set() or self._context.stopping()

    def _work(self, maintenance: TableMaintenance) -> None:
        due = time.monotonic() + maintenance.interval_s
        while not self._ended.wait(POLL_S) and not self._context.stopping():
            asked = self._jobs.pending()
            is_due = bool(maintenance.interval_s) and time.monotonic() >= due and bool(self._metrics.batches)
            if not asked and not is_due:
                continue
            if self._run(maintenance, asked):
                due = time.monotonic() + maintenance.interval_s

    def _run(self, maintenance: TableMaintenance, asked: Sequence[str]) -> bool:
        """Returns whether there was a run: one that is due waits for the maintenance window."""
        began_ms = time.time_ns() // 1_000_000
        try:
            done = maintenance.maintain(self._stopping, at_once=bool(asked))
        except Exception as exc:  # noqa: BLE001 - whatever it is, the batches go on
            if self._stopping():
                return True
            code = exc.code if isinstance(exc, CdcError) else MAINTENANCE_FAILED
            self._metrics.maintenance.failed(code)
            log.warning("maintenance failed code=%s error=%s", code, type(exc).__name__)
            self._jobs.ended(asked, began_ms, code)
            return True
        if done is None:
            return False
        self._metrics.maintenance.add(done)
        log.info(
            "maintenance took_s=%s rewritten=%s expired_snapshots=%s removed_files=%s conflicts=%s failed=%d",
            *(done[name] for name in ("took_s", "rewritten", "expired_snapshots", "removed_files", "conflicts")),
            len(done["errors"]),
        )
        if done["whole"]:
            self._jobs.ended(asked, began_ms, next(iter(done["errors"].values()), ""))
        return True


class MaintenanceJobs:
    """Runs that somebody has asked for. How far each has come is reported among the task's metrics."""

    def __init__(self, jobs: Callable[[], Sequence[JsonObject]], metrics: MaintenanceMetrics) -> None:
        self._jobs = jobs
        self._metrics = metrics

    def pending(self) -> list[str]:
        """Returns the ids of the jobs that are to be run now."""
        requested = [job for job in self._jobs() if job["kind"] == MAINTENANCE]
        by_id = {job["id"]: job for job in self._metrics.jobs}
        for job in requested:
            state = "CANCELLED" if job["wanted"] == "CANCELLED" else "PENDING"
            by_id.setdefault(job["id"], {"id": job["id"], "kind": MAINTENANCE, "state": state})
            if by_id[job["id"]]["state"] == "PENDING":
                by_id[job["id"]] = {**by_id[job["id"]], "state": state}
        # The end of jobs that are no longer requested is recorded: they are forgotten here.
        self._metrics.jobs = [by_id[job["id"]] for job in requested]
        return [job["id"] for job in self._metrics.jobs if job["state"] == "PENDING"]

    def ended(self, ids: Sequence[str], began_ms: int, code: str) -> None:
        """Notes how these have ended; `code` is that of an error, or empty."""
        now = time.time_ns() // 1_000_000
        error = {"code": code, "message": CODES[code].title} if code in CODES else None
        end = {"state": "FAILED" if code else "COMPLETED", "started_ms": began_ms, "ended_ms": now, "error": error}
        self._metrics.jobs = [{**job, **end} if job["id"] in ids else job for job in self._metrics.jobs]
