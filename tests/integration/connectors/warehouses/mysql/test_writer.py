"""The MySQL warehouse against a real server, without a JVM."""

from __future__ import annotations

import datetime as dt
import itertools
from dataclasses import replace

import pytest
from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.sink_engine.target_retry import TargetRetry
from cdcworker.connectors.warehouses.mysql import ledger, load, staging
from cdcworker.connectors.warehouses.mysql.ledger_admin import MySqlLedgerAdmin
from cdcworker.connectors.warehouses.mysql.writer import MySqlWriter
from cdcworker.connectors.warehouses.target_columns import OutputForm
from cdcworker.schemas.errors import CdcError
from hypothesis import HealthCheck, given, settings

from tests import change_streams
from tests.change_streams import ID, NARROW, column, table
from tests.contract import column_scripts
from tests.contract import warehouses as contract
from tests.contract.warehouses import TOPIC
from tests.unit.connectors.arrow import test_reduce as scripts

pytestmark = pytest.mark.mysql
long = pytest.mark.long
ONE = column("id", "long", "bigint", False, column_id=1)


@pytest.fixture
def sink(mysql):
    mysql.wipe()
    writers = []

    def make(epoch=(1, 0), **more):
        writer = MySqlWriter(mysql.login(), "sink", **more)
        writers.append(writer)
        writer.fence(epoch)
        return writer

    yield make
    for writer in writers:
        writer.close()


def run(stream, writer, cuts=()):
    edges = [0, *sorted({min(cut, len(stream.records)) for cut in cuts}), len(stream.records)]
    assembler = stream.assembler()
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        if stream.records[start:end]:
            writer.apply(assembler.build(change_streams.arrow(stream.records[start:end]), writer.ledger(), number))


ODD = [(1, 2, "", None), (2, None, "x,\"y\"\n\\.\t'z'\r\0", "\\N"), (3, 0, "NULL \N{GRINNING FACE} ", "ü" * 300)]


@pytest.mark.parametrize("loads", ["1", "0"])
def test_rows_come_out_as_they_went_in_whether_the_server_takes_files_or_not(mysql, sink, loads):
    mysql.ask(f"set global local_infile = {loads}")
    try:
        stream, writer = change_streams.Stream(), sink()
        for row in ODD:
            stream.insert(NARROW, row)
        blob = table(ID, column("b", "bytes", "bytea"), name="blobs")
        for number, content in enumerate((b"", bytes(range(256)), b"\\\t\n'", None)):
            stream.insert(blob, (number, content))
        run(stream, writer)
        stream.records.clear()
        stream.update(NARROW, (*ODD[2][:3], "x'y\\"))
        run(stream, writer)
        wanted = (*ODD[:2], (3, 0, ODD[2][2], "x'y\\"))
        assert mysql.ask("select id, n, a, big from public.orders order by id") == wanted
        found = [row[0] for row in mysql.ask("select b from public.blobs order by id")]
        assert found == [b"", bytes(range(256)), b"\\\t\n'", None]
    finally:
        mysql.ask("set global local_infile = 1")


@pytest.mark.parametrize("loads", ["1", "0"])
def test_a_value_that_does_not_fit_its_column_is_an_error_and_never_another_value(mysql, sink, loads):
    """LOAD DATA LOCAL only warns."""
    mysql.ask(f"set global local_infile = {loads}", "create database public")
    try:
        mysql.ask("create table public.orders (id bigint primary key, n int, a varchar(2), big longtext)")
        stream, writer = change_streams.Stream(1), sink()
        stream.insert(NARROW, (1, 1, "ab", "b"))
        run(stream, writer)
        mysql.ask("alter table public.orders modify a varchar(2)")
        writer = sink((2, 0), output=OutputForm())
        stream.insert(NARROW, (2, 1, "abc", "b"))
        run(stream, writer)
        assert mysql.ask("select id, a from public.orders order by id") == ((1, "ab"), (2, "abc"))
        mysql.ask("alter table public.orders add constraint small check (n < 5)")
        stream.insert(NARROW, (3, 7, "a", "b"))
        with pytest.raises(CdcError) as caught:
            run(stream, writer)
        assert caught.value.code == "spark.target_value"
        assert mysql.ask("select id from public.orders order by id") == ((1,), (2,))
    finally:
        mysql.ask("set global local_infile = 1")


