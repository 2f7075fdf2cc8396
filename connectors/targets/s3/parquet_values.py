"""Values of Kafka Connect's model as those of Arrow, for files of Parquet."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.api.record_target import TargetRecord
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED
from cdcworker.connectors.transforms import numbers
from cdcworker.connectors.transforms.data import DATE, DECIMAL, TIME, TIMESTAMP, ConnectSchema
from cdcworker.schemas.errors import CdcError

_DEBEZIUM: Final = "io.debezium.time."
PRECISION_MAX: Final = 38
SCALE_DEFAULT: Final = 9


def file_of(records: Sequence[TargetRecord]) -> bytes:
    """Returns the file of records that have one schema. CdcError of kind `data`, ValueError, TypeError."""
    import pyarrow as pa
    from pyarrow import parquet

    schema = records[0].value_schema
    assert schema is not None
    kind = arrow_of(schema)
    read = reader_of(schema)
    try:
        rows = [read(record.value) for record in records]
        table = pa.Table.from_pylist(rows, schema=pa.schema(list(kind)))
        out = io.BytesIO()
        # A type that Parquet does not have, such as a decimal of more than 38 digits behind the point, is an OSError.
        parquet.write_table(table, out, compression="zstd")
    except (pa.ArrowException, OSError) as error:
        raise CdcError(RECORD_REFUSED, f"a value has no form in Parquet ({type(error).__name__})") from None
    return out.getvalue()


def arrow_of(schema: ConnectSchema) -> Any:
    """Returns the Arrow type of a schema. CdcError of kind `data` where there is none."""
    import pyarrow as pa

    if schema.type == "struct":
        return pa.struct([pa.field(name, arrow_of(of), of.optional) for name, of in schema.fields])
    if schema.type == "array" and schema.value_schema is not None:
        return pa.list_(arrow_of(schema.value_schema))
    if schema.type == "map" and schema.key_schema is not None and schema.value_schema is not None:
        return pa.map_(arrow_of(schema.key_schema), arrow_of(schema.value_schema))
    if schema.name == DECIMAL:
        return pa.decimal128(PRECISION_MAX, _scale(schema))
    named = {
        DATE: pa.date32(),
        TIME: pa.time32("ms"),
        TIMESTAMP: pa.timestamp("ms", "UTC"),
        f"{_DEBEZIUM}Date": pa.date32(),
        f"{_DEBEZIUM}Timestamp": pa.timestamp("ms"),
        f"{_DEBEZIUM}MicroTimestamp": pa.timestamp("us"),
        f"{_DEBEZIUM}NanoTimestamp": pa.timestamp("ns"),
    }
    plain = {
        "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(), "float32": pa.float32(),
        "float64": pa.float64(), "boolean": pa.bool_(), "string": pa.string(), "bytes": pa.binary(),
    }  # fmt: skip
    found = named.get(schema.name or "") or plain.get(schema.type)
    if found is None:
        raise CdcError(RECORD_REFUSED, f"an {schema.type} without a schema of its items has no type in Parquet")
    return found


def reader_of(schema: ConnectSchema) -> Callable[[Any], Any]:
    """Returns what makes the value that Arrow takes."""
    if schema.type == "struct":
        fields = [(name, reader_of(of)) for name, of in schema.fields]
        return _unless_none(lambda value: {name: read(value.get(name)) for name, read in fields})
    if schema.type == "array" and schema.value_schema is not None:
        item = reader_of(schema.value_schema)
        return _unless_none(lambda value: [item(each) for each in value])
    if schema.type == "map" and schema.value_schema is not None:
        item = reader_of(schema.value_schema)
        return _unless_none(lambda value: [(key, item(each)) for key, each in value.items()])
    if schema.name == DECIMAL:
        return _unless_none(lambda value: numbers.decimal_of(value, schema))
    return lambda value: value


def _unless_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _scale(schema: ConnectSchema) -> int:
    parameters: Mapping[str, str] = schema.parameters or {}
    return int(parameters.get("scale", SCALE_DEFAULT))
