"""Rows on their way into a stage table, from which they are merged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cdcworker.schemas.topics import unescape

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class StageRows:
    """Rows for a stage table. `unchanged` flags by column those that did not bring it, `origins` are the rows' keys of before, and
    `keep_key`: the encoded keys go with the rows."""

    rows: pa.Table
    unchanged: Mapping[str, Any] = field(default_factory=dict)
    origins: pa.Table | None = None
    keep_key: bool = True

    @property
    def bits(self) -> dict[str, int]:
        return bits_of(self.unchanged)


def bits_of(unchanged: Mapping[str, Any]) -> dict[str, int]:
    """Returns the bit of each column that some row did not bring, by its name in the target."""
    return {unescape(column): bit for bit, column in enumerate(unchanged)}
