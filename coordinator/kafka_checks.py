"""What is wrong with an internal topic as it was found: refusals with their fix, and what is worth a warning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdcworker.coordinator import kafka_errors as e
from cdcworker.schemas.errors import CdcError


@dataclass(frozen=True, slots=True)
class Found:
    """A topic as it is. `config` None: we have no right to see it."""

    name: str
    partitions: int
    replicas: int
    config: Mapping[str, str] | None = None

    def number(self, name: str) -> int | None:
        text = (self.config or {}).get(name, "")
        return int(text) if text.isascii() and text.isdigit() else None


def alter_hint(bootstrap: str, topic: str, setting: str) -> str:
    """The command that puts a topic's setting right."""
    command = f"kafka-configs --bootstrap-server {bootstrap} --alter --entity-type topics"
    return f"Run: {command} --entity-name {topic} --add-config {setting}"


def check_partitions(found: Found, wanted: int, key: str) -> None:
    if found.partitions != wanted:
        raise CdcError(
            e.TOPIC_MISCONFIGURED,
            f"the topic has {found.partitions} partitions and must have exactly {wanted}: it holds one total order",
            where={"topic": found.name},
            hint=f"Name another topic in {key}; the partitions of a topic can be added to, not taken away.",
        )


def check_policy(found: Found, bootstrap: str) -> None:
    """A topic that forgets by age would forget connectors and positions without a word (INV-9)."""
    policy = (found.config or {}).get("cleanup.policy", "compact")
    if policy != "compact":
        raise CdcError(
            e.TOPIC_MISCONFIGURED,
            f"cleanup.policy is {policy!r} and must be 'compact' alone",
            where={"topic": found.name},
            hint=alter_hint(bootstrap, found.name, "cleanup.policy=compact"),
        )


def check_in_sync(found: Found, bootstrap: str) -> None:
    """A topic that wants more replicas in sync than it has takes no write at all."""
    wanted = found.number("min.insync.replicas")
    if wanted is not None and wanted > found.replicas:
        raise CdcError(
            e.TOPIC_MISCONFIGURED,
            f"min.insync.replicas is {wanted} and the topic has {found.replicas} replicas: nothing can be written",
            where={"topic": found.name},
            hint=alter_hint(bootstrap, found.name, f"min.insync.replicas={max(1, found.replicas - 1)}"),
        )


def warnings(topics: Sequence[Found], brokers: int, retention_ms: Mapping[str, int]) -> list[str]:
    """What works today and costs data on a bad day. `retention_ms`: how long each topic must keep tombstones."""
    said = []
    replicas = {found.name: found.replicas for found in topics}
    if len(set(replicas.values())) > 1:
        counts = " ".join(f"{name}={count}" for name, count in sorted(replicas.items()))
        said.append(f"internal topics differ in replicas: the least replicated is lost first {counts}")
    least = min(replicas.values(), default=0)
    if brokers >= 3 and least < 3:
        said.append(f"internal topics have {least} replicas on {brokers} brokers: use 3")
    for found in topics:
        in_sync = found.number("min.insync.replicas")
        if in_sync == 1 and found.replicas >= 3:
            said.append(
                f"min.insync.replicas is 1 topic={found.name}: what one broker alone has stored counts as stored; use 2"
            )
        keeps, must = found.number("delete.retention.ms"), retention_ms.get(found.name, 0)
        if keeps is not None and keeps < must:
            said.append(
                f"delete.retention.ms is {keeps} topic={found.name}: a worker that was away for longer may bring back "
                f"what was deleted; use {must}"
            )
    return said
