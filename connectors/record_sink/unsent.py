"""Which columns of a row the source did not send: large values that are stored beside the row and did not change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cdcworker.connectors.transforms.data import ConnectRecord
from cdcworker.schemas.encode import UNCHANGED_HEADER

ENVELOPE: Final = frozenset(("before", "after", "op"))


def unsent_columns(record: ConnectRecord) -> tuple[str, ...]:
    """Returns the names of the columns that a record's header gives by their places. It is asked before the transforms: behind them
    a column may stand at another place."""
    texts = [
        header.value for header in record.headers if header.key == UNCHANGED_HEADER and isinstance(header.value, bytes)
    ]
    row = record.value
    if isinstance(row, Mapping) and row.keys() >= ENVELOPE:
        row = row["after"]
    if not texts or not isinstance(row, Mapping):
        return ()
    names = list(row)
    places = [int(part) for text in texts for part in text.split(b",") if part.isdigit()]
    return tuple(names[place] for place in places if place < len(names))
