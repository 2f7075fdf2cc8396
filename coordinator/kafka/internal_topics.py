"""The cluster's internal topics: their configs, their creation, and checks of existing ones."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.kafka import topic_checks
from cdcworker.coordinator.kafka.clients import ConnectionReports, make_admin, unreachable
from cdcworker.coordinator.kafka.end_offsets import list_offsets
from cdcworker.coordinator.kafka.topic_checks import FoundTopic
from cdcworker.schemas.errors import CdcError
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

log = logging.getLogger(__name__)

_MIB = 1_048_576
_DAY_MS, _MINUTE_MS = 86_400_000, 60_000
_COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    # Only closed segments are compacted; every start reads all of the active one.
    "segment.bytes": str(16 * _MIB),
    # A reader that was away for up to half of this goes on at its position: it cannot have missed a tombstone.
    "delete.retention.ms": str(_DAY_MS),
}
_BUSY = {
    **_COMPACTED,
    "segment.bytes": str(4 * _MIB),
    "segment.ms": str(10 * _MINUTE_MS),
    "max.compaction.lag.ms": str(30 * _MINUTE_MS),
}
"""The config of topics with frequent records (one a second per worker, five per task): compacted within half an hour,
so that a start reads little."""
_POSITIONS = {
    **_BUSY,
    # Each transaction leaves a marker that compaction keeps for this long; a day's markers would outgrow the records.
    # Positions are only read from start to end within moments, never followed.
    "delete.retention.ms": str(10 * _MINUTE_MS),
}
_RECORD_BYTES_MAX = str(8 * _MIB)


@dataclass(frozen=True, slots=True)
class TopicNames:
    """The names of the internal topics."""

    configs: str
    offsets: str
    status: str
    schemas: str
    coordination: str

    @classmethod
    def of_group(cls, group_id: str, properties: Mapping[str, str] | None = None) -> TopicNames:
        """Returns `<group>.configs` and so on, or the names in the worker's properties."""
        configured = properties or {}
        return cls(
            configs=configured.get("config.storage.topic") or f"{group_id}.configs",
            offsets=configured.get("offset.storage.topic") or f"{group_id}.offsets",
            status=configured.get("status.storage.topic") or f"{group_id}.status",
            schemas=configured.get("schema.storage.topic") or f"{group_id}.schemas",
            coordination=configured.get("coordination.topic") or f"{group_id}.coordination",
        )


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """The required form of a topic. `exact`: another number of partitions is refused. `empty`: it may hold no
    record."""

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    exact: bool = True
    empty: bool = False
    key: str = "the worker's properties"
    """The worker property that names the topic."""

    @property
    def is_compacted(self) -> bool:
        """Tells whether the topic is compacted."""
        return self.config.get("cleanup.policy") == "compact"


def internal_topics(
    names: TopicNames, *, offsets_partitions: int = 25, status_partitions: int = 5
) -> tuple[TopicSpec, ...]:
    """Returns the required internal topics. Those that need a total order have one partition; other counts may differ.

    Raises CdcError `kafka.topic_misconfigured` when two properties name the same topic.
    """
    large = {"max.message.bytes": _RECORD_BYTES_MAX}
    configs = {**_COMPACTED, **large, "max.compaction.lag.ms": str(_DAY_MS)}
    specs = (
        TopicSpec(names.configs, 1, configs, key="config.storage.topic"),
        TopicSpec(names.offsets, offsets_partitions, _POSITIONS, exact=False, key="offset.storage.topic"),
        TopicSpec(names.status, status_partitions, _BUSY, exact=False, key="status.storage.topic"),
        TopicSpec(names.schemas, 1, {**_COMPACTED, **large}, key="schema.storage.topic"),
        TopicSpec(names.coordination, 1, {"cleanup.policy": "delete"}, empty=True, key="coordination.topic"),
    )
    by_name: dict[str, str] = {}
    for spec in specs:
        other = by_name.setdefault(spec.name, spec.key)
        if other != spec.key:
            message = f"{other} and {spec.key} name the same topic"
            raise CdcError(e.TOPIC_MISCONFIGURED, message, where={"topic": spec.name})
    return specs


