"""Rows of small sources: their tables as the engine knows them, and their values as Avro writes them."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from cdcworker.connectors.api.plugin_errors import FAILED, RECORD_REFUSED
from cdcworker.connectors.api.small_source import AvroType, FieldType, SourceField, SourceTable
from cdcworker.connectors.capture.avro_types import connect
from cdcworker.connectors.kit.source_block import source_schema
from cdcworker.schemas.change import Avro, Column, Row, Table
from cdcworker.schemas.errors import CdcError

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}")
_LONG: Final = 1 << 63
_AVRO: Final[Mapping[FieldType, Avro]] = {
    "string": "string",
    "int64": "long",
    "float64": "double",
    "boolean": "boolean",
    "bytes": "bytes",
    "timestamp": connect("string", "io.debezium.time.ZonedTimestamp"),
    "json": connect("string", "io.debezium.data.Json"),
}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    # A half of a surrogate pair is no text that UTF-8 has.
    value.encode()
    return value


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -_LONG <= value < _LONG:
        raise TypeError
    return value


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError
    return float(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError
    return bytes(value)


def _moment(value: Any) -> str:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise TypeError
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _json(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    text.encode()
    return text


_WRITERS: Final[Mapping[FieldType, Callable[[Any], Any]]] = {
    "string": _text,
    "int64": _integer,
    "float64": _number,
    "boolean": _boolean,
    "bytes": _bytes,
    "timestamp": _moment,
    "json": _json,
}


class TableShape:
    """One table of a plugin's source. CdcError `plugin.failed` for a table that none can be made of."""

    def __init__(self, namespace: str, table: SourceTable) -> None:
        self.name = table.name
        fields = list(table.fields)
        names = [field.name for field in fields]
        if not _NAME.fullmatch(table.name) or not names or len(set(names)) != len(names):
            raise _wrong(
                table.name, "a table needs a name of letters, digits, _ and -, and fields with different names"
            )
        if missing := [name for name in table.key if name not in names]:
            raise _wrong(table.name, f"the key names fields that the table does not have: {len(missing)}")
        if unknown := sorted({str(field.type) for field in fields if not _is_known(field.type)}):
            raise _wrong(table.name, f"there are no fields of type {', '.join(unknown)}")
        columns = tuple(_column(field, is_key=field.name in table.key) for field in fields)
        if len({column.column_id for column in columns}) != len(columns):
            raise _wrong(table.name, "two names of fields have the same number: rename one of them")
        self._writers = [(field.name, _writer(field.type), field.name in table.key) for field in fields]
        self._types = {field.name: field.type for field in fields}
        self._known = frozenset(names)
        path, key = (namespace, table.name), tuple(names.index(name) for name in table.key)
        self.table = Table(path, _number_of(table.name), columns, key, source_schema(f"cdcworker.{namespace}"))

    def row(self, values: Mapping[str, Any]) -> Row:
        """Returns a row. CdcError `plugin.record_refused` names the field whose value it cannot have, without the value."""
        if not isinstance(values, Mapping) or not self._known.issuperset(values):
            raise self._refused("a row names a field that its table does not have", "")
        return tuple(self._value(values.get(name), write, name, is_key=is_key) for name, write, is_key in self._writers)

    def gone(self, values: Mapping[str, Any]) -> Row:
        """Returns what is left of a deleted row: at least its key."""
        if not self.table.key:
            raise self._refused("a row of a table without a key cannot be deleted", "")
        return self.row(values)

    def _value(self, value: Any, write: Callable[[Any], Any], name: str, *, is_key: bool) -> Any:
        if value is None and not is_key:
            return None
        try:
            return write(value)
        except (TypeError, ValueError, OverflowError, RecursionError):
            text = "a key is null" if value is None else f"a value is no {self._types[name]}: {type(value).__name__}"
            raise self._refused(text, name) from None

    def _refused(self, text: str, field: str) -> CdcError:
        where: dict[str, str | int] = {"table": ".".join(self.table.path)}
        return CdcError(RECORD_REFUSED, text, where=where | ({"field": field} if field else {}))


def shapes_of(namespace: str, tables: Sequence[SourceTable]) -> Mapping[str, TableShape]:
    """Returns the tables by name. CdcError `plugin.failed`."""
    found: dict[str, TableShape] = {}
    for table in tables:
        if not isinstance(table, SourceTable):
            raise CdcError(FAILED, f"`tables` returned {type(table).__name__} in place of SourceTable")
        if table.name in found:
            raise _wrong(table.name, "`tables` returned two tables of one name")
        found[table.name] = TableShape(namespace, table)
    if not found:
        raise CdcError(FAILED, "`tables` returned no table")
    return found


def _is_known(kind: FieldType | AvroType) -> bool:
    return isinstance(kind, AvroType) or kind in _WRITERS


def _writer(kind: FieldType | AvroType) -> Callable[[Any], Any]:
    return _same if isinstance(kind, AvroType) else _WRITERS[kind]


def _same(value: Any) -> Any:
    return value


def _column(field: SourceField, *, is_key: bool) -> Column:
    # The number follows from the name: fields may be added and moved, and a warehouse knows the others again.
    avro = field.type.avro if isinstance(field.type, AvroType) else _AVRO[field.type]
    return Column(field.name, avro, optional=not is_key, column_id=_number_of(field.name))


def _number_of(name: str) -> int:
    return zlib.crc32(name.encode()) & 0x7FFFFFFF or 1


def _wrong(table: str, text: str) -> CdcError:
    return CdcError(FAILED, text, where={"table": str(table)[:100]})
