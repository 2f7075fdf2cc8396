"""Collects what the screen shows in a thread: the cluster by REST, the tables by SQL, the topics' end offsets."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cdcworker.schemas.threads import SupervisedThread
from cdcworker.worker.quickstart.catch_up import consumer, end_offsets
from cdcworker.worker.quickstart.cluster_client import ClusterClient
from cdcworker.worker.quickstart.connectors import Endpoints
from cdcworker.worker.quickstart.proof import count_rows
from cdcworker.worker.quickstart.shop import SOURCE
from cdcworker.worker.quickstart.workload import TABLES

if TYPE_CHECKING:
    from confluent_kafka import Consumer

POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class ShownTask:
    """One task as the screen shows it."""

    connector: str
    number: int
    state: str
    worker: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    def number_of(self, name: str) -> float | None:
        value = self.metrics.get(name)
        return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The state of everything at one time; a part that could not be read is empty."""

    leader: str = ""
    workers: tuple[Mapping[str, Any], ...] = ()
    tasks: tuple[ShownTask, ...] = ()
    source_rows: Mapping[str, int | None] = field(default_factory=dict)
    warehouse_rows: Mapping[str, int | None] = field(default_factory=dict)
    in_topics: int = 0
    """The sum of the data topics' end offsets: what consumers can read."""

    @property
    def events_per_s(self) -> float:
        return sum(task.number_of("events_per_s") or 0.0 for task in self.tasks if task.connector == SOURCE)

    @property
    def events(self) -> int:
        """Records that source tasks have written to Kafka since they started."""
        return int(sum(task.number_of("records") or 0 for task in self.tasks if task.connector == SOURCE))

    @property
    def warehouse_total(self) -> int:
        return sum(count or 0 for count in self.warehouse_rows.values())

    def lag_s(self, connector: str) -> float | None:
        lags = [
            lag for task in self.tasks if task.connector == connector and (lag := task.number_of("lag_s")) is not None
        ]
        return max(lags, default=None)

    def all_run(self, connectors: Sequence[str], without: str = "") -> bool:
        """Returns whether each connector has tasks, all of them running on workers other than `without`."""
        by_name = {name: [task for task in self.tasks if task.connector == name] for name in connectors}
        running = all(
            task.state == "RUNNING" and task.worker != without for tasks in by_name.values() for task in tasks
        )
        return running and all(by_name.values())

    def failed(self) -> ShownTask | None:
        return next((task for task in self.tasks if task.state == "FAILED"), None)


class ClusterMonitor(SupervisedThread):
    """Keeps `snapshot` up to date until `close()`."""

    def __init__(self, endpoints: Endpoints) -> None:
        super().__init__(name="monitor")
        self.snapshot = ClusterSnapshot()
        self._endpoints = endpoints
        self._workers = ClusterClient(endpoints.workers)
        self._stop_requested = threading.Event()
        self._client: Consumer

    def close(self) -> None:
        self._stop_requested.set()
        if self.ident is not None:
            self.join(15)
        self._workers.close()

    def serve(self) -> None:
        with consumer(self._endpoints.kafka) as self._client:
            while not self._stop_requested.is_set():
                began = time.monotonic()
                self.snapshot = self._take_snapshot()
                self._stop_requested.wait(max(0.05, POLL_S - (time.monotonic() - began)))

    def _take_snapshot(self) -> ClusterSnapshot:
        body = self._workers.cluster() or {}
        return ClusterSnapshot(
            leader=(body.get("leader") or {}).get("id", ""),
            workers=tuple(body.get("workers", ())),
            tasks=tuple(task_of(entry) for entry in body.get("tasks", ())),
            source_rows=self._endpoints.shop.counts(),
            warehouse_rows=self._warehouse_rows(),
            in_topics=self._offsets(),
        )

    def _offsets(self) -> int:
        """Returns the sum of end offsets; the consumer is created in this thread and lives as long as it."""
        from confluent_kafka import KafkaException

        try:
            return end_offsets(self._client, self._endpoints.topics)
        except KafkaException:
            return self.snapshot.in_topics

    def _warehouse_rows(self) -> dict[str, int | None]:
        import psycopg

        try:
            return count_rows(self._endpoints.warehouse, self._endpoints.shop.schema, TABLES)
        except psycopg.Error:
            return {}


def task_of(entry: Mapping[str, Any]) -> ShownTask:
    error = entry.get("error") or {}
    text = error.get("message", "") if isinstance(error, Mapping) else str(error)
    return ShownTask(
        connector=str(entry.get("connector", "")),
        number=int(entry.get("task", 0)),
        state=str(entry.get("state", "")),
        worker=str(entry.get("worker") or ""),
        metrics=entry.get("metrics") or {},
        error=text,
    )
