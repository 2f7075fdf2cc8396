"""A table of a lake whose files are missing or hold something else."""

from __future__ import annotations

import contextlib

import pytest
from cdcworker.connectors.sink_engine.paused_tables import PausedTables
from cdcworker.connectors.warehouses.lake import file_faults as lakefaults
from cdcworker.connectors.warehouses.lake.delta import DeltaTables
from cdcworker.connectors.warehouses.lake.iceberg import IcebergTables
from cdcworker.connectors.warehouses.lake.writer import LakeWriter
from cdcworker.schemas.errors import CdcError

from tests import change_streams
from tests.contract import warehouses as contract

pytestmark = [
    pytest.mark.spark,
    pytest.mark.iceberg,
    pytest.mark.long,
    pytest.mark.timeout(1800),
    # pyspark leaves the sockets over which Arrow tables come to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]
BREAKS = {
    "iceberg": {"data": "data/**/*.parquet", "metadata": "metadata/*.avro", "newest": "metadata/v*.metadata.json"},
    "delta": {"data": "**/*.parquet", "newest": "_delta_log/*.json"},
}


@pytest.mark.parametrize(
    ("kind", "what", "how"),
    [
        *(("iceberg", what, how) for what in ("data", "metadata") for how in ("missing", "text")),
        ("iceberg", "newest", "text"),
        *(pytest.param("delta", *case, marks=pytest.mark.delta) for case in (("data", "missing"), ("data", "text"))),
        pytest.param("delta", "newest", "text", marks=pytest.mark.delta),
    ],
)
def test_a_table_whose_files_are_broken_stands_still_alone(spark, tmp_path, monkeypatch, kind, what, how):
    monkeypatch.setattr(lakefaults, "WAIT_S", 0.0)
    other = change_streams.table(change_streams.ID, name="other")
    topics = [contract.TOPIC, "shop.public.other"]
    stream, paused = change_streams.Stream(1), PausedTables(True)

    def opened(epoch):
        made = lake_tables(kind, tmp_path)
        writer = LakeWriter(made, "sink")
        writer.attach(lambda: spark)
        writer.fence(epoch)
        return writer

    def step(writer):
        found = paused.reading(topics)
        paused.claim(writer.claim, found)
        records = [record for record in stream.records if record["topic"] in paused.reading(found)]
        batch = stream.assembler().build(change_streams.arrow(records), writer.ledger(), 1)
        paused.apply(writer.apply, batch)

    def until(writer, count=10):
        for _ in range(count):
            with contextlib.suppress(Waits):
                return waited(lambda: step(writer))
        raise AssertionError("it did not end")

    writer = opened((1, 0))
    for number in range(3):
        stream.insert(change_streams.NARROW, (number, 1, "a", "b"))
        stream.insert(other, (number,))
        step(writer)
    folder = tmp_path / "lake" / "public" / "orders"
    files = sorted(path for path in folder.glob(BREAKS[kind][what]) if what != "data" or "_delta_log" not in path.parts)
    files = [max(files, key=lambda path: path.stat().st_mtime_ns)] if what == "newest" else files
    assert files
    for path in files:
        path.write_text("x") if how == "text" else path.unlink()
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    stream.update(change_streams.NARROW, (1, 2, "c", "d"))
    stream.insert(other, (9,))
    again = opened((1, 1)) if what != "data" else writer
    until(again)
    assert contract.rows(again, "id", topic=topics[1])[-1] == (9,)
    assert paused.numbers()["paused"].keys() == {contract.TOPIC}
    assert paused._errors[contract.TOPIC].code == "spark.target_broken"
    again.close()
    writer.close()


class Waits(Exception):
    """The driver's part would wait."""


def waited(step):
    try:
        step()
    except CdcError as exc:
        if (exc.code, exc.where.get("topic")) != ("spark.target_unreachable", contract.TOPIC):
            raise
        raise Waits from exc


def lake_tables(kind, tmp_path):
    root = str(tmp_path / "lake")
    return DeltaTables(root) if kind == "delta" else IcebergTables({"type": "hadoop", "warehouse": root})
