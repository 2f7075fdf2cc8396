"""Parquet files of Iceberg tables, written and read by pyarrow: columns by their field ids, and what manifests say of a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_batch import KEY, POSITION
from cdcworker.connectors.sink_errors import TARGET_VALUE
from cdcworker.connectors.warehouses.lake.file_faults import UnreadableFile, file_errors
from cdcworker.connectors.warehouses.storage.files import Storage
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

ID: Final = b"PARQUET:field_id"
DELETED_PATH, DELETED_ROW = 2147483546, 2147483545
"""Field ids of the two columns of position deletes."""
BOUND_MAX: Final = 16
"""Texts and bytes are cut to so many characters in the bounds of a file."""
CODECS: Final = ("zstd", "snappy", "gzip", "lz4", "uncompressed")
ROWS_PER_GROUP: Final = 131_072
DIGITS_MAX: Final = 38
Bounds = tuple[bytes | None, bytes | None]


class UnfitFile(Exception):
    """A file that has not the form that these functions read."""


@dataclass(frozen=True, slots=True)
class IcebergColumn:
    """A column of an Iceberg table. `element` is the field id of the elements of a list."""

    id: int
    name: str
    kind: pa.DataType
    required: bool
    element: int | None = None

    @property
    def field(self) -> pa.Field:
        """The column as files have it."""
        import pyarrow as pa

        kind = self.kind
        if self.element is not None:
            kind = pa.list_(pa.field("element", kind.value_type, metadata={ID: str(self.element).encode()}))
        return pa.field(self.name, kind, not self.required, {ID: str(self.id).encode()})


def columns_of(schema: Mapping[str, Any]) -> list[IcebergColumn] | None:
    """Returns the columns of a schema that is given as Iceberg's JSON; None where a type is one that the sink never makes."""
    import pyarrow as pa

    out = []
    for field in schema["fields"]:
        kind, element = field["type"], None
        if isinstance(kind, dict) and kind["type"] == "list":
            inner = _primitive(kind["element"])
            found, element = None if inner is None else pa.list_(inner), kind["element-id"]
        else:
            found = _primitive(kind)
        if found is None:
            return None
        out.append(IcebergColumn(field["id"], field["name"], found, field["required"], element))
    return out


def _primitive(kind: Any) -> pa.DataType | None:
    import pyarrow as pa

    if not isinstance(kind, str):
        return None
    digits = re.fullmatch(r"decimal\((\d+), ?(\d+)\)", kind)
    if digits is not None:
        return pa.decimal128(int(digits[1]), int(digits[2]))
    names = {"boolean": "bool", "int": "int32", "long": "int64", "float": "float", "double": "double"}
    names |= {"string": "string", "binary": "binary", "date": "date32"}
    times = {"timestamp": pa.timestamp("us"), "timestamptz": pa.timestamp("us", "UTC")}
    return times.get(kind) or (pa.type_for_alias(names[kind]) if kind in names else None)


# -- writing ------------------------------------------------------------------------------------------------------------


def write_rows(
    files: Storage, path: str, rows: pa.Table, columns: Sequence[IcebergColumn], codec: str
) -> dict[str, Any]:
    """Writes a data file and returns what a manifest says of it, in the form of Iceberg's JSON. The rows may have their
    columns in any order."""
    import pyarrow as pa

    for column in columns:
        if column.required and rows[column.name].null_count:
            raise CdcError(TARGET_VALUE, "a required column would be NULL", where={"column": column.name})
    table = pa.table(
        [rows[column.name].cast(column.field.type) for column in columns], pa.schema([c.field for c in columns])
    )
    plain = [column.name for column in columns if column.name not in (KEY, POSITION) and column.element is None]
    written, size = _write(files, path, table, codec, plain)
    return {"content": "data", **_entry(size, written), **_metrics(table, columns, written)}


