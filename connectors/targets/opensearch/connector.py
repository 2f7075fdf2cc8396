"""The sink into OpenSearch and Elasticsearch, as a connector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from cdcworker.connectors.api.record_target import RecordTarget, TargetPlace
from cdcworker.connectors.config.definition import ConfigDef
from cdcworker.connectors.record_sink.config import BATCH_DEFAULT, EngineSettings
from cdcworker.connectors.record_sink.connector import RecordSink
from cdcworker.connectors.targets.opensearch.config import CONFIG_DEF, engine_of


class OpenSearchSink(RecordSink):
    """Documents: the current rows, or each change."""

    config_def: ClassVar[ConfigDef] = CONFIG_DEF

    def open_target(self, place: TargetPlace) -> RecordTarget:
        from cdcworker.connectors.targets.opensearch.target import OpenSearchTarget

        return OpenSearchTarget(place)

    def batch_default(self, config: Mapping[str, Any]) -> int:
        return int(config["batch.size"] or BATCH_DEFAULT)

    def engine(self, config: Mapping[str, Any], settings: EngineSettings) -> EngineSettings:
        return engine_of(config, settings)

    def redrives_by(self, config: Mapping[str, Any]) -> Literal["record", "row", "letter", ""]:
        """Of two changes of a document the newer one stays, which their places tell."""
        del config
        return "row"
