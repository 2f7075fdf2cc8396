"""ExtractChangedRecordState: the names of the columns that an update has changed, in a header."""

from __future__ import annotations

from typing import Any, Final

from cdcworker.connectors.transforms.data import ConnectRecord, ConnectSchema, Header
from cdcworker.connectors.transforms.debezium.envelope import envelope_of

_NAME: Final = ConnectSchema("string", optional=True)


def _names(header: str) -> ConnectSchema:
    return ConnectSchema("array", optional=True, name=header, value_schema=_NAME)


class ExtractChangedRecordState:
    """Headers with the names of the columns that have changed, and of those that have not. Without both row images the lists
    are empty, so that a transform behind this one finds the headers on each record."""

    def __init__(self, changed_header: str, unchanged_header: str) -> None:
        """A header without a name is not added."""
        self._changed = (changed_header, _names(changed_header))
        self._unchanged = (unchanged_header, _names(unchanged_header))

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        schema = envelope_of(record)
        if schema is None:
            return record
        changed, unchanged = _compared(record.value.get("before"), record.value.get("after"))
        found = ((self._changed, changed), (self._unchanged, unchanged))
        added = tuple(Header(name, of, names) for (name, of), names in found if name)
        return record.with_headers((*record.headers, *added))


def _compared(before: Any, after: Any) -> tuple[list[str], list[str]]:
    changed: list[str] = []
    unchanged: list[str] = []
    if before is not None and after is not None:
        for name, value in after.items():
            (unchanged if value == before.get(name) else changed).append(name)
    return changed, unchanged