def write_deletes(files: Storage, path: str, data_path: str, rows: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Writes the position deletes of one data file, rows in rising order, and returns what a manifest says of them."""
    import numpy as np
    import pyarrow as pa

    columns = [
        IcebergColumn(DELETED_PATH, "file_path", pa.string(), True),
        IcebergColumn(DELETED_ROW, "pos", pa.int64(), True),
    ]
    paths = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(rows), np.int32)), pa.array([data_path]))
    table = pa.table([paths.cast(pa.string()), pa.array(rows, pa.int64())], pa.schema([c.field for c in columns]))
    written, size = _write(files, path, table, "zstd", ["file_path"])
    name = data_path.encode()
    pairs = {DELETED_PATH: (name, name), DELETED_ROW: (_long(int(rows[0])), _long(int(rows[-1])))}
    entry = {"content": "position-deletes", **_entry(size, written), **_bounds(pairs)}
    return {**entry, "referenced-data-file": data_path}


def _write(
    files: Storage, path: str, table: pa.Table, codec: str, dictionary: Sequence[str]
) -> tuple[parquet.FileMetaData, int]:
    """Returns what the file says of itself, and how many bytes it has."""
    from pyarrow import parquet

    written = []

    def fill(sink: Any) -> None:
        file = parquet.ParquetWriter(
            sink,
            table.schema,
            compression="none" if codec == "uncompressed" else codec,
            use_dictionary=list(dictionary),
            write_statistics=True,
            store_decimal_as_integer=True,
            store_schema=False,
        )
        with file:
            file.write_table(table, ROWS_PER_GROUP)
        written.append(file.writer.metadata)

    with file_errors():
        size = files.write(path, fill)
    return written[0], size


def _entry(size: int, written: parquet.FileMetaData) -> dict[str, Any]:
    groups = [written.row_group(at).column(0) for at in range(written.num_row_groups)]
    starts = [group.dictionary_page_offset or group.data_page_offset for group in groups]
    return {
        "spec-id": 0,
        "file-format": "parquet",
        "partition": [],
        "file-size-in-bytes": size,
        "record-count": written.num_rows,
        "split-offsets": starts,
    }


# -- metrics ------------------------------------------------------------------------------------------------------------


def _metrics(table: pa.Table, columns: Sequence[IcebergColumn], written: parquet.FileMetaData) -> dict[str, Any]:
    """Iceberg's default metrics: sizes, counts and bounds of every column but lists."""
    import pyarrow.compute as pc

    sizes: dict[str, int] = {}
    for at in range(written.num_row_groups):
        group = written.row_group(at)
        for number in range(group.num_columns):
            chunk = group.column(number)
            sizes[chunk.path_in_schema] = sizes.get(chunk.path_in_schema, 0) + chunk.total_compressed_size
    plain = [column for column in columns if column.element is None]
    nans = {c.id: pc.sum(pc.is_nan(table[c.name])).as_py() or 0 for c in plain if _is_float(c.kind)}
    bounds = {c.id: _bounds_of(table[c.name], c.kind) for c in plain if not nans.get(c.id)}
    return {
        "column-sizes": _map({column.id: sizes[column.name] for column in plain}),
        "value-counts": _map({column.id: table.num_rows for column in plain}),
        "null-value-counts": _map({column.id: table[column.name].null_count for column in plain}),
        "nan-value-counts": _map(nans),
        **_bounds(bounds),
    }


def _map(values: Mapping[int, Any]) -> dict[str, list[Any]]:
    return {"keys": list(values), "values": list(values.values())}


def _bounds(bounds: Mapping[int, Bounds]) -> dict[str, Any]:
    lower = {id: low.hex().upper() for id, (low, _) in bounds.items() if low is not None}
    upper = {id: high.hex().upper() for id, (_, high) in bounds.items() if high is not None}
    return {"lower-bounds": _map(lower), "upper-bounds": _map(upper)}


def _is_float(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_floating(kind))


def _bounds_of(values: pa.ChunkedArray, kind: pa.DataType) -> Bounds:
    """Returns the lowest and the highest value as Iceberg encodes a single value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_temporal(kind):
        values = values.cast(pa.int32() if pa.types.is_date(kind) else pa.int64())
    found = pc.min_max(values)
    low, high = found["min"].as_py(), found["max"].as_py()
    if low is None:
        return None, None
    if pa.types.is_string(kind):
        return low[:BOUND_MAX].encode(), _text_above(high)
    if pa.types.is_binary(kind):
        return low[:BOUND_MAX], _bytes_above(high)
    if _is_float(kind):
        # Of two zeros the negative one is the lower.
        low, high = (-0.0 if low == 0 else low), (0.0 if high == 0 else high)
    return _encoded(low, kind), _encoded(high, kind)


def _encoded(value: Any, kind: pa.DataType) -> bytes:
    import struct

    import pyarrow as pa

    if isinstance(value, bool):
        return b"\x01" if value else b"\x00"
    if isinstance(value, Decimal):
        number = int(value.scaleb(kind.scale, Context(prec=2 * DIGITS_MAX)))
        return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)
    if isinstance(value, float):
        return struct.pack("<d" if kind == pa.float64() else "<f", value)
    return int(value).to_bytes(kind.bit_width // 8, "little", signed=True)


def _long(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


def _text_above(text: str) -> bytes | None:
    """Returns a text of at most 16 characters that is not below this one; None: there is none."""
    if len(text) <= BOUND_MAX:
        return text.encode()
    for at in reversed(range(BOUND_MAX)):
        point = ord(text[at]) + 1
        if point <= 0x10FFFF:
            # Surrogates are no characters of their own.
            return (text[:at] + chr(0xE000 if 0xD800 <= point < 0xE000 else point)).encode()
    return None


def _bytes_above(value: bytes) -> bytes | None:
    if len(value) <= BOUND_MAX:
        return value
    for at in reversed(range(BOUND_MAX)):
        if value[at] < 0xFF:
            return value[:at] + bytes([value[at] + 1])
    return None


# -- reading ------------------------------------------------------------------------------------------------------------


def read_rows(files: Storage, path: str, columns: Sequence[IcebergColumn]) -> Iterator[pa.Table]:
    """Yields these columns of a data file, a group of rows after the other; those that it has not are null. Files name their
    columns as the table did when they were written."""
    import pyarrow as pa
    from pyarrow import parquet

    with file_errors():
        file = parquet.ParquetFile(files.source(path))
    with file:
        names = _names(file)
        wanted = [names[column.id] for column in columns if column.id in names]
        for number in range(file.num_row_groups):
            with file_errors():
                found = file.read_row_group(number, columns=wanted, use_threads=False)
            yield pa.table(
                {
                    column.name: found[names[column.id]].cast(column.kind)
                    if column.id in names
                    else pa.nulls(found.num_rows, column.kind)
                    for column in columns
                }
            )


def _names(file: parquet.ParquetFile) -> dict[int, str]:
    """Returns the names of a file's columns by their field ids."""
    fields = list(file.schema_arrow)
    if not all(field.metadata and ID in field.metadata for field in fields):
        raise UnfitFile("columns without field ids")
    return {int(field.metadata[ID]): field.name for field in fields}


def check_columns(files: Storage, path: str) -> None:
    """UnfitFile where `read_rows` cannot read a file."""
    from pyarrow import parquet

    with file_errors(), parquet.ParquetFile(files.source(path)) as file:
        _names(file)


def read_deletes(files: Storage, path: str) -> pa.Table:
    """Returns the position deletes of a file: file_path and pos."""
    from pyarrow import parquet

    with file_errors(), parquet.ParquetFile(files.source(path)) as file:
        return file.read(columns=["file_path", "pos"], use_threads=False)


def check_file(files: Storage, path: str, size: int) -> None:
    """UnreadableFile where a file is missing or is not the one that was written."""
    with file_errors():
        found = files.size(path)
    if found != size:
        raise UnreadableFile("a file has another size")
