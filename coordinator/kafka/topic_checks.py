"""Checks of internal topics: errors with the command that repairs the topic, and warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdcworker.coordinator.kafka import errors as e
from cdcworker.schemas.errors import CdcError


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """An existing topic. `config` is None when ACLs forbid to read it."""

    name: str
    partitions: int
    replicas: int
    config: Mapping[str, str] | None = None

    def number(self, name: str) -> int | None:
        """Returns a setting as a number; None if it is unknown or no number."""
        text = (self.config or {}).get(name, "")
        return int(text) if text.isascii() and text.isdigit() else None


def alter_hint(bootstrap: str, topic: str, setting: str) -> str:
    """Returns the hint with the command that changes a topic's setting."""
    command = f"kafka-configs --bootstrap-server {bootstrap} --alter --entity-type topics"
    return f"Run: {command} --entity-name {topic} --add-config {setting}"


def check_partitions(topic: FoundTopic, required: int, key: str) -> None:
    """Raises `kafka.topic_misconfigured` for another number of partitions; `key` is the property that names the
    topic."""
    if topic.partitions != required:
        raise CdcError(
            e.TOPIC_MISCONFIGURED,
            f"the topic has {topic.partitions} partitions and must have exactly {required}: it holds one total order",
            where={"topic": topic.name},
            hint=f"Name another topic in {key}; the partitions of a topic can be added to, not taken away.",
        )


def check_policy(topic: FoundTopic, bootstrap: str) -> None:
    """Raises `kafka.topic_misconfigured` for a topic that deletes by age: it would lose connectors silently (INV-9)."""
    policy = (topic.config or {}).get("cleanup.policy", "compact")
    if policy != "compact":
        raise CdcError(
            e.TOPIC_MISCONFIGURED,
            f"cleanup.policy is {policy!r} and must be 'compact' alone",
            where={"topic": topic.name},
            hint=alter_hint(bootstrap, topic.name, "cleanup.policy=compact"),
        )


def check_in_sync(topic: FoundTopic, bootstrap: str) -> None:
    """Raises `kafka.topic_misconfigured` when min.insync.replicas exceeds the replicas: nothing can be written."""
    required = topic.number("min.insync.replicas")
    if required is not None and required > topic.replicas:
        raise CdcError(
            e.TOPIC_MISCONFIGURED,
            f"min.insync.replicas is {required} and the topic has {topic.replicas} replicas: nothing can be written",
            where={"topic": topic.name},
            hint=alter_hint(bootstrap, topic.name, f"min.insync.replicas={max(1, topic.replicas - 1)}"),
        )


def warnings(topics: Sequence[FoundTopic], brokers: int, retention_ms: Mapping[str, int]) -> list[str]:
    """Returns warnings about settings that may lose data later. `retention_ms`: how long each topic must keep
    tombstones."""
    texts = []
    replicas = {topic.name: topic.replicas for topic in topics}
    if len(set(replicas.values())) > 1:
        counts = " ".join(f"{name}={count}" for name, count in sorted(replicas.items()))
        texts.append(f"internal topics differ in replicas: the least replicated is lost first {counts}")
    least = min(replicas.values(), default=0)
    if brokers >= 3 and least < 3:
        texts.append(f"internal topics have {least} replicas on {brokers} brokers: use 3")
    for topic in topics:
        in_sync = topic.number("min.insync.replicas")
        if in_sync == 1 and topic.replicas >= 3:
            texts.append(
                f"min.insync.replicas is 1 topic={topic.name}: what one broker alone has stored counts as stored; use 2"
            )
        keeps, must = topic.number("delete.retention.ms"), retention_ms.get(topic.name, 0)
        if keeps is not None and keeps < must:
            texts.append(
                f"delete.retention.ms is {keeps} topic={topic.name}: a worker that was away for longer may bring back "
                f"what was deleted; use {must}"
            )
    return texts
