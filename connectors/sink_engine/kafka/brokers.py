"""Asks Kafka for what a sink needs besides records: topics, their ids and offsets, and the schema log."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.external_registry.schemas import OWN_IDS_FROM, FindsById
from cdcworker.connectors.formats.format import SCHEMAS_MAX
from cdcworker.connectors.sink_errors import DATA_LOST, KAFKA_DENIED, KAFKA_UNREACHABLE
from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import SchemaLog, StoredSchema

if TYPE_CHECKING:
    from confluent_kafka import Consumer

log = logging.getLogger(__name__)

REQUEST_S_MAX = 10.0
DENIED = (29, 30, 31, 53, 58)
"""Kafka's numbers for a topic, group, cluster or transactional id that we may not use, and for a login that failed."""
READ_S_MAX = 30.0
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Kafka's zero UUID: the broker gave the topic no id."""
_CLIENT_KEYS = ("bootstrap.servers", "security.", "sasl.", "ssl.", "client.id", "broker.address", "socket.")


def client_settings(kafka: Mapping[str, str]) -> dict[str, str]:
    """Returns those of the worker's client properties that concern the connection."""
    return {name: value for name, value in kafka.items() if name.startswith(_CLIENT_KEYS)}


class SinkBrokers:
    """Asks the brokers for a sink's topics, their ids and their offsets."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        from confluent_kafka.admin import AdminClient

        self._admin = AdminClient({**client_settings(kafka), "log_level": 3})

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """Returns the partition counts of the topics that exist."""
        found = self._listed()
        if missing := [name for name in topics if name not in found]:
            self._not_denied(missing)
        return {name: len(found[name].partitions) for name in topics if name in found and found[name].error is None}

    def existing(self, topics: Collection[str]) -> frozenset[str]:
        """Returns those of the topics that exist."""
        return frozenset(self._listed().keys() & set(topics))

    def all_topics(self) -> Sequence[str]:
        """Returns the names of all topics but Kafka's own."""
        return sorted(name for name in self._listed() if not name.startswith("__"))

    def _listed(self) -> dict[str, Any]:
        from confluent_kafka import KafkaException

        try:
            found: dict[str, Any] = self._admin.list_topics(timeout=REQUEST_S_MAX).topics
        except KafkaException as exc:
            raise refused(exc.args[0], "the topics cannot be listed") from exc
        return found

    def check(self, partitions: Mapping[str, int], ledger: Mapping[tuple[str, int], int]) -> None:
        """Raises CdcError where the ledger asks for records that are gone, or that were never written because the topic was
        created again."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        asked = [
            TopicPartition(topic, number)
            for topic, count in partitions.items()
            for number in range(count)
            if (topic, number) in ledger
        ]
        if not asked:
            return
        first = self._offsets(asked, OffsetSpec.earliest())
        end = self._offsets(asked, OffsetSpec.latest())
        for place in first:
            offset = ledger[place]
            where: dict[str, str | int] = {"topic": place[0], "partition": place[1], "offset": offset}
            if offset < first[place]:
                raise CdcError(DATA_LOST, f"the topic begins at {first[place]}", where=where)
            if offset > end[place]:
                raise CdcError(
                    DATA_LOST, f"the topic ends at {end[place]}: it was deleted and created again", where=where
                )

    def ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Returns the topic id by topic; topics that do not exist, or to which an old broker gave no id, are left
        out. CdcError where the broker does not answer, or refuses."""
        from confluent_kafka import KafkaException, TopicCollection

        if not topics:
            return {}
        try:
            found = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=REQUEST_S_MAX)
            described = [future.result() for future in found.values() if not _tells_nothing(future.exception())]
        except KafkaException as exc:
            raise refused(exc.args[0], "the topics cannot be described") from exc
        return {one.name: str(one.topic_id) for one in described if str(one.topic_id) != NO_ID}

    def id_of(self, topic: str) -> str | None:
        """Returns the id of a topic, empty where the broker gives none; None where it does not know the topic, or not yet.
        CdcError where it does not answer, or refuses."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        try:
            asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=REQUEST_S_MAX)
            id = str(asked[topic].result().topic_id)
        except KafkaException as exc:
            if exc.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            if _tells_nothing(exc):
                return ""
            raise refused(exc.args[0], "the topic cannot be described", {"topic": topic}) from exc
        return "" if id == NO_ID else id

    def ends(self, topics: Sequence[str]) -> dict[tuple[str, int], int]:
        """Returns the end of each existing partition, behind records that are not committed too."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        asked = [TopicPartition(topic, n) for topic, count in self.partitions(topics).items() for n in range(count)]
        return self._offsets(asked, OffsetSpec.latest()) if asked else {}

    def firsts(self, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Returns the offset of the first record that is still kept of each of these partitions."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        asked = [TopicPartition(topic, number) for topic, number in places]
        return self._offsets(asked, OffsetSpec.earliest()) if asked else {}

    def begin_ends(self, partitions: Mapping[str, int]) -> dict[tuple[str, int], Any]:
        """Returns the end of the committed records of each partition as futures: nobody waits for a broker that is
        unavailable."""
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        asked = [TopicPartition(topic, n) for topic, count in partitions.items() for n in range(count)]
        wanted = dict.fromkeys(asked, OffsetSpec.latest())
        try:
            found = self._admin.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=REQUEST_S_MAX
            )
        except KafkaException:
            return {}
        return {(part.topic, part.partition): future for part, future in found.items()}

    def _offsets(self, asked: Sequence[Any], spec: Any) -> dict[tuple[str, int], int]:
        from confluent_kafka import KafkaException

        try:
            futures = self._admin.list_offsets(dict.fromkeys(asked, spec), request_timeout=REQUEST_S_MAX)
            return {(part.topic, part.partition): future.result().offset for part, future in futures.items()}
        except KafkaException as exc:
            raise refused(exc.args[0], "the offsets cannot be listed") from exc

    def _not_denied(self, topics: Sequence[str]) -> None:
        """CdcError where one of these topics, which seem not to exist, is only hidden from us: asked for all topics the
        broker leaves out those that we may not see."""
        from confluent_kafka import KafkaException, TopicCollection

        try:
            found = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=REQUEST_S_MAX)
        except (KafkaException, ValueError):
            return
        for topic, answer in found.items():
            error = answer.exception()
            if isinstance(error, KafkaException) and error.args[0].code() in DENIED:
                raise refused(error.args[0], "the topic cannot be seen", {"topic": topic})


