"""Pieces of the Parquet warehouse: which bucket a key is in, files on disk, offsets beside a table's."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from cdcworker.connectors.api.table_batch import KEY
from cdcworker.connectors.warehouses import target_columns
from cdcworker.connectors.warehouses.storage.files import Storage
from cdcworker.connectors.warehouses.table_state import Manifest

if TYPE_CHECKING:
    import pyarrow as pa


SAMPLE_ROWS = 1024


def bucket_of(key: bytes, count: int) -> int:
    return zlib.crc32(key) % count


def touched(keys: Iterable[bytes], count: int) -> set[int]:
    """Buckets of all keys that a batch names."""
    return {bucket_of(key, count) for key in keys}


def split(rows: pa.Table, count: int) -> Iterator[tuple[int, pa.Table]]:
    """Returns the rows by bucket, without empty buckets."""
    import numpy as np

    found = np.array([bucket_of(key, count) for key in rows[KEY].to_pylist()], np.int64)
    for bucket in np.unique(found).tolist():
        yield bucket, rows.take(np.flatnonzero(found == bucket))


def save(files: Storage, path: str, rows: pa.Table) -> int:
    """Writes the rows; they are in the storage when it returns, since the manifest that names it must not outlive it."""
    from pyarrow import parquet

    few = repeating(rows)
    return files.write(
        path, lambda sink: parquet.write_table(rows, sink, compression="zstd", compression_level=1, use_dictionary=few)
    )


def batches(files: Storage, folder: str, manifest: Manifest) -> Iterator[pa.RecordBatch]:
    """Rows of a table, in the columns of its state."""
    from pyarrow import parquet

    schema = manifest.arrow
    assert schema is not None
    for file in manifest.files:
        with parquet.ParquetFile(files.source(f"{folder}/{file.path}")) as source:
            for group in range(source.num_row_groups):
                yield from target_columns.conform(source.read_row_group(group), schema).to_batches()


def repeating(rows: pa.Table) -> list[str]:
    """Columns with few values, by their first rows. A dictionary of the others is made in vain and thrown away."""
    import pyarrow as pa
    import pyarrow.compute as pc

    few = rows.slice(0, SAMPLE_ROWS)
    nested = {field.name for field in rows.schema if pa.types.is_nested(field.type)}
    names = (name for name in rows.schema.names if name not in nested)
    return [name for name in names if 4 * int(pc.count_distinct(few[name]).as_py()) < few.num_rows]
