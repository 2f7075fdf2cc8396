"""What a record says of the row that its key names: for targets that hold the current state. Also what stands
there for a value that the source did not send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from cdcworker.connectors.api.record_target import TargetRecord
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED
from cdcworker.connectors.transforms.data import ConnectSchema
from cdcworker.schemas.errors import CdcError

_ENVELOPE: Final = frozenset(("before", "after", "op"))
_OPS: Final = ("c", "r", "u", "d", "t", "m")
_UNSENT_TYPES: Final = (str, bytes, list, dict)
_DELETED: Final = "__deleted"
"""The field by which ExtractNewRecordState marks a deletion that it has rewritten."""


class Row(NamedTuple):
    """The row as it is now. `value` None: it is gone."""

    schema: ConnectSchema | None
    value: Any


GONE: Final = Row(None, None)


def row_of(record: TargetRecord) -> Row | None:
    """Returns the row behind a change; None where the record is of no row. CdcError of kind `data` for a truncation, which is of all
    rows."""
    value = record.value
    if value is None:
        return GONE
    if not isinstance(value, Mapping):
        return Row(record.value_schema, value)
    if _is_envelope(value):
        return _inside(record.value_schema, value)
    return GONE if value.get(_DELETED) in ("true", True) else Row(record.value_schema, value)


def _is_envelope(value: Mapping[str, Any]) -> bool:
    """A table may have columns of these names too."""
    if not value.keys() >= _ENVELOPE or value["op"] not in _OPS:
        return False
    return all(row is None or isinstance(row, Mapping) for row in (value["before"], value["after"]))


def _inside(schema: ConnectSchema | None, envelope: Mapping[str, Any]) -> Row | None:
    op = envelope["op"]
    if op == "d":
        return GONE
    if op == "t":
        raise CdcError(
            RECORD_REFUSED, "a truncation names no row, and the target cannot tell which rows are of the table"
        )
    if envelope["after"] is None:
        return None
    after = schema.by_name.get("after") if schema is not None and schema.type == "struct" else None
    return Row(after, envelope["after"])


class Placeholder:
    """What a source writes for a value that it did not send, in the forms that Debezium gives it: text, bytes, an array or a map."""

    def __init__(self, text: str) -> None:
        data = text.encode()
        self._forms = (text, data, [text], list(data), {text: text})

    def stands(self, value: Any) -> bool:
        """Returns whether a value is one of its forms."""
        return isinstance(value, _UNSENT_TYPES) and value in self._forms
