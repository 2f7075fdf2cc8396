"""Which columns of a row the source did not send: large values that are stored beside the row and did not change."""

from __future__ import annotations

from collections.abc import Mapping

from cdcworker.connectors.record_sink.unwrap import is_envelope
from cdcworker.connectors.transforms.data import ConnectRecord
from cdcworker.schemas.encode import UNCHANGED_HEADER


def unsent_columns(record: ConnectRecord) -> tuple[str, ...]:
    """Returns the names of the columns that a record's header gives by their places. It is asked before the transforms: behind them
    a column may stand at another place."""
    texts = [
        header.value for header in record.headers if header.key == UNCHANGED_HEADER and isinstance(header.value, bytes)
    ]
    row = record.value
    if texts and isinstance(row, Mapping) and is_envelope(record):
        row = row.get("after")
    if not texts or not isinstance(row, Mapping):
        return ()
    names = list(row)
    places = [int(part) for text in texts for part in text.split(b",") if part.isdigit()]
    return tuple(names[place] for place in places if place < len(names))
