"""Registers schemas for a source task: committed and read back before the first record that needs them (INV-4)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from cdcworker.coordinator.api import CompactedLog
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.failpoints import hit
from cdcworker.schemas.log import Registration, SchemaLog, SchemaLogRecord, encode_record, plan_all
from cdcworker.schemas.threads import start_thread
from cdcworker.worker.source.session import RecordProducer

log = logging.getLogger(__name__)

NOT_READ_BACK: Final = declare(
    "source.schema_not_read_back",
    "transient",
    "A registered schema is not in the schema log as it was written",
    "It is tried again; if it stays, find out what else writes to the schema topic.",
)

PARTITION: Final = 0
READ_TIMEOUT_S: Final = 30.0
IDLE_CLOSE_S: Final = 10.0
"""Registrations come in bursts; between them neither the log's client nor its contents are kept."""


class SchemaRegistrar:
    """The task's `register` callback. Its producer is fenced together with the one of the data."""

    def __init__(self, producer: RecordProducer, topic: str, open_log: Callable[[], CompactedLog]) -> None:
        self._producer = producer
        self._topic = topic
        self._open_log = open_log
        self._log: CompactedLog | None = None
        self._view = SchemaLog()
        self._used_at = 0.0
        self._warming: threading.Thread | None = None

    def __call__(self, registrations: Sequence[Registration]) -> Sequence[int]:
        """Returns the ids to write records with. After any error the producer cannot be used again, and the session ends."""
        self._await_warm()
        self._used_at = time.monotonic()
        self._catch_up()
        ids, records = plan_all(self._view, registrations)
        if not records:
            return ids
        self._write(records)
        self._catch_up()
        self._check(registrations, ids)
        log.info("schemas registered records=%d ids=%s", len(records), ",".join(map(str, ids)))
        return ids

    def subjects(self) -> Mapping[str, Collection[tuple[str, ...]]]:
        """Returns the names of all subjects that the log has now, with the paths of their tables."""
        self._await_warm()
        self._used_at = time.monotonic()
        self._catch_up()
        view = self._view
        return {name: {version.path for version in view.versions(name)} for name in view.subjects()}

    def warm(self) -> None:
        """Reads the log before the first registration, on a thread of its own. An error is only logged; the first registration
        raises it again."""
        self._used_at = time.monotonic()
        self._warming = start_thread(self._read_ahead, name="schemas-ahead")

    def _read_ahead(self) -> None:
        try:
            self._catch_up()
        except CdcError as error:
            log.info("schema log not read ahead error=%s", error)
            self._close_log()

    def _await_warm(self) -> None:
        warming, self._warming = self._warming, None
        if warming is not None:
            warming.join()

    def close_idle(self) -> None:
        """Closes the log when nothing was registered for a while."""
        if self._log is not None and time.monotonic() - self._used_at > IDLE_CLOSE_S:
            self._await_warm()
            self._close_log()

    def abort(self) -> None:
        self._producer.abort()

    def close(self) -> None:
        self._await_warm()
        self._close_log()
        self._producer.close()

    def _catch_up(self) -> None:
        """Reads the schema log to its present end: another task may have registered the same schema meanwhile."""
        if self._log is None:
            self._log, self._view = self._open_log(), SchemaLog()
        for record in self._log.read_to_end(READ_TIMEOUT_S):
            self._view.apply(record.key, record.value, refused=record.refused, offset=record.offset)

    def _write(self, records: Sequence[SchemaLogRecord]) -> None:
        """A short transaction of its own: inside the data's it would be hidden for as long as that is open."""
        self._producer.begin()
        for record in records:
            key, value = encode_record(record)
            self._producer.produce(self._topic, key, value, PARTITION)
        self._producer.commit()
        hit("source.schema_written")

    def _check(self, registrations: Sequence[Registration], ids: Sequence[int]) -> None:
        for registration, number in zip(map(self._view.kept, registrations), ids, strict=True):
            stored = self._view.by_id(number)
            if stored is None or stored.fingerprint != registration.fingerprint:
                where: dict[str, str | int] = {"subject": registration.subject, "id": number}
                raise CdcError(NOT_READ_BACK, "the schema log does not hold what was written", where=where)

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()
        self._log, self._view = None, SchemaLog()
