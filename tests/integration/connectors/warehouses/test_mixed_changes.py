"""Many mixed changes over many tables with schema changes in between: every kind of warehouse is equal in the end."""

from __future__ import annotations

import itertools
import os
import time

import pytest
from cdcworker.connectors.sink_engine.warehouse_kinds import kind_of
from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.connectors.warehouses.kind import WriterTask
from confluent_kafka import Consumer, TopicPartition

from tests import change_streams

from ..spark_world import eventually
from .mixed_changes import Mixed

CHANGES, TABLES = int(os.environ.get("CDC_TEST_CHANGES", "1000000")), 50
FEW_CHANGES, FEW_TABLES = 20_000, 10
FEW_BATCHES = 4
RUN_S_MAX = 3600
BATCH = {"delta": "500000"}
"""Its commits, one for each table and batch, take seconds of CPU each, however many rows they have."""
LAKES = {"iceberg": pytest.mark.iceberg, "delta": pytest.mark.delta}
KINDS = [
    "postgres",
    "parquet",
    pytest.param("mysql", marks=pytest.mark.mysql),
    *(pytest.param(kind, marks=mark) for kind, mark in LAKES.items()),
]

pytestmark = [
    pytest.mark.timeout(2 * RUN_S_MAX),
    # pyspark leaves the sockets over which Arrow tables come to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


def target(kind, mode, tmp_path, dsn="", request=None):
    """The keys of a sink's config that say where it writes."""
    import psycopg

    if kind == "mysql":
        server = request.getfixturevalue("mysql")
        server.wipe()
        login = {"hostname": "127.0.0.1", "port": str(server.port), "user": server.login().user}
        login["password"] = server.password
        return {"warehouse": kind, "output.mode": mode, **{f"warehouse.{name}": value for name, value in login.items()}}
    if kind == "clickhouse":
        server = request.getfixturevalue("clickhouse")
        server.wipe()
        login = {"hostname": "127.0.0.1", "port": str(server.port), "user": "default"}
        return {"warehouse": kind, "output.mode": mode, **{f"warehouse.{name}": value for name, value in login.items()}}
    if kind != "postgres":
        return {"warehouse": kind, "warehouse.path": str(tmp_path / "lake"), "output.mode": mode}
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    told = {
        "hostname": parts["host"],
        "port": str(parts["port"]),
        "user": parts["user"],
        "dbname": parts["dbname"],
        **({"password": parts["password"]} if "password" in parts else {}),
    }
    return {**{f"warehouse.{name}": value for name, value in told.items()}, "output.mode": mode}


def opened(config, tmp_path, sink, spark=None):
    parsed = CONFIG_DEF.parse({"connector.class": "spark", "topics": "any", **config})
    writer = kind_of(parsed).open(parsed, WriterTask(sink, file_roots=[str(tmp_path)]))
    if spark is not None:
        writer.attach(lambda: spark)
    return writer


def applied(stream, writer, mixed, changes, log, versions=False):
    """In a few batches, which schema changes fall into anywhere."""
    writer.fence((1, 0))
    writer.claim([f"{change_streams.PREFIX}.public.{shape.name}" for shape in mixed.shapes])
    assembler, step = stream.assembler(log, keeps_versions=versions), changes // FEW_BATCHES
    ledger, number = dict(writer.ledger()), 0
    for done in itertools.chain(mixed.run(changes), (changes,)):
        if done and len(stream.records) and (done == changes or done // step > number):
            number = done // step
            batch = assembler.build(change_streams.arrow(stream.records), ledger, number)
            writer.apply(batch)
            ledger.update({place: end for place, (_, end) in batch.offsets.items()})
            stream.records.clear()


FEW = [
    *(("parquet", mode) for mode in ("current", "log")),
    pytest.param("parquet", "scd2", marks=pytest.mark.long),
    *(pytest.param("postgres", mode, marks=pytest.mark.postgres) for mode in ("current", "log")),
    pytest.param("postgres", "scd2", marks=[pytest.mark.postgres, pytest.mark.long]),
]


@pytest.mark.parametrize(("kind", "mode"), FEW)
def test_a_warehouse_is_equal_after_mixed_changes_and_schema_changes(kind, mode, tmp_path, request):
    dsn = ""
    if kind == "postgres":
        postgres, database = request.getfixturevalue("postgres"), request.getfixturevalue("database")
        dsn = postgres.dsn(database)
    few(kind, mode, tmp_path, dsn)


@pytest.mark.long
@pytest.mark.mysql
@pytest.mark.parametrize("mode", ["current", "log", "scd2"])
def test_mysql_is_equal_after_mixed_changes_and_schema_changes(mode, tmp_path, request):
    few("mysql", mode, tmp_path, request=request)


@pytest.mark.long
@pytest.mark.clickhouse
@pytest.mark.parametrize("mode", ["current", "log"])
def test_clickhouse_is_equal_after_mixed_changes_and_schema_changes(mode, tmp_path, request):
    few("clickhouse", mode, tmp_path, request=request)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("mode", ["current", "log", "scd2"])
@pytest.mark.parametrize("kind", KINDS[3:])
def test_a_lake_is_equal_after_mixed_changes_and_schema_changes(kind, mode, tmp_path, spark):
    few(kind, mode, tmp_path, spark=spark)


def few(kind, mode, tmp_path, dsn="", spark=None, request=None):
    stream = change_streams.Stream()
    config = target(kind, mode, tmp_path, dsn, request)
    mixed, writer = Mixed(stream, FEW_TABLES), opened(config, tmp_path, "sink", spark)
    log, versions = mode == "log", mode == "scd2"
    applied(stream, writer, mixed, FEW_CHANGES, log, versions)
    assert mixed.check(writer, lambda name: f"{change_streams.PREFIX}.public.{name}", log, versions)
    writer.close()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.parametrize("consistency", ["eventual", "source"])
@pytest.mark.parametrize("mode", ["current", "log"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_million_mixed_changes_over_fifty_tables_arrive(world, kind, mode, consistency, request, capsys):
    """CDC_TEST_CHANGES: another number of them."""
    mixed = Mixed(world.stream, TABLES)
    topics = [f"{world.name}.public.{shape.name}" for shape in mixed.shapes]
    for topic in topics:
        world.create(topic)
    world.create(f"{world.name}.watermark", 1)
    config = {**target(kind, mode, world.tmp_path, world.dsn, request), "consistency": consistency}
    process = world.start(
        topics, **{**config, "max.batch.records": BATCH.get(kind, "200000"), "trigger.interval.ms": "1000"}
    )
    began = time.monotonic()
    for _ in mixed.run(CHANGES):
        if len(world.stream.records) - world.sent > CHANGES // 50:
            world.send(world.stream.lsn + 1)
            world.stream.records.clear()
            world.sent = 0
    world.send(world.stream.lsn + 1)
    sent_s = time.monotonic() - began
    ends = ends_of(world, topics)
    eventually(lambda: process.poll() is not None or reached(world, ends), "the last change", RUN_S_MAX)
    took_s = time.monotonic() - began
    world.stop(process)
    assert process.returncode == 0
    spark = request.getfixturevalue("spark") if kind in LAKES else None
    writer = opened(config, world.tmp_path, world.name, spark)
    rows = mixed.check(writer, lambda name: f"{world.name}.public.{name}", mode == "log")
    writer.close()
    with capsys.disabled():
        print(
            f"\n{kind} {mode} {consistency}: {CHANGES} changes, {TABLES} tables, sent {sent_s:.0f} s, arrived {took_s:.0f} s, rows {rows}"
        )


def ends_of(world, topics):
    """Of each partition the offset behind its last record: a commit's own record is the last one."""
    consumer = Consumer({"bootstrap.servers": world.kafka.bootstrap, "group.id": "ends", "log_level": 2})
    out = {}
    for topic in topics:
        for number in range(change_streams.PARTITIONS):
            end = consumer.get_watermark_offsets(TopicPartition(topic, number), 30)[1]
            out.update({f"{topic}-{number}": end - 1} if end else {})
    consumer.close()
    return out


def reached(world, ends):
    said = [line["offsets"] for line in world.said()[-3:] if "offsets" in line]
    return bool(said) and all(said[-1].get(place, 0) >= end for place, end in ends.items())
