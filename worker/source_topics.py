"""Data topics of a source task: created as configured before the first record, their facts remembered."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from cdcworker.coordinator import kafka_errors as e
from cdcworker.coordinator.kafka_clients import connection, make_admin
from cdcworker.coordinator.kafka_offsets import left_open
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.kafka_tx import record_bytes_max
from cdcworker.worker.topic_facts import TopicFacts
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

log = logging.getLogger(__name__)

LEFT_OPEN: Final = declare(
    "source.left_open",
    "transient",
    "A transaction of an earlier start was decided and not ended by the broker",
    "Nothing: the next session ends it. Brokers 4.1 to 4.3 do so while a partition has no leader (KAFKA-20734).",
)

ANSWER_TIMEOUT_S: Final = 15.0
LEADERS_TIMEOUT_S: Final = 15.0
LEADERS_STEP_S: Final = 0.05
REST_AFTER_S: Final = 10.0
AT_ONCE_MAX: Final = 100
"""Topics of one request."""


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
        beside_bytes: int = 0,
    ) -> None:
        """`beside_bytes`: what each record has beside its key, its value and headers of its own."""
        self._properties = properties
        self._client_id = client_id
        self._plan = plan
        self._on_use = on_use
        self._beside_bytes = beside_bytes
        self._facts: dict[str, TopicFacts] = {}
        self.foreign: Set[tuple[str, int, int]] = frozenset()
        """Of open transactions: those that were found to be somebody else's, with their first offsets."""
        self._admin: AdminClient | None = None
        self._used_at = 0.0

    def __call__(self, topic: str) -> TopicFacts:
        return self.all((topic,))[topic]

    def all(self, topics: Iterable[str]) -> dict[str, TopicFacts]:
        """Of several at once: what is not known yet costs as many requests as one topic would."""
        wanted = list(topics)
        unknown = [topic for topic in wanted if topic not in self._facts]
        for first in range(0, len(unknown), AT_ONCE_MAX):
            self._facts |= self._look_up(unknown[first : first + AT_ONCE_MAX])
        for topic in wanted:
            self._on_use(topic)
        return {topic: self._facts[topic] for topic in wanted}

    def existing(self, prefix: str = "") -> list[tuple[str, int]]:
        """The partitions of all topics of a prefix, or without one of those that this process has written to."""
        try:
            found = self._connected().list_topics(timeout=ANSWER_TIMEOUT_S).topics
        except KafkaException as exc:
            raise e.translate(exc, "look up the topics") from exc
        names = {name for name in found if name.startswith(f"{prefix}.")} if prefix else found.keys() & self._facts
        return [(name, number) for name in sorted(names) for number in sorted(found[name].partitions)]

    def check_ended(self) -> None:
        """That readers come to the end of all these while the task has nothing open; else `source.left_open`."""
        first = left_open(self._connected(), self.existing(), ANSWER_TIMEOUT_S)
        again = left_open(self._connected(), [one[:2] for one in first], ANSWER_TIMEOUT_S)
        stands = {one[:3] for one in first} & {one[:3] for one in again} - self.foreign
        if stands:
            topic, number, offset = min(stands)
            where: dict[str, str | int] = {"topic": topic, "partition": number, "offset": offset}
            raise CdcError(LEFT_OPEN, "an earlier transaction was not ended by the broker", where=where)

    def lend(self, admin: AdminClient) -> None:
        """A client that is connected already: the first topics of a start need not wait for another."""
        self._admin, self._used_at = admin, time.monotonic()

    def rest(self) -> None:
        """Let go of the connection when no new topic came up for a while."""
        if time.monotonic() - self._used_at > REST_AFTER_S:
            self._admin = None

    def _connected(self) -> AdminClient:
        self._used_at = time.monotonic()
        if self._admin is None:  # not `or`: a client that waits for no answer counts as false
            self._admin = make_admin(self._properties, client_id=self._client_id)
        return self._admin

    def _look_up(self, topics: Sequence[str]) -> dict[str, TopicFacts]:
        admin = self._connected()
        partitions = _partitions(admin, topics)
        missing = [topic for topic in topics if partitions[topic] is None]
        if missing:
            self._create(admin, missing)
        # Also of those that an earlier try has made.
        partitions |= self._await(admin, [topic for topic in topics if not partitions[topic]])
        limits = dict.fromkeys(topics) if self._compresses() else _record_bytes_max(admin, topics)
        sends = record_bytes_max(self._properties)
        beside = self._beside_bytes
        return {
            topic: TopicFacts(partitions[topic] or 0, None if limit is None else limit - beside, sends - beside)
            for topic, limit in limits.items()
        }

    def _create(self, admin: AdminClient, topics: Sequence[str]) -> None:
        plans = {topic: self._plan(topic) for topic in topics}
        wanted = [
            NewTopic(topic, plan.partitions, plan.replication_factor, config=dict(plan.config))
            for topic, plan in plans.items()
        ]
        futures = admin.create_topics(wanted, operation_timeout=ANSWER_TIMEOUT_S)
        for topic, plan in plans.items():
            self._created(futures, topic, plan)

    def _created(self, futures: Mapping[Any, Any], topic: str, plan: TopicPlan) -> None:
        try:
            _answer(futures, topic)
            log.info("topic created topic=%s partitions=%d", topic, plan.partitions)
        except KafkaException as exc:
            error = e.kafka_error(exc)
            if error.code() == KafkaError.INVALID_REPLICATION_FACTOR and "fenced" in error.str():
                # A cluster that has just started counts no broker as alive for a moment.
                raise CdcError(e.TRANSIENT, "no broker takes a new topic yet", where={"topic": topic}) from exc
            if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise e.translate(exc, "create the topic", where={"topic": topic}) from exc

    def _await(self, admin: AdminClient, topics: Sequence[str]) -> dict[str, int | None]:
        deadline = time.monotonic() + LEADERS_TIMEOUT_S
        found: dict[str, int | None] = {}
        left = list(topics)
        while left and time.monotonic() < deadline:
            found |= _partitions(admin, left)
            left = [topic for topic in left if not found[topic]]
            if left:
                time.sleep(LEADERS_STEP_S)
        if not left:
            return found
        raise CdcError(e.TIMEOUT, "a new topic has no leaders yet", where={"topic": left[0]})

    def _compresses(self) -> bool:
        """The topic's limit holds for compressed batches, whose size only the broker sees."""
        return bool(connection(self._properties, "producer").get("compression.type", "none") != "none")