def ensure_topics(
    properties: Mapping[str, str],
    specs: Sequence[TopicSpec],
    *,
    client_id: str,
    replication_factor: int = -1,
    timeout_s: float = 15.0,
) -> dict[str, int]:
    """Creates missing topics and checks existing ones; returns the number of partitions of each topic.

    Raises CdcError, such as `kafka.topic_misconfigured`, with the command that repairs the topic.
    """
    reports = ConnectionReports()
    admin = make_admin(properties, client_id=client_id, reports=reports)
    deadline = time.monotonic() + timeout_s
    try:
        existing = admin.list_topics(timeout=min(10.0, timeout_s)).topics
    except KafkaException as exc:
        admin.poll(0)
        raise unreachable(properties, reports.cause(exc)) from exc
    _create(admin, [spec for spec in specs if spec.name not in existing], replication_factor, deadline)
    topics_by_name = _configs_of(admin, _await_leaders(admin, [spec.name for spec in specs], deadline), deadline)
    bootstrap = properties.get("bootstrap.servers", "")
    for spec in specs:
        topic = topics_by_name[spec.name]
        if spec.exact:
            topic_checks.check_partitions(topic, spec.partitions, spec.key)
        if spec.is_compacted:
            topic_checks.check_policy(topic, bootstrap)
            topic_checks.check_in_sync(topic, bootstrap)
    _check_empty(admin, [spec.name for spec in specs if spec.empty], deadline)
    _warn(specs, topics_by_name, len(admin.list_topics(timeout=_left(deadline)).brokers))
    return {name: topic.partitions for name, topic in topics_by_name.items()}


def _warn(specs: Sequence[TopicSpec], topics_by_name: Mapping[str, FoundTopic], brokers: int) -> None:
    kept = [spec for spec in specs if spec.is_compacted]
    retention_ms = {spec.name: int(spec.config.get("delete.retention.ms", 0)) for spec in kept}
    for text in topic_checks.warnings([topics_by_name[spec.name] for spec in kept], brokers, retention_ms):
        log.warning("%s", text)


def _left(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())


def _create(admin: AdminClient, specs: Sequence[TopicSpec], replication_factor: int, deadline: float) -> None:
    if not specs:
        return
    new_topics = [NewTopic(spec.name, spec.partitions, replication_factor, config=dict(spec.config)) for spec in specs]
    answers = admin.create_topics(new_topics, operation_timeout=_left(deadline), request_timeout=_left(deadline))
    for name, answer in answers.items():
        try:
            answer.result(_left(deadline))
            log.info("topic created topic=%s", name)
        except KafkaException as exc:
            # Another worker may have created it at the same moment; it is checked like any existing topic.
            if e.kafka_error(exc).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise e.translate(exc, "create the topic", where={"topic": name}) from exc
        except TimeoutError as exc:
            raise CdcError(e.TIMEOUT, "the topic was not created in time", where={"topic": name}) from exc


def _await_leaders(admin: AdminClient, names: Sequence[str], deadline: float) -> list[FoundTopic]:
    """Returns the topics once all their partitions have leaders."""
    while True:
        try:
            topics = admin.list_topics(timeout=_left(deadline)).topics
        except KafkaException as exc:
            raise e.translate(exc, "look up the internal topics") from exc
        waiting = [
            name
            for name in names
            if name not in topics
            or topics[name].error is not None
            or not topics[name].partitions
            or any(part.leader < 0 for part in topics[name].partitions.values())
        ]
        if not waiting:
            return [
                FoundTopic(name, len(parts), min(len(part.replicas) for part in parts.values()))
                for name in names
                for parts in (topics[name].partitions,)
            ]
        if time.monotonic() >= deadline:
            raise CdcError(
                e.TOPIC_MISSING,
                "internal topics are missing or have no leader",
                where={"topics": ",".join(waiting)},
            )
        time.sleep(0.1)


def _configs_of(admin: AdminClient, topics: Iterable[FoundTopic], deadline: float) -> dict[str, FoundTopic]:
    """Adds the configs to the topics, as far as ACLs permit."""
    topics_by_name = {topic.name: topic for topic in topics}
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics_by_name]
    for resource, answer in admin.describe_configs(resources, request_timeout=_left(deadline)).items():
        where = {"topic": resource.name}
        try:
            config = {name: str(entry.value) for name, entry in answer.result(_left(deadline)).items()}
        except KafkaException as exc:
            if e.code_of(exc) != e.AUTHORIZATION:
                raise e.translate(exc, "read the topic's config", where=where) from exc
            log.warning("topic not checked topic=%s error=no right to describe configs", resource.name)
            continue
        except TimeoutError as exc:
            raise CdcError(e.TIMEOUT, "the topic's config was not answered", where=where) from exc
        topics_by_name[resource.name] = replace(topics_by_name[resource.name], config=config)
    return topics_by_name


def _check_empty(admin: AdminClient, names: Sequence[str], deadline: float) -> None:
    for name in names:
        first = list_offsets(admin, name, (0,), OffsetSpec.earliest(), _left(deadline))
        last = list_offsets(admin, name, (0,), OffsetSpec.latest(), _left(deadline))
        if first != last:
            raise CdcError(
                e.TOPIC_MISCONFIGURED,
                "the coordination topic holds records and must stay empty: something else writes to it",
                where={"topic": name},
            )
