"""The cluster's own topics: created as they must be, refused when somebody made them otherwise."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cdcworker.coordinator import kafka_checks as checks
from cdcworker.coordinator import kafka_errors as e
from cdcworker.coordinator.kafka_checks import Found
from cdcworker.coordinator.kafka_clients import Reports, make_admin, unreachable
from cdcworker.coordinator.kafka_offsets import list_offsets
from cdcworker.schemas.errors import CdcError
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

log = logging.getLogger(__name__)

_MIB = 1_048_576
_DAY_MS, _MINUTE_MS = 86_400_000, 60_000
_COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    # Only closed segments are compacted: what stands in the open one is read by every start.
    "segment.bytes": str(16 * _MIB),
    # A reader that was away for up to half of this may go on where it was: it cannot have missed a deletion.
    "delete.retention.ms": str(_DAY_MS),
}
_BUSY = {
    **_COMPACTED,
    "segment.bytes": str(4 * _MIB),
    "segment.ms": str(10 * _MINUTE_MS),
    "max.compaction.lag.ms": str(30 * _MINUTE_MS),
}
"""A record a second from each worker, five a second from each task: a start must not read a week of them."""
_POSITIONS = {
    **_BUSY,
    # Each transaction leaves a marker that the cleaner keeps for this long, so that a day's markers would be the
    # topic. Positions are only ever read from the start to the end within moments, never tailed.
    "delete.retention.ms": str(10 * _MINUTE_MS),
}
_RECORD_BYTES_MAX = str(8 * _MIB)


@dataclass(frozen=True, slots=True)
class TopicNames:
    """Names of the cluster's own topics."""

    configs: str
    offsets: str
    status: str
    schemas: str
    coordination: str

    @classmethod
    def of_group(cls, group_id: str, properties: Mapping[str, str] | None = None) -> TopicNames:
        """`<group>.configs` and so on, unless the worker's properties say otherwise."""
        given = properties or {}
        return cls(
            configs=given.get("config.storage.topic") or f"{group_id}.configs",
            offsets=given.get("offset.storage.topic") or f"{group_id}.offsets",
            status=given.get("status.storage.topic") or f"{group_id}.status",
            schemas=given.get("schema.storage.topic") or f"{group_id}.schemas",
            coordination=given.get("coordination.topic") or f"{group_id}.coordination",
        )


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """What a topic must be. `exact`: another number of partitions is refused. `empty`: nothing may ever be in it."""

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    exact: bool = True
    empty: bool = False
    key: str = "the worker's properties"
    """Where the worker's properties name it."""

    @property
    def is_compacted(self) -> bool:
        return self.config.get("cleanup.policy") == "compact"


def internal_topics(
    names: TopicNames, *, offsets_partitions: int = 25, status_partitions: int = 5
) -> tuple[TopicSpec, ...]:
    """One partition where a total order is needed; the others may have been made with another count."""
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
    """Create what is missing, check what is there; gives the number of partitions of each topic."""
    reports = Reports()
    admin = make_admin(properties, client_id=client_id, reports=reports)
    deadline = time.monotonic() + timeout_s
    try:
        there = admin.list_topics(timeout=min(10.0, timeout_s)).topics
    except KafkaException as exc:
        admin.poll(0)
        raise unreachable(properties, reports.cause(exc)) from exc
    _create(admin, [spec for spec in specs if spec.name not in there], replication_factor, deadline)
    found = _configs_of(admin, _await_leaders(admin, [spec.name for spec in specs], deadline), deadline)
    bootstrap = properties.get("bootstrap.servers", "")
    for spec in specs:
        topic = found[spec.name]
        if spec.exact:
            checks.check_partitions(topic, spec.partitions, spec.key)
        if spec.is_compacted:
            checks.check_policy(topic, bootstrap)
            checks.check_in_sync(topic, bootstrap)
    _check_empty(admin, [spec.name for spec in specs if spec.empty], deadline)
    _warn(specs, found, len(admin.list_topics(timeout=_left(deadline)).brokers))
    return {name: topic.partitions for name, topic in found.items()}


def _warn(specs: Sequence[TopicSpec], found: Mapping[str, Found], brokers: int) -> None:
    kept = [spec for spec in specs if spec.is_compacted]
    retention_ms = {spec.name: int(spec.config.get("delete.retention.ms", 0)) for spec in kept}
    for text in checks.warnings([found[spec.name] for spec in kept], brokers, retention_ms):
        log.warning("%s", text)


def _left(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())


def _create(admin: AdminClient, specs: Sequence[TopicSpec], replication_factor: int, deadline: float) -> None:
    if not specs:
        return
    wanted = [NewTopic(spec.name, spec.partitions, replication_factor, config=dict(spec.config)) for spec in specs]
    answers = admin.create_topics(wanted, operation_timeout=_left(deadline), request_timeout=_left(deadline))
    for name, answer in answers.items():
        try:
            answer.result(_left(deadline))
            log.info("topic created topic=%s", name)
        except KafkaException as exc:
            # Another worker may start at the same moment; what it made is checked like any other.
            if e.kafka_error(exc).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise e.translate(exc, "create the topic", where={"topic": name}) from exc
        except TimeoutError as exc:
            raise CdcError(e.TIMEOUT, "the topic was not created in time", where={"topic": name}) from exc


def _await_leaders(admin: AdminClient, names: Sequence[str], deadline: float) -> list[Found]:
    """The topics, once every partition has a leader: before that, a fold would start with errors."""
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
                Found(name, len(parts), min(len(part.replicas) for part in parts.values()))
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


def _configs_of(admin: AdminClient, topics: Iterable[Found], deadline: float) -> dict[str, Found]:
    """The topics with their configs, as far as we may see them."""
    found = {topic.name: topic for topic in topics}
    asked = [ConfigResource(ResourceType.TOPIC, name) for name in found]
    for resource, answer in admin.describe_configs(asked, request_timeout=_left(deadline)).items():
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
        found[resource.name] = replace(found[resource.name], config=config)
    return found


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
