"""The whole way without Spark: a broker, a consumer in this process, the pump, and a warehouse that needs no JVM."""

from __future__ import annotations

import pytest

from tests import change_streams
from tests.change_streams import NARROW

from ..spark_world import eventually, load
from .pump_task import Task

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]


@pytest.fixture
def start(world):
    """Starts a task, with an epoch above that of any before."""
    tasks = []

    def make(*tables, **more):
        topics = ",".join(world.topic(table) for table in tables)
        config = {**world.config([]), "topics": topics, **more}
        tasks.append(Task(world, len(tasks) + 1, config))
        return tasks[-1]

    yield make
    for task in tasks:
        task.stop.set()
        task.thread.join(30)


def kinds(tmp_path):
    return {"postgres": {}, "parquet": {"warehouse": "parquet", "warehouse.path": str(tmp_path / "files")}}


@pytest.mark.parametrize("kind", ["postgres", "parquet"])
def test_changes_reach_the_warehouse_and_the_next_run_goes_on_from_the_ledger(world, start, tmp_path, kind):
    world.create(world.topic(NARROW))
    load(world, 0, 500)
    world.send()
    later = change_streams.table(change_streams.ID, name="later")
    task = start(NARROW, later, **kinds(tmp_path)[kind], **{"max.batch.records": "100"})
    eventually(lambda: task.rows() == world.model.rows, "the first load", 60)
    world.stream.update(NARROW, (1, 99, "changed", None), (3,))
    world.model.update((1,), (1, 99, "changed", None), (3,))
    world.stream.delete(NARROW, (2,))
    del world.model.rows[2,]
    world.stream.move(NARROW, (3,), (3000, 1, "moved", None), (3,))
    world.model.move((3,), (3000,), (3000, 1, "moved", None), (3,))
    world.send()
    eventually(lambda: task.rows() == world.model.rows, "the changes", 60)
    world.create(world.topic(later))
    world.stream.insert(later, (7,))
    world.send()
    eventually(lambda: task.reports[-1]["tables"].get("public.later"), "the topic that was created later", 60)
    eventually(lambda: list(task.reports[-1].get("topic_lag_records", {}).values()) == [0, 0], "no lag", 60)
    assert task.reports[-1]["batches"] > 5
    task.close()
    load(world, 600, 50)
    world.send()
    again = start(NARROW, later, **kinds(tmp_path)[kind])
    eventually(lambda: again.rows() == world.model.rows, "the rows since the stop", 60)
    again.close()
    assert again.reports[-1]["changes"] == 50


def test_a_task_with_a_higher_epoch_fences_the_one_before(world, start):
    world.create(world.topic(NARROW))
    load(world, 0, 10)
    world.send()
    older = start(NARROW)
    eventually(lambda: older.rows() == world.model.rows, "the first load")
    newer = start(NARROW)
    load(world, 10, 10)
    world.send()
    eventually(lambda: newer.rows() == world.model.rows, "the further rows")
    eventually(lambda: older.failed, "the end of the older task")
    assert older.failed[0].kind == "fenced"
    newer.close()


def test_a_broken_record_is_set_aside_and_a_refused_table_stands_still_alone(world, start):
    import psycopg

    other = change_streams.table(change_streams.ID, change_streams.column("n", "int", "integer"), name="other")
    for table in (other, NARROW):
        world.create(world.topic(table), 1)
    with psycopg.connect(world.dsn, autocommit=True) as connection:
        connection.execute("create table public.orders (id bigint primary key, n date, a text, big text)")
    world.stream.partitions = 1
    world.stream.insert(NARROW, (1, 1, "a", "b"))
    for number in range(3):
        world.stream.insert(other, (number, number))
    world.stream.records[2]["value"] = b"broken"
    world.send()
    task = start(other, NARROW, **{"errors.tolerance": "all"})
    eventually(lambda: world.rows(other) == {(0,): [0, 0], (2,): [2, 2]}, "the rows of the other table", 60)
    world.stream.insert(other, (7, 7))
    world.send()
    eventually(lambda: (7,) in world.rows(other), "a row after the pause", 60)
    eventually(lambda: list(task.reports[-1]["paused"]) == [world.topic(NARROW)], "the report of the pause", 30)
    assert task.reports[-1]["dead_letters"] == 1
    task.close()


@pytest.mark.parametrize("kind", ["postgres", "parquet"])
def test_readers_see_whole_transactions_up_to_a_watermark(world, start, tmp_path, kind):
    marks = f"{world.name}.watermark"
    world.create(world.topic(NARROW))
    world.create(marks, 1)
    task = start(NARROW, **kinds(tmp_path)[kind], consistency="source")
    load(world, 0, 100)
    world.send(watermark=world.stream.lsn + 1)
    eventually(lambda: task.rows() == world.model.rows, "the first transactions", 60)
    for first in range(100, 400, 50):
        load(world, first, 50)
        world.send()
        # Whatever readers find is a beginning of the source's log: no transaction without those before it.
        found = sorted(key for (key,) in task.rows())
        assert found == list(range(len(found)))
    load(world, 400, 10)
    world.send(watermark=world.stream.lsn + 1)
    eventually(lambda: task.rows() == world.model.rows, "the further transactions", 60)
    task.close()
