"""What of a ClickHouse warehouse no other one has: late writers, tables that somebody else made, and values at the ends of its types."""

from __future__ import annotations

import contextlib
import datetime as dt

import pytest
from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.warehouses.clickhouse.client import Client
from cdcworker.connectors.warehouses.clickhouse.ledger_admin import ClickHouseLedgerAdmin
from cdcworker.connectors.warehouses.clickhouse.writer import ClickHouseWriter
from cdcworker.schemas import failpoints
from cdcworker.schemas.errors import CdcError

from tests import change_streams
from tests.change_streams import ID, NARROW, column, table
from tests.contract.warehouses import TOPIC, rows, run

pytestmark = pytest.mark.clickhouse


@pytest.fixture
def open_writer(clickhouse):
    clickhouse.wipe()
    with contextlib.ExitStack() as stack:

        def make(epoch=(1, 0), sink="sink", **more):
            writer = ClickHouseWriter(Client(clickhouse.place()), sink, **more)
            writer.fence(epoch)
            stack.callback(writer.close)
            return writer

        yield make


def refused(stream, writer):
    with pytest.raises(CdcError) as caught:
        run(stream, writer)
    return caught.value


def test_a_task_that_was_replaced_and_still_writes_changes_nothing(open_writer):
    stream, old = change_streams.Stream(1), open_writer()
    stream.insert(NARROW, (1, 1, "a", "large"))
    run(stream, old)
    stream.update(NARROW, (1, 2, "b", None), (3,))
    batch = stream.assembler().build(change_streams.arrow(stream.records), old.ledger(), 1)
    stream.update(NARROW, (1, 3, "c", "new"))
    stream.delete(NARROW, (2,))
    made = []

    def meanwhile(name):
        if name == "sink.rows_written":
            failpoints.listen(None)
            made.append(open_writer(epoch=(2, 0)))
            run(stream, made[0])

    failpoints.listen(meanwhile)
    try:
        with pytest.raises(CdcError) as caught:
            old.apply(batch)
    finally:
        failpoints.listen(None)
    assert caught.value.kind == "fenced"
    assert rows(made[0], "id", "n", "a", "big") == [(1, 3, "c", "new")]
    assert dict(made[0].ledger()) == {(TOPIC, 0): stream.records[-1]["offset"] + 1}


def test_offsets_that_are_set_back_write_the_same_rows_once_more(open_writer, clickhouse):
    stream, writer = change_streams.Stream(1), open_writer()
    for number in range(3):
        stream.insert(NARROW, (number, 1, "a", "large"))
    stream.update(NARROW, (0, 2, "b", None), (3,))
    stream.delete(NARROW, (1,))
    run(stream, writer, [2, 4])
    before = rows(writer, "id", "n", "a", "big", "_cdc_position")
    with contextlib.closing(Client(clickhouse.place())) as client:
        admin = ClickHouseLedgerAdmin(client, LedgerAccess("sink", (1, 5)))
        admin.alter({(TOPIC, 0): 0})
        assert admin.offsets() == {(TOPIC, 0): 0}
    assert refused(stream, writer).kind == "fenced"
    again = open_writer(epoch=(2, 0))
    run(stream, again, [3])
    assert rows(again, "id", "n", "a", "big", "_cdc_position") == before
    # What FINAL shows does not depend on merges.
    clickhouse.ask("optimize table public.orders final")
    assert rows(again, "id", "n", "a", "big", "_cdc_position") == before


def test_a_table_that_the_sink_has_not_made_is_refused_and_stays(open_writer, clickhouse):
    writer, stream = open_writer(), change_streams.Stream(1)
    clickhouse.ask("create database public", "create table public.orders (id Int64) engine = MergeTree order by id")
    stream.insert(NARROW, (1, 1, "a", "b"))
    error = refused(stream, writer)
    assert (error.code, error.where["table"]) == ("spark.schema_refused", "public.orders")
    assert clickhouse.rows("select count() from public.orders") == [(0,)]


def test_a_table_of_another_sink_is_refused(open_writer):
    stream = change_streams.Stream(1)
    stream.insert(NARROW, (1, 1, "a", "b"))
    run(stream, open_writer())
    assert refused(stream, open_writer(sink="other")).code == "spark.target_collision"


def test_a_table_that_was_dropped_is_not_made_again_without_its_rows(open_writer, clickhouse):
    stream, writer = change_streams.Stream(1), open_writer()
    stream.insert(NARROW, (1, 1, "a", "b"))
    run(stream, writer)
    clickhouse.ask("drop table public.orders sync")
    stream.insert(NARROW, (2, 1, "a", "b"))
    assert refused(stream, writer).code == "spark.target_gone"


