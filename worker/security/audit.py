"""The audit log: an entry for every change over REST and every denial, in the log and, if configured, in a topic."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from cdcworker.coordinator.kafka.client_shutdown import purge
from cdcworker.coordinator.kafka.clients import make_producer, producer_config
from cdcworker.coordinator.kafka.errors import kafka_error
from cdcworker.coordinator.kafka.internal_topics import TopicSpec, ensure_topics
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import SupervisedThread, repeated
from cdcworker.worker.security.access import CALLER, CONNECTION, CONNECTOR, REQUEST_ID
from cdcworker.worker.security.anonymous_denials import AnonymousDenials
from cdcworker.worker.security.rate_limit import client_of
from confluent_kafka import KafkaError, KafkaException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)
audit_log = logging.getLogger("cdcworker.audit")

SIGNED: Final = "cdc.signed"
FORWARDED_BY: Final = "cdc.forwarded_by"
"""The key in the scope under which the id of the worker stands that has signed the request for its caller."""
ASKED_FROM: Final = "cdc.asked_from"
"""The key in the scope under which the caller's address at that worker stands."""
RECORDED: Final = "cdc.recorded"
"""The key in the scope that is set when a request is recorded although it only reads."""
AS_WRITTEN: Final = "cdc.as_written"
"""The key in the scope that is set when the answer holds secrets of configs as they were written."""
PATH: Final = "cdc.path"
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
TEXT_CHARS_MAX: Final = 300
WAITING_MAX: Final = 10_000
RETENTION_MS: Final = 365 * 86_400_000
FLUSH_S: Final = 5.0
RETRY_S: Final = 5.0
TELL_EVERY_S: Final = 5.0
_BROKEN_CLIENT: Final = frozenset({KafkaError._FATAL, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART})

Entry = dict[str, Any]
Sink = Callable[[Entry], None]


class StateBeforeAndAfter(Protocol):
    """The state before and after a request as this worker sees it."""

    def now(self) -> Any: ...

    def change(self, before: Any, connector: str) -> Entry | None:
        """Returns what has changed in the connector since `before`, with secrets masked."""

    def change_of_connection(self, before: Any, connection: str) -> Entry | None:
        """Returns what has changed in the connection since `before`, with secrets masked."""


class Audit:
    """Writes each entry to the log, and to `sink` if there is one. `worker` is this worker's id."""

    def __init__(self, worker: str = "", sink: Sink | None = None, clock: Callable[[], float] = time.time) -> None:
        self._worker = worker
        self._sink = sink
        self._clock = clock
        self._denials = AnonymousDenials()

    def record(self, scope: Scope, status: int, change: Entry | None = None) -> None:
        entry = {**self.entry(scope, status), "change": change}
        due = (
            [entry]
            if scope.get(CALLER)
            else self._denials.note(client_of(entry["address"] or ""), entry, self._clock())
        )
        for each in due:
            self._write(each)

    def tell_denials(self, *, everything: bool = False) -> None:
        """Writes what was counted of callers that nobody knows."""
        for entry in self._denials.due(self._clock(), everything=everything):
            self._write(entry)

    def _write(self, entry: Entry) -> None:
        # As JSON, since names come from outside: they cannot forge a second member.
        text = json.dumps(entry, separators=(",", ":"))
        # Whatever level an admin has set over REST: handed to the handlers as it is.
        audit_log.handle(audit_log.makeRecord(audit_log.name, logging.INFO, __file__, 0, "audit %s", (text,), None))
        if self._sink is not None:
            self._sink(entry)

    def entry(self, scope: Scope, status: int) -> Entry:
        caller, client = scope.get(CALLER), scope.get("client")
        moment = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        more: Entry = {"as_written": True} if scope.get(AS_WRITTEN) else {}
        if caller and caller.subject:
            more["subject"] = caller.subject
        if CONNECTION in scope:
            more["connection"] = scope[CONNECTION][:TEXT_CHARS_MAX]
        return {
            "v": 1,
            "ts": moment,
            "request_id": scope.get(REQUEST_ID, ""),
            "who": caller.name if caller else None,
            "by": caller.by if caller else None,
            "address": client[0] if client else None,
            "forwarded_by": scope.get(FORWARDED_BY) or None,
            "asked_from": scope.get(ASKED_FROM) or None,
            "method": scope["method"],
            "path": scope.get(PATH) or scope["path"][:TEXT_CHARS_MAX],
            "connector": scope[CONNECTOR][:TEXT_CHARS_MAX] if CONNECTOR in scope else None,
            "dry_run": _is_dry_run(scope),
            "status": status,
            "result": result_of(status),
            "worker": self._worker,
            **more,
        }


