"""The contract of warehouses against real servers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import ClassVar

import psycopg
import pytest
from cdcworker.connectors.warehouses.postgres import dropped_columns as pgdropped
from cdcworker.connectors.warehouses.postgres import parallel_staging as parallel
from cdcworker.connectors.warehouses.postgres.writer import PostgresWriter
from cdcworker.connectors.warehouses.target_columns import OutputForm
from cdcworker.schemas.errors import CdcError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import change_streams
from tests.contract import column_scripts
from tests.contract import warehouses as contract

BEFORE = contract.of(contract.N, contract.TEXT)


@dataclass(frozen=True)
class Changed:
    """What somebody does to the table: where the sink follows, the `rows` after that, else what `mends` it."""

    id: str
    statements: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...] = ()
    mends: tuple[str, ...] = ()
    where: dict[str, str] = field(default_factory=dict)


BY_HAND = (
    Changed("drop", ("alter table public.orders drop column n",), ((1, 70_001, "z"), (2, 70_000, "y"))),
    Changed(
        "narrow", ("alter table public.orders alter column n type smallint",), ((1, 70_001, "z"), (2, 70_000, "y"))
    ),
    Changed(
        "rename",
        ("alter table public.orders rename column n to m",),
        mends=("alter table public.orders rename column m to n",),
        where={"column": "n"},
    ),
    Changed(
        "retype",
        ("alter table public.orders alter column n type date using null",),
        mends=("alter table public.orders alter column n type int using null",),
        where={"column": "n"},
    ),
    Changed(
        "generated",
        (
            "alter table public.orders drop column n",
            "alter table public.orders add column n int generated always as (1) stored",
        ),
        mends=("alter table public.orders alter column n drop expression",),
        where={"column": "n"},
    ),
    Changed(
        "not-null",
        (
            "alter table public.orders add column mine int not null default 1",
            "alter table public.orders alter column mine drop default",
        ),
        mends=("alter table public.orders drop column mine",),
        where={"column": "mine"},
    ),
    Changed(
        "view",
        (
            "alter table public.orders rename to orders_before",
            "create view public.orders as select * from public.orders_before union select * from public.orders_before",
        ),
        mends=("drop view public.orders", "alter table public.orders_before rename to orders"),
    ),
)


@pytest.mark.postgres
class TestPostgres(contract.ByHand, contract.Contract):
    more: ClassVar = {}

    @pytest.fixture
    def dsn(self, emptied):
        self._dsn = emptied
        return emptied

    def drop_table(self, writer):
        """And its offsets are reset."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("drop table public.orders")
            connection.execute("delete from _cdcworker.ledger where topic = %s", (contract.TOPIC,))

    def retype(self, column, kind):
        to = {"double": "double precision"}.get(kind, kind)
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(f"alter table public.orders alter column {column} type {to} using null")

    def letters(self):
        with psycopg.connect(self._dsn) as connection:
            return connection.execute(
                """select topic, partition, "offset", code, value from _cdcworker.dead_letter"""
            ).fetchall()

    @pytest.fixture
    def open_writer(self, dsn):
        writers = []

        def make(epoch=(1, 0), **output):
            writers.append(PostgresWriter(dsn, "sink", output=OutputForm(**output), **self.more))
            writers[-1].fence(epoch)
            return writers[-1]

        yield make
        for writer in writers:
            writer.close()

    def test_columns_of_the_destination_are_left_alone(self, dsn, open_writer):
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "create table public.orders (id bigint primary key, n int, a text, big text, mine text default 'me')"
            )
            connection.execute("insert into public.orders values (1, 0, 'old', 'old', 'kept')")
        stream, writer = change_streams.Stream(), open_writer(soft=True, synced="_synced_at")
        stream.insert(change_streams.NARROW, (1, 1, "a", "b"))
        stream.insert(change_streams.NARROW, (2, 1, "a", "b"))
        contract.run(stream, writer)
        assert contract.rows(writer, "id", "a", "mine") == [(1, "a", "kept"), (2, "a", "me")]

    def test_a_column_of_the_destination_gives_its_name_to_no_other(self, dsn, open_writer):
        stream, writer = change_streams.Stream(), open_writer()
        stream.insert(shape(old=2), (1, "a"))
        contract.run(stream, writer)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("alter table public.orders add column mine text default 'me'")
            connection.execute("alter table public.orders add column old_dropped_2 text default 'me'")
        stream.insert(shape(old=3), (2, "b"))
        contract.run(stream, writer)
        wanted = [(1, "a", None, "me", "me"), (2, None, "b", "me", "me")]
        assert contract.rows(writer, "id", "old_dropped_2_", "old", "mine", "old_dropped_2") == wanted
        stream.insert(shape(mine=3), (3, "c"))
        with pytest.raises(CdcError) as caught:
            contract.run(stream, writer)
        assert (caught.value.code, caught.value.where["column"]) == ("spark.schema_refused", "mine")
        assert contract.rows(writer, "id", "old", "mine") == [(1, None, "me"), (2, "b", "me")]

    def test_columns_go_but_none_of_the_destination_and_none_that_it_needs(self, dsn, open_writer):
        world = contract.TwoTables(open_writer(drop=True))
        world.stream.insert(shape(a=2, b=3, c=4), (1, "A", "B", "C"))
        world.run()
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("alter table public.orders add column mine text default 'me'")
            connection.execute("create view public.bs as select b from public.orders")
        world.stream.insert(shape(b=3, c=4), (2, "B", "C"))
        world.run()
        assert sorted(contract.columns(world.writer)) == ["b", "c", "id", "mine"]
        world.stream.insert(shape(c=4), (3, "C"))
        world.run()
        assert world.paused.topics == {contract.TOPIC}
        assert contract.rows(world.writer, "id", "b", "mine") == [(1, "B", "me"), (2, "B", "me")]
        # Once nothing needs it the table is gone on with by itself.
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("drop view public.bs")
        world.now += contract.RETRY_S_MAX
        world.run()
        assert world.paused.topics == frozenset()
        assert contract.rows(world.writer, "id", "c", "mine") == [(n, "C", "me") for n in (1, 2, 3)]

    @pytest.mark.parametrize(
        ("hinders", "mends"),
        [
            ("create view public.ns as select n from public.orders", "drop view public.ns"),
            (
                "alter table public.orders add column twice int generated always as (n * 2) stored",
                "alter table public.orders drop column twice",
            ),
            (
                "create policy small on public.orders using (n < 9)",
                "drop policy small on public.orders",
            ),
        ],
        ids=["view", "generated", "policy"],
    )
    def test_a_change_that_something_of_the_destination_hinders_stops_its_table_alone(
        self, dsn, open_writer, hinders, mends
    ):
        world = contract.TwoTables(open_writer())
        widened, other = contract.FOLLOWED["widen"], change_streams.table(change_streams.ID, name="other")
        world.stream.insert(widened.before, widened.first)
        world.run()
        execute(dsn, hinders)
        world.stream.insert(widened.after, widened.second)
        world.stream.insert(other, (7,))
        world.run()
        assert world.paused.topics == {contract.TOPIC}
        assert contract.rows(world.writer, "id", topic=contract.OTHER) == [(7,)]
        execute(dsn, mends)
        world.now += contract.RETRY_S_MAX
        world.run()
        assert world.paused.topics == frozenset()
        assert contract.rows(world.writer, *widened.names) == list(widened.rows)

    def test_a_rename_or_a_drop_that_the_destination_refuses_is_said_of_the_column(self, dsn, open_writer):
        execute(
            dsn,
            "create table public.parent (id bigint not null, n int, s text)",
            "create table public.orders (primary key (id)) inherits (public.parent)",
        )
        stream, writer = change_streams.Stream(1), open_writer(drop=True)
        stream.insert(contract.of(contract.N, contract.TEXT), (1, 5, "x"))
        contract.run(stream, writer)
        renamed = contract.of(change_streams.column("m", "int", "integer", column_id=2), contract.TEXT)
        for later, row in ((renamed, (2, 6, "y")), (contract.of(contract.TEXT), (2, "y"))):
            stream.insert(later, row)
            with pytest.raises(CdcError) as caught:
                contract.run(stream, writer)
            stream.records.pop()
            assert caught.value.code == "spark.schema_refused"
            assert caught.value.where == {"table": "public.orders", "column": "n", "topic": contract.TOPIC}

    @pytest.mark.parametrize(
        ("stands", "mended", "column"),
        [
            (
                "create table public.orders (id bigint primary key, n int, mine int not null)",
                "alter table public.orders alter column mine drop not null",
                {"column": "mine"},
            ),
            (
                "create table public.orders (id bigint primary key, n int generated always as (1) stored)",
                "alter table public.orders alter column n drop expression",
                {"column": "n"},
            ),
            (
                "create table public.orders (id bigint primary key generated always as identity, n int)",
                "alter table public.orders alter column id drop identity",
                {"column": "id"},
            ),
            ("create view public.orders as select 1 as id, 2 as n", "drop view public.orders", {}),
            ("create sequence public.orders", "drop sequence public.orders", {}),
        ],
        ids=["not-null", "generated", "identity", "view", "sequence"],
    )
    def test_a_table_that_stands_there_and_takes_no_rows_is_left_out_until_it_is_mended(
        self, dsn, open_writer, stands, mended, column
    ):
        execute(dsn, stands)
        world = contract.TwoTables(open_writer())
        world.stream.insert(contract.of(contract.N), (1, 5))
        world.stream.insert(change_streams.table(change_streams.ID, name="other"), (7,))
        world.run()
        error = world.paused._errors[contract.TOPIC]
        assert error.where == {"topic": contract.TOPIC, "table": "public.orders", **column}
        assert contract.rows(world.writer, "id", topic=contract.OTHER) == [(7,)]
        execute(dsn, mended)
        world.now += contract.RETRY_S_MAX
        world.run()
        assert world.paused.topics == frozenset()
        assert contract.rows(world.writer, "id", "n") == [(1, 5)]

    def test_columns_that_the_destination_fills_by_itself_hinder_nothing(self, dsn, open_writer):
        execute(
            dsn,
            "create domain public.filled as int default 3",
            "create table public.orders (id bigint primary key, n int, a public.filled not null,"
            " b int not null default 4, c int not null generated always as identity, d int not null)",
            "create function public.fill() returns trigger language plpgsql as 'begin new.d := 5; return new; end'",
            "create trigger fill before insert on public.orders for each row execute function public.fill()",
        )
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(contract.of(contract.N), (1, 5))
        contract.run(stream, writer)
        assert contract.rows(writer, "id", "n", "a", "b", "c", "d") == [(1, 5, 3, 4, 1, 5)]

    @pytest.mark.parametrize("follows", [("add",), ("add", "rename", "widen")], ids=["additive", "all"])
    def test_a_column_that_somebody_renames_is_not_added_again_under_its_old_name(self, dsn, open_writer, follows):
        world = contract.TwoTables(open_writer(follows=follows))
        old, new = (contract.of(change_streams.column(name, "int", "integer", column_id=2)) for name in ("old", "new"))
        world.stream.insert(old, (1, 5))
        world.run()
        execute(dsn, "alter table public.orders rename column old to new")
        world.writer = open_writer(epoch=(2, 0), follows=follows)
        world.stream.insert(old, (2, 6))
        world.run()
        error = world.paused._errors[contract.TOPIC]
        assert (error.code, error.where["column"]) == ("spark.schema_refused", "old")
        assert contract.rows(world.writer, "id", "new") == [(1, 5)]
        # Changes under its new name say which one it is.
        world.stream.records.pop()
        world.stream.insert(new, (3, 7))
        world.now += contract.RETRY_S_MAX
        world.run()
        assert contract.rows(world.writer, "id", "new") == [(1, 5), (3, 7)]
        assert contract.columns(world.writer) == ["id", "new"]

    def test_a_column_that_somebody_drops_is_added_again(self, dsn, open_writer):
        stream, writer = change_streams.Stream(1), open_writer(synced="_synced_at")
        stream.insert(contract.of(contract.N), (1, 5))
        contract.run(stream, writer)
        execute(dsn, "alter table public.orders drop column n")
        stream.insert(contract.of(contract.N), (2, 6))
        contract.run(stream, open_writer(epoch=(2, 0), synced="_synced_at"))
        assert contract.rows(writer, "id", "n") == [(1, None), (2, 6)]

    @pytest.mark.parametrize("changed", [c for c in BY_HAND if c.rows], ids=lambda changed: changed.id)
    def test_what_somebody_changes_while_the_sink_runs_is_seen_and_followed(self, dsn, open_writer, changed):
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(BEFORE, (1, 5, "x"))
        contract.run(stream, writer)
        execute(dsn, *changed.statements)
        stream.insert(BEFORE, (2, 70_000, "y"))
        stream.insert(BEFORE, (1, 70_001, "z"), "u")
        counts = contract.run(stream, writer)
        assert [count["rows"] for count in counts] == [2]
        assert contract.rows(writer, "id", "n", "s") == list(changed.rows)

    @pytest.mark.parametrize("changed", [c for c in BY_HAND if c.mends], ids=lambda changed: changed.id)
    def test_what_somebody_changes_while_the_sink_runs_stops_its_table_alone(self, dsn, open_writer, changed):
        world, other = contract.TwoTables(open_writer()), change_streams.table(change_streams.ID, name="other")
        world.stream.insert(BEFORE, (1, 5, "x"))
        world.stream.insert(other, (7,))
        world.run()
        execute(dsn, *changed.statements)
        world.stream.insert(BEFORE, (2, 6, "y"), "u")
        world.stream.insert(other, (8,))
        world.run()
        error = world.paused._errors[contract.TOPIC]
        where = {"topic": contract.TOPIC, "table": "public.orders", **changed.where}
        assert (error.code, error.where) == ("spark.schema_refused", where)
        assert contract.rows(world.writer, "id", topic=contract.OTHER) == [(7,), (8,)]
        execute(dsn, *changed.mends)
        world.now += contract.RETRY_S_MAX
        world.run()
        assert world.paused.topics == frozenset()
        assert (2, 6, "y") in contract.rows(world.writer, "id", "n", "s")

    def test_a_table_that_somebody_drops_while_the_sink_runs_is_said_to_be_gone(self, dsn, open_writer):
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(BEFORE, (1, 5, "x"))
        contract.run(stream, writer)
        execute(dsn, "drop table public.orders")
        stream.insert(BEFORE, (2, 6, "y"))
        with pytest.raises(CdcError) as caught:
            contract.run(stream, writer)
        assert (caught.value.code, caught.value.where) == ("spark.target_gone", {"topic": contract.TOPIC})

    def test_what_another_look_does_not_mend_is_tried_no_third_time(self, dsn, open_writer):
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(BEFORE, (1, 5, "x"))
        contract.run(stream, writer)
        execute(dsn, "alter table public.orders add check (n < 6)")
        tries = contract.passes_of(writer, "_apply")
        stream.insert(BEFORE, (2, 6, "y"))
        with pytest.raises(CdcError) as caught:
            contract.run(stream, writer)
        assert (caught.value.code, len(tries)) == ("spark.target_value", 2)

    def test_batches_that_commit_together_see_what_somebody_changes_too(self, dsn, open_writer):
        world = contract.TwoTables(open_writer())
        other = change_streams.table(change_streams.ID, name="other")
        world.stream.insert(BEFORE, (1, 5, "x"))
        world.run()
        execute(dsn, "alter table public.orders drop column n")
        begin = len(world.stream.records)
        for id in (2, 3):
            world.stream.insert(other, (id,))
            world.stream.insert(BEFORE, (id, 6, "y"))
        batches = batches_of(world, begin, begin + 2)
        done, counts = world.paused.apply_all(world.writer.apply_all, batches)
        assert counts["rows"] == 4
        assert done.offsets[contract.TOPIC, 0][1] == batches[-1].offsets[contract.TOPIC, 0][1]
        assert contract.rows(world.writer, "id", "n") == [(1, None), (2, 6), (3, 6)]

    def test_tables_that_the_server_does_not_let_be_changed_are_found_in_one_pass(self, dsn, open_writer):
        kinds = {name: [change_streams.column("n", *kind)] for name, kind in WIDER.items()}
        names = ("a", "b", "c", "d")
        before, after = (
            [change_streams.table(change_streams.ID, *kinds[kind], name=name) for name in names]
            for kind in ("before", "after")
        )
        world = contract.TwoTables(open_writer(), topics=tuple(f"shop.public.{name}" for name in names))
        for of in before:
            world.stream.insert(of, (1, 5))
        world.run()
        for name in "acd":
            execute(dsn, f"create view public.of_{name} as select n from public.{name}")
        begin = len(world.stream.records)
        for of in after:
            world.stream.insert(of, (2, 2**40))
        passes = contract.passes_of(world.writer, "apply_all")
        _, counts = world.paused.apply_all(world.writer.apply_all, batches_of(world, begin, begin + 3))
        assert world.paused.topics == {f"shop.public.{name}" for name in "acd"}
        assert (len(passes), counts["rows"]) == (2, 1)
        assert contract.rows(world.writer, "id", "n", topic="shop.public.b") == [(1, 5), (2, 2**40)]

    def test_a_topic_that_is_read_again_from_long_before_loses_no_column(self, dsn, open_writer):
        stream, writer = change_streams.Stream(1), open_writer(drop=True)
        stream.insert(shape(a=2), (1, "A"))
        stream.insert(shape(a=2, b=3), (1, "A", "B"), "u")
        stream.insert(shape(b=3), (2, "B"))
        contract.run(stream, writer, [1, 2])
        assert sorted(contract.columns(writer)) == ["b", "id"]
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("delete from _cdcworker.ledger")
        contract.run(stream, open_writer(epoch=(2, 0), drop=True), [1, 2])
        assert contract.rows(writer, "id", "b") == [(1, "B"), (2, "B")]

    def test_a_topic_that_is_read_again_has_its_table_looked_through_once(self, dsn, open_writer, monkeypatch):
        stream, writer = change_streams.Stream(1), open_writer(drop=True)
        for number in range(9):
            stream.insert(shape(a=2, b=3), (number, "A", "B"))
        contract.run(stream, writer)
        execute(dsn, "delete from _cdcworker.ledger")
        # In a shape from before `b` came, below what the table holds.
        early = change_streams.Stream(1)
        for number in range(4):
            early.insert(shape(a=2), (number, "older"), "u")
        looked = []
        newest = pgdropped._Positions.newest
        monkeypatch.setattr(pgdropped._Positions, "newest", lambda *args: looked.append(1) or newest(*args))
        again = open_writer(epoch=(2, 0), drop=True)
        again.claim([contract.TOPIC])
        for number in range(1, 5):
            batch = early.assembler().build(change_streams.arrow(early.records[:number]), again.ledger(), number)
            again.apply(batch)
        assert len(looked) == 1
        assert contract.rows(again, "id", "a", "b") == [(number, "A", "B") for number in range(9)]
        for _ in range(20):
            early.change("c", shape(a=2))
        early.insert(shape(a=2), (9, "new"))
        again.apply(early.assembler().build(change_streams.arrow(early.records), again.ledger(), 5))
        assert contract.columns(again) == ["id", "a"]
        assert len(looked) == 1

    def test_of_a_table_that_is_made_anew_no_column_is_one_from_before(self, dsn, open_writer):
        stream, writer = change_streams.Stream(), open_writer()
        stream.insert(shape(a=2), (1, "a"))
        contract.run(stream, writer)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("drop table public.orders")
            connection.execute("delete from _cdcworker.ledger")
        stream = change_streams.Stream()
        stream.insert(shape(a=3), (2, "b"))
        contract.run(stream, writer)
        assert contract.rows(writer, "id", "a") == [(2, "b")]
        assert "a_dropped_2" not in contract.columns(writer)


