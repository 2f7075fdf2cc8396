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
    process can send at all; `compacted`: each record needs a key."""

    partitions: int
    record_bytes_max: int | None = None
    client_bytes_max: int = NO_LIMIT
    compacted: bool = False

    @property
    def known_bytes_max(self) -> int:
        """Returns the size above which a record need not be tried."""
        return (
            self.client_bytes_max
            if self.record_bytes_max is None
            else min(self.record_bytes_max, self.client_bytes_max)
        )


class TopicLookups(Protocol):
    def __call__(self, topic: str) -> TopicFacts: ...
    def all(self, topics: Iterable[str]) -> dict[str, TopicFacts]:
        """Returns the facts of several topics at once; missing topics are created."""
