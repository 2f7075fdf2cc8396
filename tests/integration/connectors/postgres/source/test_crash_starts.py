"""A source's very first start and the coming of a table, killed, paused and failed at each of their steps: one slot, one
publication, every row of a new table, and of every change what the witness saw."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.contract.snapshot_crashes import SMALL, folded
from tests.contract.source_crashes import EXACT, LOOSE, Child, check, check_loosely, run

from .test_crash_matrix import ACTIONS, Stage

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]

FIRST = ("postgres.publication_changed", "postgres.slot_created", "source.first_stored")
"""In the order in which a first start meets them."""
ROWS = 1500


class Owner(Stage):
    """Whose role makes the publication, and changes it as tables come."""

    def __init__(self, *parts) -> None:
        super().__init__(*parts)
        self.login = self._postgres.dsn(self.database)
        self.db.execute("drop publication dbz_publication")
        self.more = {"publication.autocreate.mode": "filtered"}

    def made(self) -> tuple[list, list]:
        """Names of slots and publications."""
        slots = "select slot_name from pg_replication_slots where database = current_database()"
        names = [self.db.execute(query).fetchall() for query in (slots, "select pubname from pg_publication")]
        return names[0], names[1]


@pytest.fixture
def stage(kafka, postgres, tmp_path, rng, request):
    made = Owner(kafka, postgres, rng, tmp_path, getattr(request, "param", EXACT))
    yield made
    made.close()


def succeeded_by(stage: Owner, sleepers: list[Child], last: Child) -> None:
    """Those that were stopped wake beside their successor, and fall silent."""
    for child in sleepers:
        os.kill(child.process.pid, signal.SIGCONT)
    for child in sleepers:
        last.wait(child.ended if stage.delivery == EXACT else child.silent, "who was replaced falls silent")
        assert last.process.poll() is None, last.log.decode()[-3000:]


def through(stage: Owner, points: tuple[str, ...], action: str, done: Callable[[Child], bool]) -> Child:
    """A life for each step, which ends there or goes on; the child that is left has come to `done`."""
    sleepers = []
    for point in points:
        child = stage.child(f"{point}={action}")
        child.wait(lambda: child.met(point, action), f"{action} at {point}")  # noqa: B023 - called at once
        if action == "stop":
            sleepers.append(child)
        elif action == "kill":
            child.close()
        else:
            # It goes on by itself, and has made what it was to make: only the first start meets these.
            break
    last = child if action not in ("kill", "stop") else stage.child()
    last.wait(lambda: done(last), "all is as if nothing had happened")
    succeeded_by(stage, sleepers, last)
    return last


def first_start(stage: Owner, points: tuple[str, ...], action: str) -> None:
    last = through(stage, points, action, lambda child: "RUNNING" in child.states())
    assert stage.made() == ([(f"s_{stage.database}",)], [("dbz_publication",)])
    last.close()
    stage.begin_witness()
    run(stage, [])


def is_loaded(stage: Owner) -> bool:
    position = stage.cluster.position()
    return position is not None and not position["snapshot"].get("loads")


def a_table_comes(stage: Owner, action: str) -> None:
    """With rows, beside a table that was there before."""
    stage.more |= {"snapshot.mode": "initial", **SMALL}
    first = stage.child()
    first.wait(lambda: "RUNNING" in first.states() and is_loaded(stage), "all is read that there was")
    first.close()
    stage.begin_witness()
    stage.db.execute("create table n(id int primary key, v text)")
    stage.db.execute("insert into n select g, 'old' || g from generate_series(1, %s::int) g", (ROWS,))
    stage.work(0)

    target = stage.end()
    last = through(
        stage, ("postgres.publication_changed",), action, lambda child: child.reached(target) and is_loaded(stage)
    )
    stage.db.execute("update n set v = 'new' where id <= 10; delete from n where id = 11")
    target = stage.work(0)
    last.wait(lambda: last.reached(target), "the end")
    assert last.stop() == 0
    rows = [record for _, record in stage.delivered("n")]
    assert {record["after"]["id"] for record in rows if record["op"] == "r"} == set(range(1, ROWS + 1))
    held = dict(stage.db.execute("select id, v from n").fetchall())
    assert folded(rows, once=stage.delivery == EXACT) == held
    (check if stage.delivery == EXACT else check_loosely)(stage)


def test_a_first_start_that_dies_at_each_step_leaves_one_slot_and_everything(stage):
    first_start(stage, FIRST, "kill")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", [EXACT, LOOSE], indirect=True)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("point", FIRST)
def test_a_first_start_that_is_hit_at_any_step_leaves_one_slot_and_everything(stage, point, action):
    first_start(stage, (point,), action)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", [EXACT, LOOSE], indirect=True)
@pytest.mark.parametrize("action", ACTIONS)
def test_a_table_that_comes_while_the_publication_is_changed_has_all_its_rows(stage, action):
    a_table_comes(stage, action)