KEYS = {
    "text": ("string", "text", ["", "a", "a ", "A", "á", "x" * 5000, "x" * 4999 + "y"]),
    "bytes": ("bytes", "bytea", [b"", b"a", b"a\0", bytes(range(256)) * 20]),
    "numeric": (
        {"type": "record", "name": "io.debezium.data.VariableScaleDecimal", "connect.name": "io.debezium.data.VariableScaleDecimal",
         "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}]},
        "numeric",
        [{"scale": 0, "value": b"\x07"}, {"scale": 40, "value": b"\x07"}],
    ),
}  # fmt: skip


@long
@pytest.mark.parametrize("kind", KEYS)
def test_keys_that_no_index_holds_tell_all_rows_apart(mysql, sink, kind):
    avro, type_, found = KEYS[kind]
    of = table(column("k", avro, type_, False), column("n", "int", "integer"))
    stream, writer = change_streams.Stream(), sink()
    for number, key in enumerate(found):
        stream.insert(of, (key, number))
    run(stream, writer)
    stream.records.clear()
    stream.update(of, (found[0], 70))
    stream.delete(of, (found[1],))
    run(stream, writer)
    rows = mysql.ask("select n from public.orders order by n")
    assert rows == (*((number,) for number in range(2, len(found))), (70,))
    assert writer.rows(TOPIC).key == ("k",)


@long
@pytest.mark.parametrize("cuts", [(), (1, 2)])
def test_a_row_takes_its_columns_along_under_a_key_that_no_index_holds(sink, cuts):
    of = table(column("k", "string", "text", False), column("n", "int", "integer"), column("big", "string", "text"))
    stream, writer = change_streams.Stream(1), sink()
    stream.insert(of, ("one", 1, "large"))
    stream.move(of, ("one",), ("two", 2, None), (2,))
    stream.move(of, ("two",), ("three", 3, None), (2,))
    contract.run(stream, writer, cuts)
    assert contract.rows(writer, "k", "n", "big") == [("three", 3, "large")]


@long
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(scripts.actions, scripts.cuts)
@scripts.moving
def test_any_split_into_batches_gives_the_same_rows(mysql, script, cuts):
    mysql.wipe()
    stream, model = change_streams.Stream(), change_streams.Model()
    scripts.play(script, stream, model)
    writer = MySqlWriter(mysql.login(), "sink")
    writer.fence((1, 0))
    try:
        run(stream, writer, cuts)
    finally:
        writer.close()
    if stream.records:
        rows = mysql.ask("select id, n, a, big from public.orders")
        assert {(row[0],): list(row) for row in rows} == model.rows


@pytest.mark.long
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    column_scripts.st.lists(column_scripts.changes, max_size=12),
    column_scripts.st.lists(column_scripts.st.integers(0, 12)),
)
def test_any_changes_of_columns_leave_rows_as_the_source_has_them(mysql, script, cuts):
    mysql.wipe()
    writer = MySqlWriter(mysql.login(), "sink")
    try:
        writer.fence((1, 0))
        column_scripts.play(script, writer, cuts)
    finally:
        writer.close()


@long
def test_columns_of_one_batch_are_named_anew_twice_and_its_rows_follow(mysql, sink):
    """The table is altered before the transaction that writes all of them."""

    def shape(*names):
        return table(ONE, *(column(name, "string", "text", column_id=2 + at) for at, name in enumerate(names)))

    stream, writer = change_streams.Stream(1), sink()
    stream.insert(shape("a", "b"), (1, "A", "B"))
    stream.insert(shape("b", "a"), (2, "A", "B"))
    stream.insert(shape("c", "a"), (3, "A", "B"))
    run(stream, writer)
    assert mysql.ask("select id, c, a from public.orders order by id") == ((1, "A", "B"), (2, "A", "B"), (3, "A", "B"))


class Died(BaseException):
    """Stands for the end of a process."""