WIDER = {"before": ("int", "integer"), "after": ("long", "bigint")}


def batches_of(world, *edges):
    """The stream's records from the first edge on, cut at the others."""
    assembler, ledger, found = world.stream.assembler(), dict(world.writer.ledger()), []
    for begin, end in itertools.pairwise((*edges, None)):
        records = change_streams.arrow(world.stream.records[begin:end])
        found.append(assembler.build(records, ledger, len(found) + 1))
        ledger.update({place: last for place, (_, last) in found[-1].offsets.items()})
    return found


def execute(dsn, *statements):
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def shape(**ids):
    columns = [change_streams.column(name, "string", "text", column_id=id) for name, id in ids.items()]
    return change_streams.table(change_streams.column("id", "long", "bigint", False, column_id=1), *columns)


@pytest.mark.long
@pytest.mark.postgres
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(column_scripts.changes, max_size=12), st.lists(st.integers(0, 12)))
def test_any_changes_of_columns_leave_rows_as_the_source_has_them(postgres, script, cuts):
    name = postgres.create_database()
    writer = PostgresWriter(postgres.dsn(name), "sink")
    try:
        writer.fence((1, 0))
        column_scripts.play(script, writer, cuts)
    finally:
        writer.close()
        postgres.drop_database(name)


@pytest.mark.long
class TestPostgresStagedOverSeveralConnections(TestPostgres):
    more: ClassVar = {"staging": parallel.StagingPlan(2, 1, parallel.in_threads(2))}
