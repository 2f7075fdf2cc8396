"""The rows of a table that is written to all the while, read by a process that is killed, paused and failed at every
step of a snapshot: with the table's changes they are what the table holds, and each change is what the witness saw."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import psycopg
import pytest

from tests.contract.source_crashes import EXACT, LOOSE, Child, check, check_loosely, strike

from .test_crash_matrix import ACTIONS, Stage

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]

POINTS = (
    "snapshot.window_opened",
    "snapshot.snapshot_taken",
    "snapshot.rows_read",
    "snapshot.read_ended",
    "snapshot.before_emit",
    "snapshot.before_emit>source.produced",
    "snapshot.before_emit>source.after_commit",
)
"""The last two: a chunk's rows are in the Kafka transaction, and are committed together with its progress."""
ROWS = 5000
SMALL = {"snapshot.chunk.max.bytes": "16384", "snapshot.inflight.max.bytes": "65536", "snapshot.max.threads": "2"}
"""A few dozen chunks, some at a time."""
PAUSE_S = 0.01


@contextmanager
def beside(write: Callable[[threading.Event], None]) -> Iterator[None]:
    """Runs in a thread until the event that it is given."""
    ended = threading.Event()
    thread = threading.Thread(target=write, args=(ended,))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Loading(Stage):
    """The table has rows before the source's first start, which dies before it has stored anything."""

    def __init__(self, *parts) -> None:
        super().__init__(*parts)
        self.more = {"snapshot.mode": "initial", **SMALL}
        self._writes = random.Random(self.rng.random())
        self._insert(self.db, ROWS)
        first = self.child("postgres.slot_created=kill")
        first.wait(first.ended, "its death")
        self.begin_witness()

    def go_on(self, point: str = "") -> None:
        """Others write all the while."""

    def loaded(self) -> bool:
        position = self.cluster.position()
        return position is not None and not position["snapshot"].get("loads")

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


def folded(records: list[dict], *, once: bool) -> dict[int, str]:
    """What a reader of the topic has of the table. `once`: each row is read once, and as old as its place says."""
    rows: dict[int, str] = {}
    touched, read = set(), set()
    for record in records:
        row = record["before"] if record["op"] == "d" else record["after"]
        number = row["id"]
        if record["op"] == "r":
            assert not (once and number in read)
            assert not (once and number in touched) or rows.get(number) == row["v"]
            read.add(number)
        else:
            touched.add(number)
        if record["op"] == "d":
            rows.pop(number, None)
        else:
            rows[number] = row["v"]
    return rows


def check_rows(stage: Loading) -> None:
    delivered, once = stage.delivered("t"), stage.delivery == EXACT
    records = [record for _, record in delivered]
    assert sum(record["op"] == "r" for record in records) > ROWS / 2
    assert folded(records, once=once) == stage.held()
    streamed = [item for item in delivered if item[1]["op"] != "r"]
    (check if once else check_loosely)(SimpleNamespace(delivered=lambda _: streamed, witnessed=stage.witnessed))


@pytest.fixture
def stage(kafka, postgres, tmp_path, rng, request):
    made = Loading(kafka, postgres, rng, tmp_path, getattr(request, "param", EXACT))
    yield made
    made.close()


def run(stage: Loading, cases: list[tuple[str, str, int]]) -> None:
    with beside(stage.write):
        for turn, (point, action, count) in enumerate(cases):
            strike(stage, turn, point, action, count)
        last = stage.child()
        last.wait(stage.loaded, "all rows")
    finish(stage, last)
    check_rows(stage)


def finish(stage: Loading, last: Child) -> None:
    target = stage.work(0)
    last.wait(lambda: last.reached(target), "the end")
    assert last.stop() == 0


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
    run(stage, [(first, "kill", stage.rng.randrange(1, 4)), (second, stage.rng.choice(ACTIONS[1:]), 2)])


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", [EXACT, LOOSE], indirect=True)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_every_step_of_a_snapshot_leaves_the_table_and_what_the_witness_saw(stage, point, action):
    run(stage, [(point, action, stage.rng.randrange(1, 5))])
