"""Records as the bytes of a file: lines of JSON, CSV, Avro or Parquet. The same records make the same bytes."""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cdcworker.connectors.api.record_target import TargetRecord
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED
from cdcworker.connectors.record_sink.json_values import JsonValues, encoded
from cdcworker.connectors.targets.events import event_text
from cdcworker.connectors.targets.s3 import parquet_values
from cdcworker.connectors.transforms.avro_form import REGISTERED, avro_of
from cdcworker.connectors.transforms.data import ConnectSchema, DataError
from cdcworker.connectors.transforms.values import text_of
from cdcworker.schemas.errors import CdcError

_BAD: Final = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
    ArithmeticError,
)


_QUOTED: Final = re.compile(r'[",\r\n]')


class FileFormat(NamedTuple):
    """How a file is made. `shape` returns what all records of one file have in common."""

    ending: str
    shape: Callable[[TargetRecord], Any]
    content: Callable[[Sequence[TargetRecord]], bytes]
    """CdcError of kind `data` for records of which one cannot be written."""


def format_named(name: str, *, events: bool, compression: str) -> FileFormat:
    """Returns a format by its name in configs."""
    if name == "avro":
        return FileFormat(".avro", _struct, _refusing(_avro))
    if name == "parquet":
        return FileFormat(".parquet", _struct, _refusing(parquet_values.file_of))
    content, shape, ending = (_csv, _columns, ".csv") if name == "csv" else (_lines(events=events), _nothing, ".json")
    if compression == "gzip":
        return FileFormat(f"{ending}.gz", shape, lambda records: gzip.compress(_refusing(content)(records), 6, mtime=0))
    return FileFormat(ending, shape, _refusing(content))


def _refusing(content: Callable[[Sequence[TargetRecord]], bytes]) -> Callable[[Sequence[TargetRecord]], bytes]:
    def refused(records: Sequence[TargetRecord]) -> bytes:
        try:
            return content(records)
        except (*_BAD, DataError) as error:
            raise CdcError(
                RECORD_REFUSED, f"a value has no place in the file's format ({type(error).__name__})"
            ) from None

    return refused


def _nothing(record: TargetRecord) -> Any:
    del record


def _lines(*, events: bool) -> Callable[[Sequence[TargetRecord]], bytes]:
    values = JsonValues(numeric=True)

    def line(record: TargetRecord) -> str:
        return event_text(values, record) if events else values.text(record.value_schema, record.value)

    return lambda records: encoded("".join([line(record) + "\n" for record in records]))


def _columns(record: TargetRecord) -> tuple[str, ...]:
    schema, value = record.value_schema, record.value
    if schema is not None and schema.type == "struct":
        return tuple(name for name, _ in schema.fields)
    if not isinstance(value, Mapping):
        raise CdcError(RECORD_REFUSED, "the value has no fields")
    return tuple(value)


def _csv(records: Sequence[TargetRecord]) -> bytes:
    names = _columns(records[0])
    lines = [",".join(map(_quoted, names))]
    for record in records:
        known = record.value_schema.by_name if record.value_schema is not None else {}
        line = ",".join([_cell(record.value.get(name), known.get(name)) for name in names])
        # Readers pass over a line without characters.
        lines.append(line or '""')
    return encoded("\n".join([*lines, ""]))


def _cell(value: Any, schema: ConnectSchema | None) -> str:
    """Returns a value as PostgreSQL's COPY writes it: nothing for null, and quotes for a text without characters. Python's csv module
    tells the two not apart, and does not quote a carriage return alone."""
    return "" if value is None else _quoted(text_of(value, schema))


def _quoted(text: str) -> str:
    return text if text and not _QUOTED.search(text) else f'"{text.replace(chr(34), chr(34) * 2)}"'


def _struct(record: TargetRecord) -> ConnectSchema:
    if record.value_schema is None or record.value_schema.type != "struct":
        raise CdcError(RECORD_REFUSED, "the value has no schema with fields, which this format needs")
    return record.value_schema


def _avro(records: Sequence[TargetRecord]) -> bytes:
    from fastavro import parse_schema, writer
    from fastavro.schema import SchemaParseException

    out = io.BytesIO()
    schema = _struct(records[0])
    try:
        kind = parse_schema(avro_of(schema, REGISTERED))
    except SchemaParseException:
        raise CdcError(RECORD_REFUSED, "the value's schema has no form in Avro") from None
    # The marker between blocks is random otherwise, and the same records make the same bytes here.
    writer(out, kind, [record.value for record in records], codec="deflate", sync_marker=b"cdcworker-blocks")
    return out.getvalue()