def dies_in_an_alter(writer, monkeypatch, done):
    """Lets the writer die before its next ALTER TABLE, or when it is `done`."""
    alter = writer._catalog._alter

    def dies(*args):
        if done:
            alter(*args)
        raise Died

    monkeypatch.setattr(writer._catalog, "_alter", dies)


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_a_change_of_names_that_a_task_died_in_is_made_once(mysql, sink, done, monkeypatch):
    def shape(*names):
        return table(ONE, *(column(name, "string", "text", column_id=2 + at) for at, name in enumerate(names)))

    stream, writer = change_streams.Stream(1), sink()
    stream.insert(shape("a", "b"), (1, "A", "B"))
    run(stream, writer)
    stream.insert(shape("b", "a"), (2, "A", "B"))
    dies_in_an_alter(writer, monkeypatch, done)
    with pytest.raises(Died):
        run(stream, writer)
    run(stream, sink((2, 0)))
    assert mysql.ask("select id, b, a from public.orders order by id") == ((1, "A", "B"), (2, "A", "B"))
    assert mysql.ask("select count(*) from _cdcworker.column_change") == ((0,),)


def test_a_change_of_names_that_somebody_is_about_is_left_to_him(mysql, sink, monkeypatch):
    """As a person's re-drive of letters finds it while the sink alters the table: the rows that wait for a new key would be called
    otherwise twice."""

    def shape(*names):
        return table(ONE, *(column(name, "string", "text", column_id=2 + at) for at, name in enumerate(names)))

    monkeypatch.setattr(ledger, "LOCK_S", 0)
    stream, writer = change_streams.Stream(1), sink()
    stream.insert(shape("a", "b"), (1, "A", "B"))
    run(stream, writer)
    stream.insert(shape("b", "a"), (2, "A", "B"))
    other, alter, met = sink(), writer._catalog._alter, []

    def alters(*args):
        alter(*args)
        with pytest.raises(CdcError) as caught:
            run(stream, other)
        met.append(caught.value.code)

    monkeypatch.setattr(writer._catalog, "_alter", alters)
    run(stream, writer)
    assert met == ["spark.target_locked"]
    assert mysql.ask("select id, b, a from public.orders order by id") == ((1, "A", "B"), (2, "A", "B"))


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_a_deleted_column_is_not_taken_for_the_one_that_takes_its_name_and_its_place(mysql, sink, done, monkeypatch):
    def shape(*others):
        return table(ONE, column("n", "int", "integer", column_id=2), *others)

    output = OutputForm(drop=True)
    stream, writer = change_streams.Stream(1), sink(output=output)
    stream.insert(shape(), (1, 5))
    run(stream, writer)
    stream.insert(shape(column("x", "string", "text", column_id=3)), (2, 5, "old"))
    run(stream, writer)
    stream.insert(shape(column("x", "string", "text", column_id=4)), (3, 5, "new"))
    dies_in_an_alter(writer, monkeypatch, done)
    with pytest.raises(Died):
        run(stream, writer)
    run(stream, sink((2, 0), output=output))
    assert mysql.ask("select id, x from public.orders order by id") == ((1, None), (2, None), (3, "new"))


def test_a_task_that_was_fenced_alters_nothing(mysql, sink):
    stream, old = change_streams.Stream(1), sink()
    stream.insert(table(ID, column("n", "int", "integer")), (1, 5))
    run(stream, old)
    at = old.ledger()
    new = sink((2, 0))
    stream.insert(table(ID, column("n", "int", "integer"), column("m", "int", "integer")), (2, 5, 6))
    batch = stream.assembler().build(change_streams.arrow(stream.records), at, 1)
    with pytest.raises(CdcError) as caught:
        old.apply(batch)
    assert caught.value.kind == "fenced"
    assert mysql.ask("show columns from public.orders like 'm'") == ()
    new.claim([TOPIC])
    new.apply(batch)
    assert mysql.ask("select id, m from public.orders order by id") == ((1, None), (2, 6))


