"""Schema changes of MariaDB under load while the source's process is killed at any moment: each record has the shape of its time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.contract.schema_crashes import ChangingStage, Run, run_changing
from tests.contract.source_crashes import EXACT, LOOSE

from ..crash_stage import MariaDbStage
from ..logged import LoggedServer

pytestmark = [pytest.mark.kafka, pytest.mark.mysql, pytest.mark.long]
KEY = "drop primary key, add primary key"
CHANGES = (
    "modify {0} bigint not null default {1}",
    "modify {0} smallint not null default {1}",
    "modify {0} varchar(20) not null default '{1}'",
    "rename column {0} to {0}_",
    KEY + " (id, {0})",
)
"""Of a column that holds a number: wider or narrower, another type, another name, part of the key."""


class Changing(ChangingStage, MariaDbStage):
    """A table of MariaDB, where each change of a schema is a transaction."""

    @contextmanager
    def writer(self) -> Iterator[Run]:
        with self.primary.connect() as connection, connection.cursor() as cursor:
            cursor.execute("use shop")
            yield cursor.execute

    def turn(self, run: Run, number: int, rng: random.Random) -> None:
        first, before = 10_000_000 + 10 * number, number - 1
        if rng.random() < 0.7:
            run(f"insert into t(id, v) values ({first}, 'before')")
        kind = rng.choice(("int", "bigint", "smallint"))
        run(f"alter table t add column c{number} {kind} not null default {number}")
        run(f"insert into t(id, v) values ({first + 1}, 'after')")
        if before:
            how = (*CHANGES, "")[number % (len(CHANGES) + 1)].format(f"c{before}", before)
            if how:
                run(f"alter table t {how}")
            run(f"update t set v = concat(v, '.') where id = {first + 1}")
            if "primary" in how:
                run(f"insert into t(id, v) values ({first + 2}, 'under another key')")
                run(f"alter table t {KEY} (id)")
            run(f"alter table t drop column c{before}{'_' if 'rename' in how else ''}")


@pytest.fixture
def stage(
    kafka: Any, watched: tuple[LoggedServer, LoggedServer], tmp_path: Path, rng: random.Random, request: Any
) -> Iterator[Changing]:
    made = Changing(kafka.bootstrap, watched, rng, tmp_path, request.param)
    first = made.child("source.first_stored=kill")
    first.wait(first.ended, "its death")
    yield made
    made.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", [EXACT, LOOSE], indirect=True)
def test_schema_changes_under_load_and_deaths_leave_each_record_in_the_shape_of_its_time(stage: Changing) -> None:
    run_changing(stage)
