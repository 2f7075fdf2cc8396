"""A repair: rows of given keys are read once more, keys without a row are handed on as deleted, and nothing of the stream is undone."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from cdcworker.connectors.snapshot_jobs import REPAIR_ROWS_MAX, RepairedRows, repair_spec

from tests.contract.polled_task import asked, materialise
from tests.contract.snapshot_races import repaired
from tests.unit.connectors.native_records import Registry

from ..postgres_database import PostgresDatabase
from .test_snapshots import ended, outcome

pytestmark = pytest.mark.postgres


def repair(identity: str, *, deletes: bool = True, **tables) -> dict:
    """A request for keys by table; a table's first item are the columns of its key."""
    rows = {f"public.{name}": RepairedRows(keys[0], keys[1:], deletes) for name, keys in tables.items()}
    return asked(identity, **repair_spec(rows))


def brought(one, since: int) -> list[tuple]:
    """Operation and key of what the log has behind an index, as far as it is of a repair."""
    found = []
    for change in one.log[since:]:
        row = change.before if change.op == "d" else change.after
        if change.source["snapshot"] == "true":
            found.append((change.op, *(row[i] for i in change.table.key)))
    return found


@pytest.mark.parametrize("natively", [pytest.param(False, marks=pytest.mark.long), True])
def test_rows_of_the_keys_come_again_and_keys_without_a_row_are_deleted(db, reader, natively):
    db.execute(
        "create table t(id int primary key, v text); insert into t select g, 'v' || g from generate_series(1, 9) g"
    )
    db.execute("create table u(id int primary key)")
    one = reader(**{"snapshot.mode": "no_data"})
    one.registry = Registry() if natively else None
    one.start().until(one.loaded)
    before, loaded = len(one.log), one.position["snapshot"]["loaded"]
    one.jobs = (repair("r", t=[["id"], ["2"], ["77"], ["5"]], u=[["id"], ["1"]]),)
    one.until(lambda: ended(one, "r"))
    assert sorted(brought(one, before)) == [("d", 1), ("d", 77), ("r", 2), ("r", 5)]
    (gone,) = [change for change in one.events("d") if change.table.path[1] == "t"]
    assert (gone.before, gone.after) == ((77, None), None)
    assert (outcome(one, "r")["state"], outcome(one, "r")["rows"]) == ("COMPLETED", 4)
    # Some rows are not all of them.
    assert one.position["snapshot"]["loaded"] == loaded
    db.execute("insert into t values (77, 'new')")
    one.catch_up(db)
    rows = {key[0]: row["v"] for key, row in materialise(one.log)["public", "t"].items()}
    assert rows == {2: "v2", 5: "v5", 77: "new"}


def test_keys_are_found_whatever_their_types_and_characters_are(db, reader):
    db.execute("create type mood as enum ('good', 'bad')")
    db.execute("create table t(a text, b uuid, c timestamptz, m mood, primary key (a, b, c, m))")
    db.execute("create table x(b bytea, n numeric(10, 2), primary key (b, n))")
    ids = ["00000000-0000-0000-0000-00000000000" + str(number) for number in range(3)]
    moment = "2024-01-01 00:00:00+00"
    db.execute("insert into t values (%s, %s, %s, 'good')", ("tab\tquote'back\\slash\nü", ids[0], moment))
    db.execute(r"insert into x values ('\x00ff', 1.5)")
    one = reader(**{"snapshot.mode": "no_data"}).start()
    one.until(one.loaded)
    there = ["tab\tquote'back\\slash\nü", ids[0], moment, "good"]
    gone = [["tab\tquote'back\\slash\nü", ids[1], moment, "good"], ["", ids[0], moment, "bad"]]
    one.jobs = (
        repair("r", t=[["a", "b", "c", "m"], there, *gone], x=[["b", "n"], [r"\x00ff", "1.50"], [r"\x", "1.50"]]),
    )
    one.until(lambda: ended(one, "r"))
    assert [change.op for change in one.log if change.table.path[1] == "t"] == ["r", "d", "d"]
    deleted = [change.before for change in one.events("d") if change.table.path[1] == "t"]
    assert [(row[0], row[1], row[3]) for row in deleted] == [(key[0], key[1], key[3]) for key in gone]
    assert [change.op for change in one.log if change.table.path[1] == "x"] == ["r", "d"]


