"""The compacted topic of incidents: it outlives leaders, and every worker knows what is in it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.kafka.compacted_log import KafkaCompactedLog
from cdcworker.coordinator.kafka.internal_topics import TopicSpec, ensure_topics
from cdcworker.worker.alerts.incidents import Incident, from_json, to_json

log = logging.getLogger(__name__)

PREFIX: Final = "incident/"
EPOCH: Final = "e"
NUMBER: Final = "n"
"""The header that counts the records of one leader: what it reads back of its own never takes an incident back."""
READ_S: Final = 30.0
APPEND_S: Final = 15.0
CONFIG: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.bytes": str(4 << 20)}


class IncidentFold:
    """The incidents of the records so far. What a leader of the past writes behind its successor's first record does not
    count."""

    def __init__(self) -> None:
        self.incidents: dict[str, Incident] = {}
        self._orders: dict[str, tuple[int, int]] = {}
        self._epoch = -1

    def apply(self, records: Iterable[LogRecord]) -> None:
        for record in records:
            self._apply(record)

    def _apply(self, record: LogRecord) -> None:
        order = _order(record)
        id = record.key.removeprefix(PREFIX)
        if id == record.key or record.refused or order is None or order[0] < self._epoch:
            return
        self._epoch = order[0]
        if order < self._orders.get(id, order):
            return
        self._orders[id] = order
        if record.value is None:
            self.incidents.pop(id, None)
            return
        try:
            self.incidents[id] = from_json({**record.value, "id": id})
        except (KeyError, TypeError, ValueError) as exc:
            log.warning("incident record ignored offset=%d error=%s", record.offset, type(exc).__name__)


def _order(record: LogRecord) -> tuple[int, int] | None:
    """Returns the leader's epoch and the record's number under it; None of a record that no leader has written."""
    texts = record.headers.get(EPOCH, ""), record.headers.get(NUMBER, "")
    if not all(text.isascii() and text.isdecimal() and len(text) < 19 for text in texts):
        return None
    return int(texts[0]), int(texts[1])


class IncidentTopic:
    """The topic, made when it is missing. An instance belongs to one thread. Calls raise CdcError when Kafka does not answer."""

    def __init__(self, kafka: Mapping[str, str], topic: str, client_id: str, replication_factor: int = -1) -> None:
        spec = TopicSpec(topic, 1, CONFIG, key="alerts.topic")
        ensure_topics(kafka, [spec], client_id=client_id, replication_factor=replication_factor)
        self._log = KafkaCompactedLog(kafka, topic, client_id=client_id)
        self.fold = IncidentFold()
        self._written = 0

    def read_to_end(self) -> None:
        """Reads everything that is there."""
        self.fold.apply(self._log.read_to_end(READ_S))

    def poll(self, timeout_s: float) -> None:
        """Reads what has come; waits at most so many seconds for it."""
        self.fold.apply(self._log.poll(timeout_s))

    def write(self, incidents: Iterable[Incident], epoch: int, *, forgotten: Iterable[Incident] = ()) -> None:
        """Stores incidents, and forgets others, as the leader of this epoch. They are stored when it returns."""
        values = [(one.id, to_json(one)) for one in incidents] + [(one.id, None) for one in forgotten]
        records = []
        for id, value in values:
            self._written += 1
            records.append(LogRecord(f"{PREFIX}{id}", value, {EPOCH: str(epoch), NUMBER: str(self._written)}))
        if records:
            self._log.append(records, APPEND_S)
            self.fold.apply(records)

    def close(self) -> None:
        self._log.close()
