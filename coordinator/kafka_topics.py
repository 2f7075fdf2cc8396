"""The cluster's own topics: created as they must be, refused when somebody made them otherwise."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cdcworker.coordinator import kafka_errors as e
from cdcworker.coordinator.kafka_clients import Reports, make_admin, unreachable
from cdcworker.coordinator.kafka_log import list_offsets
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


def internal_topics(
    names: TopicNames, *, offsets_partitions: int = 25, status_partitions: int = 5
) -> tuple[TopicSpec, ...]:
    """One partition where a total order is needed; the others may have been made with another count."""
    large = {"max.message.bytes": _RECORD_BYTES_MAX}
    return (
        TopicSpec(names.configs, 1, {**_COMPACTED, **large, "max.compaction.lag.ms": str(_DAY_MS)}),
        TopicSpec(names.offsets, offsets_partitions, _POSITIONS, exact=False),
        TopicSpec(names.status, status_partitions, _BUSY, exact=False),
        TopicSpec(names.schemas, 1, {**_COMPACTED, **large}),
        TopicSpec(names.coordination, 1, {"cleanup.policy": "delete"}, empty=True),
    )


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
    counts = _await_leaders(admin, [spec.name for spec in specs], deadline)
    for spec in specs:
        _check_partitions(spec, counts[spec.name])
    _check_policies(admin, specs, deadline)
    _check_empty(admin, [spec.name for spec in specs if spec.empty], deadline)
    return counts


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


def _await_leaders(admin: AdminClient, names: Sequence[str], deadline: float) -> dict[str, int]:
    """Partition counts, once every partition has a leader: before that, a fold would start with errors."""
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
            return {name: len(topics[name].partitions) for name in names}
        if time.monotonic() >= deadline:
            raise CdcError(
                e.TOPIC_MISSING,
                "internal topics are missing or have no leader",
                where={"topics": ",".join(waiting)},
            )
        time.sleep(0.1)


def _check_partitions(spec: TopicSpec, found: int) -> None:
    if spec.exact and found != spec.partitions:
        raise CdcError(
            e.TOPIC_MISCONFIGURED,
            f"the topic has {found} partitions and must have exactly {spec.partitions}: it holds one total order",
            where={"topic": spec.name},
        )


def _check_policies(admin: AdminClient, specs: Iterable[TopicSpec], deadline: float) -> None:
    """A topic that forgets by age would forget connectors and positions without a word (INV-9)."""
    compacted = [spec.name for spec in specs if spec.config.get("cleanup.policy") == "compact"]
    asked = [ConfigResource(ResourceType.TOPIC, name) for name in compacted]
    for resource, answer in admin.describe_configs(asked, request_timeout=_left(deadline)).items():
        try:
            policy = str(answer.result(_left(deadline))["cleanup.policy"].value)
        except KafkaException as exc:
            if e.code_of(exc) != e.AUTHORIZATION:
                raise e.translate(exc, "read the topic's config", where={"topic": resource.name}) from exc
            log.warning("cleanup policy not checked topic=%s error=no right to describe configs", resource.name)
            continue
        except TimeoutError as exc:
            raise CdcError(e.TIMEOUT, "the topic's config was not answered", where={"topic": resource.name}) from exc
        if policy != "compact":
            raise CdcError(
                e.TOPIC_MISCONFIGURED,
                f"cleanup.policy is {policy!r} and must be 'compact' alone",
                where={"topic": resource.name},
            )


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
