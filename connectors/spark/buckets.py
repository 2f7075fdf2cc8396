"""Pieces of the Parquet warehouse: which bucket a key is in, files on disk, offsets beside a table's."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cdcworker.connectors.api import KEY, SinkBatch
from cdcworker.connectors.spark import merging, shaping, staging
from cdcworker.connectors.spark.errors import LEDGER_MOVED
from cdcworker.connectors.spark.manifests import Manifest
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import pyarrow as pa


SAMPLE_ROWS = 1024


def bucket_of(key: bytes, count: int) -> int:
    return zlib.crc32(key) % count


def touched(staged: merging.Staged, count: int) -> set[int]:
    """Buckets of all keys that a batch names."""
    return {bucket_of(key, count) for key in staging.keys_of(staged)}


def split(rows: pa.Table, count: int) -> Iterator[tuple[int, pa.Table]]:
    """By bucket, those that have any."""
    import numpy as np

    found = np.array([bucket_of(key, count) for key in rows[KEY].to_pylist()], np.int64)
    for bucket in np.unique(found).tolist():
        yield bucket, rows.take(np.flatnonzero(found == bucket))


def save(path: Path, rows: pa.Table) -> int:
    """On disk when it returns: the manifest that names it must not outlive it."""
    from pyarrow import parquet

    parquet.write_table(rows, path, compression="zstd", compression_level=1, use_dictionary=repeating(rows))
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        return os.fstat(handle).st_size
    finally:
        os.close(handle)


def batches(folder: Path, manifest: Manifest) -> Iterator[pa.RecordBatch]:
    """Rows of a table, in the columns of its state."""
    from pyarrow import parquet

    schema = manifest.arrow
    assert schema is not None
    for file in manifest.files:
        with parquet.ParquetFile(folder / file.path) as source:
            for group in range(source.num_row_groups):
                yield from shaping.conform(source.read_row_group(group), schema).to_batches()


def repeating(rows: pa.Table) -> list[str]:
    """Columns with few values, by their first rows. A dictionary of the others is made in vain and thrown away."""
    import pyarrow as pa
    import pyarrow.compute as pc

    few = rows.slice(0, SAMPLE_ROWS)
    nested = {field.name for field in rows.schema if pa.types.is_nested(field.type)}
    names = (name for name in rows.schema.names if name not in nested)
    return [name for name in names if 4 * int(pc.count_distinct(few[name]).as_py()) < few.num_rows]


def fresh(state: Manifest, batch: SinkBatch) -> bool:
    """Whether the table has still to take the batch; CdcError when it holds a part of it."""
    mine = {number: pair for (topic, number), pair in batch.offsets.items() if topic == state.topic}
    done = 0
    for number, (first, end) in mine.items():
        at = state.offsets.get(str(number), first)
        if at >= end:
            done += 1
        elif at > first:
            where: dict[str, str | int] = {"topic": state.topic, "partition": number, "offset": at}
            raise CdcError(LEDGER_MOVED, "the ledger stands inside the batch", where=where)
    if done and done < len(mine):
        raise CdcError(LEDGER_MOVED, "a part of the batch has been applied before", where={"topic": state.topic})
    return not done
