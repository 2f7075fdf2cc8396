"""Offsets of any connector of this cluster: positions of sources in the offsets log, ledgers of sinks in their targets."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from cdcworker.coordinator.kafka.clients import make_admin
from cdcworker.coordinator.kafka.end_offsets import list_offsets
from cdcworker.coordinator.kafka.errors import translate
from cdcworker.coordinator.model import Connector
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.offsets import debezium
from cdcworker.worker.offsets.model import NOT_BY_MEANING, ConnectorOffset, ConnectorOffsets, Translation
from cdcworker.worker.offsets.sink import SinkOffsetsClient
from cdcworker.worker.offsets.source import OffsetsTopic, SourceOffsets
from cdcworker.worker.offsets.source_database import SourceDatabase
from cdcworker.worker.protocol.task_spec import ClusterTopics

if TYPE_CHECKING:
    from cdcworker.worker.herder.config import HerderConfig

ANSWER_S: Final = 10.0


class OffsetsService:
    """Passes each call on by the connector's kind, source or sink; opens nothing before it is called."""

    def __init__(self, config: HerderConfig) -> None:
        self._config = config
        self._database = SourceDatabase(config.providers, config.group_id)

    def read(self, connector: Connector) -> Sequence[ConnectorOffset]:
        return self._of(connector).read(connector)

    def alter(
        self, connector: Connector, barrier: int, changes: Sequence[ConnectorOffset] | None, *, dry_run: bool = False
    ) -> bool:
        return self._of(connector).alter(connector, barrier, changes, dry_run=dry_run)

    def verify(self, connector: Connector, changes: Sequence[ConnectorOffset]) -> str:
        """Asks a source's database whether its tasks could go on from there; a sink's ledger is asked when it is altered."""
        if connector.kind == "sink" or not changes:
            return ""
        return self._database.verify(connector, self._source().tasks_of(connector, changes))

    def moved(self, connector: Connector, to: str, task: int | None) -> Translation:
        """Returns the stored offsets at another place of the source's stream; its database is asked."""
        if connector.kind == "sink":
            raise CdcError(NOT_BY_MEANING, "a sink goes on from offsets of its topics")
        source = self._source()
        stored = source.read_own(connector)
        known = source.tasks_of(connector, stored)
        positions = [item for item in known if task is None or item[1] == task]
        if not positions:
            raise CdcError(NOT_BY_MEANING, "the connector has stored no position that could be moved")
        found, notes = self._database.moved(connector, positions, to)
        return Translation([replace(stored[number], offset=offset) for number, offset in found.items()], notes)

    def from_debezium(self, connector: Connector, changes: Sequence[ConnectorOffset]) -> Translation:
        """Returns the changes with our positions in the place of Debezium's offsets; a database is asked where there are any."""
        given = [(number, item) for number, item in enumerate(changes) if debezium.is_debezium(connector, item)]
        if not given:
            return Translation(changes)
        wanted = debezium.with_own_partitions(connector, given)
        offsets = [(number, 0, dict(item.offset or {})) for number, item in wanted.items()]
        positions, notes = self._database.from_debezium(connector, offsets)
        own = {number: replace(item, offset=positions[number]) for number, item in wanted.items()}
        return Translation([own.get(number, item) for number, item in enumerate(changes)], notes)

    def to_debezium(self, connector: Connector) -> Translation:
        """Returns what a stopped connector has stored, as Debezium's offsets."""
        debezium.require_one(connector)
        stored = [(0, 0, dict(item.offset or {})) for item in self._source().read_own(connector)]
        offsets, notes = self._database.to_debezium(connector, stored)
        return Translation([ConnectorOffset(debezium.partition(connector), offset) for offset in offsets], notes)

    def drop(
        self, connector: Connector, kinds: Collection[str], spared: Collection[tuple[str, str]]
    ) -> list[dict[str, Any]]:
        """Drops what a connector without tasks has left of these kinds in its database."""
        return self._database.drop(connector, kinds, spared)

    def _of(self, connector: Connector) -> ConnectorOffsets:
        config, names = self._config, self._config.topics
        if connector.kind == "sink":
            counts, ends = (
                functools.partial(partitions, config.kafka, names.offsets),
                functools.partial(_ends, config.kafka),
            )
            return SinkOffsetsClient(config.providers, lambda: counts()[1], ends, kafka=config.kafka)
        return self._source()

    def _source(self) -> SourceOffsets:
        config, names = self._config, self._config.topics
        count = partitions(config.kafka, names.offsets)[0]
        topics = ClusterTopics(names.configs, names.offsets, names.status, names.schemas)
        return SourceOffsets(OffsetsTopic(config.kafka, config.group_id, topics, config.worker_id, count))


def _ends(kafka: Mapping[str, str], topic: str, numbers: Sequence[int]) -> Mapping[int, int]:
    from confluent_kafka.admin import OffsetSpec

    admin = make_admin(kafka, client_id="offsets-admin")
    return list_offsets(admin, topic, numbers, OffsetSpec.latest(), ANSWER_S)


def partitions(kafka: Mapping[str, str], offsets_topic: str) -> tuple[int, Mapping[str, int]]:
    """Returns the partition counts of the offsets log and of all topics."""
    from confluent_kafka import KafkaException

    try:
        found = make_admin(kafka, client_id="offsets-admin").list_topics(timeout=ANSWER_S).topics
    except KafkaException as exc:
        raise translate(exc, "look up topics") from exc
    counts = {name: len(topic.partitions) for name, topic in found.items() if topic.error is None}
    return counts.get(offsets_topic, 1), counts
