"""What of a connector's config concerns the runner and not the source: limits, topics, schemas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.connectors.common import SOURCE_KEYS
from cdcworker.connectors.config import ConfigDef, ConfigKey
from cdcworker.connectors.registry import lookup
from cdcworker.schemas.absent import UNAVAILABLE
from cdcworker.worker.source_headers import Headers, context_headers
from cdcworker.worker.source_session import Limits
from cdcworker.worker.source_topics import TopicPlan

_KEYS: Final = ConfigDef(
    (
        *SOURCE_KEYS,
        # Sources of change records ask for it themselves; others name their topics.
        ConfigKey("topic.prefix", default=""),
        ConfigKey("tombstones.on.delete", "BOOLEAN", default=True),
        ConfigKey("unavailable.value.placeholder", default=UNAVAILABLE),
        ConfigKey("extended.headers.enabled", "BOOLEAN", default=False),
    )
)
_DEBEZIUM_NAMES: Final = {"postgres": "postgresql"}
_CREATION: Final = "topic.creation.default."
_CREATION_OWN: Final = frozenset({"partitions", "replication.factor"})
_WATERMARKS: Final = {
    "cleanup.policy": "compact",
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
}
"""One key per task and one record a second: without quick compaction a reader of a week would wade through them."""


@dataclass(frozen=True, slots=True)
class SourceSettings:
    prefix: str
    tombstones: bool
    unavailable: str
    limits: Limits
    delivery: str
    data_topics: TopicPlan
    connector: str
    extended_headers: bool

    @property
    def watermark_topic(self) -> str:
        return f"{self.prefix}.watermark"

    def plan(self, topic: str) -> TopicPlan:
        """How a topic of this connector is created."""
        if topic == self.watermark_topic:
            return TopicPlan(1, self.data_topics.replication_factor, _WATERMARKS)
        return self.data_topics

    def headers(self, task: int) -> Headers:
        """Of each record of data, behind its own."""
        if not self.extended_headers:
            return ()
        name = lookup(self.connector).name
        return context_headers(self.prefix, task, _DEBEZIUM_NAMES.get(name, name))

    @classmethod
    def from_config(cls, config: Mapping[str, str]) -> SourceSettings:
        values: dict[str, Any] = _KEYS.parse({name: text for name, text in config.items() if name in _KEYS.keys})
        topic_config = {
            name.removeprefix(_CREATION): text
            for name, text in config.items()
            if name.startswith(_CREATION) and name.removeprefix(_CREATION) not in _CREATION_OWN
        }
        topic_config.setdefault("cleanup.policy", str(values["topic.creation.default.cleanup.policy"]))
        return cls(
            prefix=values["topic.prefix"],
            tombstones=values["tombstones.on.delete"],
            unavailable=values["unavailable.value.placeholder"],
            limits=Limits(
                records_max=values["batch.commit.records.max"],
                bytes_max=values["batch.commit.bytes.max"],
                ms_max=values["batch.commit.ms.max"],
                transaction_timeout_ms=values["transaction.timeout.ms"],
                split_bytes=values["transaction.split.bytes"],
            ),
            delivery=values["delivery"],
            data_topics=TopicPlan(
                values["topic.creation.default.partitions"],
                values["topic.creation.default.replication.factor"],
                topic_config,
            ),
            connector=config.get("connector.class", ""),
            extended_headers=values["extended.headers.enabled"],
        )
