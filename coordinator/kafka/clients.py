"""Configurations of all Kafka clients, derived from the worker's properties: identity, time-outs, logging."""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.kafka import keystores
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
"""Properties of Java's clients without a counterpart in librdkafka. Operators have them in their files; they are
ignored."""
_RENAMED = {
    "max.request.size": "message.max.bytes",
    # Aliases within librdkafka: of two names of a property the one that is set last would win.
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.timeout.ms": "delivery.timeout.ms",
    "request.required.acks": "acks",
    "queue.buffering.max.ms": "linger.ms",
    "message.send.max.retries": "retries",
    "compression.codec": "compression.type",
}
READERS = "cdcworker-readers"
"""The group id of consumers that assign partitions to themselves: they never join it and commit nothing to it."""

_DEFAULTS: Config = {
    "socket.timeout.ms": 10_000,
    "socket.connection.setup.timeout.ms": 5_000,
    "socket.keepalive.enable": True,
    "socket.nagle.disable": True,
    # librdkafka's default of 10 s between attempts would add to every failover.
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
    "retry.backoff.ms": 50,
    "log_level": 4,
    "log.connection.close": False,
}
_LEAST_SESSION_S = 1.0
_REPEAT_S = 10.0
_KINDS_MAX = 256


class LogThrottle(logging.Filter):
    """Passes each kind of client log line at most once in 10 s: in an outage every client repeats its lines."""

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


log.addFilter(LogThrottle())


def connection(properties: Mapping[str, str], role: Role) -> Config:
    """Returns the librdkafka configuration of a client in this role: defaults, shared properties, `<role>.`
    overrides."""
    return {**_DEFAULTS, **settings(properties, role)}


def settings(properties: Mapping[str, str], role: Role) -> dict[str, str]:
    """Returns the connection properties of a role under librdkafka's names, without defaults.

    Raises CdcError `kafka.client_config` without `bootstrap.servers`.
    """
    own = {name: value for name, value in properties.items() if name in _SHARED_NAMES or _is_shared(name)}
    prefix = f"{role}."
    own.update({name[len(prefix) :]: value for name, value in properties.items() if name.startswith(prefix)})
    if not own.get("bootstrap.servers"):
        raise CdcError(e.CLIENT_CONFIG, "bootstrap.servers is not set", where={"configPath": "/bootstrap.servers"})
    return _without_java(own)


def _is_shared(name: str) -> bool:
    return name.startswith(_SHARED_PREFIXES)


def _without_java(properties: Mapping[str, str]) -> Config:
    """Translates properties of Java's clients into librdkafka's."""
    out: Config = {_RENAMED.get(name, name): value for name, value in properties.items() if name not in _JAVA_ONLY}
    out.update(_login_of(properties.get("sasl.jaas.config", "")))
    for name, value in {**keystores.trust_store_config(properties), **keystores.key_store_config(properties)}.items():
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
    credentials = dict(re.findall(r'(username|password)="((?:[^"\\]|\\.)*)"', jaas))
    return {f"sasl.{name}": re.sub(r"\\(.)", r"\1", value) for name, value in credentials.items()}


class ConnectionReports:
    """The connection errors that a client reported (its `error_cb`): they hold the cause of a time-out."""

    def __init__(self) -> None:
        self.errors: deque[KafkaError] = deque(maxlen=16)

    def __call__(self, error: KafkaError) -> None:
        self.errors.append(error)

    def cause(self, error: KafkaException) -> KafkaError:
        """Returns the reported error that explains this one best."""
        return e.most_telling(self.errors, e.kafka_error(error))


