"""Rows that a signal asks for, of a table with a key and of one without, read by a process that is killed, paused and failed
at every step of it."""

from __future__ import annotations

import json
import threading
from collections import Counter

import psycopg
import pytest

from tests.contract.snapshot_crashes import PAUSE_S, SMALL, beside, folded
from tests.contract.source_crashes import EXACT, LOOSE, position_of, strike

from .test_crash_matrix import ACTIONS, Stage

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]

POINTS = (
    "snapshot.asked",
    "snapshot.signal_followed",
    "snapshot.keyless_begun",
    "snapshot.keyless_rows",
    "snapshot.keyless_rows>source.after_commit",
    "snapshot.keyless_read",
    "snapshot.keyless_read>source.before_commit",
)
ROWS = 3000


class Asked(Stage):
    """Tables with rows of which nobody has read any: `u` has no key, the rows of `signals` ask."""

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

    def work(self, shape: int, point: str = "") -> int:
        """Asks, once; the LSN that a reader has to reach."""
        if point:
            data = json.dumps({"data-collections": ["public.t", "public.u"]})
            self.db.execute("insert into signals values ('once', 'execute-snapshot', %s)", (data,))
        self._insert(self.db, 1)
        return self.end()

    def loaded(self) -> bool:
        position = self.cluster.position()
        done = (position or {}).get("snapshot", {}).get("done", ())
        return any((one["id"], one["state"]) == ("once", "COMPLETED") for one in done)

    def write(self, ended: threading.Event) -> None:
        with psycopg.connect(self._postgres.dsn(self.database), autocommit=True) as db:
            number = 0
            while not ended.wait(PAUSE_S):
                number = number % ROWS + 7
                db.execute("update t set v = v || '.' where id = any(%s::int[])", ([number, number + 1],))
                db.execute("delete from t where id = %s", (number + 2,))
                db.execute("insert into u values (%s, 'beside')", (-number,))


def newest(records: list[dict]) -> list[dict]:
    """What a reader goes by who keeps the highest position per key: with at-least-once delivery a request that was half
    written when its process was stopped still arrives when that wakes."""
    highest: dict[int, tuple] = {}
    kept = []
    for record in records:
        number = (record["after"] or record["before"])["id"]
        if position_of(record) >= highest.get(number, ()):
            highest[number] = position_of(record)
            kept.append(record)
    return kept


def emptied_last(records: list[dict]) -> list[tuple[int, str]]:
    """What a reader of a table without a key has: the rows behind the last truncate."""
    last = max(position_of(record) for record in records if record["op"] == "t")
    return [(r["after"]["id"], r["after"]["v"]) for r in records if r["op"] != "t" and position_of(r) > last]


@pytest.fixture
def stage(kafka, postgres, tmp_path, rng, request):
    made = Asked(kafka, postgres, rng, tmp_path, getattr(request, "param", EXACT))
    yield made
    made.close()


def run(stage: Asked, point: str, action: str) -> None:
    with beside(stage.write):
        strike(stage, 0, point, action, 1)
        last = stage.child()
        last.wait(stage.loaded, "what was asked for")
    target = stage.work(0)
    last.wait(lambda: last.reached(target), "the end")
    assert last.stop() == 0
    t, u = ([record for _, record in stage.delivered(table)] for table in ("t", "u"))
    assert sum(record["op"] == "r" for record in t) > ROWS / 2
    is_exact = stage.delivery == EXACT
    rows = folded(t if is_exact else newest(t), once=is_exact)
    assert rows == dict(stage.db.execute("select id, v from t").fetchall())
    found, held = Counter(emptied_last(u)), Counter(stage.db.execute("select id, v from u").fetchall())
    assert found == held if is_exact else found.keys() == held.keys()


def test_a_death_amid_rows_that_were_asked_for_leaves_both_tables_whole(stage):
    run(stage, stage.rng.choice(POINTS), "kill")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", [EXACT, LOOSE], indirect=True)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_every_step_of_what_was_asked_for_leaves_both_tables_whole(stage, point, action):
    run(stage, point, action)
