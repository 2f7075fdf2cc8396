"""Data topics of a source task: created as configured before the first record, their facts remembered."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.kafka.clients import connection, make_admin
from cdcworker.coordinator.kafka.end_offsets import left_open
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.topic_access import TopicAccess
from cdcworker.worker.producers.transactional import record_bytes_max
from cdcworker.worker.source.topic_facts import TopicFacts
from cdcworker.worker.source.topic_guard import TopicGuard
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
IDLE_CLOSE_S: Final = 10.0
ANY_TOPIC: Final = TopicAccess()
AT_ONCE_MAX: Final = 100
"""Topics of one request."""


@dataclass(frozen=True, slots=True)
class TopicCreation:
    """The way a topic is created; -1 leaves a number to the broker."""

    partitions: int = 1
    replication_factor: int = -1
    config: Mapping[str, str] = field(default_factory=dict)


class DataTopics:
    """Looks a topic up once, creates it when it is missing. A topic that exists is taken as it is.

    The number of partitions is kept for the life of the process: a key must not change its partition because somebody
    adds partitions meanwhile.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        *,
        client_id: str,
        plan: Callable[[str], TopicCreation],
        on_use: Callable[[str], None] = lambda _: None,
        beside_bytes: int = 0,
        access: TopicAccess = ANY_TOPIC,
        foreign: Set[tuple[str, int, int]] = frozenset(),
    ) -> None:
        """`beside_bytes`: what each record has beside its key, its value and headers of its own. `foreign`: partitions and first
        offsets of the open transactions that are somebody else's, as far as that is known at any time."""
        self._properties = properties
        self._client_id = client_id
        self._plan = plan
        self._on_use = on_use
        self._beside_bytes = beside_bytes
        self._guard = TopicGuard(access, self._existing_among)
        self._facts: dict[str, TopicFacts] = {}
        self._foreign = foreign
        self._admin: AdminClient | None = None
        self._used_at = 0.0

    def __call__(self, topic: str) -> TopicFacts:
        return self.all((topic,))[topic]

    def all(self, topics: Iterable[str]) -> dict[str, TopicFacts]:
        """Returns the facts of several topics at once; unknown ones cost as many requests as one topic would."""
        wanted = list(topics)
        unknown = [topic for topic in wanted if topic not in self._facts]
        for first in range(0, len(unknown), AT_ONCE_MAX):
            self._facts |= self._look_up(unknown[first : first + AT_ONCE_MAX])
        for topic in wanted:
            self._on_use(topic)
        return {topic: self._facts[topic] for topic in wanted}

    def check(self, topics: Iterable[str]) -> None:
        """CdcError for the first of the topics that the connector may not write."""
        self._guard.check(topics)

    def _existing_among(self, names: Collection[str]) -> Set[str]:
        return self._listed().keys() & set(names)

    def _listed(self) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = self._connected().list_topics(timeout=ANSWER_TIMEOUT_S).topics
        except KafkaException as exc:
            raise e.translate(exc, "look up the topics") from exc
        return found

    def existing(self, prefix: str = "") -> list[tuple[str, int]]:
        """Returns the partitions of all topics of a prefix; without a prefix, of the topics that this process has written to."""
        found = self._listed()
        of_prefix = {name for name in found if name.startswith(f"{prefix}.")}
        names = self._guard.writable(of_prefix) if prefix else found.keys() & self._facts
        return [(name, number) for name in sorted(names) for number in sorted(found[name].partitions)]

    def check_ended(self) -> None:
        """Raises `source.left_open` if readers of committed records cannot come to the end of a topic that this process has written
        to, although the task has nothing open."""
        first = left_open(self._connected(), self.existing(), ANSWER_TIMEOUT_S)
        again = left_open(self._connected(), [one[:2] for one in first], ANSWER_TIMEOUT_S)
        stands = {one[:3] for one in first} & {one[:3] for one in again} - self._foreign
        if stands:
            topic, number, offset = min(stands)
            where: dict[str, str | int] = {"topic": topic, "partition": number, "offset": offset}
            raise CdcError(LEFT_OPEN, "an earlier transaction was not ended by the broker", where=where)

    def lend(self, admin: AdminClient) -> None:
        """Takes a client that is connected already, so that the first topics of a start wait for no connection."""
        self._admin, self._used_at = admin, time.monotonic()

    def compacted(self) -> list[str]:
        """Returns the compacted ones of the topics that this process has written to."""
        return [topic for topic, facts in self._facts.items() if facts.compacted]

    def close_idle(self) -> None:
        """Closes the connection when no new topic came up for a while."""
        if time.monotonic() - self._used_at > IDLE_CLOSE_S:
            self._admin = None

    def _connected(self) -> AdminClient:
        self._used_at = time.monotonic()
        if self._admin is None:  # not `or`: a client that waits for no answer counts as false
            self._admin = make_admin(self._properties, client_id=self._client_id)
        return self._admin

    def _look_up(self, topics: Sequence[str]) -> dict[str, TopicFacts]:
        self.check(topics)
        admin = self._connected()
        partitions = _partitions(admin, topics)
        missing = [topic for topic in topics if partitions[topic] is None]
        if missing:
            self._create(admin, missing)
        # Also of those that an earlier try has made.
        partitions |= self._await(admin, [topic for topic in topics if not partitions[topic]])
        sends, beside, compresses = record_bytes_max(self._properties), self._beside_bytes, self._compresses()
        return {
            topic: TopicFacts(
                partitions[topic] or 0,
                None if found.bytes_max is None or compresses else found.bytes_max - beside,
                sends - beside,
                found.compacted,
            )
            for topic, found in _topic_configs(admin, topics).items()
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

    def _created(self, futures: Mapping[Any, Any], topic: str, plan: TopicCreation) -> None:
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
    """Returns how many partitions each topic has; None: no such topic; 0: not all have a leader yet."""
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


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """What a topic's configuration says of its records; None and False where nobody may tell."""

    bytes_max: int | None = None
    compacted: bool = False


def _topic_configs(admin: AdminClient, topics: Sequence[str]) -> dict[str, TopicConfig]:
    resources = {topic: ConfigResource(ResourceType.TOPIC, topic) for topic in topics}
    futures = admin.describe_configs(list(resources.values()), request_timeout=ANSWER_TIMEOUT_S)
    return {topic: _topic_config(futures, topic, resource) for topic, resource in resources.items()}


def _topic_config(futures: Mapping[Any, Any], topic: str, resource: ConfigResource) -> TopicConfig:
    try:
        entries = _answer(futures, resource)
        compacted = "compact" in str(entries["cleanup.policy"].value)
        return TopicConfig(int(entries["max.message.bytes"].value), compacted)
    except KafkaException as exc:
        log.info("topic limit unknown topic=%s error=%s", topic, e.text_of(exc))
    except (KeyError, ValueError, TypeError):
        pass
    return TopicConfig()


def _answer(futures: Mapping[Any, Any], key: Any) -> Any:
    try:
        return futures[key].result(ANSWER_TIMEOUT_S)
    except TimeoutError as exc:
        raise CdcError(e.TIMEOUT, "Kafka did not answer about a topic", where={"topic": str(key)}) from exc
