"""What a source counts: by table within bounds, by stage, and why its Kafka transactions were committed."""

from __future__ import annotations

from collections import Counter

import pytest
from cdcworker.worker.source_counts import NAME_CHARS_MAX, OTHER, TableCounts
from cdcworker.worker.source_session import Limits


def counts(world):
    """The last numbers that were reported in a run."""
    world.run()
    return world.numbers[-1]


@pytest.mark.parametrize(
    ("limits", "idle", "reason"),
    [
        (Limits(), True, "idle"),
        (Limits(records_max=1), False, "records"),
        (Limits(bytes_max=1), False, "bytes"),
        (Limits(ms_max=1), False, "time"),
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
    assert found["table_lag_s"]["public.t"] > 1e9, "the commits of these are of 1970"
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


def test_tables_that_are_met_first_keep_their_numbers_and_the_rest_is_one():
    tables = TableCounts(2)
    tables.add("p", Counter({"p.s.a": 1, "p.s.b": 2, "p.s.c": 4}), 1.5)
    tables.add("p", Counter({"p.s.d": 8, "p.s.a": 16}), None)
    assert tables.records == {"s.a": 17, "s.b": 2, OTHER: 12}
    assert tables.lag_s == {"s.a": 1.5, "s.b": 1.5, OTHER: 1.5}


def test_long_names_do_not_make_a_report_too_large():
    tables = TableCounts()
    tables.add("p", Counter({f"p.{n:0240d}": 1 for n in range(100)}), 0.0)
    assert sum(map(len, tables.records)) <= NAME_CHARS_MAX + len(OTHER)
    assert tables.records.total() == 100