def result_of(status: int) -> str:
    if status < 400:
        return "done"
    return "denied" if status in (401, 403) else "failed" if status >= 500 else "refused"


def is_recorded(scope: Scope, status: int) -> bool:
    """Returns whether a request gets an entry: every change, every denial, and every answer that holds secrets. Denials
    of callers that nobody knows are counted together.

    A forwarded request is recorded by both workers, under the same request id: only one of them may be honest. Requests
    above the rate limit are only counted.
    """
    if status == 429:
        return False
    if scope["method"] not in READING or scope.get(AS_WRITTEN) or scope.get(RECORDED):
        return True
    return status in (401, 403)


def _is_dry_run(scope: Scope) -> bool:
    return b"dry_run=true" in scope["query_string"].lower()


def _changes_nothing(scope: Scope) -> bool:
    """Returns whether a request is read-only; a change by others meanwhile is not attributed to its caller."""
    return _is_dry_run(scope) or scope["method"] in READING or scope.get(PATH, "").endswith("/validate")


class AuditMiddleware:
    """Records requests and what they have changed."""

    def __init__(self, app: ASGIApp, audit: Audit, states: StateBeforeAndAfter) -> None:
        self.app = app
        self.audit = audit
        self.states = states

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, before = 500, self.states.now()

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, note_status)
        finally:
            if is_recorded(scope, status):
                done = status < 400 and not _changes_nothing(scope)
                self.audit.record(scope, status, self._change(scope, before) if done else None)

    def _change(self, scope: Scope, before: Any) -> Entry | None:
        if CONNECTION in scope:
            return self.states.change_of_connection(before, scope[CONNECTION])
        return self.states.change(before, scope[CONNECTOR]) if CONNECTOR in scope else None


@contextlib.asynccontextmanager
async def telling_denials(audit: Audit) -> AsyncIterator[None]:
    """Writes counted denials when their minute is over, and the rest when the server ends."""

    try:
        async with repeated(audit.tell_denials, TELL_EVERY_S, name="audit-denials"):
            yield
    finally:
        audit.tell_denials(everything=True)


class AuditTopic(SupervisedThread):
    """Writes entries to a topic, keyed by connector. While Kafka is away entries wait; the log has them in any case."""

    def __init__(self, kafka: Mapping[str, str], topic: str, client_id: str, replication_factor: int = -1) -> None:
        self._ended = threading.Event()
        super().__init__(name="audit", restart_until=self._ended)
        self._kafka = kafka
        self._topic = topic
        self._client_id = client_id
        self._replication_factor = replication_factor
        self._waiting: queue.Queue[Entry] = queue.Queue(WAITING_MAX)

    def __call__(self, entry: Entry) -> None:
        try:
            self._waiting.put_nowait(entry)
        except queue.Full:
            log.error("audit record only in the log topic=%s request=%s", self._topic, entry["request_id"])

    def close(self) -> None:
        self._ended.set()
        if self.is_alive():
            self.join(FLUSH_S * 2)

    def serve(self) -> None:
        if not self._topic_exists():
            return
        producer = self._producer()
        self.works()
        while not (self._ended.is_set() and self._waiting.empty()):
            entry: Entry | None = None
            with contextlib.suppress(queue.Empty):
                entry = self._waiting.get(timeout=0.25)
            if not self._send(producer, entry):
                # Each record that it still has is told as one that is only in the log.
                purge(producer, 0)
                if not self._topic_exists():
                    return
                producer = self._producer()
        with contextlib.suppress(KafkaException):
            if not producer.flush(FLUSH_S):
                return
        log.error("audit records only in the log topic=%s", self._topic)

    def _producer(self) -> Any:
        return make_producer(producer_config(self._kafka, client_id=self._client_id))

    def _send(self, producer: Any, entry: Entry | None) -> bool:
        """Sends the entry; returns whether the client still works: not when it is broken, or when its topic was
        deleted."""
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
            return error is None or not (error.fatal() or error.code() in _BROKEN_CLIENT)
        return True

    def _topic_exists(self) -> bool:
        """Waits until the topic exists, and creates it; returns False when the worker ends before that."""
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