def test_names_that_need_quotes_are_names(mysql, sink):
    names = ("a`b", "per%cent", "sélect", "x\\y")
    of = table(ID, *(column(name, "string", "text") for name in names), name="odd `%s` name")
    stream, writer = change_streams.Stream(1), sink(schema="my `%` schema")
    stream.insert(of, (1, "1", "2", "3", "4"))
    run(stream, writer)
    stream.update(of, (1, "1", "2", "3", "5"))
    stream.move(of, (1,), (2, "1", "2", "3", "5"))
    run(stream, writer)
    assert mysql.ask("select * from `my ``%`` schema`.`odd ``%s`` name`")[0][:5] == (2, "1", "2", "3", "5")


@long
@pytest.mark.parametrize("size", [1, 20])
@pytest.mark.parametrize("cuts", [(), (1, 2)])
def test_keys_have_as_many_columns_as_they_like_whose_names_are_as_long_as_names_may_be(mysql, sink, size, cuts):
    names = [f"k{number:0{62 if size == 1 else 30}d}" for number in range(size)]
    key = [column(name, "int", "integer", False) for name in names]
    of = table(*key, column("n", "int", "integer"), column("big", "string", "text"), key=tuple(range(size)))
    stream, writer = change_streams.Stream(1), sink()
    stream.insert(of, (*(1,) * size, 1, "large"))
    stream.move(of, (1,) * size, (*(2,) * size, 2, None), (size + 1,))
    contract.run(stream, writer, cuts)
    assert contract.rows(writer, names[-1], "n", "big") == [(2, 2, "large")]


@long
@pytest.mark.parametrize("cuts", [(), (1, 2, 3)])
def test_columns_are_called_as_those_of_the_bookkeeping(mysql, sink, cuts):
    names = ("position", "row", "key", "at", "sink", "topic", "s", "t", "b")
    of = table(ID, *(column(name, "string", "text") for name in names), name="tombstone")
    stream, writer = change_streams.Stream(1), sink()
    stream.insert(of, (1, *names))
    stream.move(of, (1,), (2, "new", *(None,) * 8), tuple(range(2, 10)))
    stream.insert(of, (3, *names))
    stream.delete(of, (3,))
    run(stream, writer, cuts)
    assert [row[:10] for row in mysql.ask("select * from public.tombstone")] == [(2, "new", *names[1:])]


@long
def test_a_lost_ledger_brings_back_neither_old_values_nor_deleted_rows(mysql, sink):
    stream, writer = change_streams.Stream(1), sink()
    stream.insert(NARROW, (1, 1, "a", "b"))
    stream.insert(NARROW, (2, 1, "a", "b"))
    stream.update(NARROW, (1, 2, "new", "b"))
    stream.delete(NARROW, (2,))
    run(stream, writer)
    mysql.ask("delete from _cdcworker.ledger")
    run(stream, sink((2, 0)), range(1, 6))
    assert mysql.ask("select id, n, a from public.orders") == ((1, 2, "new"),)


@long
def test_fresh_rows_go_straight_in_and_those_that_are_there_already_are_merged(mysql, sink, monkeypatch):
    straight = []
    insert = staging.TextAhead.insert
    monkeypatch.setattr(staging.TextAhead, "insert", lambda *args: straight.append(args[-1].num_rows) or insert(*args))
    stream, writer = change_streams.Stream(1), sink()
    for number in range(3):
        stream.insert(NARROW, (number, 1, "a", "b"))
    run(stream, writer)
    assert straight == [3]
    mysql.ask("insert into public.orders (id, n) values (7, 0)")
    stream.insert(NARROW, (7, 1, "a", "b"))
    stream.insert(NARROW, (8, 1, "a", "b"))
    run(stream, writer)
    assert straight == [3, 2]
    assert mysql.ask("select id, n from public.orders order by id") == ((0, 1), (1, 1), (2, 1), (7, 1), (8, 1))


@long
def test_another_unique_index_of_the_table_takes_no_row_of_another_key(mysql, sink):
    stream, writer = change_streams.Stream(1), sink()
    stream.insert(NARROW, (1, 1, "a", "b"))
    run(stream, writer)
    mysql.ask("create unique index n on public.orders (n)")
    writer = sink((2, 0))
    stream.insert(NARROW, (2, 1, "a", "b"))
    with pytest.raises(CdcError) as caught:
        run(stream, writer)
    assert caught.value.code == "spark.target_value"
    assert mysql.ask("select id from public.orders") == ((1,),)


