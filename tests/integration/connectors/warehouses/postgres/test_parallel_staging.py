"""Tables that are staged over several connections: attempts that are lost, doubled or late leave the same rows."""

from __future__ import annotations

import pickle

import psycopg
import pytest
from cdcworker.connectors.warehouses.postgres import parallel_staging as parallel
from cdcworker.connectors.warehouses.postgres.writer import PostgresWriter
from hypothesis import HealthCheck, given, settings

from tests import change_streams
from tests.change_streams import NARROW
from tests.unit.connectors.arrow import test_reduce as scripts

from .test_writer import dsn, query, run, sink  # noqa: F401 - fixtures

pytestmark = pytest.mark.postgres

TABLES = "select relname from pg_class where relnamespace = '_cdcworker'::regnamespace and relname like 'stage%'"


class Attempts:
    """Runs each part as a cluster may: in another process's copy of it, and more than once; the last attempt counts."""

    def __init__(self, lost=0):
        self.lost = lost
        self.names = []

    def __call__(self, write, parts):
        out = []
        for part in parts:
            for _ in range(self.lost + 1):
                self.names.append(pickle.loads(pickle.dumps(write))(pickle.loads(pickle.dumps(part))))
            out.append(self.names[-1])
        return out


def changed(stream, model, count):
    """Rows that are there and change: fresh ones go straight into their table."""
    for number in range(count):
        stream.insert(NARROW, (number, 1, "a", "b"))
    seen = len(stream.records)
    for number in range(count):
        stream.update(NARROW, (number, 2, f"x{number}", None), (3,))
        model.insert((number,), (number, 2, f"x{number}", "b"))
    return seen


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(scripts.actions, scripts.cuts)
@scripts.moving
def test_any_changes_leave_the_same_rows_when_every_part_is_written_twice(dsn, script, cuts):  # noqa: F811
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("drop schema if exists _cdcworker cascade")
        connection.execute("drop table if exists public.orders")
    stream, model = change_streams.Stream(), change_streams.Model()
    scripts.play(script, stream, model)
    writer = PostgresWriter(dsn, "sink", staging=parallel.StagingPlan(2, 1, Attempts(lost=1)))
    writer.fence((1, 0))
    try:
        run(stream, writer, cuts)
    finally:
        writer.close()
    if stream.records:
        rows = query(dsn, "select id, n, a, big from public.orders")
        assert {(row[0],): list(row) for row in rows} == model.rows


def test_only_attempts_that_came_back_are_merged_and_the_others_go_with_the_next_start(dsn, sink):  # noqa: F811
    stream, model, attempts = change_streams.Stream(), change_streams.Model(), Attempts(lost=2)
    seen = changed(stream, model, 10)
    run(stream, sink(staging=parallel.StagingPlan(3, 1, attempts)), [seen])
    rows = query(dsn, "select id, n, a, big from public.orders")
    assert {(row[0],): list(row) for row in rows} == model.rows
    assert len(attempts.names) == 9
    left = {name for (name,) in query(dsn, TABLES)}
    assert left == {name for at, name in enumerate(attempts.names) if at % 3 != 2}
    assert all("_1_0_1_" in name for name in left)  # epoch, attempt and batch
    sink((1, 1))
    assert query(dsn, TABLES) == []


def test_who_is_not_the_owner_any_more_takes_nothing_from_the_new_one(dsn, sink):  # noqa: F811
    zombie = sink((1, 0))
    stream, model, attempts = change_streams.Stream(), change_streams.Model(), Attempts(lost=1)
    seen = changed(stream, model, 4)
    run(stream, sink((1, 1), staging=parallel.StagingPlan(1, 1, attempts)), [seen])
    left = query(dsn, TABLES)
    assert left == [(attempts.names[0],)]
    zombie._sweep()
    assert query(dsn, TABLES) == left
    sink((2, 0))
    assert query(dsn, TABLES) == []


def test_an_attempt_that_still_writes_holds_up_nobody(dsn, sink):  # noqa: F811
    stream, model, attempts = change_streams.Stream(), change_streams.Model(), Attempts(lost=1)
    seen = changed(stream, model, 4)
    run(stream, sink(staging=parallel.StagingPlan(1, 1, attempts)), [seen])
    ((left,),) = query(dsn, TABLES)
    with psycopg.connect(dsn) as late:
        late.execute(f"insert into _cdcworker.{left} (id) values (77)")
        sink((1, 1))
        assert query(dsn, TABLES) == [(left,)]
        late.commit()
    assert query(dsn, "select count(*) from public.orders where id = 77") == [(0,)]
    sink((1, 2))
    assert query(dsn, TABLES) == []


def test_where_no_part_can_be_written_the_driver_does_it(dsn, sink, caplog):  # noqa: F811
    tried = []

    def fails(write, parts):
        tried.append(write(parts[0]))
        raise ModuleNotFoundError("an executor has no psycopg")

    stream, model = change_streams.Stream(), change_streams.Model()
    seen = changed(stream, model, 10)
    writer = sink(staging=parallel.StagingPlan(3, 1, fails))
    run(stream, writer, [seen, seen + 5])
    rows = query(dsn, "select id, n, a, big from public.orders")
    assert {(row[0],): list(row) for row in rows} == model.rows
    assert len(tried) == 1  # and not again for a while
    assert "stages the table alone" in caplog.text


def test_small_tables_are_left_to_the_driver(dsn, sink):  # noqa: F811
    stream, model, attempts = change_streams.Stream(), change_streams.Model(), Attempts()
    seen = changed(stream, model, 10)
    run(stream, sink(staging=parallel.StagingPlan(3, 1 << 20, attempts)), [seen])
    assert attempts.names == []
    run(stream, sink((1, 1), staging=parallel.StagingPlan(3, 0, attempts)))
    assert attempts.names == []
