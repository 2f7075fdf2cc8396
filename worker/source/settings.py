"""The part of a connector's config that concerns the runner and not the source: limits, topics, headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.connectors.config.common_keys import SOURCE_KEYS
from cdcworker.connectors.config.definition import ConfigDef, ConfigKey
from cdcworker.connectors.config.topic_creation import CreationGroup, creation_groups, group_keys
from cdcworker.connectors.registry.names import lookup
from cdcworker.schemas.placeholders import UNAVAILABLE
from cdcworker.worker.source.context_headers import Headers, context_headers
from cdcworker.worker.source.data_topics import TopicCreation
from cdcworker.worker.source.session import TransactionLimits

_KEYS: Final = ConfigDef(
    (
        *SOURCE_KEYS,
        # Sources of change records ask for it themselves; others name their topics.
        ConfigKey("topic.prefix", default=""),
        ConfigKey("tombstones.on.delete", "BOOLEAN", default=True),
        ConfigKey("unavailable.value.placeholder", default=UNAVAILABLE),
        ConfigKey("extended.headers.enabled", "BOOLEAN", default=False),
    ),
    more=group_keys,
)
_WATERMARKS: Final = {
    "cleanup.policy": "compact",
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
}
"""The watermark topic has one key per task and gets one record a second: without quick compaction a reader would read
a week of them."""


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The parsed settings of one connector. `connector` is its connector.class."""

    prefix: str
    tombstones: bool
    unavailable: str
    limits: TransactionLimits
    delivery: str
    groups: tuple[CreationGroup, ...]
    """Of topics; the last one has every topic."""
    connector: str
    extended_headers: bool

    @property
    def watermark_topic(self) -> str:
        return f"{self.prefix}.watermark"

    def plan(self, topic: str) -> TopicCreation:
        """Returns how a topic of this connector is created."""
        if topic == self.watermark_topic:
            return TopicCreation(1, self.groups[-1].replication_factor, _WATERMARKS)
        group = next(group for group in self.groups if group.has(topic))
        return TopicCreation(group.partitions, group.replication_factor, group.settings)

    def headers(self, task: int) -> Headers:
        """Returns the headers that each data record gets after its own."""
        if not self.extended_headers:
            return ()
        plugin = lookup(self.connector)
        return context_headers(self.prefix, task, plugin.debezium_name or plugin.name)

    @classmethod
    def from_config(cls, config: Mapping[str, str]) -> SourceSettings:
        definition = _KEYS.of(config)
        values: dict[str, Any] = definition.parse(
            {name: text for name, text in config.items() if name in definition.keys}
        )
        return cls(
            prefix=values["topic.prefix"],
            tombstones=values["tombstones.on.delete"],
            unavailable=values["unavailable.value.placeholder"],
            limits=TransactionLimits(
                records_max=values["batch.commit.records.max"],
                bytes_max=values["batch.commit.bytes.max"],
                ms_max=values["batch.commit.ms.max"],
                transaction_timeout_ms=values["transaction.timeout.ms"],
                split_bytes=values["transaction.split.bytes"],
            ),
            delivery=values["delivery"],
            groups=creation_groups(config, values),
            connector=config.get("connector.class", ""),
            extended_headers=values["extended.headers.enabled"],
        )
