"""Lends the encoder's plans to a source that writes its records itself, with what Kafka knows of their topics."""

from __future__ import annotations

from collections.abc import Callable

from cdcworker.schemas.change import Position, Table
from cdcworker.schemas.encode import Encoder
from cdcworker.schemas.record_layout import RecordLayout
from cdcworker.worker.source.refused_records import without_key
from cdcworker.worker.source.session import RECORD_OVERHEAD_BYTES
from cdcworker.worker.source.topic_facts import TopicFacts


class EncoderLayouts:
    """The layouts of the encoder that the session itself uses, so that both agree on which shape of a table is in force."""

    def __init__(self, encoder: Encoder, topics: Callable[[str], TopicFacts]) -> None:
        self._encoder = encoder
        self._topics = topics
        self.tails, self.clock_ns = encoder.tails, encoder.clock_ns

    @property
    def version(self) -> int:
        return self._encoder.version

    def layout(self, table: Table, position: Position) -> RecordLayout:
        encoder = self._encoder
        plan = encoder.plan(table, position)
        facts = self._topics(plan.topic)
        if facts.compacted and plan.key_schema is None:
            raise without_key(plan.topic, table.path)
        limit = facts.known_bytes_max - RECORD_OVERHEAD_BYTES
        return RecordLayout(plan, facts.partitions, limit, encoder.tombstones, encoder.unavailable)


def shaper_of(encoder: object, topics: Callable[[str], TopicFacts]) -> EncoderLayouts | None:
    """Returns the layouts for a source; None: the records have a form that only the encoder can write."""
    return EncoderLayouts(encoder, topics) if isinstance(encoder, Encoder) and encoder.has_default_form else None
