"""Data topics of a source task: created as configured before the first record, their facts remembered."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cdcworker.coordinator import kafka_errors as e
from cdcworker.coordinator.kafka_clients import connection, make_admin
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.source_session import TopicFacts
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S: Final = 15.0
LEADERS_TIMEOUT_S: Final = 15.0
LEADERS_STEP_S: Final = 0.05
REST_AFTER_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """How a topic is created; -1 leaves a number to the broker."""

    partitions: int = 1
    replication_factor: int = -1
    config: Mapping[str, str] = field(default_factory=dict)


class TopicBook:
    """Looks a topic up once, creates it when it is missing. A topic that exists is taken as it is.

    The number of partitions is kept for the life of the process: a key must not change its partition because somebody
    adds partitions meanwhile.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        *,
        client_id: str,
        plan: Callable[[str], TopicPlan],
        on_use: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._properties = properties
        self._client_id = client_id
        self._plan = plan
        self._on_use = on_use
        self._facts: dict[str, TopicFacts] = {}
        self._admin: AdminClient | None = None
        self._used_at = 0.0

    def __call__(self, topic: str) -> TopicFacts:
        known = self._facts.get(topic)
        if known is None:
            known = self._facts[topic] = self._look_up(topic)
        self._on_use(topic)
        return known

    def lend(self, admin: AdminClient) -> None:
        """A client that is connected already: the first topics of a start need not wait for another."""
        self._admin, self._used_at = admin, time.monotonic()

    def rest(self) -> None:
        """Let go of the connection when no new topic came up for a while."""
        if time.monotonic() - self._used_at > REST_AFTER_S:
            self._admin = None

    def _look_up(self, topic: str) -> TopicFacts:
        admin = self._admin = self._admin or make_admin(self._properties, client_id=self._client_id)
        self._used_at = time.monotonic()
        partitions = _partitions(admin, topic)
        if partitions is None:
            self._create(admin, topic)
            partitions = self._await(admin, topic)
        return TopicFacts(partitions, None if self._compresses() else _record_bytes_max(admin, topic))

    def _create(self, admin: AdminClient, topic: str) -> None:
        plan = self._plan(topic)
        wanted = NewTopic(topic, plan.partitions, plan.replication_factor, config=dict(plan.config))
        try:
            _answer(admin.create_topics([wanted], operation_timeout=ANSWER_TIMEOUT_S), topic)
            log.info("topic created topic=%s partitions=%d", topic, plan.partitions)
        except KafkaException as exc:
            error = e.kafka_error(exc)
            if error.code() == KafkaError.INVALID_REPLICATION_FACTOR and "fenced" in error.str():
                # A cluster that has just started counts no broker as alive for a moment.
                raise CdcError(e.TRANSIENT, "no broker takes a new topic yet", where={"topic": topic}) from exc
            if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise e.translate(exc, "create the topic", where={"topic": topic}) from exc

    def _await(self, admin: AdminClient, topic: str) -> int:
        deadline = time.monotonic() + LEADERS_TIMEOUT_S
        while time.monotonic() < deadline:
            partitions = _partitions(admin, topic)
            if partitions:
                return partitions
            time.sleep(LEADERS_STEP_S)
        raise CdcError(e.TIMEOUT, "a new topic has no leaders yet", where={"topic": topic})

    def _compresses(self) -> bool:
        """The topic's limit holds for compressed batches, whose size only the broker sees."""
        return bool(connection(self._properties, "producer").get("compression.type", "none") != "none")


def _partitions(admin: AdminClient, topic: str) -> int | None:
    """How many there are; None: no such topic; 0: not all have a leader yet."""
    try:
        # Unlike a metadata request by name, this never makes a broker create the topic.
        found = _answer(admin.describe_topics(TopicCollection([topic]), request_timeout=ANSWER_TIMEOUT_S), topic)
    except KafkaException as exc:
        if e.code_of(exc) == e.TOPIC_MISSING:
            return None
        raise e.translate(exc, "look up the topic", where={"topic": topic}) from exc
    if any(part.leader is None for part in found.partitions):
        return 0
    return len(found.partitions)


def _record_bytes_max(admin: AdminClient, topic: str) -> int | None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        entries = _answer(admin.describe_configs([resource], request_timeout=ANSWER_TIMEOUT_S), resource)
        return int(entries["max.message.bytes"].value)
    except KafkaException as exc:
        log.info("topic limit unknown topic=%s error=%s", topic, e.kafka_error(exc).str())
    except (KeyError, ValueError, TypeError):
        pass
    return None


def _answer(futures: Mapping[Any, Any], key: Any) -> Any:
    try:
        return futures[key].result(ANSWER_TIMEOUT_S)
    except TimeoutError as exc:
        raise CdcError(e.TIMEOUT, "Kafka did not answer about a topic", where={"topic": str(key)}) from exc
