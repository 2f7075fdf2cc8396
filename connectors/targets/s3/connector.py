"""The sink into files of an object store, as a connector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, Literal

from cdcworker.connectors.api.record_target import RecordTarget, TargetPlace
from cdcworker.connectors.api.sink import LedgerAccess, SinkOffsets
from cdcworker.connectors.config.definition import ConfigDef
from cdcworker.connectors.record_sink.config import EngineSettings
from cdcworker.connectors.record_sink.connector import RecordSink
from cdcworker.connectors.targets.s3.config import CONFIG_DEF, store_of

WRITE_S_MIN: Final = 600.0
"""So long a batch of many files may take at least: each request has a limit of its own."""


class FilesSink(RecordSink):
    """Files of records."""

    config_def: ClassVar[ConfigDef] = CONFIG_DEF

    def open_target(self, place: TargetPlace) -> RecordTarget:
        from cdcworker.connectors.targets.s3.target import FilesTarget

        return FilesTarget(place)

    def redrives_by(self, config: Mapping[str, Any]) -> Literal["record", "row", "letter", ""]:
        """A file has the records of its offsets: none comes later."""
        del config
        return ""

    def engine(self, config: Mapping[str, Any], settings: EngineSettings) -> EngineSettings:
        """A batch is what becomes files together."""
        return replace(
            settings,
            batch_records=config["file.max.records"],
            batch_bytes=config["file.max.bytes"],
            linger_s=config["file.max.age.ms"] / 1000,
            idle_s=config["file.idle.ms"] / 1000,
            lanes=config["file.writers"],
            target_timeout_s=max(settings.target_timeout_s, WRITE_S_MIN),
        )

    def check_files(self, roots: Sequence[str]) -> None:
        """CdcError where the worker does not open the folder or the store to connectors."""
        store_of(self.config_def.parse(self._config), roots)

    def alter_offsets(self, place: LedgerAccess, changes: SinkOffsets | None) -> None:
        """Also of the ledgers beside the files, so that records that are read again are written again, to further files."""
        from cdcworker.connectors.sink_engine.kafka.brokers import SinkBrokers
        from cdcworker.connectors.targets.s3.ledger import PartitionLedger

        super().alter_offsets(place, changes)
        brokers = SinkBrokers(place.kafka)
        there = changes if changes is not None else dict.fromkeys(self.offsets(place))
        firsts = brokers.firsts(sorted(there))
        store = store_of(self.config_def.parse(self._config), place.file_roots)
        for (topic, number), at in there.items():
            partition = f"{brokers.id_of(topic) or topic}-{number}"
            ledger = PartitionLedger(store, place.connector, partition, place.epoch)
            ledger.set_end(firsts[topic, number] if at is None else at)
