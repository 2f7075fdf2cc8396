"""What a source counts: by table within bounds, by stage, and why its Kafka transactions were committed."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from cdcworker.connectors.telemetry.table_labels import NAME_CHARS_MAX, OTHER
from cdcworker.schemas.change import Change, EncodedRecords, OutRecord, Position, Table
from cdcworker.worker.source.counters import Counters, OpenTransactionCounts, TableCounts
from cdcworker.worker.source.runner import SourceRunner
from cdcworker.worker.source.session import TransactionLimits


def counts(world):
    """The last numbers that were reported in a run."""
    world.run()
    return world.numbers[-1]


@pytest.mark.parametrize(
    ("limits", "idle", "reason"),
    [
        (TransactionLimits(), True, "idle"),
        (TransactionLimits(records_max=1), False, "records"),
        (TransactionLimits(bytes_max=1), False, "bytes"),
        (TransactionLimits(ms_max=1), False, "time"),
    ],
)
def test_it_is_said_why_a_transaction_was_committed(make_world, limits, idle, reason):
    world = make_world((1, 2, 3), limits=limits, idle=idle)
    world.poll_takes_s = 2.0
    assert counts(world)["flushes"][reason] >= 1


def test_a_transaction_that_says_only_how_far_it_is_counts_as_that(make_world):
    world = make_world((1,), idle=True)
    world.poll_takes_s, world.idle_watermark = 2.0, {"commit_lsn": 9, "ts_ms": 9}
    found = counts(world)["flushes"]
    assert (found["idle"], found["watermark"] >= 1, set(found)) == (1, True, {"idle", "watermark"})


@pytest.mark.parametrize("ready", [False, True])
def test_records_and_lag_are_told_by_table_once_they_are_committed(make_world, ready):
    world = make_world((1, 2, 3), idle=True)
    world.poll_takes_s, world.ready = 2.0, lambda number: ready
    found = counts(world)
    assert found["table_records"] == {"public.t": 6}
    late = [numbers["table_lag_s"].get("public.t", 0) for numbers in world.numbers]
    assert max(late) > 1e9, "the commits of these are of 1970"
    assert (found["batch_records"], found["batch_bytes"] > 0) == (3, True)


def test_what_was_aborted_is_not_counted(make_world):
    world = make_world((1, 2, 3), idle=True)
    world.poll_takes_s = 2.0
    world.fail("commit", 2)
    assert counts(world)["table_records"] == {"public.t": 6}


def test_every_stage_takes_time(make_world):
    world = make_world((500,) * 20, idle=True)
    world.poll_takes_s = 2.0
    stages = counts(world)["stage_s"]
    assert set(stages) == {"read", "encode", "produce", "commit"}
    assert stages["encode"] > 0
    assert stages["produce"] > 0


@pytest.mark.parametrize(("ago_s", "is_late"), [(2, False), (3_600, True)])
def test_a_source_that_waits_for_nothing_is_at_lag_0(make_world, ago_s, is_late):
    """It says once a second where its log ends; one that has not said so for long is late, however idle."""
    world = make_world((1,), idle=True)
    world.poll_takes_s = 2.0
    world.idle_watermark = {"commit_lsn": 9, "ts_ms": int(time.time() * 1000) - ago_s * 1000}
    assert (counts(world)["lag_s"] > 0) is is_late


def test_the_bytes_of_tables_go_with_those_of_their_source(make_world):
    """What was said of the tables while there was a lag does not stay beside a source that has none."""
    world = make_world((1, 2, 3), idle=True)
    world.poll_takes_s = 2.0
    runner = SourceRunner(world, world.control, world, world.clock)
    lags = iter((1_000, 0, 0, 0, 0, 0, 0))
    world.on_poll = lambda _: runner.extra_metrics({"lag_bytes": next(lags)})
    runner.run()
    told = [(numbers["lag_bytes"], sum(numbers["table_lag_bytes"].values())) for numbers in world.numbers]
    assert told[0] == (1_000, 1_000)
    assert told[-1] == (0, 0)


@pytest.mark.parametrize("ready", [False, True])
def test_every_change_of_a_transaction_counts_as_late_as_it_is(make_world, ready):
    world = make_world((1, 2, 30), idle=False)
    world.poll_takes_s, world.ready = 2.0, lambda number: ready
    found = counts(world)["latency"]
    assert sum(found["counts"]) == 33, "not the three transactions, or the newest of a commit"


def test_a_table_is_not_late_any_more_once_the_source_has_run_dry(make_world):
    world = make_world((1,), idle=True)
    world.poll_takes_s, world.idle_watermark = 2.0, {"commit_lsn": 9, "ts_ms": 9}
    assert counts(world)["table_lag_s"] == {"public.t": 0.0}


def test_rows_of_a_snapshot_and_tombstones_are_no_changes_that_somebody_waited_for():
    held = OpenTransactionCounts()
    committed = EncodedRecords([("p.t", b"v", b"k", 0), ("p.t", None, b"k", 0)], 3, 2, "p.t", {"p.t": 2}, 5_000)
    loaded_natively = EncodedRecords([("p.t", b"v", b"k", 0)], 2, 2, "p.t", {"p.t": 1})
    assert held.ready([committed, loaded_natively]) == [*committed.records, *loaded_natively.records]
    loaded = Change("r", Table(("t",), 1, (), (), {}), Position(1, 0, 0), {"ts_ms": 4_000})
    held.encoded([OutRecord("p.t", b"k", b"v", None, 0)], [loaded])
    assert held.moments_ms == {5_000: 1}
    assert (held.records, held.bytes, held.topics["p.t"], held.topic_bytes["p.t"]) == (4, 7, 4, 7)


def test_records_that_transforms_left_out_count_once_their_transaction_is_committed():
    counters, held = Counters(), OpenTransactionCounts()
    held.encoded([], [], {"drop": 2})
    held.encoded([], [], {"drop": 1, "late": 1})
    assert counters.numbers()["filtered_records"] == {}
    counters.committed(held, 0.1, "idle", "p")
    assert counters.numbers()["filtered_records"] == {"drop": 3, "late": 1}


def held_of(lag_ms: int | None = None, **records: int) -> OpenTransactionCounts:
    """An open transaction of so many records of ten bytes by table."""
    topics = Counter({f"p.s.{name}": count for name, count in records.items()})
    sizes = Counter({topic: 10 * count for topic, count in topics.items()})
    newest = {} if lag_ms is None else dict.fromkeys(topics, lag_ms)
    return OpenTransactionCounts(topics=topics, topic_bytes=sizes, newest_ms=newest)


def test_tables_that_are_met_first_keep_their_numbers_and_the_rest_is_one():
    tables = TableCounts(2)
    tables.add("p", held_of(8_500, a=1, b=2, c=4), 10.0)
    tables.add("p", held_of(None, d=8, a=16), 10.0)
    assert tables.records == {"s.a": 17, "s.b": 2, OTHER: 12}
    assert tables.lag_s == {"s.a": 1.5, "s.b": 1.5, OTHER: 1.5}


def test_a_table_that_rests_is_not_late_for_ever_while_others_are_written():
    tables = TableCounts()
    tables.add("p", held_of(1_000, a=1), 3_601.0)
    assert tables.lag_s == {"s.a": 3_600.0}
    tables.add("p", held_of(None, b=1), 3_602.0)
    assert tables.lag_s == {"s.a": 3_600.0}, "rows that a snapshot loaded say nothing of others"
    tables.add("p", held_of(3_000_000, b=1), 3_603.0)
    assert tables.lag_s == {"s.a": 603.0, "s.b": 603.0}, "what waits of a came after that"
    tables.add("p", held_of(3_601_000, b=1), 3_604.0, ran_dry=True)
    assert tables.lag_s == {"s.a": 0.0, "s.b": 3.0}
    tables.add("p", held_of(None, c=1), 3_605.0, ran_dry=True)
    assert tables.lag_s == {"s.a": 0.0, "s.b": 0.0}


@pytest.mark.parametrize(("reason", "rest"), [("idle", 0.0), ("watermark", 0.0), ("records", 8.0), ("time", 8.0)])
def test_what_runs_dry_leaves_no_table_late(monkeypatch, reason, rest):
    monkeypatch.setattr("time.time", lambda: 10.0)
    counters = Counters()
    counters.committed(held_of(1_000, a=1), 0.0, "records", "p")
    held = held_of(2_000, b=1) if reason != "watermark" else OpenTransactionCounts()
    counters.committed(held, 0.0, reason, "p")
    assert counters.tables.lag_s["s.a"] == rest


def test_bytes_behind_are_dealt_out_as_the_tables_have_written_lately():
    clock = iter([0.0, 0.0, 600.0])
    tables = TableCounts(clock=lambda: next(clock))
    assert tables.lag_bytes(1_000) == {}
    tables.add("p", held_of(None, a=30, b=10), 0.0)
    assert tables.lag_bytes(1_000) == {"s.a": 750, "s.b": 250}
    tables.add("p", held_of(None, b=10), 0.0)
    late = tables.lag_bytes(1_000)
    assert late["s.b"] > 990, "ten minutes later that table alone writes"
    assert sum(late.values()) == 1_000


def test_long_names_do_not_make_a_report_too_large():
    tables = TableCounts()
    tables.add("p", OpenTransactionCounts(topics=Counter({f"p.{n:0240d}": 1 for n in range(100)})), 0.0)
    assert sum(map(len, tables.records)) <= NAME_CHARS_MAX + len(OTHER)
    assert sum(tables.records.values()) == 100
