"""A sink whose tasks run in a standalone cluster of Spark's, with executors that are killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psycopg
import pytest
from cdcworker.worker.linux.procfs import pids, read_stat

from tests.change_streams import NARROW
from tests.integration import one_worker
from tests.integration.connectors import spark_world
from tests.integration.connectors.spark_world import await_end_of_group, eventually, load
from tests.integration.connectors.standalone import PARALLEL
from tests.integration.connectors.warehouses.lake.test_writer import LAKE_S_MAX, lake_rows

from .test_warm_session import java_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.postgres,
    # pyspark leaves the sockets over which Arrow tables come to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


def planned(world):
    """Batches of the sink's query: each is noted before it is read."""
    return len(list(world.tmp_path.glob("sink/**/checkpoints/*/offsets/[0-9]*")))


def applied(world):
    """Where the ledger stands, in records."""
    with psycopg.connect(world.dsn, autocommit=True) as connection:
        return connection.execute("select sum(next_offset) from _cdcworker.ledger").fetchone()[0]


def arguments_of(session):
    """Of all processes of a session."""
    found = [pid for pid in pids() if (stat := read_stat(pid)) is not None and stat.session == session]
    return b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in found)


@pytest.mark.long
def test_executors_read_for_the_sink_and_one_that_is_killed_in_a_task_changes_nothing(world, standalone):
    world.create(world.topic(NARROW))
    load(world, 0, 500)
    world.send()
    config = standalone.config(**PARALLEL)
    process = world.start([world.topic(NARROW)], **config)
    eventually(lambda: world.rows() == world.model.rows, "the first load")
    said = arguments_of(process.pid)
    assert config["spark.master"].encode() in said
    assert config["spark.authenticate.secret"].encode() not in said
    (executor,) = standalone.executors()
    before = planned(world)
    os.kill(executor, signal.SIGSTOP)
    load(world, 500, 500)
    world.stream.update(NARROW, (1, 99, "changed", None), (3,))
    world.model.update((1,), (1, 99, "changed", None), (3,))
    world.stream.delete(NARROW, (2,))
    del world.model.rows[2,]
    world.send()
    eventually(lambda: planned(world) > before, "the batch")
    os.kill(executor, signal.SIGKILL)
    eventually(lambda: world.rows() == world.model.rows, "the rows after the kill")
    (other,) = standalone.executors()
    assert other != executor
    last = eventually(lambda: [line for line in world.said() if line.get("changes") == 1002], "metrics")[-1]
    assert sum(last["offsets"].values()) == applied(world)
    log = (world.tmp_path / f"err{world.attempt}").read_text()
    assert log.count("query started") == 1
    assert "Spark's own source" not in log
    assert "stages the table alone" not in log
    assert standalone.pythons()
    world.stop(process)
    assert process.returncode == 0
    eventually(lambda: not standalone.executors(), "the end of the executors", 60)


HANGS_SOON = {"task.hang.timeout.ms": "8000", "task.restart.backoff.ms": "100"}


@pytest.mark.sampled(2)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("launcher", ["local", pytest.param("client", marks=pytest.mark.long)])
def test_a_driver_that_hangs_is_shown_killed_and_started_again(world, launcher, tmp_path, request):
    """Its Java process stands still, so the driver waits in a call to it. Nothing of it is left, in a cluster neither."""
    cluster = request.getfixturevalue("standalone") if launcher == "client" else None
    world.create(world.topic(NARROW))
    load(world, 0, 300)
    world.send()
    allowed = {"connector.spark.masters": cluster.url} if cluster else {}
    worker = one_worker.Worker(tmp_path, world.kafka.bootstrap, world.name, **{**allowed, "sink.standby": "0"})
    try:
        worker.wait_ready()
        config = {**world.config([world.topic(NARROW)]), **(cluster.config() if cluster else {}), **HANGS_SOON}
        worker.put("sink", config)
        eventually(lambda: world.rows() == world.model.rows, "the first load")
        (first,) = worker.starts("sink-0")
        executors = cluster.executors() if cluster else []
        (java,) = java_of(first)
        os.kill(java, signal.SIGSTOP)
        load(world, 300, 300)
        world.send()
        eventually(lambda: world.rows() == world.model.rows, "the rows after the hang")
        _, second = worker.starts("sink-0")
        log = worker.log.read_text()
        assert "worker.task_hung" in log
        assert "connectors/sink_engine/pump.py" in log
        assert "Traceback" not in log
        await_end_of_group(first)
        if cluster:
            eventually(lambda: not set(executors) & set(cluster.executors()), "the end of the executor", 60)
            assert (len(executors), len(cluster.executors())) == (1, 1)
        assert worker.end() == 0
        await_end_of_group(second)
        if cluster:
            eventually(lambda: not cluster.executors(), "the end of all executors", 60)
    finally:
        worker.kill()


@pytest.mark.long
def test_a_master_that_shares_no_secret_does_not_take_the_driver(world, standalone):
    world.create(world.topic(NARROW))
    process = world.start([world.topic(NARROW)], **standalone.config(**{"spark.authenticate.secret": "x" * 20}))
    assert process.wait(spark_world.START_S_MAX) == 1
    assert world.said()[-1]["error"]["code"] == "spark.cluster_unreachable"


@pytest.mark.long
def test_a_worker_of_the_cluster_that_is_killed_is_replaced_by_another(world, standalone):
    world.create(world.topic(NARROW))
    load(world, 0, 300)
    world.send()
    process = world.start([world.topic(NARROW)], **standalone.config())
    eventually(lambda: world.rows() == world.model.rows, "the first load")
    standalone.kill_worker()
    load(world, 300, 300)
    world.send()
    standalone.add_worker("another")
    eventually(lambda: world.rows() == world.model.rows, "the rows after the kill")
    world.stop(process)
    assert process.returncode == 0


@pytest.mark.long
@pytest.mark.iceberg
@pytest.mark.timeout(1800)
def test_a_lake_is_written_by_executors_that_see_nothing_of_the_drivers_disk(world, standalone, spark):
    world.create(world.topic(NARROW))
    lake = {"warehouse": "iceberg", "warehouse.path": str(world.tmp_path / "lake")}
    load(world, 0, 300)
    world.send()
    process = world.start([world.topic(NARROW)], **standalone.config(**lake))
    eventually(lambda: lake_rows(spark, world, "iceberg") == world.model.rows, "the first load", LAKE_S_MAX)
    world.stream.update(NARROW, (1, 99, "changed", None), (3,))
    world.model.update((1,), (1, 99, "changed", None), (3,))
    world.stream.delete(NARROW, (2,))
    del world.model.rows[2,]
    world.send()
    for pid in standalone.executors():
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: lake_rows(spark, world, "iceberg") == world.model.rows, "the changes", LAKE_S_MAX)
    world.stop(process)
    assert process.returncode == 0
