"""Who changed what over REST, and who was turned away: one line and, if wanted, one record for each; never a secret."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from cdcworker.coordinator.kafka_clients import make_producer, producer_config
from cdcworker.coordinator.kafka_endings import empty
from cdcworker.coordinator.kafka_errors import kafka_error
from cdcworker.coordinator.kafka_topics import TopicSpec, ensure_topics
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.security.access import CALLER, CONNECTOR, REQUEST_ID
from confluent_kafka import KafkaError, KafkaException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)
trail = logging.getLogger("cdcworker.audit")

SIGNED: Final = "cdc.signed"
PATH: Final = "cdc.path"
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
TEXT_CHARS_MAX: Final = 300
WAITING_MAX: Final = 10_000
RETENTION_MS: Final = 365 * 86_400_000
FLUSH_S: Final = 5.0
RETRY_S: Final = 5.0
_USELESS: Final = frozenset({KafkaError._FATAL, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART})

Entry = dict[str, Any]
Sink = Callable[[Entry], None]


class Pictures(Protocol):
    """What there was before a request and is after it, as this worker sees it."""

    def now(self) -> Any: ...

    def change(self, before: Any, connector: str) -> Entry | None:
        """From what to what the connector changed, secrets masked."""


class Audit:
    """Writes each entry to the log, and to `sink` if there is one. `worker` is this worker's id."""

    def __init__(self, worker: str = "", sink: Sink | None = None, clock: Callable[[], float] = time.time) -> None:
        self._worker = worker
        self._sink = sink
        self._clock = clock

    def record(self, scope: Scope, status: int, change: Entry | None = None) -> None:
        entry = {**self.entry(scope, status), "change": change}
        # As JSON, since names come from outside: they cannot forge a second member.
        text = json.dumps(entry, separators=(",", ":"))
        # Whatever level an admin has set over REST: handed to the handlers as it is.
        trail.handle(trail.makeRecord(trail.name, logging.INFO, __file__, 0, "audit %s", (text,), None))
        if self._sink is not None:
            self._sink(entry)

    def entry(self, scope: Scope, status: int) -> Entry:
        caller, client = scope.get(CALLER), scope.get("client")
        moment = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        return {
            "v": 1,
            "ts": moment,
            "request_id": scope.get(REQUEST_ID, ""),
            "who": caller.name if caller else None,
            "by": caller.by if caller else None,
            "address": client[0] if client else None,
            "method": scope["method"],
            "path": scope.get(PATH) or scope["path"][:TEXT_CHARS_MAX],
            "connector": scope[CONNECTOR][:TEXT_CHARS_MAX] if CONNECTOR in scope else None,
            "dry_run": _is_trial(scope),
            "status": status,
            "result": result_of(status),
            "worker": self._worker,
        }


def result_of(status: int) -> str:
    if status < 400:
        return "done"
    return "denied" if status in (401, 403) else "failed" if status >= 500 else "refused"


def is_worth(scope: Scope, status: int) -> bool:
    """Every change, and every denial of somebody who showed a credential. What another worker forwarded is in the
    trail of that one; floods are counted, not written down."""
    if scope.get(SIGNED) or status == 429:
        return False
    if scope["method"] not in READING:
        return True
    return status == 403 or (status == 401 and any(name == b"authorization" for name, _ in scope["headers"]))


def _is_trial(scope: Scope) -> bool:
    return b"dry_run=true" in scope["query_string"].lower()


def _changes_nothing(scope: Scope) -> bool:
    """What others change meanwhile is not theirs who only ask."""
    return _is_trial(scope) or scope["method"] in READING or scope.get(PATH, "").endswith("/validate")


class AuditMiddleware:
    def __init__(self, app: ASGIApp, audit: Audit, pictures: Pictures) -> None:
        self.app = app
        self.audit = audit
        self.pictures = pictures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, before = 500, self.pictures.now()

        async def seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, seen)
        finally:
            if is_worth(scope, status):
                done = status < 400 and CONNECTOR in scope and not _changes_nothing(scope)
                self.audit.record(scope, status, self.pictures.change(before, scope[CONNECTOR]) if done else None)


class AuditTopic(threading.Thread):
    """Entries as records of a topic, keyed by connector. Kafka may be away: entries wait, and the log has them anyway."""

    def __init__(self, kafka: Mapping[str, str], topic: str, client_id: str, replication_factor: int = -1) -> None:
        super().__init__(name="audit", daemon=True)
        self._kafka = kafka
        self._topic = topic
        self._client_id = client_id
        self._replication_factor = replication_factor
        self._waiting: queue.Queue[Entry] = queue.Queue(WAITING_MAX)
        self._ended = threading.Event()

    def __call__(self, entry: Entry) -> None:
        try:
            self._waiting.put_nowait(entry)
        except queue.Full:
            log.error("audit record only in the log topic=%s request=%s", self._topic, entry["request_id"])

    def close(self) -> None:
        self._ended.set()
        if self.is_alive():
            self.join(FLUSH_S * 2)

    def run(self) -> None:
        if not self._made():
            return
        producer = self._producer()
        while not (self._ended.is_set() and self._waiting.empty()):
            entry: Entry | None = None
            with contextlib.suppress(queue.Empty):
                entry = self._waiting.get(timeout=0.25)
            if not self._sent(producer, entry):
                # Each record that it still has is told as one that is only in the log.
                empty(producer, 0)
                if not self._made():
                    return
                producer = self._producer()
        with contextlib.suppress(KafkaException):
            if not producer.flush(FLUSH_S):
                return
        log.error("audit records only in the log topic=%s", self._topic)

    def _producer(self) -> Any:
        return make_producer(producer_config(self._kafka, client_id=self._client_id))

    def _sent(self, producer: Any, entry: Entry | None) -> bool:
        """Whether the client goes on being of use: not when it is broken, or its topic was deleted."""
        try:
            if entry is not None:
                value = json.dumps(entry, separators=(",", ":")).encode()
                key = entry["connector"].encode() if entry["connector"] else None
                producer.produce(self._topic, value, key, on_delivery=self._delivered)
            producer.poll(0)
        except (BufferError, KafkaException) as exc:
            if entry is not None:
                log.error("audit record only in the log topic=%s request=%s", self._topic, entry["request_id"])
            error = None if isinstance(exc, BufferError) else kafka_error(exc)
            return error is None or not (error.fatal() or error.code() in _USELESS)
        return True

    def _made(self) -> bool:
        """The topic is there, or made; until then entries wait."""
        spec = TopicSpec(self._topic, 1, {"cleanup.policy": "delete", "retention.ms": str(RETENTION_MS)}, exact=False)
        while True:
            try:
                ensure_topics(
                    self._kafka, [spec], client_id=self._client_id, replication_factor=self._replication_factor
                )
                return True
            except CdcError as error:
                log.error("audit topic cannot be written topic=%s error=%s", self._topic, error)
            if self._ended.wait(RETRY_S):
                return False

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            log.error("audit record only in the log topic=%s error=%s", self._topic, error)
