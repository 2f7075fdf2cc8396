"""Configurations of all Kafka clients, made from the worker's properties: identity, time-outs, logging."""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

from cdcworker.coordinator import kafka_errors as e
from cdcworker.coordinator import stores
from cdcworker.schemas.errors import CdcError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

Role = Literal["producer", "consumer", "admin"]
Config = dict[str, Any]

log = logging.getLogger("cdcworker.kafka")

_SHARED_PREFIXES = ("bootstrap.", "security.", "sasl.", "ssl.", "socket.", "broker.", "metadata.", "enable.sasl.")
_SHARED_NAMES = frozenset({"client.id", "client.rack", "client.dns.lookup", "debug", "api.version.request"})
_JAVA_ONLY = frozenset(
    {
        "sasl.jaas.config",
        "sasl.client.callback.handler.class",
        "sasl.login.callback.handler.class",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
        "ssl.truststore.certificates",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.protocol",
        "ssl.provider",
        "ssl.enabled.protocols",
        "ssl.keymanager.algorithm",
        "ssl.trustmanager.algorithm",
        "ssl.secure.random.implementation",
        "ssl.client.auth",
        "socket.connection.setup.timeout.max.ms",
        "metadata.max.idle.ms",
        "metadata.recovery.strategy",
        "buffer.memory",
        "max.block.ms",
        "max.poll.records",
        "key.serializer",
        "value.serializer",
        "key.deserializer",
        "value.deserializer",
        "interceptor.classes",
        "metric.reporters",
    }
)
"""Java client properties without a counterpart, which operators have in their files; they have no effect here."""
_RENAMED = {
    "max.request.size": "message.max.bytes",
    # librdkafka's other names of its own properties: of two names the one that is set last counts, whoever set it.
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.timeout.ms": "delivery.timeout.ms",
    "request.required.acks": "acks",
    "queue.buffering.max.ms": "linger.ms",
    "message.send.max.retries": "retries",
    "compression.codec": "compression.type",
}
READERS = "cdcworker-readers"
"""The group of readers that choose their partitions themselves: nobody ever joins it, nothing is committed to it."""

_DEFAULTS: Config = {
    "socket.timeout.ms": 10_000,
    "socket.connection.setup.timeout.ms": 5_000,
    "socket.keepalive.enable": True,
    "socket.nagle.disable": True,
    # The library's default of 10 s between tries would add to every failover.
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
    "retry.backoff.ms": 50,
    "log_level": 4,
    "log.connection.close": False,
}
_LEAST_SESSION_S = 1.0
_REPEAT_S = 10.0
_KINDS_MAX = 256


class Calm(logging.Filter):
    """Lets each kind of the library's log lines through once in a while: in an outage every client repeats itself."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.getMessage().partition(" ")[0]
        now = time.monotonic()
        if now - self._seen.get(kind, -_REPEAT_S) < _REPEAT_S:
            return False
        if len(self._seen) >= _KINDS_MAX:
            self._seen.clear()
        self._seen[kind] = now
        return True


log.addFilter(Calm())


def connection(properties: Mapping[str, str], role: Role) -> Config:
    """What of the worker's properties concerns every client of this role; `<role>.` overrides win."""
    return {**_DEFAULTS, **settings(properties, role)}


def settings(properties: Mapping[str, str], role: Role) -> dict[str, str]:
    """The same as the worker's properties say it, in librdkafka's words: for those that make clients by themselves."""
    mine = {name: value for name, value in properties.items() if name in _SHARED_NAMES or _is_shared(name)}
    prefix = f"{role}."
    mine.update({name[len(prefix) :]: value for name, value in properties.items() if name.startswith(prefix)})
    if not mine.get("bootstrap.servers"):
        raise CdcError(e.CLIENT_CONFIG, "bootstrap.servers is not set", where={"configPath": "/bootstrap.servers"})
    return _without_java(mine)


def _is_shared(name: str) -> bool:
    return name.startswith(_SHARED_PREFIXES)


def _without_java(properties: Mapping[str, str]) -> Config:
    """Java's names of things that librdkafka can do too, in librdkafka's words."""
    out: Config = {_RENAMED.get(name, name): value for name, value in properties.items() if name not in _JAVA_ONLY}
    out.update(_login_of(properties.get("sasl.jaas.config", "")))
    for name, value in {**stores.trusted(properties), **stores.own(properties)}.items():
        out.setdefault(name, value)
    if "ssl.truststore.certificates" in properties:
        out.setdefault("ssl.ca.pem", properties["ssl.truststore.certificates"])
    if "ssl.keystore.certificate.chain" in properties:
        out.setdefault("ssl.certificate.pem", properties["ssl.keystore.certificate.chain"])
    if "ssl.keystore.key" in properties:
        out.setdefault("ssl.key.pem", properties["ssl.keystore.key"])
    if out.get("ssl.endpoint.identification.algorithm") == "":
        out["ssl.endpoint.identification.algorithm"] = "none"
    return out


def _login_of(jaas: str) -> Config:
    found = dict(re.findall(r'(username|password)="((?:[^"\\]|\\.)*)"', jaas))
    return {f"sasl.{name}": re.sub(r"\\(.)", r"\1", value) for name, value in found.items()}


class Reports:
    """What a client reported about its connections: the cause of a time-out is here, not in the time-out."""

    def __init__(self) -> None:
        self.errors: deque[KafkaError] = deque(maxlen=16)

    def __call__(self, error: KafkaError) -> None:
        self.errors.append(error)

    def cause(self, error: KafkaException) -> KafkaError:
        return e.most_telling(self.errors, e.kafka_error(error))


