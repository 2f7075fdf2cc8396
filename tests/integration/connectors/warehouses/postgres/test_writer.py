"""The PostgreSQL warehouse against a real server, without a JVM."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import psycopg
import pytest
from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.sink_engine import target_retry as patience
from cdcworker.connectors.sink_engine.target_retry import TargetRetry
from cdcworker.connectors.sink_errors import TARGET_GONE, TARGET_LOCKED
from cdcworker.connectors.warehouses.postgres import copy as copying
from cdcworker.connectors.warehouses.postgres import parallel_staging as parallel
from cdcworker.connectors.warehouses.postgres.ledger_admin import PostgresLedgerAdmin
from cdcworker.connectors.warehouses.postgres.writer import PostgresWriter
from cdcworker.schemas.errors import CdcError
from hypothesis import HealthCheck, given, settings

from tests import change_streams
from tests.change_streams import NARROW, column
from tests.unit.connectors.arrow import test_reduce as scripts

pytestmark = pytest.mark.postgres


@pytest.fixture
def dsn(emptied):
    return emptied


@pytest.fixture
def sink(dsn):
    writers = []

    def make(epoch=(1, 0), **more):
        writer = PostgresWriter(dsn, "sink", **more)
        writers.append(writer)
        writer.fence(epoch)
        return writer

    yield make
    for writer in writers:
        writer.close()


def query(dsn, text):
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(text).fetchall()


def run(stream, writer, cuts=()):
    edges = [0, *sorted({min(cut, len(stream.records)) for cut in cuts}), len(stream.records)]
    assembler = stream.assembler()
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        if stream.records[start:end]:
            writer.apply(assembler.build(change_streams.arrow(stream.records[start:end]), writer.ledger(), number))


def test_rows_come_out_as_they_went_in(dsn, sink):
    stream = change_streams.Stream()
    stream.insert(NARROW, (1, 2, "", None))
    stream.insert(NARROW, (2, None, 'x,"y"\n\\.\tz', "\\N"))
    run(stream, sink())
    assert query(dsn, "select id, n, a, big from public.orders order by id") == [
        (1, 2, "", None),
        (2, None, 'x,"y"\n\\.\tz', "\\N"),
    ]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(scripts.actions, scripts.cuts)
@scripts.moving
def test_any_split_into_batches_gives_the_same_rows(dsn, script, cuts):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("drop schema if exists _cdcworker cascade")
        connection.execute("drop table if exists public.orders")
    stream, model = change_streams.Stream(), change_streams.Model()
    scripts.play(script, stream, model)
    writer = PostgresWriter(dsn, "sink")
    writer.fence((1, 0))
    try:
        run(stream, writer, cuts)
    finally:
        writer.close()
    if stream.records:
        rows = query(dsn, "select id, n, a, big from public.orders")
        assert {(row[0],): list(row) for row in rows} == model.rows


def test_the_same_batch_twice_changes_nothing(dsn, sink):
    stream = change_streams.Stream()
    stream.insert(NARROW, (1, 2, "a", "b"))
    stream.update(NARROW, (1, 3, "a", None), (3,))
    writer = sink()
    batch = stream.assembler().build(change_streams.arrow(stream.records), {}, 1)
    writer.apply(batch)
    before = query(dsn, "select xmin, * from public.orders"), query(dsn, "select xmin, * from _cdcworker.ledger")
    assert writer.apply(batch)["replayed"]
    assert (
        query(dsn, "select xmin, * from public.orders"),
        query(dsn, "select xmin, * from _cdcworker.ledger"),
    ) == before


def test_a_lost_ledger_brings_back_neither_old_values_nor_deleted_rows(dsn, sink):
    stream = change_streams.Stream()
    for step in range(3):
        stream.insert(NARROW, (1, step, "a", "b"), "u")
    stream.insert(NARROW, (2, 1, "a", "b"))
    stream.delete(NARROW, (2,))
    run(stream, sink())
    query_after = query(dsn, "select * from public.orders")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("delete from _cdcworker.ledger")
    writer = sink((2, 0))
    end = next(at for at, record in enumerate(stream.records) if len(record["value"] or b"") and at > 2)
    assembler = stream.assembler()
    for at, record in enumerate(stream.records):
        writer.apply(assembler.build(change_streams.arrow([record]), writer.ledger(), at))
        if at == end:
            assert query(dsn, "select count(*) from public.orders where id = 2") == [(0,)]
    assert query(dsn, "select * from public.orders") == query_after


def test_a_newer_epoch_stops_the_older_writer(dsn, sink):
    stream = change_streams.Stream(1)
    stream.insert(NARROW, (1, 2, "a", "b"))
    old, new = sink((1, 0)), sink((1, 1))
    with pytest.raises(CdcError) as caught:
        old.apply(stream.assembler().build(change_streams.arrow(stream.records), {}, 1))
    assert (caught.value.code, caught.value.kind) == ("spark.fenced", "fenced")
    assert query(dsn, "select to_regclass('public.orders')") == [(None,)]
    with pytest.raises(CdcError) as caught:
        old.fence((1, 0))
    assert caught.value.kind == "fenced"
    run(stream, new)
    assert query(dsn, "select id from public.orders") == [(1,)]


def test_a_topic_that_moved_to_another_task_stops_its_old_one(dsn, sink):
    stream = change_streams.Stream(1)
    stream.insert(NARROW, (1, 2, "a", "b"))
    old = sink((5, 0), task=0)
    run(stream, old)
    new = sink((6, 0), task=1)
    new.claim(["shop.public.orders"])
    stream.insert(NARROW, (2, 2, "a", "b"))
    batch = stream.assembler().build(change_streams.arrow(stream.records), new.ledger(), 1)
    with pytest.raises(CdcError) as caught:
        old.apply(batch)
    assert caught.value.kind == "fenced"
    new.apply(batch)
    assert query(dsn, "select count(*) from public.orders") == [(2,)]


def test_a_batch_that_begins_below_the_ledger_is_refused(dsn, sink):
    stream = change_streams.Stream(1)
    stream.insert(NARROW, (1, 2, "a", "b"))
    writer = sink()
    run(stream, writer)
    stream.insert(NARROW, (2, 2, "a", "b"))
    with pytest.raises(CdcError) as caught:
        writer.apply(stream.assembler().build(change_streams.arrow(stream.records), {}, 1))
    assert caught.value.code == "spark.ledger_moved"


def test_a_batch_that_fails_leaves_nothing(dsn, sink):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table public.orders (id bigint primary key, n int check (n < 10), a text, big text)")
    stream = change_streams.Stream(1)
    stream.insert(NARROW, (1, 2, "a", "b"))
    stream.insert(NARROW, (2, 99, "secret value", "b"))
    writer = sink()
    with pytest.raises(CdcError) as caught:
        run(stream, writer)
    assert caught.value.code == "spark.target_value"
    assert caught.value.where["table"] == "orders"
    assert "secret" not in str(caught.value.to_dict())
    assert query(dsn, "select count(*) from public.orders") == [(0,)]
    assert dict(writer.ledger()) == {}


def test_a_wider_column_and_a_new_column_reach_the_target_with_their_rows(dsn, sink):
    first = change_streams.table(change_streams.ID, column("n", "int", "integer"))
    then = change_streams.table(
        change_streams.ID,
        column("n", "long", "bigint"),
        column("note", "string", "character varying(20)", default="none"),
    )
    stream = change_streams.Stream(1)
    stream.insert(first, (1, 5))
    stream.insert(first, (2, 6))
    stream.insert(then, (1, 2**40, "new"), "u")
    run(stream, sink())
    assert query(dsn, "select id, n, note from public.orders order by id") == [(1, 2**40, "new"), (2, 6, "none")]


def test_a_changed_type_that_cannot_be_widened_halts(dsn, sink):
    stream = change_streams.Stream(1)
    stream.insert(change_streams.table(change_streams.ID, column("n", "string", "text")), (1, "x"))
    run(stream, sink())
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("alter table public.orders alter column n type date using null")
    stream.insert(change_streams.table(change_streams.ID, column("n", "long", "bigint")), (1, 5))
    with pytest.raises(CdcError) as caught:
        run(stream, sink((2, 0)), [len(stream.records) - 1])
    assert caught.value.code == "spark.schema_refused"
    assert caught.value.where["column"] == "n"


def test_a_table_without_a_key_is_appended_to_and_truncated(dsn, sink):
    log = change_streams.table(column("n", "int", "integer"), key=())
    stream = change_streams.Stream(1)
    stream.insert(log, (1,))
    stream.truncate(log)
    stream.insert(log, (2,))
    stream.emit(stream.change("d", log, before=(2,)))
    run(stream, sink(), [1])
    assert query(dsn, "select n, _cdc_op from public.orders order by _cdc_position") == [(2, "c"), (2, "d")]


def test_a_key_with_null_and_names_that_need_quotes(dsn, sink):
    odd = change_streams.table(
        column('we"ird id', "long", "bigint"), column("größe", "string", "text"), name='or"ders x'
    )
    stream = change_streams.Stream()
    stream.insert(odd, (None, "a"))
    stream.insert(odd, (7, "b"))
    run(stream, sink())
    assert sorted(query(dsn, 'select "größe" from public."or""ders x"')) == [("a",), ("b",)]


def test_a_wrong_password_and_a_missing_database_are_named(postgres, dsn):
    for conninfo, code in (
        (dsn.replace("@", "x@", 1), "spark.target_auth"),
        (postgres.dsn("no_such_database"), "spark.target_database"),
        ("host=127.0.0.1 port=1 dbname=x user=x", "spark.target_unreachable"),
    ):
        with pytest.raises(CdcError) as caught:
            PostgresWriter(conninfo, "sink").fence((1, 0))
        assert caught.value.code == code


def test_a_role_without_rights_is_named(postgres, dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("drop role if exists reader")
        connection.execute("create role reader login password 'reader'")
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    poor = psycopg.conninfo.make_conninfo(**{**parts, "user": "reader", "password": "reader"})
    writer = PostgresWriter(poor, "sink")
    with pytest.raises(CdcError) as caught:
        writer.fence((1, 0))
    writer.close()
    assert caught.value.code == "spark.target_rights"


def test_tombstones_are_pruned_below_what_every_partition_has_passed(dsn, sink):
    stream = change_streams.Stream(1)
    stream.insert(NARROW, (1, 2, "a", "b"))
    stream.delete(NARROW, (1,))
    writer = sink()
    run(stream, writer)
    assert query(dsn, "select count(*) from _cdcworker.tombstone") == [(1,)]
    stream.insert(NARROW, (2, 2, "a", "b"))
    writer._pruned = time.monotonic() - 3600
    run(stream, writer, [len(stream.records) - 1])
    stream.insert(NARROW, (3, 2, "a", "b"))
    writer._pruned = time.monotonic() - 3600
    run(stream, writer, [len(stream.records) - 1])
    assert query(dsn, "select count(*) from _cdcworker.tombstone") == [(0,)]


def test_a_percent_sign_in_names_is_a_name(dsn, sink):
    odd = change_streams.table(
        column("100%", "long", "bigint", False),
        column("%(sink)s", "string", "text"),
        column("big", "string", "text"),
        name="50%off",
    )
    stream = change_streams.Stream()
    stream.insert(odd, (1, "a", "b"))
    stream.insert(odd, (5, "c", "d"))
    writer = sink()
    run(stream, writer)
    stream.records.clear()
    stream.update(odd, (1, "x", None), (2,))
    stream.delete(odd, (5,))
    stream.move(odd, (1,), (2, "y", None), (2,))
    run(stream, writer, [1, 2, 3, 4])
    assert query(dsn, 'select * from public."50%off"')[0][:3] == (2, "y", "b")
    stream.records.clear()
    stream.truncate(odd)
    run(stream, writer)
    assert query(dsn, 'select * from public."50%off"') == []


def test_a_truncate_takes_rows_that_stood_there_before(dsn, sink):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table public.orders (id bigint primary key, n int, a text, big text)")
        connection.execute("insert into public.orders values (9, 9, 'old', 'old')")
    stream = change_streams.Stream(1)
    stream.truncate(NARROW)
    stream.insert(NARROW, (2, 2, "a", "b"))
    run(stream, sink())
    assert query(dsn, "select id from public.orders") == [(2,)]


@pytest.mark.parametrize("schema", ["_cdcworker", "pg_catalog"])
def test_bookkeeping_is_not_a_target(dsn, sink, schema):
    stream = change_streams.Stream()
    stream.insert(NARROW, (1, 2, "a", "b"))
    with pytest.raises(CdcError) as caught:
        run(stream, sink(schema=schema))
    assert caught.value.code == "spark.target_reserved"


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_a_server_that_goes_down_between_batches_loses_nothing(postgres, dsn, sink, how):
    stream = change_streams.Stream(1)
    writer, assembler, applied = sink(), stream.assembler(), []
    for number in range(40):
        stream.insert(NARROW, (number, number, "a", "b"))

    def copy():
        at = dict(writer.ledger())
        for number, record in enumerate(stream.records):
            batch = assembler.build(change_streams.arrow([record]), at, number)
            if not batch.offsets:
                continue
            if len(applied) == 20:
                applied.append(None)
                postgres.kill() if how == "crash" else postgres.stop()
                postgres.start()
            writer.apply(batch)
            applied.append(number)

    waits = []
    TargetRetry(lambda: False, waits.append, lambda: len(applied)).run(copy)
    assert waits
    assert query(dsn, "select count(*), sum(n) from public.orders") == [(40, sum(range(40)))]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s", ("cdcworker-sink",)
        )
    with pytest.raises(CdcError) as caught:
        writer.apply(assembler.build(change_streams.arrow(stream.records[-1:]), {}, 1))
    assert caught.value.code == "spark.target_unreachable"
    with pytest.raises(CdcError) as caught:
        writer.apply(assembler.build(change_streams.arrow(stream.records[-1:]), {}, 1))
    assert caught.value.message == "the connection was lost after the ledger had been read"


def test_fresh_rows_go_straight_in_and_those_that_are_there_already_are_merged(dsn, sink, monkeypatch):
    straight = []
    insert = copying.insert
    monkeypatch.setattr(copying, "insert", lambda *args: (straight.append(args[2].num_rows), insert(*args)))
    stream = change_streams.Stream()
    for id in (1, 2, 3):
        stream.insert(NARROW, (id, 10 + id, "a", "b"))
    run(stream, sink())
    assert straight == [3]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("truncate _cdcworker.ledger")
        connection.execute("update public.orders set n = 99, _cdc_position = '\\xff' where id = 2")
        connection.execute("delete from public.orders where id = 3")
    run(stream, sink((1, 1)))
    assert straight == [3, 3]
    assert query(dsn, "select id, n from public.orders order by id") == [(1, 11), (2, 99), (3, 13)]


def test_a_table_that_refuses_no_second_row_gets_none(dsn, sink):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table public.orders (id bigint, n integer, a text, big text)")
        connection.execute("insert into public.orders values (1, 5, 'before', '')")
        connection.execute("create unique index on public.orders (id) where id > 100")
    stream = change_streams.Stream()
    stream.insert(NARROW, (1, 6, "after", ""))
    run(stream, sink())
    assert query(dsn, "select id, n, a from public.orders") == [(1, 6, "after")]


def test_rows_that_changed_after_they_came_up_are_fresh_and_those_that_were_there_are_not():
    stream = change_streams.Stream()
    stream.insert(NARROW, (1, 1, "a", "b"))
    stream.update(NARROW, (1, 2, "a", "b"))
    stream.update(NARROW, (2, 3, "a", "b"))
    stream.insert(NARROW, (3, 1, "a", "b"))
    stream.update(NARROW, (3, 2, "a", None), (3,))
    batch = stream.assembler().build(change_streams.arrow(stream.records), {}, 0)
    [table] = batch.tables
    found = dict(zip(table.upserts["id"].to_pylist(), table.fresh.tolist(), strict=True))
    assert found == {1: True, 2: False, 3: True}


NUMBERED = change_streams.table(*(replace(one, column_id=number) for number, one in enumerate(NARROW.columns, 1)))
"""With the source's identities of its columns."""


