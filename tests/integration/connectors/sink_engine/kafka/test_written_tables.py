"""A warehouse of files that is away when a driver starts is none that has never been written to."""

from __future__ import annotations

import pytest
from cdcworker.connectors.sink_engine.kafka.group_offsets import OffsetGroup
from cdcworker.connectors.sink_engine.kafka.written_tables import forget, group_of
from cdcworker.connectors.warehouses.parquet.writer import ParquetWriter
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from cdcworker.coordinator.model import Connector
from cdcworker.worker.offsets import child as offsets_main
from cdcworker.worker.offsets.sink import SinkOffsetsClient
from confluent_kafka.admin import AdminClient, NewTopic

from tests.change_streams import NARROW
from tests.integration.connectors.spark_world import eventually, load

pytestmark = [pytest.mark.kafka]


@pytest.fixture
def group(kafka):
    made = OffsetGroup({"bootstrap.servers": kafka.bootstrap}, group_of("kept"))
    yield made
    made.close()


def test_a_broker_keeps_offsets_with_their_note_in_a_group_that_nobody_joins(kafka, group):
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 2})
    for future in admin.create_topics([NewTopic("kept.a", 2, 1), NewTopic("kept.b", 1, 1)]).values():
        future.result(30)
    assert group.committed(["kept.a", "kept.none"]) == {}
    offsets = {("kept.a", 0): 5, ("kept.a", 1): 7, ("kept.b", 0): 1}
    # A broker may hear of a new topic later than another one.
    eventually(lambda: group.commit(offsets, "i 1").error() is None, "offsets")
    assert group.committed(["kept.a"]) == {("kept.a", 0): (5, "i 1"), ("kept.a", 1): (7, "i 1")}
    forget(group, {("kept.a", 0): None})
    found = {("kept.a", 0): (0, ""), ("kept.a", 1): (0, ""), ("kept.b", 0): (1, "i 1")}
    assert group.committed(None) == found
    forget(group, None)
    assert group.committed(["kept.b"]) == {("kept.b", 0): (0, "")}


def parquet_rows(world):
    found = ParquetWriter(LocalDisk(world.tmp_path / "lake"), world.name).rows(world.topic(NARROW))
    rows = [] if found is None else [row for batch in found.batches for row in batch.to_pylist()]
    return {(row["id"],): [row[name] for name in ("id", "n", "a", "big")] for row in rows}


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.postgres
def test_a_folder_that_is_away_at_the_start_is_waited_for_until_its_offsets_are_reset(world):
    topic, root = world.topic(NARROW), world.tmp_path / "lake"
    config = {"warehouse": "parquet", "warehouse.path": str(root)}
    world.create(topic)
    load(world, 0, 50)
    world.send()

    def equal():
        return parquet_rows(world) == world.model.rows

    process = world.start([topic], **config)
    eventually(equal, "the first rows")
    group = OffsetGroup({"bootstrap.servers": world.kafka.bootstrap}, group_of(world.name))
    eventually(lambda: group.committed([topic]), "offsets")
    group.close()
    world.stop(process)
    root.rename(world.tmp_path / "kept")
    load(world, 50, 50)
    world.send()
    process = world.start([topic], **config)
    code = eventually(lambda: [line["retrying"] for line in world.said() if line.get("retrying")], "a wait")[0]["code"]
    assert code == "spark.target_gone"
    assert not root.exists()
    (world.tmp_path / "kept").rename(root)
    eventually(equal, "the rows after the folder came back")
    world.stop(process)
    root.rename(world.tmp_path / "dropped")
    # As a worker does that is asked to.
    roots, kafka = {"file.connector.paths": str(world.tmp_path)}, {"bootstrap.servers": world.kafka.bootstrap}
    offsets = SinkOffsetsClient(roots, lambda: {topic: 3}, ask=offsets_main.answer, kafka=kafka)
    offsets.alter(Connector(world.name, "i", 1, {**world.config([topic]), **config}, "STOPPED", "sink"), 2, None)
    process = world.start([topic], **config)
    eventually(equal, "the rows of the new folder")
    world.stop(process)
    assert process.returncode == 0