def test_the_servers_own_database_takes_no_tables(open_writer):
    stream = change_streams.Stream(1)
    stream.insert(NARROW, (1, 1, "a", "b"))
    assert refused(stream, open_writer(schema="system")).code == "spark.target_reserved"


def test_a_column_of_the_key_keeps_its_type(open_writer):
    stream, writer = change_streams.Stream(1), open_writer()
    key = column("id", "int", "integer", False, column_id=1)
    stream.insert(table(key), (1,))
    run(stream, writer)
    stream.insert(table(column("id", "long", "bigint", False, column_id=1)), (2**40,))
    error = refused(stream, writer)
    assert (error.code, error.where["column"]) == ("spark.schema_refused", "id")
    assert rows(writer, "id") == [(1,)]


@pytest.mark.parametrize("name", ["`x`", '"x"', "a.b", "*"])
def test_names_that_look_quoted_are_names(open_writer, name):
    stream, writer = change_streams.Stream(1), open_writer()
    stream.insert(table(ID, column(name, "string", "text")), (1, "a"))
    run(stream, writer)
    assert rows(writer, "id", name) == [(1, "a")]


def test_names_and_texts_of_any_kind_come_through(open_writer):
    odd = table(ID, column("o`d'd \\ %s {x}", "string", "text"), name="o`r'd\\ers")
    stream, writer = change_streams.Stream(1), open_writer()
    texts = ["'", "\\", "\0\t\n", "{x:String}", "%(x)s", "\N{SNOWMAN}", ""]
    for number, text in enumerate(texts):
        stream.insert(odd, (number, text))
    topic = stream.records[0]["topic"]
    run(stream, writer, topic=topic)
    found = writer.rows(topic)
    assert sorted(tuple(row.values())[:2] for batch in found.batches for row in batch.to_pylist()) == list(
        enumerate(texts)
    )


def test_values_at_the_ends_of_types(open_writer):
    date = {"type": "int", "connect.name": "io.debezium.time.Date"}
    moment = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}
    wide = table(
        ID,
        column("d", date, "date"),
        column("t", moment, "timestamp without time zone"),
        column("b", "bytes", "bytea"),
        column("f", "double", "double precision"),
        column("a", {"type": "array", "items": ["null", "int"]}, "integer[]"),
    )
    stream, writer = change_streams.Stream(1), open_writer()
    stream.insert(wide, (1, -800_000, -(2**62), b"\x00\xff", float("inf"), [1, None, 2]))
    stream.insert(wide, (2, 2**30, 2**62, b"", -0.0, []))
    stream.insert(wide, (3, None, None, None, None, None))
    run(stream, writer)
    first, last = dt.date(1900, 1, 1), dt.date(2299, 12, 31)
    assert rows(writer, "id", "d", "b", "f", "a") == [
        (1, first, b"\x00\xff", float("inf"), [1, None, 2]),
        (2, last, b"", -0.0, []),
        (3, None, None, None, None),
    ]
    begin, end = (row[0] for row in rows(writer, "t")[:2])
    assert {begin, end} >= {dt.datetime(1900, 1, 1)}


DATE = {"type": "int", "connect.name": "io.debezium.time.Date"}


def test_keys_that_become_one_day_are_rows_of_their_own(open_writer, clickhouse):
    of = table(column("d", DATE, "date", False), column("n", "int", "integer"))
    stream, writer = change_streams.Stream(1), open_writer()
    for number, day in enumerate((-50_000, -40_000, 3_000_000, 3_000_001)):
        stream.insert(of, (day, number))
    run(stream, writer)
    stream.update(of, (-50_000, 7))
    stream.delete(of, (3_000_001,))
    run(stream, writer)
    clickhouse.ask("optimize table public.orders final")
    assert sorted(n for (n,) in rows(writer, "n")) == [1, 2, 7]


def test_a_default_at_the_end_of_a_type_is_as_values_are(open_writer):
    stream, writer = change_streams.Stream(1), open_writer()
    stream.insert(table(ID), (1,))
    stream.insert(table(ID, column("d", DATE, "date", default=3_000_000)), (2, 3_000_000))
    run(stream, writer, [1])
    assert rows(writer, "id", "d") == [(1, dt.date(2299, 12, 31)), (2, dt.date(2299, 12, 31))]
