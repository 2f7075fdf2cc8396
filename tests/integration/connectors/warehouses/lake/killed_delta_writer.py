"""A driver that writes Delta tables to a bucket until it is killed: `killed_delta_writer.py ENDPOINT PREFIX EPOCH`. What it writes
depends on the ledger alone. Where the sink writes a table by its files no Spark is needed."""

from __future__ import annotations

import sys

from tests import change_streams
from tests.integration.connectors.warehouses.parquet.killed_writer import STEPS, TOPICS, records
from tests.unit.connectors.warehouses.lake.delta_files.file_lake import opened


def write(files, epoch):
    writer = opened(files, (epoch, 0))
    writer.claim(TOPICS)
    stream, whole = records(), len(records().records)
    for number in range(1, STEPS + 1):
        found = stream.records[: whole * number // STEPS]
        batch = stream.assembler().build(change_streams.arrow(found), writer.ledger(), number)
        if batch.offsets:
            writer.apply(batch)


if __name__ == "__main__":
    from tests.s3_server import bucket_at

    write(bucket_at(sys.argv[1], sys.argv[2]), int(sys.argv[3]))
