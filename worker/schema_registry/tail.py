"""Keeps a fold of the schema log for the schema registry and the REST API; it only reads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping

from cdcworker.coordinator.api import LogRecord
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import SchemaLog
from cdcworker.schemas.threads import SupervisedThread
from cdcworker.worker.http.errors import STARTING, STILL_STARTING

log = logging.getLogger(__name__)

POLL_S = 0.2
RETRY_S = 1.0
READ_TIMEOUT_S = 30.0


class SchemaTail(SupervisedThread):
    """Follows the schema log on a thread; `current()` returns what has been read so far.

    A log that cannot be read is read again after a pause. Anything else that happens is the thread's death: it is
    counted, makes the worker unhealthy, and the thread is started again.
    """

    def __init__(self, topic: str, kafka: Mapping[str, str], client_id: str) -> None:
        self._stop_requested = threading.Event()
        super().__init__(name="schema-tail", restart_until=self._stop_requested)
        self._topic = topic
        self._kafka = kafka
        self._client_id = client_id
        self._log: SchemaLog | None = None

    def current(self) -> SchemaLog:
        """Returns the fold of the schema log as far as it has been read. CdcError `rest.starting` until that was once to
        its end: before, it cannot tell which schemas exist."""
        if self._log is None:
            raise CdcError(STARTING, STILL_STARTING)
        return self._log

    def stop(self) -> None:
        self._stop_requested.set()
        if self.is_alive():
            self.join(5.0)

    def serve(self) -> None:
        while not self._stop_requested.is_set():
            try:
                self._follow()
            except CdcError as error:
                log.warning("schema log is read again error=%s", error)
                self._stop_requested.wait(RETRY_S)

    def _follow(self) -> None:
        from cdcworker.coordinator.kafka.compacted_log import KafkaCompactedLog

        reader = KafkaCompactedLog(self._kafka, self._topic, client_id=self._client_id)
        try:
            fold = SchemaLog()
            _apply(fold, reader.read_to_end(READ_TIMEOUT_S))
            self._log = fold
            self.works()
            while not self._stop_requested.is_set():
                _apply(fold, reader.poll(POLL_S))
        finally:
            reader.close()


def _apply(fold: SchemaLog, records: Iterable[LogRecord]) -> None:
    for record in records:
        fold.apply(record.key, record.value, refused=record.refused, offset=record.offset)
