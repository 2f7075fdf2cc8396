"""The compacted topic of alerts: incidents and error budgets. It outlives leaders, and every worker knows what is in it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.kafka.compacted_log import KafkaCompactedLog
from cdcworker.coordinator.kafka.internal_topics import TopicSpec, ensure_topics
from cdcworker.worker.alerts import budgets, incidents
from cdcworker.worker.alerts.budgets import Budget
from cdcworker.worker.alerts.conditions import Key
from cdcworker.worker.alerts.incidents import Incident

log = logging.getLogger(__name__)

INCIDENT: Final = "incident/"
OBJECTIVE: Final = "objective/"
EPOCH: Final = "e"
NUMBER: Final = "n"
"""The header that counts the records of one leader: what it reads back of its own never takes one back."""
READ_S: Final = 30.0
APPEND_S: Final = 15.0
CONFIG: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.bytes": str(4 << 20)}
Records = dict[str, dict[str, Any] | None]
"""Values by key; None forgets one."""


class AlertFold:
    """What the records so far say. What a leader of the past writes behind its successor's first record does not count."""

    def __init__(self) -> None:
        self.incidents: dict[str, Incident] = {}
        self.budgets: dict[Key, Budget] = {}
        self.last = (-1, 0)
        """The newest leader's epoch and the highest number of its records."""
        self._orders: dict[str, tuple[int, int]] = {}

    @property
    def is_new(self) -> bool:
        """Tells whether no leader has written anything yet."""
        return self.last[0] < 0

    def apply(self, records: Iterable[LogRecord]) -> None:
        for record in records:
            self._apply(record)

    def _apply(self, record: LogRecord) -> None:
        order = _order(record)
        if record.refused or order is None or order[0] < self.last[0]:
            return
        self.last = max(self.last, order)
        if order < self._orders.get(record.key, order):
            return
        self._orders[record.key] = order
        if record.value is None:
            del self._orders[record.key]
        try:
            self._keep(record.key, record.value)
        except (KeyError, TypeError, ValueError) as exc:
            log.warning("alert record ignored offset=%d error=%s", record.offset, type(exc).__name__)

    def _keep(self, key: str, value: Mapping[str, Any] | None) -> None:
        if key.startswith(INCIDENT):
            id = key.removeprefix(INCIDENT)
            if value is None:
                self.incidents.pop(id, None)
            else:
                self.incidents[id] = incidents.from_json({**value, "id": id})
        elif key.startswith(OBJECTIVE):
            objective, _, connector = key.removeprefix(OBJECTIVE).partition("/")
            if value is None:
                self.budgets.pop((objective, connector), None)
            else:
                self.budgets[objective, connector] = budgets.from_json(
                    {**value, "objective": objective, "connector": connector}
                )


def _order(record: LogRecord) -> tuple[int, int] | None:
    """Returns the leader's epoch and the record's number under it; None of a record that no leader has written."""
    texts = record.headers.get(EPOCH, ""), record.headers.get(NUMBER, "")
    if not all(text.isascii() and text.isdecimal() and len(text) < 19 for text in texts):
        return None
    return int(texts[0]), int(texts[1])


def incident_records(changed: Iterable[Incident], forgotten: Iterable[Incident] = ()) -> Records:
    """Returns the records of incidents that have changed and of those that are to be forgotten."""
    kept: Records = {f"{INCIDENT}{one.id}": incidents.to_json(one) for one in changed}
    return {**kept, **{f"{INCIDENT}{one.id}": None for one in forgotten}}


def budget_records(kept: Iterable[Budget], forgotten: Iterable[Key] = ()) -> Records:
    """Returns the records of error budgets, and of those that are to be forgotten."""
    found: Records = {OBJECTIVE + "/".join(one.key): budgets.to_json(one) for one in kept}
    return {**found, **{OBJECTIVE + "/".join(key): None for key in forgotten}}


class AlertTopic:
    """The topic, made when it is missing. An instance belongs to one thread. Calls raise CdcError when Kafka does not answer."""

    def __init__(self, kafka: Mapping[str, str], topic: str, client_id: str, replication_factor: int = -1) -> None:
        spec = TopicSpec(topic, 1, CONFIG, key="alerts.topic")
        ensure_topics(kafka, [spec], client_id=client_id, replication_factor=replication_factor)
        self._log = KafkaCompactedLog(kafka, topic, client_id=client_id)
        self.fold = AlertFold()
        self._written = 0

    def read_to_end(self) -> None:
        """Reads everything that is there."""
        self.fold.apply(self._log.read_to_end(READ_S))

    def poll(self, timeout_s: float) -> None:
        """Reads what has come; waits at most so many seconds for it."""
        self.fold.apply(self._log.poll(timeout_s))

    def write(self, values: Records, epoch: int) -> None:
        """Stores records as the leader of this epoch. They are stored when it returns."""
        records = []
        # The same leader opens the topic again after trouble with Kafka: what it writes then counts behind what it has written.
        self._written = max(self._written, self.fold.last[1])
        for key, value in values.items():
            self._written += 1
            records.append(LogRecord(key, value, {EPOCH: str(epoch), NUMBER: str(self._written)}))
        if records:
            self._log.append(records, APPEND_S)
            self.fold.apply(records)

    def close(self) -> None:
        self._log.close()