def inserted(ids):
    stream = change_streams.Stream()
    for number in ids:
        stream.insert(NUMBERED, (number, 1, "a", "b"))
    return stream


def refused(writer, stream):
    with pytest.raises(CdcError) as raised:
        run(stream, writer)
    return raised.value


def test_a_table_that_was_dropped_is_not_made_anew_behind_its_ledger(dsn, sink):
    stream, running = inserted([1, 2]), sink()
    run(stream, running)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("drop table public.orders")
    stream.insert(NUMBERED, (3, 1, "a", "b"))
    for writer in (lambda: running, lambda: sink((1, 1))):
        error = refused(writer(), stream)
        assert (error.code, error.retriable) == (TARGET_GONE, True)
    assert error.where["topic"].endswith(".public.orders")
    assert query(dsn, "select to_regclass('public.orders')") == [(None,)]
    PostgresLedgerAdmin(dsn, LedgerAccess("sink", (2, 0))).alter(None)
    run(stream, sink((3, 0)))
    assert query(dsn, "select id from public.orders order by id") == [(1,), (2,), (3,)]


def test_a_truncate_before_the_first_row_makes_no_table_and_misses_none(dsn, sink):
    stream, writer = change_streams.Stream(), sink()
    stream.truncate(NUMBERED)
    run(stream, writer)
    stream.insert(NUMBERED, (3, 1, "a", "b"))
    run(stream, writer)
    assert query(dsn, "select id from public.orders") == [(3,)]


