"""The sink into Redis, as a connector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from cdcworker.connectors.api.record_target import RecordTarget, TargetPlace
from cdcworker.connectors.config.definition import ConfigDef
from cdcworker.connectors.record_sink.connector import RecordSink
from cdcworker.connectors.targets.redis.config import CONFIG_DEF, type_of


class RedisSink(RecordSink):
    """Streams of changes, or the current state."""

    config_def: ClassVar[ConfigDef] = CONFIG_DEF

    def open_target(self, place: TargetPlace) -> RecordTarget:
        from cdcworker.connectors.targets.redis.target import RedisTarget

        return RedisTarget(place)

    def redrives_by(self, config: Mapping[str, Any]) -> Literal["record", "row", "letter", ""]:
        """A stream that keeps offsets takes no earlier one of a topic: letters have their own."""
        is_stream = type_of(config, self._config.get("connector.class", "").strip()) == "STREAM"
        if not is_stream:
            return "row"
        return "letter" if config["redis.stream.once"] else "record"
