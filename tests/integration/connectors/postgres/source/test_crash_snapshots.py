"""The rows of a table that is written to all the while, read by a process that is killed, paused and failed at every
step of a snapshot: with the table's changes they are what the table holds, and each change is what the witness saw."""

from __future__ import annotations

import random
import threading

import psycopg
import pytest

from tests.contract.snapshot_crashes import PAUSE_S, POINTS, SMALL, LoadedStage, folded, run_loading
from tests.contract.source_crashes import EXACT, LOOSE

from .test_crash_matrix import ACTIONS, Stage

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.sampled(2, "crashes")]

ROWS = 5000


class Loading(LoadedStage, Stage):
    """Its first start dies before it has stored anything."""

    rows_written = ROWS

    def __init__(self, *parts) -> None:
        super().__init__(*parts)
        self.more = {"snapshot.mode": "initial", **SMALL}
        self._writes = random.Random(self.rng.random())
        self._insert(self.db, ROWS)
        first = self.child("postgres.slot_created=kill")
        first.wait(first.ended, "its death")
        self.begin_witness()

    def write(self, ended: threading.Event) -> None:
        """Rows of all ages are changed and deleted, one in a transaction: a deadlock needs two."""
        rng = self._writes
        with psycopg.connect(self._postgres.dsn(self.database), autocommit=True) as db:
            while not ended.wait(PAUSE_S):
                gone, *changed = [rng.randrange(1, ROWS) for _ in range(20)]
                for number in changed:
                    db.execute("update t set v = v || '.' where id = %s", (number,))
                db.execute("delete from t where id = %s", (gone,))

    def held(self) -> dict[int, str]:
        return dict(self.db.execute("select id, v from t").fetchall())


@pytest.fixture
def stage(kafka, postgres, tmp_path, rng, request):
    made = Loading(kafka, postgres, rng, tmp_path, getattr(request, "param", EXACT))
    yield made
    made.close()


def written(op: str, number: int, v: str) -> dict:
    row = {"id": number, "v": v}
    return {"op": op, "before": row if op == "d" else None, "after": None if op == "d" else row}


@pytest.mark.parametrize(
    ("records", "is_found"),
    [
        ([written("r", 1, "a"), written("u", 1, "b"), written("d", 2, "")], False),
        ([written("u", 1, "b"), written("r", 1, "b")], False),
        ([written("u", 1, "b"), written("r", 1, "a")], True),
        ([written("d", 1, ""), written("r", 1, "a")], True),
        ([written("r", 1, "a"), written("r", 1, "a")], True),
    ],
)
def test_rows_that_are_too_old_for_their_place_or_come_twice_are_found(records, is_found):
    if is_found:
        with pytest.raises(AssertionError):
            folded(records, once=True)
    else:
        assert folded(records, once=True) == {1: "b"}


def test_a_sample_of_crashes_amid_a_snapshot_leaves_the_table_and_what_the_witness_saw(stage):
    first, second = stage.rng.sample(POINTS, 2)
    run_loading(stage, [(first, "kill", stage.rng.randrange(1, 4)), (second, stage.rng.choice(ACTIONS[1:]), 2)])


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", [EXACT, LOOSE], indirect=True)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_every_step_of_a_snapshot_leaves_the_table_and_what_the_witness_saw(stage, point, action):
    run_loading(stage, [(point, action, stage.rng.randrange(1, 5))])