def test_a_table_that_somebody_locks_for_long_is_waited_for(dsn, sink):
    stream, writer = inserted([1]), sink()
    run(stream, writer)
    stream.insert(NUMBERED, (2, 1, "a", "b"))
    writer._connection.execute("set lock_timeout = '50ms'")
    with psycopg.connect(dsn) as other:
        other.execute("lock table public.orders")
        assert refused(writer, stream).code == TARGET_LOCKED
    assert TARGET_LOCKED in patience.AWAY


def test_what_cannot_be_swept_leaves_the_session_as_it_was(dsn, sink):
    writer = sink()
    name = f"{parallel.family(writer._ledger)}0_0_1_x"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("drop role if exists cdc_sweeper")
        connection.execute("create role cdc_sweeper")
        connection.execute("grant usage on schema _cdcworker to cdc_sweeper")
        connection.execute(f'create table _cdcworker."{name}" (id int)')
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute("set role cdc_sweeper")
        before = session.execute("show lock_timeout").fetchone()
        parallel.sweep(session, writer._ledger)
        assert session.execute("show lock_timeout").fetchone() == before
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert connection.execute("select to_regclass(%s)", (f'_cdcworker."{name}"',)).fetchone()[0]
        connection.execute("drop owned by cdc_sweeper")
        connection.execute("drop role cdc_sweeper")