def test_an_index_that_somebody_makes_meanwhile_has_no_row_of_another_key_changed(mysql, sink):
    """Rows of a table that was truncated are all merged."""
    stream, writer = change_streams.Stream(1), sink()
    stream.truncate(NARROW)
    stream.insert(NARROW, (1, 1, "a", "b"))
    run(stream, writer)
    mysql.ask("create unique index n on public.orders (n)")
    stream.insert(NARROW, (2, 1, "other", "b"))
    with pytest.raises(CdcError) as caught:
        run(stream, writer)
    assert caught.value.code == "spark.target_value"
    assert mysql.ask("select id, n, a from public.orders") == ((1, 1, "a"),)


def test_a_trigger_on_inserts_runs_for_rows_that_are_new_alone(mysql, sink):
    stream, writer = change_streams.Stream(1), sink()
    stream.insert(NARROW, (1, 1, "a", "b"))
    run(stream, writer)
    mysql.ask(
        "create table public.seen (id bigint)",
        "create trigger public.t before insert on public.orders for each row insert into public.seen values (new.id)",
    )
    writer = sink((2, 0))
    stream.update(NARROW, (1, 2, "a", "b"))
    stream.insert(NARROW, (2, 1, "a", "b"))
    run(stream, writer)
    assert mysql.ask("select * from public.seen") == ((2,),)
    assert mysql.ask("select id, n from public.orders order by id") == ((1, 2), (2, 1))


MISFITS = {
    "view": ("create view public.orders as select 1 as id, 2 as n", {}),
    "not-null": ("create table public.orders (id bigint primary key, n int, mine int not null)", {"column": "mine"}),
    "generated": ("create table public.orders (id bigint primary key, n int as (1) stored)", {"column": "n"}),
    "key": ("create table public.orders (id bigint, n int primary key)", {"key": "id"}),
    "engine": ("create table public.orders (id bigint primary key, n int) engine = MyISAM", {}),
}


@long
@pytest.mark.parametrize("misfit", MISFITS)
def test_a_table_that_takes_no_rows_is_left_out_alone(mysql, sink, misfit):
    statement, where = MISFITS[misfit]
    mysql.ask("create database public", statement)
    world = contract.TwoTables(sink())
    world.stream.insert(contract.of(contract.N), (1, 5))
    world.stream.insert(table(ID, name="other"), (7,))
    world.run()
    error = world.paused._errors[TOPIC]
    assert (error.code, error.where) == ("spark.schema_refused", {"topic": TOPIC, "table": "public.orders", **where})
    assert contract.rows(world.writer, "id", topic=contract.OTHER) == [(7,)]


LOOSE = {
    "case": ("k varchar(20) collate utf8mb4_general_ci primary key", False),
    "blanks": ("k varchar(20) collate utf8mb4_bin primary key", False),
    "null": ("k varchar(20) collate utf8mb4_nopad_bin unique key", True),
}


@long
@pytest.mark.parametrize("key", LOOSE)
def test_a_table_that_takes_two_keys_for_one_or_one_for_two_is_refused(mysql, sink, key):
    declared, nullable = LOOSE[key]
    mysql.ask("create database public", f"create table public.orders ({declared}, n int)")
    stream, writer = change_streams.Stream(1), sink()
    of = table(column("k", "string", "character varying(20)", nullable), column("n", "int", "integer"))
    stream.insert(of, ("a", 1))
    with pytest.raises(CdcError) as caught:
        run(stream, writer)
    assert (caught.value.code, caught.value.where["column"]) == ("spark.schema_refused", "k")


@long
def test_columns_whose_names_differ_in_case_alone_are_refused(sink):
    stream, writer = change_streams.Stream(1), sink()
    stream.insert(table(ID, column("n", "int", "integer"), column("N", "int", "integer")), (1, 5, 6))
    with pytest.raises(CdcError) as caught:
        run(stream, writer)
    assert (caught.value.code, caught.value.where["topic"]) == ("spark.schema_refused", TOPIC)