def _partitions(admin: AdminClient, topics: Sequence[str]) -> dict[str, int | None]:
    """How many each has; None: no such topic; 0: not all have a leader yet."""
    # Unlike a metadata request by name, this never makes a broker create the topic.
    futures = admin.describe_topics(TopicCollection(list(topics)), request_timeout=ANSWER_TIMEOUT_S)
    return {topic: _number(futures, topic) for topic in topics}


def _number(futures: Mapping[Any, Any], topic: str) -> int | None:
    try:
        found = _answer(futures, topic)
    except KafkaException as exc:
        if e.code_of(exc) == e.TOPIC_MISSING:
            return None
        raise e.translate(exc, "look up the topic", where={"topic": topic}) from exc
    if any(part.leader is None for part in found.partitions):
        return 0
    return len(found.partitions)


def _record_bytes_max(admin: AdminClient, topics: Sequence[str]) -> dict[str, int | None]:
    resources = {topic: ConfigResource(ResourceType.TOPIC, topic) for topic in topics}
    futures = admin.describe_configs(list(resources.values()), request_timeout=ANSWER_TIMEOUT_S)
    return {topic: _limit(futures, topic, resource) for topic, resource in resources.items()}


def _limit(futures: Mapping[Any, Any], topic: str, resource: ConfigResource) -> int | None:
    try:
        entries = _answer(futures, resource)
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
