"""A transaction that stays open in the database, for however long: whoever does not need its end does not wait for it."""

from __future__ import annotations

import random

import psycopg
import pytest

from . import test_crash_matrix as crash_matrix

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]


@pytest.fixture
def stage(kafka, postgres, tmp_path):
    made = crash_matrix.Stage(kafka, postgres, random.Random(1), tmp_path, crash_matrix.EXACT, slots=2)
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