@long
@pytest.mark.parametrize("schema", ["_cdcworker", "mysql", "Information_Schema"])
def test_bookkeeping_is_not_a_target(sink, schema):
    stream, writer = change_streams.Stream(1), sink(schema=schema)
    stream.insert(NARROW, (1, 1, "a", "b"))
    with pytest.raises(CdcError) as caught:
        run(stream, writer)
    assert caught.value.code == "spark.target_reserved"


@long
@pytest.mark.parametrize("how", ["restart", "crash"])
def test_a_server_that_goes_down_between_batches_loses_nothing(mysql, sink, how):
    mysql.ask("set global innodb_flush_log_at_trx_commit = 1")
    stream = change_streams.Stream(1)
    writer, assembler, applied = sink(), stream.assembler(), []
    for number in range(20):
        stream.insert(NARROW, (number, number, "a", "b"))

    def copy():
        at = dict(writer.ledger())
        for number, record in enumerate(stream.records):
            batch = assembler.build(change_streams.arrow([record]), at, number)
            if not batch.offsets:
                continue
            if len(applied) == 10:
                applied.append(None)
                mysql.kill() if how == "crash" else mysql.stop()
                mysql.start()
            writer.apply(batch)
            applied.append(number)

    waits = []
    TargetRetry(lambda: False, waits.append, lambda: len(applied)).run(copy)
    assert waits
    assert mysql.ask("select count(*), sum(n) from public.orders") == ((20, sum(range(20))),)
    for (number,) in mysql.ask(
        "select id from information_schema.processlist where info is null and id <> connection_id()"
    ):
        mysql.ask(f"kill {number}")
    for message in ("", "the connection was lost after the ledger had been read"):
        with pytest.raises(CdcError) as caught:
            writer.apply(assembler.build(change_streams.arrow(stream.records[-1:]), {}, 1))
        assert caught.value.code == "spark.target_unreachable"
        assert message in caught.value.message


@long
def test_a_table_that_somebody_locks_for_long_is_waited_for(mysql, sink):
    stream, writer = change_streams.Stream(1), sink()
    stream.insert(NARROW, (1, 1, "a", "b"))
    run(stream, writer)
    writer._connection.do("set session innodb_lock_wait_timeout = 1")
    stream.update(NARROW, (1, 2, "a", "b"))
    with mysql.connect() as other:
        other.begin()
        with other.cursor() as cursor:
            cursor.execute("select * from public.orders for update")
        with pytest.raises(CdcError) as caught:
            run(stream, writer)
        assert (caught.value.code, caught.value.kind) == ("spark.target_locked", "transient")
        other.rollback()
    run(stream, writer)
    assert mysql.ask("select n from public.orders") == ((2,),)


@long
def test_offsets_are_read_altered_and_traced_and_a_newer_task_is_not_touched(mysql, sink):
    stream, writer = change_streams.Stream(1), sink()
    stream.insert(NARROW, (1, 1, "a", "b"))
    run(stream, writer)
    access, place = LedgerAccess("sink", (2, 0)), (TOPIC, 0)
    offsets = MySqlLedgerAdmin(mysql.login(), access, column="_cdc_position")
    at = offsets.offsets()[place]
    source = {"commit_lsn": stream.lsn, "tx_index": 1, "tx_sub": 0}
    change = {
        "topic": TOPIC,
        "partition": 0,
        "offset": at - 1,
        "table": "public.orders",
        "key": {"id": 1},
        "source": source,
    }
    told = offsets.trace(change)
    assert (told["next_offset"], told["row"]) == (at, "this")
    assert told["at_ms"] == pytest.approx(dt.datetime.now(dt.UTC).timestamp() * 1000, abs=600_000)
    offsets.alter({place: 0})
    assert offsets.offsets() == {place: 0}
    with pytest.raises(CdcError) as caught:
        writer.apply(stream.assembler().build(change_streams.arrow(stream.records), {}, 1))
    assert caught.value.kind == "fenced"
    with pytest.raises(CdcError) as caught:
        MySqlLedgerAdmin(mysql.login(), replace(access, epoch=(1, 0))).alter(None)
    assert caught.value.kind == "fenced"
    offsets.alter(None)
    assert offsets.offsets() == {}


