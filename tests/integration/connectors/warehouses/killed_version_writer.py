"""A driver that writes versions of rows until it is killed: `killed_version_writer.py KIND PLACE EPOCH`. `PLACE` is a folder, or
`ENDPOINT PREFIX` of a bucket. What it writes depends on the ledger alone. A Delta table that is written as files needs no Spark."""

from __future__ import annotations

import sys
from pathlib import Path

from cdcworker.connectors.warehouses.parquet.writer import ParquetWriter
from cdcworker.connectors.warehouses.storage.files import Storage
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from cdcworker.connectors.warehouses.target_columns import OutputForm

from tests import change_streams
from tests.contract.versions import TOPIC
from tests.unit.connectors.warehouses.lake.delta_files.file_lake import opened
from tests.version_model import RandomChanges, VersionedStream

STEP = 15


def stream() -> VersionedStream:
    made = VersionedStream()
    RandomChanges(made, 3, truncates=False).run(60)
    return made


def open_writer(kind: str, files: Storage, epoch: int):
    output = OutputForm(versions=True)
    if kind == "delta":
        writer = opened(files, (epoch, 0), output=output)
    else:
        writer = ParquetWriter(files, "sink", output=output, buckets=2)
        writer.fence((epoch, 0))
    writer.claim([TOPIC])
    return writer


def write(kind: str, files: Storage, epoch: int):
    writer, made = open_writer(kind, files, epoch), stream()
    assembler = made.assembler(keeps_versions=True)
    for start in range(0, len(made.records), STEP):
        batch = assembler.build(change_streams.arrow(made.records[start : start + STEP]), writer.ledger(), start)
        if batch.offsets:
            writer.apply(batch)
    return writer


def storage(place: list[str]) -> Storage:
    from tests.s3_server import bucket_at

    return LocalDisk(Path(place[0])) if len(place) == 1 else bucket_at(*place)


if __name__ == "__main__":
    write(sys.argv[1], storage(sys.argv[2:-1]), int(sys.argv[-1]))
