"""A sink whose tasks run in a standalone cluster of Spark's, with executors that are killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psycopg
import pytest
from cdcworker.worker.procstat import pids, read_stat

from ..unit.spark.support import NARROW
from .spark_world import eventually, load
from .standalone import Standalone

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]


@pytest.fixture(scope="module")
def standalone(tmp_path_factory):
    made = Standalone(tmp_path_factory.mktemp("cluster"))
    try:
        made.start()
        yield made
    finally:
        made.close()


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


def test_executors_read_for_the_sink_and_one_that_is_killed_in_a_task_changes_nothing(world, standalone):
    world.create(world.topic(NARROW))
    load(world, 0, 500)
    world.send()
    config = standalone.config()
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
    world.stop(process)
    assert process.returncode == 0
    eventually(lambda: not standalone.executors(), "the end of the executors", 60)
