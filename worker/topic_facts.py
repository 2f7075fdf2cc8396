"""What a source has to know of the topics that it writes to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What matters of a data topic. `record_bytes_max` None: only the broker can tell."""

    partitions: int
    record_bytes_max: int | None = None


class Topics(Protocol):
    def __call__(self, topic: str) -> TopicFacts: ...
    def all(self, topics: Iterable[str]) -> dict[str, TopicFacts]:
        """Of several at once, made where they are missing."""
