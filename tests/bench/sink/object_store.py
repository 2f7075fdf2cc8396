"""The Parquet writer alone: the same batches into a folder and into a bucket, beside a bare client that puts files of the same rows."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from cdcworker.connectors.api.table_batch import SinkBatch
from cdcworker.connectors.warehouses.parquet.buckets import save
from cdcworker.connectors.warehouses.parquet.writer import ParquetWriter
from cdcworker.connectors.warehouses.storage.files import Storage
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from cdcworker.connectors.warehouses.target_columns import OutputForm
from pyarrow import parquet

from tests import change_streams
from tests.s3_server import BUCKET, S3Server, find_program

TOPIC = "shop.public.wide"
BATCHES = 4
TEXT = 1000
WIDE = change_streams.table(change_streams.ID, change_streams.column("text", "string", "text"), name="wide", key=())


def batches(rows: int) -> list[SinkBatch]:
    """Batches of a change log: texts that hardly compress, so that what counts is bytes."""
    import random

    stream, chance, out = change_streams.Stream(1), random.Random(1), []
    ends: dict[tuple[str, int], int] = {}
    for number in range(BATCHES):
        stream.records.clear()
        for at in range(rows):
            stream.insert(WIDE, (number * rows + at, chance.randbytes(TEXT // 2).hex()))
        batch = stream.assembler(log=True).build(change_streams.arrow(stream.records), ends, number)
        ends |= {place: end for place, (_, end) in batch.offsets.items()}
        out.append(batch)
    return out


def part(root: Path, rows: int) -> dict[str, float]:
    """Megabytes of Parquet per second, and seconds of a batch with hardly a row. Empty where the server was not built."""
    program = find_program()
    if program is None:
        return {}
    large, small = batches(rows), batches(1)
    server = S3Server(program, root / "s3")
    server.start()
    try:
        places = {"folder": LocalDisk(root / "files"), "bucket": server.files("writer")}
        figures: dict[str, float] = {}
        for name, files in places.items():
            figures |= _written(name, files, large, small)
        tables = [table.upserts for batch in large for table in batch.tables]
        figures["object_store_bare_mb_per_s"] = _rate(
            lambda: sum(_put(server, at, table) for at, table in enumerate(tables))
        )
        figures["object_store_disk_mb_per_s"] = _rate(
            lambda: sum(save(LocalDisk(root), f"{at}.parquet", table) for at, table in enumerate(tables))
        )
    finally:
        server.remove()
    figures["object_store_vs_limit_ratio"] = (
        figures["object_store_bucket_mb_per_s"] / figures["object_store_bare_mb_per_s"]
    )
    figures["object_store_folder_vs_limit_ratio"] = (
        figures["object_store_folder_mb_per_s"] / figures["object_store_disk_mb_per_s"]
    )
    return figures


def _written(name: str, files: Storage, large: list[SinkBatch], small: list[SinkBatch]) -> dict[str, float]:
    out = {}
    for sink, given in (("large", large), ("small", small)):
        writer = ParquetWriter(files, sink, schema=sink, output=OutputForm(log=True))
        writer.fence((1, 0))
        writer.claim([TOPIC])
        began = time.monotonic()
        for batch in given:
            writer.apply(batch)
        took = time.monotonic() - began
        state = writer._of(TOPIC)
        written = sum(file.bytes for _, found in state for file in found.files)
        if sink == "large":
            out[f"object_store_{name}_mb_per_s"] = written / took / 1e6
        else:
            out[f"object_store_{name}_small_batch_s"] = took / BATCHES
    return out


def _put(server: S3Server, number: int, rows: pa.Table) -> int:
    sink = io.BytesIO()
    parquet.write_table(rows, sink, compression="zstd", compression_level=1, use_dictionary=False)
    content = sink.getvalue()
    server.client.put_object(Bucket=BUCKET, Key=f"bare/{number}.parquet", Body=content)
    return len(content)


def _rate(work: Callable[[], int]) -> float:
    began = time.monotonic()
    return work() / (time.monotonic() - began) / 1e6
