"""Kafka Connect's StringConverter: the text of a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.connectors.config.definition import one_of_any_case
from cdcworker.connectors.formats.format import NOTHING, Format, Headers, Typed, setting, unreadable
from cdcworker.connectors.formats.single_values import UnframedWriter, connect_schema_of
from cdcworker.connectors.transforms.data import DATE, DAY_MS, DECIMAL, TIME, TIMESTAMP, ConnectSchema, DataError
from cdcworker.connectors.transforms.dates import civil
from cdcworker.connectors.transforms.values import text_of
from cdcworker.schemas.change import Avro
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.record_format import NO_FORM, RecordWriter

UTF_16: Final = "utf-16"
"""Java writes the mark of its order and then big-endian, and reads text without a mark so."""
_MARK: Final = b"\xfe\xff"
STRING: Final = "org.apache.kafka.connect.storage.StringConverter"
ENCODINGS: Final = {
    "utf8": "utf-8",
    "utf-8": "utf-8",
    "utf-16": UTF_16,
    "utf-16be": "utf-16-be",
    "utf-16le": "utf-16-le",
    "iso-8859-1": "latin-1",
    "us-ascii": "ascii",
}
"""Java's names of encodings, by Python's."""
_SCHEMA: Final = ConnectSchema("string", optional=True)
_Text = Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class TextFormat:
    """The text of values in an encoding."""

    encoding: str = "utf-8"

    def writer(self, kind: Avro | None, *, optional: bool = False) -> RecordWriter:
        write = _plain_text if kind is None else _written(connect_schema_of(kind))
        encoding = self.encoding
        return UnframedWriter(kind, lambda value: encoded(write(value), encoding))


def encoded(text: str, encoding: str) -> bytes:
    """Returns a text in an encoding as Java writes it. Raises UnicodeEncodeError."""
    if encoding != UTF_16:
        return text.encode(encoding)
    return _MARK + text.encode("utf-16-be") if text else b""


def decoded(data: bytes, encoding: str) -> str:
    """Returns the text that Java reads. Raises UnicodeDecodeError."""
    if encoding == UTF_16 and data[:2] not in (_MARK, _MARK[::-1]):
        return data.decode("utf-16-be")
    return data.decode(encoding)


def _plain_text(value: Any) -> str:
    if isinstance(value, bytes | bytearray | list | tuple | dict):
        raise TypeError("bytes and structured values without a schema have no text")
    return text_of(value, None)


def _written(schema: ConnectSchema) -> _Text:
    """Returns what writes the text of a value. A record, a list and a map are written as Java does it: heartbeats and other
    records of the source's own have such keys."""
    if schema.type == "struct":
        return _struct_text(schema)
    if schema.type in ("array", "map") and schema.value_schema is not None:
        item = _inner(schema.value_schema)
        if schema.type == "array":
            return lambda values: f"[{', '.join([item(value) for value in values])}]"
        return lambda values: "{" + ", ".join([f"{key}={item(value)}" for key, value in values.items()]) + "}"
    if schema.type == "bytes" and schema.name != DECIMAL:
        raise CdcError(NO_FORM, "bytes have no text", hint="Name the ByteArrayConverter, or leave the column out.")
    return _TEMPORALS.get(schema.name or "") or (lambda value: _checked_text(value, schema))


def _date_text(days: int) -> str:
    """Returns a day of any year as ISO 8601 has it."""
    year, month, day = civil(days)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}-{month:02d}-{day:02d}"


def _time_text(millis: int) -> str:
    seconds, rest = divmod(abs(millis), 1000)
    sign = "-" if millis < 0 else ""
    return f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{rest:03d}Z"


def _timestamp_text(millis: int) -> str:
    days, rest = divmod(millis, DAY_MS)
    return f"{_date_text(days)}T{_time_text(rest)}"


_TEMPORALS: Final[Mapping[str, _Text]] = {DATE: _date_text, TIME: _time_text, TIMESTAMP: _timestamp_text}
"""By the type, whatever the value: a key names one row, so that two values must not have one text."""


def _checked_text(value: Any, schema: ConnectSchema) -> str:
    try:
        return text_of(value, schema)
    except DataError as error:
        raise ValueError(str(error)) from None


def _inner(schema: ConnectSchema) -> _Text:
    if schema.type == "bytes" and schema.name != DECIMAL:
        return lambda value: text_of(value, schema)
    write = _written(schema)
    return lambda value: "null" if value is None else write(value)


def _struct_text(schema: ConnectSchema) -> _Text:
    writes = [(name, _inner(of)) for name, of in schema.fields]

    def write(value: Any) -> str:
        row = value if isinstance(value, tuple) else [value.get(name) for name, _ in writes]
        parts = [f"{name}={text(item)}" for (name, text), item in zip(writes, row, strict=True) if item is not None]
        return f"Struct{{{','.join(parts)}}}"

    return write


class TextReader:
    """Reads text."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding

    def read(self, data: bytes | None, headers: Headers = ()) -> Typed:
        if data is None:
            return NOTHING
        try:
            return Typed(_SCHEMA, decoded(data, self._encoding))
        except UnicodeDecodeError:
            raise unreadable(f"the bytes are no text in {self._encoding}") from None


FORMATS: Final = (
    Format(
        (STRING, "StringConverter", "string"),
        lambda settings: TextFormat(ENCODINGS[settings["converter.encoding"].lower()]),
        lambda settings, _: TextReader(ENCODINGS[settings["converter.encoding"].lower()]),
        "The text of a single value.",
        keys=(
            setting("converter.encoding", "UTF8", "The encoding of the text.", validator=one_of_any_case(*ENCODINGS)),
        ),
        single="the text of a single value",
        is_strict=lambda _: False,
    ),
)
