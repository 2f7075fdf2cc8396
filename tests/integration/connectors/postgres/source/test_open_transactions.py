"""A transaction that stays open in the database, for however long: whoever does not need its end does not wait for it."""

from __future__ import annotations

import dataclasses
import random
from itertools import count

import psycopg
import pytest
from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.log.config_fold import assignment_record, connector_record, task_set_record
from cdcworker.coordinator.log.offset_records import offsets_partition
from cdcworker.coordinator.model import AssignedTask, Assignment, Connector, TaskSet

from tests.contract.source_crashes import Child

from . import test_crash_matrix as crash_matrix

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]


@pytest.fixture
def stage(kafka, postgres, tmp_path, request):
    slots = getattr(request, "param", 2)
    made = crash_matrix.Stage(kafka, postgres, random.Random(1), tmp_path, crash_matrix.EXACT, slots=slots)
    yield made
    made.close()


def end_of_log(stage) -> int:
    stage.db.execute("select pg_logical_emit_message(true, 'cdcworker', 'on')")
    return crash_matrix.postgres_lsn(stage.db.execute("select pg_current_wal_lsn()::text").fetchone()[0])


def test_the_start_of_a_task_waits_for_no_open_transaction_but_its_own_new_slot_does(postgres, stage):
    """No clock in it: the transaction is open until everything has happened that must not wait for it."""
    first = stage.child(number=0)
    target = end_of_log(stage)
    first.wait(lambda: first.reached(target), "the first task reads")
    with psycopg.connect(postgres.dsn(stage.database)) as holder:
        stage._insert(holder, 3000)
        waiting = stage.child(number=1)
        waits = "select 1 from pg_stat_activity where query like '%%pg_create_logical_replication_slot%%' and wait_event_type = 'Lock'"
        waiting.wait(lambda: bool(stage.db.execute(waits).fetchall()), "the server waits for it with a new slot")
        # Both tasks keep their positions in the same topic.
        stage._insert(stage.db, 5)
        target = end_of_log(stage)
        first.wait(lambda: first.reached(target), "the task that runs goes on beside it")
        again = stage.child(number=0)
        again.wait(lambda: again.reached(target), "the same task starts anew and goes on beside it")
        stage._insert(stage.db, 5)
        target = end_of_log(stage)
        again.wait(lambda: again.reached(target), "what is committed arrives")
        assert not waiting.ended(), waiting.log.decode()[-3000:]
        assert not waiting.reached(1), "its slot is not there yet"
        assert stage.db.execute(waits).fetchall(), "the transaction has been open all the time"
        holder.commit()
    target = end_of_log(stage)
    for child in (waiting, again):
        child.wait(lambda child=child: child.reached(target), "both go on when it has ended")


def beside(stage, first) -> Child:
    """A task of another connector, whose positions lie in the same partition as those of the first one."""
    wanted = offsets_partition("shop", 0, first.offsets_partitions)
    names = (f"other{number}" for number in count())
    name = next(name for name in names if offsets_partition(name, 0, first.offsets_partitions) == wanted)
    tasks = tuple(AssignedTask(one, "inc", 0, first.task_epoch) for one in ("shop", name))
    records = [
        connector_record(Connector(name, "inc", 1, {"connector.class": "scripted"}, "RUNNING", "source")),
        task_set_record(name, TaskSet("inc", 1, ({},))),
        assignment_record("w", Assignment("boot", tasks)),
    ]
    stage.cluster.configs.append([LogRecord(r.key, r.value, {"e": "1", "w": "w", "v": "1"}) for r in records], 10.0)
    config = {
        **first.config,
        "name": name,
        "slot.name": f"o_{stage.database}",
        "topic.prefix": f"{name}{stage.database}",
    }
    stage.children.append(Child(dataclasses.replace(first, connector=name, config=config), "", stage.is_behind))
    return stage.children[-1]


def is_open(stage) -> bool:
    """The topic has records that are not decided yet."""
    topic = f"{stage.cluster.prefix}.public.t"
    decided, all_of_them = (stage.cluster.read(topic, f"read_{kind}") for kind in ("committed", "uncommitted"))
    return len(decided) < len(all_of_them)


@pytest.mark.parametrize("stage", [1], indirect=True)
@pytest.mark.parametrize("action", ["stop", pytest.param("kill", marks=pytest.mark.long)])
def test_the_start_of_a_task_waits_for_no_open_transaction_of_kafka(stage, action):
    """It holds records, and would be open for a quarter of an hour if nobody else took the task's place."""
    spec = stage.spec()
    stage.children.append(Child(spec, f"source.half_produced={action}@4", stage.is_behind))
    (first,) = stage.children
    target = end_of_log(stage)
    first.wait(lambda: first.reached(target), "the first task reads")
    # More than the client may keep in its queue.
    stage._insert(stage.db, 30_000, width=1000)
    first.wait(lambda: first.met("source.half_produced", action) and is_open(stage), "its transaction is open")
    other = beside(stage, spec)
    target = end_of_log(stage)
    other.wait(lambda: "RUNNING" in other.states() and other.reached(target), "the other task has read everything")
    assert is_open(stage), "the transaction has been open all the time"