def _tells_nothing(exc: BaseException | None) -> bool:
    """Returns whether a description failed for what is no trouble: there is no such topic, or the broker is too old to
    be asked."""
    from confluent_kafka import KafkaError, KafkaException

    known = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE)
    return isinstance(exc, KafkaException) and exc.args[0].code() in known


def refused(error: Any, doing: str, where: Mapping[str, str | int] | None = None) -> CdcError:
    """Returns the error for a request that a broker refused or did not answer."""
    return CdcError(
        KAFKA_DENIED if error.code() in DENIED else KAFKA_UNREACHABLE, f"{doing} ({error.name()})", where=where
    )


class SchemaLogReader:
    """The schema log as this sink has read it so far; `refresh` reads on to its end. `registry` is an existing one that the
    config names: its ids may be in the records too."""

    def __init__(self, kafka: Mapping[str, str], topic: str, registry: FindsById | None = None) -> None:
        self._registry = registry
        self._asked: BoundedCache[int, StoredSchema] = BoundedCache(SCHEMAS_MAX)
        self._kafka = client_settings(kafka)
        self._topic = topic
        self._log = SchemaLog()
        self._consumer: Consumer | None = None

    def by_id(self, id: int) -> Mapping[str, Any] | None:
        found = self._of_registry(id) if id < OWN_IDS_FROM else None
        found = found or self._log.by_id(id) or self._of_registry(id)
        if found is None:
            return None
        schema = found.schema
        return schema if isinstance(schema, dict) else None

    def _of_registry(self, id: int) -> StoredSchema | None:
        """Returns what the existing registry has. CdcError of kind `transient` where it does not answer."""
        if self._registry is None:
            return None
        found = self._asked.get(id) or self._registry.by_id(id)
        if found is not None:
            self._asked[id] = found
        return found

    def latest(self, subject: str) -> int | None:
        versions = self._log.versions(subject)
        found = self._log.by_fingerprint(versions[-1].fingerprint) if versions else None
        return None if found is None else found.id

    def refresh(self) -> None:
        from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

        first = self._consumer is None
        if self._consumer is None:
            self._consumer = Consumer(
                {
                    **self._kafka,
                    "group.id": "cdcworker-sink-schemas",  # never joined: the partition is assigned by hand
                    "enable.auto.commit": False,
                    "isolation.level": "read_committed",
                    "enable.partition.eof": True,
                    "auto.offset.reset": "earliest",
                    "fetch.wait.max.ms": 10,
                    "log_level": 3,
                }
            )
            # By its number: to ask for the beginning takes the client half a second longer.
            self._consumer.assign([TopicPartition(self._topic, 0, 0)])
        deadline = time.monotonic() + (READ_S_MAX if first else 0.5)
        try:
            while time.monotonic() < deadline:
                ended = False
                for message in self._consumer.consume(500, 0.1):
                    error = message.error()
                    # An end that was queued earlier may stand before records that came since.
                    ended = error is not None and error.code() == KafkaError._PARTITION_EOF
                    if error is None:
                        self._take(message)
                    elif error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                        self.close()
                        return
                    elif not ended and not error.retriable() and error.code() != KafkaError._TRANSPORT:
                        raise refused(error, "the schema log cannot be read", {"topic": self._topic})
                if ended:
                    return
        except KafkaException as exc:
            raise refused(exc.args[0], "the schema log cannot be read", {"topic": self._topic}) from exc
        if first:
            self.close()
            raise CdcError(KAFKA_UNREACHABLE, "the schema log was not read to its end in time")

    def _take(self, message: Any) -> None:
        self._log.read(message.key(), message.value(), partition=message.partition() or 0, offset=message.offset())

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
