"""Rows that a signal asks for, of a table with a key and of one without, read by a process that is killed, paused and failed
at every step of it."""

from __future__ import annotations

import json
import threading

import psycopg
import pytest

from tests.contract.signal_crashes import ASKED, POINTS, ROWS, AskedStage, run_asked
from tests.contract.snapshot_crashes import PAUSE_S, SMALL
from tests.contract.source_crashes import EXACT, LOOSE

from .test_crash_matrix import ACTIONS, Stage

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]


class Asked(AskedStage, Stage):
    """Tables of PostgreSQL; the rows of `signals` ask."""

    def __init__(self, *parts) -> None:
        super().__init__(*parts)
        self.filled = ("t", "u")
        self.more = {"signal.data.collection": "public.signals", **SMALL}
        self.db.execute("alter table u drop constraint u_pkey, alter column id drop not null")
        self.db.execute("alter table signals alter id type text")
        self.db.execute("alter table signals rename v to type")
        self.db.execute("alter table signals add data text")
        self._insert(self.db, ROWS)
        self.begin()

    def tables_of(self, slots: int) -> tuple[str, ...]:
        return ("t", "u", "signals")

    def ask(self) -> None:
        data = json.dumps({"data-collections": ["public.t", "public.u"]})
        self.db.execute("insert into signals values (%s, 'execute-snapshot', %s)", (ASKED, data))

    def write(self, ended: threading.Event) -> None:
        with psycopg.connect(self._postgres.dsn(self.database), autocommit=True) as db:
            number = 0
            while not ended.wait(PAUSE_S):
                number = number % ROWS + 7
                db.execute("update t set v = v || '.' where id = any(%s::int[])", ([number, number + 1],))
                db.execute("delete from t where id = %s", (number + 2,))
                db.execute("insert into u values (%s, 'beside')", (-number,))

    def held(self) -> dict[int, str]:
        return dict(self.db.execute("select id, v from t").fetchall())

    def held_without_key(self) -> list[tuple[int, str]]:
        return self.db.execute("select id, v from u").fetchall()


@pytest.fixture
def stage(kafka, postgres, tmp_path, rng, request):
    made = Asked(kafka, postgres, rng, tmp_path, getattr(request, "param", EXACT))
    yield made
    made.close()


def test_a_death_amid_rows_that_were_asked_for_leaves_both_tables_whole(stage):
    run_asked(stage, stage.rng.choice(POINTS), "kill")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", [EXACT, LOOSE], indirect=True)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_every_step_of_what_was_asked_for_leaves_both_tables_whole(stage, point, action):
    run_asked(stage, point, action)
