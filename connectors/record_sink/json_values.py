"""Keys and values of records as JSON, as Kafka Connect's JsonConverter writes them without schemas."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from cdcworker.connectors.record_sink.errors import RECORD_REFUSED
from cdcworker.connectors.transforms.avro_form import JSON_WRITTEN, avro_of
from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.connectors.transforms.data import ConnectSchema, DataError, Header
from cdcworker.connectors.transforms.dates import to_millis
from cdcworker.schemas.connect_json import compile_json
from cdcworker.schemas.errors import CdcError

SCHEMAS_MAX: Final = 1_024
_BAD: Final = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError)
Text = Callable[[Any], str]


class JsonValues:
    """Writes values of any schema. `numeric` writes decimals as numbers, else they are base64 of their bytes."""

    def __init__(self, *, numeric: bool) -> None:
        self._numeric = numeric
        self._known: BoundedCache[int, tuple[ConnectSchema, Text]] = BoundedCache(SCHEMAS_MAX)

    def text(self, schema: ConnectSchema | None, value: Any) -> str:
        """Returns the JSON of a value. CdcError of kind `data` for one that does not fit its schema."""
        if value is None:
            return "null"
        try:
            if schema is None:
                return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain)
            known = self._known.get(id(schema))
            return (self._learned(schema) if known is None else known[1])(value)
        except (*_BAD, DataError) as error:
            text = f"a value has no form in JSON ({type(error).__name__})"
            raise CdcError(RECORD_REFUSED, text) from None

    def headers_text(self, headers: tuple[Header, ...] | list[Header]) -> str:
        """Returns headers as a JSON object; bytes that are text are text, others base64. The last of a name counts."""
        found = {header.key: self._header(header) for header in headers}
        return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in found.items()) + "}"

    def _header(self, header: Header) -> str:
        value = header.value
        if header.schema is None and isinstance(value, bytes):
            try:
                return json.dumps(value.decode(), ensure_ascii=False)
            except UnicodeDecodeError:
                return json.dumps(base64.b64encode(value).decode())
        return self.text(header.schema, value)

    def _learned(self, schema: ConnectSchema) -> Text:
        write = compile_json(avro_of(schema, JSON_WRITTEN), numeric=self._numeric)
        if _is_plain(schema):
            write = _quick(_completeness(schema), write)
        self._known[id(schema)] = (schema, write)
        return write


_DUMP: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def _is_plain(schema: ConnectSchema) -> bool:
    """Whether JSON has the values of a schema as they are: none of them are bytes."""
    inner = [of for _, of in schema.fields] + [one for one in (schema.value_schema,) if one is not None]
    return schema.type != "bytes" and all(map(_is_plain, inner))


def _completeness(schema: ConnectSchema) -> Callable[[Any], bool]:
    """Returns what tells whether a value has every field: one without a value may be left out, and is null in JSON."""
    if schema.type in ("array", "map") and schema.value_schema is not None and _has_struct(schema.value_schema):
        return lambda value: value is None or not value
    if schema.type != "struct":
        return lambda value: True
    count = len(schema.fields)
    inner = [(name, _completeness(of)) for name, of in schema.fields if _has_struct(of)]
    return lambda value: (
        value is None or (len(value) == count and all(is_complete(value.get(name)) for name, is_complete in inner))
    )


def _has_struct(schema: ConnectSchema) -> bool:
    return schema.type == "struct" or (schema.value_schema is not None and _has_struct(schema.value_schema))


def _quick(is_complete: Callable[[Any], bool], write: Text) -> Text:
    """Returns a writer that has the library write what it can, which takes a third of the time."""

    def text(value: Any) -> str:
        if is_complete(value):
            try:
                return _DUMP(value)
            except ValueError:
                pass  # NaN and infinities are texts
        return write(value)

    return text


def encoded(text: str) -> bytes:
    """Returns the text as UTF-8. CdcError of kind `data` for text that is not Unicode."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise CdcError(RECORD_REFUSED, "a text is not Unicode") from None


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return to_millis(value)
    raise TypeError
