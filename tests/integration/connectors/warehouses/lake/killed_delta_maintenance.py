"""A driver that writes Delta tables, maintains them after each batch, and is killed on the way: `killed_delta_maintenance.py PLACE
EPOCH`, with PLACE a folder, or the endpoint of an object store and a prefix, apart by a comma. No Spark is needed."""

from __future__ import annotations

import sys
from pathlib import Path

from cdcworker.connectors.warehouses.lake.delta import DeltaTables
from cdcworker.connectors.warehouses.lake.delta_files import file_table
from cdcworker.connectors.warehouses.lake.maintenance.policy import MaintenancePolicy
from cdcworker.connectors.warehouses.lake.maintenance_run import LakeMaintenance

from tests import change_streams
from tests.integration.connectors.warehouses.parquet.killed_writer import STEPS, TOPICS, records
from tests.unit.connectors.warehouses.lake.delta_files.file_lake import opened

EVERYTHING = MaintenancePolicy(file_bytes=1 << 20, age_s=0.0, removes_orphans=True, orphan_age_s=0.0)


def write(place, epoch):
    writer = opened(place, (epoch, 0))
    writer.claim(TOPICS)
    # Java removes the entries of the log, and has no part here; the files are removed only where old versions may go.
    DeltaTables.tend = lambda *_: 0
    maintenance = LakeMaintenance(writer, EVERYTHING, "sink")
    stream, whole = records(), len(records().records)
    for number in range(1, STEPS + 1):
        found = stream.records[: whole * number // STEPS]
        batch = stream.assembler().build(change_streams.arrow(found), writer.ledger(), number)
        if batch.offsets:
            writer.apply(batch)
        done = maintenance.maintain(lambda: False)
        assert done is None or not done["errors"], done


if __name__ == "__main__":
    # Batches join no files by themselves.
    file_table.FANOUT = 1000
    endpoint, comma, prefix = sys.argv[1].rpartition(",")
    if comma:
        from tests.s3_server import bucket_at

        write(bucket_at(endpoint, prefix), int(sys.argv[2]))
    else:
        write(Path(prefix), int(sys.argv[2]))
