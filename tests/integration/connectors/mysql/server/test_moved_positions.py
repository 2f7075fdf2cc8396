"""A stopped task goes on at another place of the server's log: what is told to be missed is missed, what comes again comes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from cdcworker.connectors.api.source import EARLIEST, NOW, SKIP
from cdcworker.connectors.capture.snapshot.progress import SnapshotLoad, SnapshotProgress, TableLoad
from cdcworker.connectors.mysql.server import log_events
from cdcworker.connectors.mysql.source import moved_positions
from cdcworker.connectors.mysql.source.connector import MySqlSource
from cdcworker.schemas.errors import CdcError

from ..logged import LoggedServer
from ..source.reading import Reading

pytestmark = pytest.mark.mysql
NOWHERE = (
    *("3-7-999999", "0-99-1", "log.999999:4", "log.000001:1", "log:x", "nonsense", "", "-1"),
    *("2026-01-31T12:00:00", "2026-01-31"),
)
MISSED = "2 transactions with 4 changes are missed: commits from "


@pytest.fixture
def stopped(logged: LoggedServer) -> Iterator[Reading]:
    """A task that has handed on the first row, and stands while two transactions wait, between them one of another table."""
    logged.ask("drop database if exists shop", "drop database if exists other", "create database shop", "use shop")
    logged.ask(
        "use shop", "create table orders (id int primary key)", "create database other", "create table other.t (a int)"
    )
    logged.ask("flush binary logs")
    one = Reading(logged, snapshot__mode="no_data")
    one.start()
    logged.ask("use shop", "insert into orders values (1)")
    one.until(lambda: len(one.changes) == 1)
    one.stop()
    logged.ask("use shop", "insert into orders values (2), (3), (4)", "insert into other.t values (1), (2)")
    logged.ask("flush binary logs", "use shop", "insert into orders values (5)")
    one.changes.clear()
    yield one
    one.stop()


def moved(one: Reading, to: str):
    return MySqlSource(one.config).moved_position(0, one.position, to)


def goes_on(one: Reading, position, count: int) -> list[int]:
    numbers = one.position["number"]
    one.position = position
    MySqlSource(one.config).verify_position(0, position)
    one.start()
    one.until(lambda: len(one.changes) >= count)
    one.stop()
    assert one.changes[0].position.commit > numbers, "whatever comes has a place behind all that came before"
    return [change.after[0] for change in one.changes]


def insert(server: LoggedServer, number: int) -> None:
    server.ask("use shop", f"insert into orders values ({number})")


def test_now_misses_what_waits_and_says_so(stopped: Reading, logged: LoggedServer) -> None:
    found = moved(stopped, NOW)
    (missed,) = found.notes
    assert missed.startswith(MISSED)
    insert(logged, 6)
    assert goes_on(stopped, found.content, 1) == [6]
    assert moved(stopped, NOW).notes == ["nothing is missed, and nothing comes again"]


def test_skip_misses_one_transaction(stopped: Reading) -> None:
    found = moved(stopped, SKIP)
    (missed,) = found.notes
    assert missed.endswith(" is missed, with 3 changes")
    assert goes_on(stopped, found.content, 1) == [5]


def test_a_gtid_lies_before_what_comes_and_so_does_a_set_of_them(stopped: Reading, logged: LoggedServer) -> None:
    last = str(logged.position())
    insert(logged, 6)
    for to in (last, f"{last},77-1-1"):
        assert moved(stopped, to).notes[0].startswith(MISSED), to
    assert goes_on(stopped, moved(stopped, last).content, 1) == [6]


def test_a_place_in_a_file_lies_between_two_transactions(stopped: Reading, logged: LoggedServer) -> None:
    file, position = logged.ask("show master status")[0][:2]
    insert(logged, 6)
    found = moved(stopped, f"{file}:{position}")
    assert found.notes[0].startswith(MISSED)
    with pytest.raises(CdcError, match="between two transactions"):
        moved(stopped, f"{file}:{position + 1}")
    assert goes_on(stopped, found.content, 1) == [6]


def test_a_time_lies_before_the_transactions_that_commit_at_it_or_later(stopped: Reading, logged: LoggedServer) -> None:
    now = int(logged.ask("select unix_timestamp()")[0][0])
    while int(logged.ask("select unix_timestamp()")[0][0]) == now:
        pass
    insert(logged, 6)
    found = moved(stopped, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now + 1)))
    assert found.notes[0].startswith(MISSED)
    assert goes_on(stopped, found.content, 1) == [6]
    assert moved(stopped, "2999-01-31T12:00:00+01:00").content["gtids"] == str(logged.position())
    early = moved(stopped, "1999-01-31T12:00:00Z")
    assert early.content["file"] == logged.ask("show binary logs")[0][0]
    assert early.notes[-1] == "the log holds no transaction of before this time"


def test_what_comes_again_comes_behind_all_that_came_before(stopped: Reading) -> None:
    stopped.position = moved(stopped, NOW).content
    back = f"{stopped.position['file'].rpartition('.')[0]}.{int(stopped.position['file'].rpartition('.')[2]) - 1:06d}:4"
    found = moved(stopped, back)
    (again,) = found.notes
    assert " are handed on again: commits from " in again
    assert goes_on(stopped, found.content, 5) == [1, 2, 3, 4, 5]


def test_where_the_log_is_gone_what_is_there_is_read_and_that_is_told(stopped: Reading, logged: LoggedServer) -> None:
    last = logged.ask("show binary logs")[-1][0]
    logged.purge_to(str(last))
    with pytest.raises(CdcError, match="log_purged"):
        MySqlSource(stopped.config).verify_position(0, stopped.position)
    found = moved(stopped, EARLIEST)
    assert found.notes == ["what the server has removed from its log is missed"]
    with pytest.raises(CdcError, match="does not have what comes behind"):
        moved(stopped, SKIP)
    assert goes_on(stopped, found.content, 1) == [5]


def test_a_place_that_the_log_does_not_lead_to_is_refused(stopped: Reading) -> None:
    for to in NOWHERE:
        with pytest.raises(CdcError) as caught:
            moved(stopped, to)
        assert caught.value.code == "mysql.place_not_there", to


def test_without_a_transaction_that_waits_there_is_none_to_skip(stopped: Reading) -> None:
    stopped.position = moved(stopped, NOW).content
    with pytest.raises(CdcError, match="no transaction waits"):
        moved(stopped, SKIP)


def test_what_is_not_counted_in_time_is_told(stopped: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moved_positions, "COUNT_S_MAX", -1.0)
    assert "there may be more" in moved(stopped, NOW).notes[0]


def test_a_search_that_takes_too_long_says_so_and_a_set_of_gtids_needs_none(
    stopped: Reading, logged: LoggedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = str(logged.position())
    # Each event takes ten seconds: enough for those with which a file begins.
    monkeypatch.setattr(log_events, "time", SimpleNamespace(monotonic=itertools.count(0, 10).__next__))
    monkeypatch.setattr(log_events, "_HELD_MAX", 1)
    with pytest.raises(CdcError) as caught:
        moved(stopped, last)
    assert caught.value.code == "mysql.log_too_long"
    assert caught.value.where["file"] == logged.ask("show master status")[0][0]
    found = moved(stopped, f"{last},77-1-1")
    assert found.content["gtids"] == f"{last},77-1-1"
    assert "there may be more" in found.notes[0]


def test_a_transaction_that_was_handed_on_in_part_is_skipped_or_comes_again(stopped: Reading) -> None:
    assert stopped.position
    begun = moved(stopped, SKIP).content
    part = [begun["gtids"].split(",")[-1], stopped.position["number"] + 1, 2]
    stopped.position = {**stopped.position, "v": 2, "part": part}
    skipped = moved(stopped, SKIP)
    assert skipped.notes[1] == "2 of them were handed on already"
    assert skipped.content["number"] == part[1]
    same = moved(stopped, str(stopped.position["gtids"]))
    assert same.notes[-1].startswith("2 changes of transaction ")


def test_before_a_snapshot_has_ended_nothing_is_moved(stopped: Reading) -> None:
    load = SnapshotLoad("a", "start", [TableLoad(1, "shop", "orders")], started_ms=0)
    stopped.position = {**stopped.position, "snapshot": SnapshotProgress(loads=[load]).to_json()}
    with pytest.raises(CdcError) as caught:
        moved(stopped, NOW)
    assert caught.value.code == "mysql.place_in_snapshot"
