"""Speculation in a cluster: of a task that stands still another attempt is made, and the first one still writes, later."""

from __future__ import annotations

import os
import signal

import psycopg
import pytest
from cdcworker.worker.linux.procfs import children_of

from tests.change_streams import NARROW
from tests.integration.connectors.spark_world import eventually, load
from tests.integration.connectors.standalone import PARALLEL, Standalone

pytestmark = [
    pytest.mark.long,
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.postgres,
    pytest.mark.timeout(900),
    # pyspark leaves the sockets over which Arrow tables come to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

SPECULATION = {
    "spark.cores": "2",
    "spark.properties": "spark.speculation=true, spark.speculation.interval=100ms, spark.speculation.quantile=0.5",
}
"""One of two tasks that are done is enough to call the other one late."""
STAGED = "select relname from pg_class where relnamespace = '_cdcworker'::regnamespace and relname like 'stage%'"


@pytest.fixture
def cluster(tmp_path):
    """Of two hosts: of a task Spark makes no second attempt on the host of the first."""
    with Standalone(tmp_path) as made:
        made.add_worker("other", "127.0.0.2")
        yield made


def daemons(cluster):
    """By executor the process that forks its Python workers, where there is one with a worker that waits for more."""
    found = [(pid, set(children_of(pid)) & set(cluster.pythons())) for pid in cluster.executors()]
    return {pid: one for pid, (one, *_) in found if children_of(one)}


def staged(world):
    with psycopg.connect(world.dsn, autocommit=True) as connection:
        return {name for (name,) in connection.execute(STAGED).fetchall()}


def change(world, note):
    """Every row, so that all of them are staged: those that are new go straight into their table."""
    for id in range(400):
        row = (id, id % 7, f"{note}{id}", None)
        world.stream.update(NARROW, row, (3,))
        world.model.update((id,), row, (3,))
    world.send()
    eventually(lambda: world.rows() == world.model.rows, f"the rows of {note}")
    assert world.count(NARROW) == len(world.model.rows)


def test_a_task_that_stands_still_is_done_by_another_and_what_it_writes_later_is_nobodys(world, cluster):
    world.create(world.topic(NARROW))
    load(world, 0, 400)
    world.send()
    process = world.start([world.topic(NARROW)], **cluster.config(**PARALLEL, **SPECULATION))
    eventually(lambda: world.rows() == world.model.rows, "the first load")
    eventually(lambda: len(cluster.executors()) == 2, "two executors")
    for number in range(10):
        change(world, f"warm {number} ")
        if len(daemons(cluster)) == 2:
            break
    daemon, _ = daemons(cluster).values()
    frozen = [daemon, *children_of(daemon)]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    assert not staged(world)
    change(world, "speculated ")
    assert not staged(world)
    # Its Java process has asked the one that forks to kill it: this goes on later than the attempt.
    for pid in frozen[1:]:
        os.kill(pid, signal.SIGCONT)
    late = eventually(lambda: staged(world), "what the first attempt writes")
    os.kill(daemon, signal.SIGCONT)
    assert world.rows() == world.model.rows
    change(world, "after it ")
    assert staged(world) <= late
    log = (world.tmp_path / f"err{world.attempt}").read_text()
    assert log.count("query started") == 1
    assert "stages the table alone" not in log
    world.stop(process)
    assert process.returncode == 0
    # With the next start it goes.
    process = world.start([world.topic(NARROW)], **cluster.config(**PARALLEL, **SPECULATION))
    change(world, "the last ")
    assert not staged(world)
    world.stop(process)
    assert process.returncode == 0