def producer_config(properties: Mapping[str, str], *, client_id: str) -> Config:
    """An idempotent producer: what is acknowledged is on all in-sync replicas, in order, once.

    One request at a time on a connection. With more, records are lost in silence: a leader that has just come up may
    refuse a producer's first batch into a partition and take its second, as it knows no sequence of that producer yet;
    the library then counts the first as delivered ("implicitly acked"). The broker serves a connection's requests one
    after the other anyway.
    """
    return {
        "linger.ms": 0,
        "queue.buffering.max.kbytes": 32_768,
        "delivery.timeout.ms": 30_000,
        **connection(properties, "producer"),
        "client.id": client_id,
        "enable.idempotence": True,
        "acks": "all",
        "max.in.flight.requests.per.connection": 1,
        # Our own partitioning is the same function as Java's, so that keys land where other clients put them.
        "partitioner": "murmur2_random",
    }


def transactional_config(
    properties: Mapping[str, str], *, client_id: str, transactional_id: str, transaction_timeout_ms: int = 10_000
) -> Config:
    """No callbacks: one that raises would make a commit raise although it happened."""
    return {
        **producer_config(properties, client_id=client_id),
        "transactional.id": transactional_id,
        "transaction.timeout.ms": transaction_timeout_ms,
        # With the library's 100 ms a burst of writes waits for 84 ms.
        "retry.backoff.ms": 10,
        # Its errors are raised by the calls; said by the library too, they would reach standard error.
        "log_level": 2,
        # The library demands that a message does not outlive its transaction.
        "delivery.timeout.ms": transaction_timeout_ms,
    }


def reader_config(properties: Mapping[str, str], *, client_id: str) -> Config:
    """A reader of committed records with partitions of its own choice: it joins no group and commits nothing."""
    return {
        "fetch.wait.max.ms": 500,
        "fetch.error.backoff.ms": 50,
        "fetch.message.max.bytes": 8_388_608,
        "queued.max.messages.kbytes": 16_384,
        # With the library's second a reader that was fed faster than it reads would stand still again and again.
        "fetch.queue.backoff.ms": 10,
        **connection(properties, "consumer"),
        "client.id": client_id,
        # The library wants a name and looks for its coordinator: one that an ACL can name.
        "group.id": READERS,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        # An offset that fell off the log means that the fold has a hole: never skip over it.
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
    }


def member_config(properties: Mapping[str, str], *, client_id: str, group_id: str, session_timeout_s: float) -> Config:
    """A member of the worker group. Not static: static members leave without a word and cost a whole session."""
    if session_timeout_s < _LEAST_SESSION_S:
        raise CdcError(e.CLIENT_CONFIG, "session.timeout.ms must be at least 1000")
    session_ms = int(session_timeout_s * 1000)
    return {
        **connection(properties, "consumer"),
        "client.id": client_id,
        "group.id": group_id,
        "group.protocol": "classic",
        # With `range` a worker that joins can take the lead from a healthy leader.
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": session_ms,
        # A rebalance ends when the last member has heard of it, at its next heartbeat: part of every fail-over.
        "heartbeat.interval.ms": max(50, min(300, session_ms // 20)),
        # A hung coordination thread must lose the lead although heartbeats go on.
        "max.poll.interval.ms": max(30_000, session_ms),
        "enable.auto.commit": False,
        "auto.offset.reset": "latest",
        "fetch.wait.max.ms": 5_000,
        "allow.auto.create.topics": False,
    }


def make_producer(config: Config) -> Producer:
    return _make(Producer, config)


def make_consumer(config: Config) -> Consumer:
    return _make(Consumer, config)


def make_admin(properties: Mapping[str, str], *, client_id: str, reports: Reports | None = None) -> AdminClient:
    config = {**connection(properties, "admin"), "client.id": client_id}
    if reports is not None:
        config["error_cb"] = reports
    return _make(AdminClient, config)


def _make(client: Any, config: Config) -> Any:
    # The library hands its log lines over inside poll() only, so logging never runs on its own threads.
    if client is not Producer or "transactional.id" not in config:
        config = {**config, "logger": log}
    try:
        return client(config)
    except KafkaException as exc:
        # The message names the property and never its value for the sensitive ones.
        raise CdcError(e.CLIENT_CONFIG, e.kafka_error(exc).str()) from exc
    except (TypeError, ValueError) as exc:
        raise CdcError(e.CLIENT_CONFIG, f"a client property has a wrong type: {type(exc).__name__}") from exc


def cluster_id(properties: Mapping[str, str], *, client_id: str, timeout_s: float = 10.0) -> str:
    """The id of the Kafka cluster; the first word with the brokers, so its errors say why there is none."""
    reports = Reports()
    admin = make_admin(properties, client_id=client_id, reports=reports)
    try:
        found = admin.list_topics(timeout=timeout_s).cluster_id
    except KafkaException as exc:
        admin.poll(0)
        raise unreachable(properties, reports.cause(exc)) from exc
    return str(found or "")


def unreachable(properties: Mapping[str, str], cause: KafkaError) -> CdcError:
    code = e.code_of(cause)
    if code in (e.TIMEOUT, e.TRANSIENT):
        code = e.UNREACHABLE
    servers = properties.get("bootstrap.servers", "")
    return CdcError(code, f"no answer from Kafka: {cause.name()} ({cause.str()})", where={"bootstrap.servers": servers})
