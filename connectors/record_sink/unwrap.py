"""ExtractNewRecordState on records that are read: the row in the place of the envelope that it stands in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

from cdcworker.connectors.config.converters import text_of
from cdcworker.connectors.transform_chain.unwrap import flat_of
from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.connectors.transforms.data import ConnectRecord, ConnectSchema, DataError, Field, Header, class_name
from cdcworker.schemas.record_format import AddedField

DeleteMode = Literal["drop", "tombstone", "delete-to-tombstone", "rewrite", "rewrite-with-tombstone"]
DELETED: Final = "__deleted"
_STRING: Final = ConnectSchema("string", optional=True)
_ENVELOPE: Final = frozenset(("before", "after", "op"))


class _Rows(NamedTuple):
    """What is made of the envelopes of one schema, which is kept so that its identity is not that of another one."""

    envelope: ConnectSchema
    row: ConnectSchema


@dataclass(frozen=True, slots=True)
class UnwrapOptions:
    """What a config says: what becomes of a deletion, and which fields of the envelope are added."""

    deletes: DeleteMode = "tombstone"
    fields: tuple[AddedField, ...] = ()
    headers: tuple[AddedField, ...] = ()


class Unwrap:
    """Takes rows out of Debezium's envelope. What is no envelope passes as it is; a truncate is left out."""

    def __init__(self, options: UnwrapOptions) -> None:
        self._options = options
        self._known: BoundedCache[int, _Rows] = BoundedCache(1_024)

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        value, mode = record.value, self._options.deletes
        if value is None:
            return record if mode in ("tombstone", "rewrite-with-tombstone") else None
        if not is_envelope(record):
            return record
        row = value["after"]
        if row is not None and not isinstance(row, Mapping):
            raise DataError(f"Only Struct and Map objects can be unwrapped, found: {class_name(row)}")
        if row is None:
            if value["op"] != "d" or mode in ("drop", "tombstone"):
                return None
            if mode == "delete-to-tombstone":
                return self._headed(record.with_value(None, None), record)
            row = value.get("before")
            row = row if isinstance(row, Mapping) else {}
        schema = None if record.value_schema is None else self._row_schema(record.value_schema)
        made = {**row, **{field.name: _found(value, field) for field in self._options.fields}}
        if mode in ("rewrite", "rewrite-with-tombstone"):
            made[DELETED] = "true" if value["op"] == "d" else "false"
        return self._headed(record.with_value(schema, made), record)

    def _headed(self, made: ConnectRecord, record: ConnectRecord) -> ConnectRecord:
        if not self._options.headers:
            return made
        added = tuple(
            Header(field.name, _schema_in(record.value_schema, field), _found(record.value, field))
            for field in self._options.headers
        )
        return made.with_headers((*made.headers, *added))

    def _row_schema(self, envelope: ConnectSchema) -> ConnectSchema:
        known = self._known.get(id(envelope))
        if known is None:
            row = envelope.by_name["after"]
            added = [Field(field.name, _schema_in(envelope, field) or _STRING) for field in self._options.fields]
            if self._options.deletes in ("rewrite", "rewrite-with-tombstone"):
                added.append(Field(DELETED, _STRING))
            # Of a deletion only the key may be known: every column may be missing then.
            fields = tuple(Field(name, replace(of, optional=True)) for name, of in row.fields)
            whole = replace(row, fields=(*fields, *added), optional=False, default=None)
            known = self._known[id(envelope)] = _Rows(envelope, whole)
        return known.row


def options_of(config: Mapping[str, str], at: str) -> UnwrapOptions:
    """Returns what a validated config says behind `at`."""
    flat = flat_of(config, at, tombstones=True)
    mode = text_of(config, f"{at}delete.tombstone.handling.mode")
    if not mode:
        mode = {"drop": "drop", "tombstone": "tombstone"}.get(
            flat.deletes, "rewrite-with-tombstone" if flat.trailing else "rewrite"
        )
    return UnwrapOptions(mode, flat.fields, flat.headers)  # type: ignore[arg-type]  # the key's validator has seen it


def is_envelope(record: ConnectRecord) -> bool:
    """Returns whether a record's value is Debezium's envelope."""
    if record.value_schema is not None:
        return record.value_schema.type == "struct" and record.value_schema.by_name.keys() >= _ENVELOPE
    return isinstance(record.value, Mapping) and record.value.keys() >= _ENVELOPE


def _found(envelope: Any, field: AddedField) -> Any:
    """Returns a field of the envelope; null where it is not there."""
    block = envelope.get(field.struct) if field.struct else envelope
    return block.get(field.field) if isinstance(block, Mapping) else None


def _schema_in(envelope: ConnectSchema | None, field: AddedField) -> ConnectSchema | None:
    if envelope is None:
        return None
    block = envelope.by_name.get(field.struct) if field.struct else envelope
    found = None if block is None or block.type != "struct" else block.by_name.get(field.field)
    return _STRING if found is None else replace(found, optional=True)
