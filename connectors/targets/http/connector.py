"""The sink into a web service, as a connector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from cdcworker.connectors.api.record_target import RecordTarget, TargetPlace
from cdcworker.connectors.config.definition import ConfigDef
from cdcworker.connectors.record_sink.config import BATCH_DEFAULT
from cdcworker.connectors.record_sink.connector import RecordSink
from cdcworker.connectors.targets.http.config import CONFIG_DEF


class HttpSink(RecordSink):
    """Posts records to a web service."""

    config_def: ClassVar[ConfigDef] = CONFIG_DEF

    def open_target(self, place: TargetPlace) -> RecordTarget:
        from cdcworker.connectors.targets.http.target import HttpTarget

        return HttpTarget(place)

    def batch_default(self, config: Mapping[str, Any]) -> int:
        from cdcworker.connectors.targets.http.target import batch_size

        return batch_size(config, self._config.get("connector.class", "").strip(), BATCH_DEFAULT)
