"""Offsets of any connector of this cluster: positions of sources in our log, ledgers of sinks in their targets."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from cdcworker.coordinator.kafka_clients import make_admin
from cdcworker.coordinator.kafka_errors import translate
from cdcworker.coordinator.kafka_offsets import list_offsets
from cdcworker.coordinator.model import Connector
from cdcworker.worker.offsets import Offset, Offsets
from cdcworker.worker.sink_offsets import SinkOffsets
from cdcworker.worker.source_offsets import Place, SourceOffsets
from cdcworker.worker.taskspec import Topics

if TYPE_CHECKING:
    from cdcworker.worker.herder import HerderConfig

ANSWER_S: Final = 10.0


class OffsetKeeper:
    """Chooses by the connector's kind; opens nothing before it is asked."""

    def __init__(self, config: HerderConfig) -> None:
        self._config = config

    def read(self, connector: Connector) -> Sequence[Offset]:
        return self._of(connector).read(connector)

    def alter(
        self, connector: Connector, barrier: int, changes: Sequence[Offset] | None, *, dry_run: bool = False
    ) -> bool:
        return self._of(connector).alter(connector, barrier, changes, dry_run=dry_run)

    def _of(self, connector: Connector) -> Offsets:
        config, names = self._config, self._config.topics
        if connector.kind == "sink":
            counts, ends = (
                functools.partial(partitions, config.kafka, names.offsets),
                functools.partial(_ends, config.kafka),
            )
            return SinkOffsets(config.providers, lambda: counts()[1], ends, kafka=config.kafka)
        count = partitions(config.kafka, names.offsets)[0]
        topics = Topics(names.configs, names.offsets, names.status, names.schemas)
        return SourceOffsets(Place(config.kafka, config.group_id, topics, config.worker_id, count))


def _ends(kafka: Mapping[str, str], topic: str, numbers: Sequence[int]) -> Mapping[int, int]:
    from confluent_kafka.admin import OffsetSpec

    admin = make_admin(kafka, client_id="offsets-admin")
    return list_offsets(admin, topic, numbers, OffsetSpec.latest(), ANSWER_S)


def partitions(kafka: Mapping[str, str], offsets_topic: str) -> tuple[int, Mapping[str, int]]:
    """Of the offsets log, and of all topics."""
    from confluent_kafka import KafkaException

    try:
        found = make_admin(kafka, client_id="offsets-admin").list_topics(timeout=ANSWER_S).topics
    except KafkaException as exc:
        raise translate(exc, "look up topics") from exc
    counts = {name: len(topic.partitions) for name, topic in found.items() if topic.error is None}
    return counts.get(offsets_topic, 1), counts
