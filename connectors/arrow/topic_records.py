"""The records of one topic of a micro-batch as columns, raw and decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


@dataclass(slots=True)
class TopicRecords:
    """The records of one topic, in the order of partition and offset, as columns."""

    name: str
    partition: np.ndarray[Any, Any]
    offset: np.ndarray[Any, Any]
    key: pa.Array
    value: pa.Array
    headers: pa.Array
    schema: np.ndarray[Any, Any]
    """Schema id per row, 0 for a tombstone, negative where the value has no frame."""

    def where(self, row: int) -> dict[str, str | int]:
        """Returns the place of one record, as errors name it."""
        return {"topic": self.name, "partition": int(self.partition[row]), "offset": int(self.offset[row])}


@dataclass(slots=True)
class DecodedTopic:
    """Positions, operations and rows of a topic's records, aligned with its `TopicRecords`."""

    major: np.ndarray[Any, Any]
    """Commit position per row; -1: the record has none."""
    minor: np.ndarray[Any, Any]
    """Index in the transaction (upper 32 bits) and in the change (lower 32 bits)."""
    op: np.ndarray[Any, Any]
    ts_ms: np.ndarray[Any, Any]
    local: np.ndarray[Any, Any]
    """A row's index in the decoded array of its schema."""
    arrays: dict[int, Any]
    """Decoded values by schema id, each an Arrow struct array."""
    ts_us: np.ndarray[Any, Any] | None = None
    """When a row was committed in the source, in microseconds; None unless versions are built."""