@long
def test_wide_rows_and_large_values_are_stored_whole(mysql, sink):
    wide = table(ID, *(column(f"c{n}", "string", "character varying(255)") for n in range(200)))
    large = table(ID, column("big", "string", "text"), name="large")
    stream, writer = change_streams.Stream(1), sink()
    stream.insert(wide, (1, *("ü" * 255,) * 200))
    stream.insert(large, (1, "x" * 10_000_000))
    run(stream, writer)
    assert mysql.ask("select length(c0), length(c199) from public.orders") == ((510, 510),)
    assert mysql.ask("select length(big) from public.large") == ((10_000_000,),)


@long
def test_a_value_that_is_too_large_to_wait_for_a_new_key_is_an_error_and_not_null(mysql, sink):
    """No expression makes a text that is longer than the server's longest packet."""
    mysql.ask("set global max_allowed_packet = 1048576")
    try:
        stream, writer = change_streams.Stream(1), sink()
        stream.insert(NARROW, (1, 1, "a", "x" * 700_000))
        run(stream, writer)
        stream.records.clear()
        stream.move(NARROW, (1,), (2, 1, "a", None), (3,))
        with pytest.raises(CdcError) as caught:
            run(stream, writer, range(1, 4))
        assert caught.value.code == "spark.target_value"
        assert mysql.ask("select id, length(big) from public.orders") == ((1, 700_000),)
    finally:
        mysql.ask("set global max_allowed_packet = 16777216")


def test_settings_of_the_server_for_all_sessions_change_nothing(mysql, sink):
    mysql.ask("set global completion_type = 'CHAIN', sql_select_limit = 1, unique_checks = 0, sql_mode = ''")
    try:
        stream, writer = change_streams.Stream(3), sink()
        for number in range(9):
            stream.insert(NARROW, (number, 1, "a", "b"))
        run(stream, writer)
        assert len(writer.ledger()) == len({record["partition"] for record in stream.records}) > 1
        assert writer._connection.one("select @@completion_type, @@unique_checks") == ("NO_CHAIN", 1)
    finally:
        mysql.ask(
            "set global completion_type = default, sql_select_limit = default, unique_checks = 1, sql_mode = default"
        )


def test_a_server_that_asks_for_a_file_gets_none(mysql, tmp_path):
    """Whatever it names: only rows that were to be loaded are sent."""
    from cdcworker.connectors.warehouses.mysql.connection import opened

    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    mysql.ask("create database if not exists files", "create table files.t (a text)")
    connection = opened(mysql.login())
    stored = connection.do(f"load data local infile '{secret}' into table files.t")
    connection.close()
    assert (stored, mysql.ask("select count(*) from files.t")) == (0, ((0,),))


@long
def test_a_chunk_is_no_longer_than_its_bytes_allow(monkeypatch, mysql, sink):
    monkeypatch.setattr(load, "CHUNK_BYTES", 1000)
    stream, writer = change_streams.Stream(1), sink()
    for number in range(50):
        stream.insert(NARROW, (number, 1, "a" * 100, "b"))
    run(stream, writer)
    assert mysql.ask("select count(*) from public.orders") == ((50,),)


DATE = {"type": "int", "connect.name": "io.debezium.time.Date"}
MICROS = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}


@pytest.mark.parametrize(
    ("kind", "held", "past"),
    [
        (DATE, 2_932_896, 2_932_897),
        (DATE, 0, -719_163),
        (MICROS, 253_402_300_799_999_999, 253_402_300_800_000_000),
        (MICROS, 0, -(2**62)),
    ],
)
def test_a_key_with_a_day_that_the_server_cannot_hold_is_refused_not_clipped(mysql, sink, kind, held, past):
    of = table(column("d", kind, "timestamp", False), column("n", "int", "integer"))
    stream = change_streams.Stream(1)
    stream.insert(of, (held, 1))
    run(stream, sink())
    stream.insert(of, (past, 2))
    with pytest.raises(CdcError) as caught:
        run(stream, sink(epoch=(2, 0)))
    assert (caught.value.code, caught.value.where["column"]) == ("spark.target_value", "d")
    assert str(past) not in str(caught.value)
