"""A driver that writes to a bucket until it is killed: `killed_writer.py ENDPOINT PREFIX EPOCH KIND`. What it writes depends on
the ledger alone; it ends with 0 when all is written."""

from __future__ import annotations

import sys

from cdcworker.connectors.api.table_batch import VisibleThrough
from cdcworker.connectors.warehouses.parquet.consistent_sets import WholeParquetWriter
from cdcworker.connectors.warehouses.parquet.writer import ParquetWriter
from cdcworker.connectors.warehouses.storage.files import Storage

from tests import change_streams

TOPICS = ("shop.public.orders", "shop.public.other")
OTHER = change_streams.table(change_streams.ID, name="other")
STEPS = 5


def records() -> change_streams.Stream:
    """Rows of two tables that are inserted, changed and deleted."""
    stream = change_streams.Stream(1)
    for number in range(STEPS):
        for at in range(4):
            stream.insert(change_streams.NARROW, (4 * number + at, 1, "a", "b"))
        stream.insert(OTHER, (number,))
        stream.update(change_streams.NARROW, (4 * number, 2, "c", "d"))
        stream.delete(change_streams.NARROW, (4 * number + 1,))
    return stream


def wanted() -> list[tuple[int, int]]:
    """The rows of the first table when all is written."""
    return sorted((at, 2 if at % 4 == 0 else 1) for at in range(4 * STEPS) if at % 4 != 1)


def write(files: Storage, epoch: int, kind: str) -> None:
    writer = (WholeParquetWriter if kind == "sets" else ParquetWriter)(files, "sink", buckets=2)
    writer.fence((epoch, 0))
    writer.claim(TOPICS)
    stream, whole = records(), len(records().records)
    for number in range(1, STEPS + 1):
        found = stream.records[: whole * number // STEPS]
        batch = stream.assembler().build(change_streams.arrow(found), writer.ledger(), number)
        if isinstance(writer, WholeParquetWriter):
            batch.through["shop"] = VisibleThrough(number, number)
            writer.apply_all([batch])
        elif batch.offsets:
            writer.apply(batch)


if __name__ == "__main__":
    from tests.s3_server import bucket_at

    write(bucket_at(sys.argv[1], sys.argv[2]), int(sys.argv[3]), sys.argv[4])
