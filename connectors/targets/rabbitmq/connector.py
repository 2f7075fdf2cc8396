"""The sink into RabbitMQ, as a connector."""

from __future__ import annotations

from typing import ClassVar

from cdcworker.connectors.api.record_target import RecordTarget, TargetPlace
from cdcworker.connectors.config.definition import ConfigDef
from cdcworker.connectors.record_sink.connector import RecordSink
from cdcworker.connectors.targets.rabbitmq.config import CONFIG_DEF


class RabbitMqSink(RecordSink):
    """Messages of an exchange."""

    config_def: ClassVar[ConfigDef] = CONFIG_DEF

    def open_target(self, place: TargetPlace) -> RecordTarget:
        from cdcworker.connectors.targets.rabbitmq.target import RabbitTarget

        return RabbitTarget(place)
