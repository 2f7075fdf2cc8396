"""The sink into another Kafka, as a connector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cdcworker.connectors.api.context import Config, TaskContext
from cdcworker.connectors.api.record_target import RecordTarget, TargetPlace
from cdcworker.connectors.api.sink import LedgerAccess, SinkOffsets, SinkSpec
from cdcworker.connectors.config.definition import ConfigDef
from cdcworker.connectors.record_sink.config import EngineSettings
from cdcworker.connectors.record_sink.connector import RecordSink
from cdcworker.connectors.targets.kafka.config import BATCH_BYTES_DEFAULT, BATCH_DEFAULT, CONFIG_DEF
from cdcworker.connectors.targets.kafka.naming import names_of
from cdcworker.schemas import patterns

if TYPE_CHECKING:
    from cdcworker.connectors.record_sink.converters import RecordReader, SharedSchemas


class KafkaSink(RecordSink):
    """Topics of another cluster."""

    config_def: ClassVar[ConfigDef] = CONFIG_DEF

    def open_target(self, place: TargetPlace) -> RecordTarget:
        from cdcworker.connectors.targets.kafka.target import KafkaTarget

        return KafkaTarget(place)

    def batch_default(self, config: Mapping[str, Any]) -> int:
        del config
        return BATCH_DEFAULT

    def redrives_by(self, config: Mapping[str, Any]) -> Literal["record", "row", "letter", ""]:
        """A copy stands where its record stands: none comes later."""
        del config
        return ""

    def engine(self, config: Mapping[str, Any], settings: EngineSettings) -> EngineSettings:
        """One transactional producer copies all partitions of a task, the more at a time since a transaction takes its time."""
        del config
        size = settings.batch_bytes if "batch.max.bytes" in self._config else BATCH_BYTES_DEFAULT
        return replace(settings, lanes=1, batch_bytes=size)

    def reader(self, config: Config, schemas: SharedSchemas) -> RecordReader:
        from cdcworker.connectors.record_sink.converters import unconverted

        del config, schemas
        return unconverted()

    def run(self, spec: SinkSpec, context: TaskContext) -> None:
        """Beside the task, offsets of consumer groups are translated where the config names some."""
        config = self.config_def.parse(spec.config)
        if not config["groups"]:
            super().run(spec, context)
            return
        from cdcworker.connectors.targets.kafka.checkpoints import Checkpoints

        with Checkpoints(spec, config):
            super().run(spec, context)

    def split(self, tasks_max: int, topics: Sequence[str]) -> Sequence[Config]:
        config = self.config_def.parse(self._config)
        names, excluded = names_of(config), config["topics.exclude"]
        kept = [
            topic for topic in topics if not patterns.matches_any(excluded, topic) and not names.came_from_target(topic)
        ]
        return super().split(tasks_max, kept)

    def alter_offsets(self, place: LedgerAccess, changes: SinkOffsets | None) -> None:
        """Also of the ledger in the target cluster, so that records that are read again are copied again, behind the others."""
        from cdcworker.connectors.sink_engine.kafka.brokers import SinkBrokers
        from cdcworker.connectors.targets.kafka.target import KafkaTarget

        super().alter_offsets(place, changes)
        brokers = SinkBrokers(place.kafka)
        there = changes if changes is not None else dict.fromkeys(self.offsets(place))
        firsts = brokers.firsts(sorted(there))
        moved = {
            f"{brokers.id_of(topic) or topic}-{number}": firsts[topic, number] if at is None else at
            for (topic, number), at in there.items()
        }
        config = self.config_def.parse(self._config)
        target = KafkaTarget(
            TargetPlace(
                config,
                connector=place.connector,
                epoch=place.epoch,
                kafka=place.kafka,
                writer=f"{place.connector}:offsets",
            )
        )
        try:
            if moved:
                target.move(moved)
        finally:
            target.close()
