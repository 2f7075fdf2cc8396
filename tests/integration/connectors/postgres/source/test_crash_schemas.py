"""Schema changes under load while the source's process is killed at any moment: each record has the shape of its time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.contract.schema_crashes import ChangingStage, Run, run_changing
from tests.contract.source_crashes import EXACT, LOOSE

from .test_crash_matrix import Stage

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.long]

CHANGES = (
    "alter column {0} type bigint",
    "alter column {0} type smallint",
    "alter column {0} type text",
    "rename column {0} to {0}_",
    "drop constraint t_pkey, add primary key (id, {0})",
)
"""Of a column that holds a number: wider or narrower, another type, another name, part of the key."""


class Changing(ChangingStage, Stage):
    """A table of PostgreSQL, which changes inside of transactions too."""

    @contextmanager
    def writer(self) -> Iterator[Run]:
        with psycopg.connect(self._postgres.dsn(self.database), autocommit=True) as db:
            yield db.execute

    def turn(self, run: Run, number: int, rng: random.Random) -> None:
        run("begin")
        first = 10_000_000 + 10 * number
        if rng.random() < 0.7:
            run(f"insert into t(id, v) values ({first}, 'before')")
        kind = rng.choice(("int", "bigint", "smallint"))
        run(f"alter table t add column c{number} {kind} not null default {number}")
        run(f"insert into t(id, v) values ({first + 1}, 'after')")
        if number > 1:
            how = (*CHANGES, "")[number % (len(CHANGES) + 1)].format(f"c{number - 1}")
            if how:
                run(f"alter table t {how}")
            run(f"update t set v = v || '.' where id = {first + 1}")
            if "primary" in how:
                run(f"insert into t(id, v) values ({first + 2}, 'under another key')")
                run("alter table t drop constraint t_pkey, add primary key (id)")
            run(f"alter table t drop column c{number - 1}{'_' if 'rename' in how else ''}")
        run("commit")


@pytest.fixture
def stage(kafka, postgres, tmp_path, rng, request):
    made = Changing(kafka, postgres, rng, tmp_path, request.param)
    made.begin()
    yield made
    made.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", [EXACT, LOOSE], indirect=True)
def test_schema_changes_under_load_and_deaths_leave_each_record_in_the_shape_of_its_time(stage):
    run_changing(stage)
