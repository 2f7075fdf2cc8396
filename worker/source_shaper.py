"""Lends the encoder's plans to a source that writes its records itself, with what Kafka knows of their topics."""

from __future__ import annotations

from collections.abc import Callable

from cdcworker.schemas.change import Position, Table
from cdcworker.schemas.encode import Encoder
from cdcworker.schemas.shape import Shape
from cdcworker.worker.source_session import RECORD_OVERHEAD_BYTES
from cdcworker.worker.topic_facts import TopicFacts


class EncoderShaper:
    """Over the encoder that the session itself uses: both agree on which shape of a table is in force."""

    def __init__(self, encoder: Encoder, topics: Callable[[str], TopicFacts]) -> None:
        self._encoder = encoder
        self._topics = topics

    @property
    def turns(self) -> int:
        return self._encoder.turns

    def tails(self) -> dict[str, bytes]:
        return self._encoder.tails()

    def shape(self, table: Table, position: Position) -> Shape:
        encoder = self._encoder
        plan = encoder.plan(table, position)
        facts = self._topics(plan.topic)
        limit = facts.known_bytes_max - RECORD_OVERHEAD_BYTES
        return Shape(plan, facts.partitions, limit, encoder.tombstones, encoder.unavailable)


def shaper_of(encoder: object, topics: Callable[[str], TopicFacts]) -> EncoderShaper | None:
    """None: the records have a form that only the encoder can write."""
    return EncoderShaper(encoder, topics) if type(encoder) is Encoder else None
