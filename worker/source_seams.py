"""What a session of a source task is given: its seams, its limits, its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cdcworker.schemas.change import Change, OutRecord


class Pen(Protocol):
    """One transactional producer."""

    @property
    def opened_at(self) -> float | None: ...
    def begin(self) -> None: ...
    def produce(
        self, topic: str, key: bytes | None, value: bytes | None, partition: int, headers: Any = None
    ) -> None: ...
    def produce_all(self, records: Sequence[tuple[Any, ...]]) -> None: ...
    def serve(self) -> None: ...
    def flush(self, timeout_s: float) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class SessionPen(Pen, Protocol):
    """What a session needs of one. `commit` may return before it is known how it ended: the next transaction may then
    begin, and `settle` returns when the one before is committed and raises when that is not known."""

    @property
    def is_decided(self) -> bool: ...
    def settle(self) -> None: ...


class ChangeEncoder(Protocol):
    def encode(self, changes: Sequence[Change]) -> list[OutRecord]: ...


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What matters of a data topic. `record_bytes_max` None: only the broker can tell."""

    partitions: int
    record_bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """A transaction is committed at the first boundary after any of these."""

    records_max: int = 20_000
    bytes_max: int = 8_000_000
    ms_max: int = 200
    transaction_timeout_ms: int = 900_000
    split_bytes: int = 1 << 30
    """From here on a source transaction is committed in parts, at the latest after half of the time-out."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session writes besides its data topics, and as whom."""

    connector: str
    task: int
    incarnation: str
    task_epoch: int
    offsets_topic: str
    offsets_partition: int
    offsets_key: str
    watermark_topic: str


@dataclass(frozen=True, slots=True)
class Encoded:
    """Records that the encoder made of changes, and the facts of their topics."""

    records: Sequence[OutRecord]
    changes: Sequence[Change]
    facts: dict[str, TopicFacts]