def test_a_repair_goes_on_after_a_kill_and_brings_each_row_once(db, reader):
    db.execute("create table t(id int primary key); insert into t select generate_series(1, 1000)")
    one = reader(**{"snapshot.mode": "no_data"}).start()
    one.until(one.loaded)
    keys = [[str(number)] for number in range(500, 1500)]
    one.jobs = (repair("r", t=[["id"], *keys]),)
    one.until(lambda: bool(one.position["snapshot"].get("loads")))
    one.poll(commit=False)
    one.kill()
    assert "repaired" in json.dumps(one.position)
    one.start().until(lambda: ended(one, "r"))
    assert sorted(brought(one, 0)) == [("d", number) for number in range(1001, 1500)] + [
        ("r", number) for number in range(500, 1001)
    ]


def test_what_cannot_be_repaired_fails_by_name_and_reads_nothing(db, reader):
    db.execute("create table t(id int primary key, v text unique not null); insert into t values (1, 'a')")
    db.execute("create table keyless(id int); insert into keyless values (1)")
    one = reader(**{"snapshot.mode": "no_data"}).start()
    one.until(one.loaded)
    before = len(one.log)
    wrong = {
        "unknown": repair("unknown", nope=[["id"], ["1"]]),
        "key": repair("key", t=[["v"], ["a"]]),
        "keyless": repair("keyless", keyless=[["id"], ["1"]]),
        "many": repair("many", t=[["id"], *([str(n)] for n in range(REPAIR_ROWS_MAX + 1))]),
        "empty": repair("empty", t=[["id"]]),
        "form": asked(
            "form", tables=["public.t"], repair={"public.t": {"key": ["id"], "rows": [[1]], "deletes": True}}
        ),
        "silent": asked("silent", tables=["public.t"], repair={"public.t": {"key": ["id"], "rows": [["1"]]}}),
        "more": {**(one_row := repair("more", t=[["id"], ["1"]])), "spec": {**one_row["spec"], "rows_per_s": 5}},
    }
    for identity, job in wrong.items():
        one.jobs = (job,)
        one.until(lambda identity=identity: ended(one, identity))
        found = outcome(one, identity)
        assert (found["state"], found["rows"], found["error"]["code"]) == ("FAILED", 0, "postgres.snapshot_refused")
    assert len(one.log) == before
    assert outcome(one, "key")["error"]["where"] == {"table": "public.t"}


def test_a_key_that_is_no_value_of_its_column_any_more_fails_and_is_told_to_nobody(db, reader, caplog):
    """The column was of another type when the keys were asked for."""
    db.execute("create table t(id int primary key); insert into t values (1)")
    one = reader(**{"snapshot.mode": "no_data"}).start()
    one.until(one.loaded)
    for identity, deletes in (("deletes", True), ("reads", False)):
        one.jobs = (repair(identity, deletes=deletes, t=[["id"], ["1"], ["geheim-4711"]]),)
        one.until(lambda identity=identity: ended(one, identity))
        found = outcome(one, identity)
        assert (found["state"], found["rows"]) == ("FAILED", 0)
        assert "4711" not in json.dumps(found) + caplog.text
    assert brought(one, 0) == []


@pytest.mark.parametrize(("deletes", "skipped"), [(False, "none"), (True, "d")])
def test_no_deletion_comes_of_a_row_that_has_gone_where_none_are_asked_for_or_handed_on(db, reader, deletes, skipped):
    db.execute("create table t(id int primary key); insert into t values (1)")
    one = reader(**{"snapshot.mode": "no_data", "skipped.operations": skipped}).start()
    one.until(one.loaded)
    one.jobs = (repair("r", deletes=deletes, t=[["id"], ["1"], ["2"], ["3"]]),)
    one.until(lambda: ended(one, "r"))
    assert (brought(one, 0), outcome(one, "r")["state"]) == ([("r", 1)], "COMPLETED")


def test_one_repair_is_under_way_at_a_time(db, reader):
    db.execute("create table t(id int primary key); insert into t values (1)")
    one = reader(**{"snapshot.mode": "no_data"}).start()
    one.until(one.loaded)
    one.jobs = (repair("first", t=[["id"], ["1"]]), repair("second", t=[["id"], ["2"]]))
    one.until(lambda: ended(one, "first") and ended(one, "second"))
    assert (outcome(one, "first")["state"], outcome(one, "second")["state"]) == ("COMPLETED", "FAILED")
    assert brought(one, 0) == [("r", 1)]


def raced(postgres, seed: int) -> None:
    name = postgres.create_database()
    with closing(PostgresDatabase(postgres, name, natively=bool(seed % 2))) as database:
        repaired(database, seed)
    postgres.drop_database(name)


SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))]
"""Of runs in CI one is read natively and one is not."""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_spoilt_reader_is_right_whatever_is_changed_at_each_hand_over(postgres, seed):
    raced(postgres, seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_spoilt_reader_is_right_in_many_seeded_runs(postgres):
    for seed in range(2000, 2080):
        raced(postgres, seed)