def producer_config(properties: Mapping[str, str], *, client_id: str) -> Config:
    """Returns the configuration of an idempotent producer: acknowledged records are on all in-sync replicas, in order,
    once.

    It sends one request at a time on a connection. With more, records can be lost silently: a partition leader that has
    just started may refuse a producer's first batch and accept its second, as it knows no sequence of the producer yet;
    librdkafka then takes the first for delivered ("implicitly acked"). Brokers serve the requests of a connection one
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
    """Returns the configuration of a transactional producer.

    It has no callbacks: one that raises would make a commit raise that has happened.
    """
    return {
        **producer_config(properties, client_id=client_id),
        "transactional.id": transactional_id,
        "transaction.timeout.ms": transaction_timeout_ms,
        # With librdkafka's 100 ms a burst of writes waits for 84 ms.
        "retry.backoff.ms": 10,
        # Errors are raised by the calls; logged by librdkafka as well, they would reach standard error.
        "log_level": 2,
        # The library demands that a message does not outlive its transaction.
        "delivery.timeout.ms": transaction_timeout_ms,
    }


def reader_config(properties: Mapping[str, str], *, client_id: str) -> Config:
    """Returns the configuration of a read_committed consumer that assigns its partitions itself and commits nothing."""
    return {
        "fetch.wait.max.ms": 500,
        "fetch.error.backoff.ms": 50,
        "fetch.message.max.bytes": 8_388_608,
        "queued.max.messages.kbytes": 16_384,
        # With librdkafka's second a consumer whose queue fills up would pause again and again.
        "fetch.queue.backoff.ms": 10,
        **connection(properties, "consumer"),
        "client.id": client_id,
        # librdkafka needs a group id and looks for its coordinator; an ACL can name this one.
        "group.id": READERS,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        # An offset out of range means that records are missing: never skip them (INV-9).
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
    }


def member_config(properties: Mapping[str, str], *, client_id: str, group_id: str, session_timeout_s: float) -> Config:
    """Returns the configuration of a member of the worker group.

    It is not a static member: those do not leave the group on close, so that a failover waits for their session to end.
    """
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
        # A rebalance ends when the last member has learned of it, at its next heartbeat: part of every failover.
        "heartbeat.interval.ms": max(50, min(300, session_ms // 20)),
        # A herder that hangs must lose the lead, although librdkafka's heartbeats go on.
        "max.poll.interval.ms": max(30_000, session_ms),
        "enable.auto.commit": False,
        "auto.offset.reset": "latest",
        "fetch.wait.max.ms": 5_000,
        "allow.auto.create.topics": False,
    }


def make_producer(config: Config) -> Producer:
    """Returns a new producer. Raises CdcError `kafka.client_config` for an invalid property, as the next two do."""
    return _make(Producer, config)


def make_consumer(config: Config) -> Consumer:
    """Returns a new consumer."""
    return _make(Consumer, config)


def make_admin(
    properties: Mapping[str, str], *, client_id: str, reports: ConnectionReports | None = None
) -> AdminClient:
    """Returns a new admin client; `reports` collects its connection errors."""
    config = {**connection(properties, "admin"), "client.id": client_id}
    if reports is not None:
        config["error_cb"] = reports
    return _make(AdminClient, config)


def _make(client: Any, config: Config) -> Any:
    # librdkafka delivers its log lines inside poll(), so logging never runs on its threads.
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
    """Returns the id of the Kafka cluster. It is the first request to the brokers, so its errors explain why none
    answers."""
    reports = ConnectionReports()
    admin = make_admin(properties, client_id=client_id, reports=reports)
    try:
        kafka_cluster_id = admin.list_topics(timeout=timeout_s).cluster_id
    except KafkaException as exc:
        admin.poll(0)
        raise unreachable(properties, reports.cause(exc)) from exc
    return str(kafka_cluster_id or "")


def unreachable(properties: Mapping[str, str], cause: KafkaError) -> CdcError:
    """Returns the error for brokers that did not answer, with the cause that a client reported."""
    code = e.code_of(cause)
    if code in (e.TIMEOUT, e.TRANSIENT):
        code = e.UNREACHABLE
    servers = properties.get("bootstrap.servers", "")
    return CdcError(
        code, f"no answer from Kafka: {cause.name()} ({e.text_of(cause)})", where={"bootstrap.servers": servers}
    )
