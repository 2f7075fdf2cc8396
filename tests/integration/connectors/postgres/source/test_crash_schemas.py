"""Schema changes under load while the source's process is killed at any moment: each record has the shape of its time."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.contract.source_crashes import EXACT, LOOSE, check, check_loosely

from .test_crash_matrix import Stage

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.long]

DEATHS = 4
TURNS_MAX = 100
"""Of columns that come and go: a table has a limit of them."""


CHANGES = (
    "alter column {0} type bigint",
    "alter column {0} type smallint",
    "alter column {0} type text",
    "rename column {0} to {0}_",
    "drop constraint t_pkey, add primary key (id, {0})",
)
"""Of a column that holds a number: wider or narrower, another type, another name, part of the key."""


def turn(db, number: int, rng: random.Random) -> None:
    """One change of the schema, alone or in the middle of a transaction: the column that a number names holds it."""
    with db.transaction(), db.cursor() as one:
        first = 10_000_000 + 10 * number
        if rng.random() < 0.7:
            one.execute("insert into t(id, v) values (%s, 'before')", (first,))
        kind = rng.choice(("int", "bigint", "smallint"))
        one.execute(f"alter table t add column c{number} {kind} not null default {number}")
        one.execute("insert into t(id, v) values (%s, 'after')", (first + 1,))
        if number > 1:
            how = (*CHANGES, "")[number % (len(CHANGES) + 1)].format(f"c{number - 1}")
            if how:
                one.execute(f"alter table t {how}")
            one.execute("update t set v = v || '.' where id = %s", (first + 1,))
            if "primary" in how:
                one.execute("insert into t(id, v) values (%s, 'under another key')", (first + 2,))
                one.execute("alter table t drop constraint t_pkey, add primary key (id)")
            one.execute(f"alter table t drop column c{number - 1}{'_' if 'rename' in how else ''}")


@contextmanager
def writers(stage: Stage, postgres) -> Iterator[list[int]]:
    """One writes rows, another changes the schema; the numbers of its changes."""
    ended, turns = threading.Event(), []

    def write() -> None:
        with psycopg.connect(postgres.dsn(stage.database), autocommit=True) as db:
            while not ended.wait(0.002):
                number, stage.next_id = stage.next_id, stage.next_id + 1
                db.execute("insert into t(id, v) values (%s, 'load')", (number,))

    def change(rng: random.Random) -> None:
        with psycopg.connect(postgres.dsn(stage.database), autocommit=True) as db:
            while not ended.wait(0.3) and len(turns) < TURNS_MAX:
                turns.append(len(turns) + 1)
                turn(db, turns[-1], rng)

    threads = [
        threading.Thread(target=write),
        threading.Thread(target=change, args=(random.Random(stage.rng.random()),)),
    ]
    for thread in threads:
        thread.start()
    try:
        yield turns
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.fixture
def stage(kafka, postgres, tmp_path, rng, request):
    made = Stage(kafka, postgres, rng, tmp_path, request.param)
    made.begin()
    yield made
    made.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", [EXACT, LOOSE], indirect=True)
def test_schema_changes_under_load_and_deaths_leave_each_record_in_the_shape_of_its_time(stage, postgres):
    with writers(stage, postgres) as turns:
        for _ in range(DEATHS):
            child, target = stage.child(), stage.end()
            child.wait(lambda: child.reached(target), "what was there")  # noqa: B023 - called at once
            more = len(turns) + stage.rng.randrange(1, 4)
            child.wait(lambda: len(turns) >= more or len(turns) == TURNS_MAX, "more changes")  # noqa: B023
            child.process.kill()
            child.process.wait()
            child.close()
    last, target = stage.child(), stage.end()
    stage.go_on()
    last.wait(lambda: last.reached(target), "the end")
    assert last.stop() == 0
    (check if stage.delivery == EXACT else check_loosely)(stage)
    rows = [record["after"] for _, record in stage.delivered("t")]
    named = [{name: value for name, value in row.items() if name.startswith("c")} for row in rows]
    assert all(int(value) == int(name.strip("c_")) for row in named for name, value in row.items())
    assert {type(value) for row in named for value in row.values()} == {int, str}
    keys = [sorted(name.rstrip("0123456789") for name in key) for key in stage.keys("t")]
    assert ["c", "id"] in keys
    assert len({tuple(row) for row in named}) > len(turns) > DEATHS
