"""Maintenance of a task's tables, in a thread beside its batches."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from cdcworker.connectors.sink_engine.metrics import SinkMetrics
from cdcworker.connectors.warehouses.kind import TableMaintenance
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import SupervisedThread

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
END_S_MAX: Final = 5.0
"""How long a stop waits for the step that runs. The files that it has written belong to no snapshot then."""


class MaintenanceThread:
    """Runs maintenance again and again, from a task's first batch on, while the context lasts. What goes wrong is told by
    metrics and the log: batches go on."""

    def __init__(
        self, maintenance: TableMaintenance | None, metrics: SinkMetrics, stopping: Callable[[], bool]
    ) -> None:
        """`maintenance` None: there is nothing to run."""
        self._maintenance = maintenance
        self._metrics = metrics
        self._task_stops = stopping
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
        return self._ended.is_set() or self._task_stops()

    def _work(self, maintenance: TableMaintenance) -> None:
        due = time.monotonic() + maintenance.interval_s
        while not self._ended.wait(LOOK_S) and not self._task_stops():
            if time.monotonic() < due or not self._metrics.batches:
                continue
            self._run(maintenance)
            due = time.monotonic() + maintenance.interval_s

    def _run(self, maintenance: TableMaintenance) -> None:
        try:
            done = maintenance.maintain(self._stopping)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the batches go on
            if not self._stopping():
                code = exc.code if isinstance(exc, CdcError) else ""
                self._metrics.maintenance.failed(code)
                log.warning("maintenance ended code=%s error=%s", code or "none", type(exc).__name__)
            return
        if done is not None:
            self._metrics.maintenance.add(done)
            log.info(
                "maintenance took_s=%s rewritten=%s expired_snapshots=%s removed_files=%s conflicts=%s failed=%d",
                *(done[name] for name in ("took_s", "rewritten", "expired_snapshots", "removed_files", "conflicts")),
                len(done["errors"]),
            )
