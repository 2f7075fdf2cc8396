"""Keys and values of records as JSON, as Kafka Connect's JsonConverter writes them without schemas."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from cdcworker.connectors.record_sink.errors import RECORD_REFUSED
from cdcworker.connectors.transforms.avro_form import JSON_WRITTEN, avro_of
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
        self._known: dict[int, tuple[ConnectSchema, Text]] = {}

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
        if len(self._known) >= SCHEMAS_MAX:
            del self._known[next(iter(self._known))]  # the oldest
        write = compile_json(avro_of(schema, JSON_WRITTEN), numeric=self._numeric)
        self._known[id(schema)] = (schema, write)
        return write


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
