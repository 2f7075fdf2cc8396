"""What a source has to know of the topics that it writes to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

NO_LIMIT: Final = (1 << 31) - 1
"""No record is larger."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What matters of a data topic. `record_bytes_max` None: only the broker can tell; `client_bytes_max`: what this
    process can send at all."""

    partitions: int
    record_bytes_max: int | None = None
    client_bytes_max: int = NO_LIMIT

    @property
    def known_bytes_max(self) -> int:
        """What is larger needs no try."""
        return (
            self.client_bytes_max
            if self.record_bytes_max is None
            else min(self.record_bytes_max, self.client_bytes_max)
        )


class Topics(Protocol):
    def __call__(self, topic: str) -> TopicFacts: ...
    def all(self, topics: Iterable[str]) -> dict[str, TopicFacts]:
        """Of several at once, made where they are missing."""
