"""A stopped task goes on at another place of what its slot holds: what is told to be missed is missed, what comes again comes."""

from __future__ import annotations

import threading

import pytest
from cdcworker.connectors.api.source import EARLIEST, NOW, SKIP
from cdcworker.connectors.postgres.doctor import moved_positions
from cdcworker.connectors.postgres.server import slot
from cdcworker.connectors.postgres.server.slot_lag import written_lsn
from cdcworker.connectors.postgres.source.connector import PostgresSource
from cdcworker.schemas.errors import CdcError

from ..postgres_reader import SLOWLY, Reader, drop_slot

pytestmark = pytest.mark.postgres


@pytest.fixture
def stopped(postgres, database, db):
    """A task that has handed on the first row, and stands while two transactions wait."""
    db.execute("create table orders(id int primary key)")
    one = Reader(postgres, database, **{"snapshot.mode": "no_data"})
    one.start()
    db.execute("insert into orders values (1)")
    one.catch_up(db)
    one.kill()
    db.execute("insert into orders select generate_series(2, 4)")
    db.execute("insert into orders values (5)")
    one.log.clear()
    yield one
    if one.task is not None:
        one.kill()
    drop_slot(db, f"s_{database}")


def moved(one: Reader, to: str):
    return PostgresSource(one.config).moved_position(0, one.position, to)


def goes_on(one: Reader, db, position) -> list[int]:
    one.position = position
    one.start()
    one.catch_up(db)
    one.kill()
    return [change.after[0] for change in one.log]


def test_now_misses_what_waits_and_says_so(stopped, db):
    found = moved(stopped, NOW)
    (missed,) = found.notes
    assert missed.startswith("2 transactions with 4 changes are missed: commits from ")
    db.execute("insert into orders values (6)")
    assert goes_on(stopped, db, found.content) == [6]
    assert moved(stopped, NOW).notes == ["nothing is missed, and nothing comes again"]


def test_skip_misses_one_transaction(stopped, db):
    found = moved(stopped, SKIP)
    (missed,) = found.notes
    assert missed.startswith("the transaction that commits at ")
    assert missed.endswith(" is missed, with 3 changes")
    assert goes_on(stopped, db, found.content) == [5]


def test_an_lsn_lies_between_what_is_missed_and_what_comes(stopped, db):
    between = db.execute("select pg_current_wal_insert_lsn()::text").fetchone()[0]
    db.execute("insert into orders values (6)")
    found = moved(stopped, between)
    assert found.notes[0].startswith("2 transactions with 4 changes are missed")
    assert goes_on(stopped, db, found.content) == [6]


def test_a_time_lies_before_the_transactions_that_commit_at_it_or_later(stopped, db):
    between = db.execute("select clock_timestamp() at time zone 'UTC'").fetchone()[0].isoformat()
    db.execute("insert into orders values (6)")
    found = moved(stopped, f"{between}Z")
    assert found.notes[0].startswith("2 transactions with 4 changes are missed")
    assert moved(stopped, "2999-01-31T12:00:00+01:00").notes[0].startswith("3 transactions with 5 changes are missed")
    assert moved(stopped, "1999-01-31T12:00:00Z").notes[0] == "the slot holds no transaction of before this time"
    assert goes_on(stopped, db, found.content) == [6]


def test_what_is_committed_during_the_look_is_not_told_to_be_missed(stopped, db, monkeypatch):
    def looked(catalog):
        end = written_lsn(catalog)
        db.execute("insert into orders values (6)")
        return end

    monkeypatch.setattr(moved_positions, "written_lsn", looked)
    found = moved(stopped, "2999-01-31T12:00:00+01:00")
    assert found.notes[0].startswith("2 transactions with 4 changes are missed")
    assert goes_on(stopped, db, found.content) == [6]


def test_earliest_brings_again_what_the_slot_still_holds(stopped, db):
    stopped.position = moved(stopped, NOW).content
    found = moved(stopped, EARLIEST)
    (again,) = found.notes
    assert " are handed on again: commits from " in again
    assert goes_on(stopped, db, found.content)[-4:] == [2, 3, 4, 5]


def test_a_reader_that_is_just_ending_is_waited_for_and_another_one_is_told(stopped, monkeypatch):
    stopped.start()
    ending = threading.Timer(0.3, stopped.kill)
    ending.start()
    assert moved(stopped, NOW).notes[0].startswith("2 transactions with 4 changes are missed")
    ending.join()
    monkeypatch.setattr(slot, "RELEASE_S_MAX", 0.1)
    stopped.start()
    with pytest.raises(CdcError) as caught:
        moved(stopped, NOW)
    assert caught.value.code == "postgres.slot_in_use"


@pytest.mark.parametrize("to", ["0/1", "FFFFFFFF/0", "nonsense", "", "-1", "2026-01-31T12:00:00", "2026-01-31"])
def test_a_place_that_the_slot_does_not_lead_to_is_refused(stopped, to):
    with pytest.raises(CdcError) as caught:
        moved(stopped, to)
    assert caught.value.code == "postgres.place_not_there"


def test_without_a_transaction_that_waits_there_is_none_to_skip(stopped):
    stopped.position = moved(stopped, NOW).content
    with pytest.raises(CdcError, match="no transaction waits"):
        moved(stopped, SKIP)


def test_before_a_snapshot_has_ended_nothing_is_moved(postgres, database, db):
    db.execute("create table orders(id int primary key, v text)")
    db.execute("insert into orders select g, repeat('x', 200) from generate_series(1, 3000) g")
    one = Reader(postgres, database, **SLOWLY)
    one.start()
    while not one.position:
        one.poll()
    one.kill()
    with pytest.raises(CdcError) as caught:
        moved(one, NOW)
    assert caught.value.code == "postgres.place_in_snapshot"
    drop_slot(db, f"s_{database}")
