"""Keeps a fold of the schema log for the REST face; reads only, and never delays anyone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import SchemaLog

log = logging.getLogger(__name__)

POLL_S = 0.2
RETRY_S = 1.0
READ_TIMEOUT_S = 30.0


class SchemaTail(threading.Thread):
    """`current()` is what has been read so far."""

    def __init__(self, topic: str, kafka: Mapping[str, str], client_id: str) -> None:
        super().__init__(name="schema-tail", daemon=True)
        self._topic = topic
        self._kafka = kafka
        self._client_id = client_id
        self._log = SchemaLog()
        self._stop_requested = threading.Event()

    def current(self) -> SchemaLog:
        return self._log

    def stop(self) -> None:
        self._stop_requested.set()
        if self.is_alive():
            self.join(5.0)

    def run(self) -> None:
        while not self._stop_requested.is_set():
            try:
                self._follow()
            except CdcError as error:
                log.warning("schema log is read again error=%s", error)
                self._stop_requested.wait(RETRY_S)

    def _follow(self) -> None:
        from cdcworker.coordinator.kafka_log import CompactedLog

        reader = CompactedLog(self._kafka, self._topic, client_id=self._client_id)
        try:
            fold = SchemaLog((record.key, record.value) for record in reader.read_to_end(READ_TIMEOUT_S))
            self._log = fold
            while not self._stop_requested.is_set():
                for record in reader.poll(POLL_S):
                    fold.apply(record.key, record.value)
        finally:
            reader.close()
