"""Tables that leave the publication for a while, are dropped and made again, or become partitions: nothing is lost."""

from __future__ import annotations

import psycopg
import pytest
from cdcworker.connectors.postgres.errors import VALUE
from cdcworker.connectors.postgres.source import periodic_checks as rounds
from cdcworker.schemas.errors import CdcError

from tests.contract.polled_task import materialise

from ..postgres_reader import SLOWLY

pytestmark = [pytest.mark.postgres, pytest.mark.sampled(2, "gaps")]

OFTEN = {"table.discovery.interval.ms": "50"}


def rows(one, *path: str) -> dict:
    return {key[0]: tuple(row.values()) for key, row in materialise(one.log).get(path, {}).items()}


def has(one, load: str) -> bool:
    """Loads of tables that came into view later have ended."""
    done = ((one.position or {}).get("snapshot") or {}).get("done", ())
    return sum(item["id"].startswith(load) for item in done) > 0


@pytest.fixture
def table(db):
    db.execute("create table a(id int primary key, v text); create table b(id int primary key)")
    db.execute("insert into a select g, 'x' from generate_series(1, 5) g")
    return db


MISSED = "insert into a values (6, 'missed'); delete from a where id = 2; update a set v = 'missed' where id = 3"


def taken_out(db, publication: str) -> None:
    db.execute(f"alter publication {publication} drop table a")
    db.execute(MISSED)


EXPECTED = {i: (i, v) for i, v in ((1, "x"), (3, "missed"), (4, "x"), (5, "x"), (6, "missed"), (7, "later"))}


def test_a_table_that_was_taken_out_of_the_publication_is_read_again(table, reader):
    one = reader(owner=True, publication_name="p", **OFTEN).start()
    one.catch_up(table)
    taken_out(table, "p")
    one.until(lambda: has(one, "tables-"))
    table.execute("insert into a values (7, 'later')")
    one.catch_up(table)
    assert rows(one, "public", "a") == EXPECTED
    assert [change.table.path[1] for change in one.events("t")] == ["a"]


def test_so_is_one_that_was_put_back_before_the_task_was_started_again(table, reader):
    one = reader(owner=True, publication_name="p", **OFTEN).start()
    one.catch_up(table)
    one.kill()
    taken_out(table, "p")
    table.execute("alter publication p add table a; insert into a values (7, 'later')")
    one.start()
    one.until(lambda: has(one, "tables-"))
    one.catch_up(table)
    assert rows(one, "public", "a") == EXPECTED
    assert [change.table.path[1] for change in one.events("t")] == ["a"]
    one.kill()
    one.start()
    one.catch_up(table)
    assert len(one.events("t")) == 1


def test_so_are_those_of_a_schema_that_was_put_back_meanwhile(table, reader):
    if table.info.server_version < 150000:
        pytest.skip("publications of schemas came with PostgreSQL 15")
    table.execute("create publication p for tables in schema public")
    one = reader(publication_name="p", publication_autocreate_mode="disabled", **OFTEN).start()
    one.catch_up(table)
    one.kill()
    table.execute(f"alter publication p drop tables in schema public; insert into b values (9); {MISSED}")
    table.execute("alter publication p add tables in schema public; insert into a values (7, 'later')")
    one.start()
    one.until(lambda: has(one, "tables-"))
    one.catch_up(table)
    assert (rows(one, "public", "a"), rows(one, "public", "b")) == (EXPECTED, {9: (9,)})
    assert len(one.events("t")) == 2
    one.kill()
    one.start()
    one.catch_up(table)
    assert len(one.events("t")) == 2


def test_tables_whose_schema_is_published_as_well_were_never_out(table, reader):
    if table.info.server_version < 150000:
        pytest.skip("publications of schemas came with PostgreSQL 15")
    table.execute("create publication p for table a, b")
    one = reader(publication_name="p", publication_autocreate_mode="disabled", **OFTEN).start()
    one.catch_up(table)
    one.kill()
    table.execute("alter publication p add tables in schema public; create table c(id int primary key)")
    table.execute("grant select on c to public")
    one.start()
    one.until(lambda: has(one, "tables-"))
    table.execute("insert into a values (7, 'later')")
    one.catch_up(table)
    assert one.events("t") == []
    assert len(one.events("r")) == 5


@pytest.fixture
def given(table, reader):
    """A reader of a publication that is altered by its owner only."""
    table.execute("create publication p for table a, b")
    return reader(publication_name="p", publication_autocreate_mode="disabled")


@pytest.mark.parametrize("is_running", [True, False])
def test_what_the_stream_has_still_to_bring_from_before_comes_before_the_truncate(table, given, is_running):
    given.config["table.discovery.interval.ms"] = "1"
    given.start()
    given.catch_up(table)
    if not is_running:
        given.kill()
    # Nothing is polled meanwhile: all of this is still to come when the table is found to have been away.
    table.execute(
        "insert into a values (2000, 'gone'); update a set v = 'gone' where id = 3; delete from a where id = 1"
    )
    taken_out(table, "p")
    table.execute("delete from a where id = 2000; insert into a values (1, 'x')")
    table.execute("alter publication p add table a; insert into a values (7, 'later')")
    if not is_running:
        given.start()
        assert given.poll().watermark["loading"] == ["public.a"]
    given.until(lambda: has(given, "tables-"))
    given.catch_up(table)
    assert rows(given, "public", "a") == EXPECTED
    assert [change.table.path[1] for change in given.events("t")] == ["a"]
    before = given.log[: given.log.index(given.events("t")[0])]
    assert (2000, "gone") in [change.after for change in before]


def test_the_stream_names_a_table_that_is_back_before_it_is_looked_for(table, given):
    given.config["table.discovery.interval.ms"] = "0"
    given.start()
    given.catch_up(table)
    given.kill()
    taken_out(table, "p")
    given.start()
    given.catch_up(table)
    table.execute("alter publication p add table a; insert into a values (7, 'later')")
    given.until(lambda: has(given, "tables-"))
    given.catch_up(table)
    assert rows(given, "public", "a") == EXPECTED


def test_a_table_that_takes_the_name_of_one_that_was_dropped_begins_with_a_truncate(table, reader):
    one = reader(owner=True, publication_autocreate_mode="all_tables", **{"table.discovery.interval.ms": "0"}).start()
    one.catch_up(table)
    table.execute("drop table a; create table a(id int primary key, v text); insert into a values (9, 'new')")
    one.until(lambda: has(one, "tables-"))
    one.catch_up(table)
    assert rows(one, "public", "a") == {9: (9, "new")}


def test_rows_of_a_table_that_was_dropped_do_not_stay_when_it_is_made_again(table, reader):
    one = reader(owner=True, **OFTEN).start()
    one.catch_up(table)
    table.execute(
        "drop table a; create table a(id int primary key, v text); insert into a values (3, 'new'), (9, 'new')"
    )
    one.until(lambda: has(one, "tables-"))
    one.catch_up(table)
    assert rows(one, "public", "a") == {3: (3, "new"), 9: (9, "new")}


def test_a_partition_that_becomes_a_table_of_its_own_is_loaded(db, reader):
    db.execute("create table p(id int primary key) partition by range (id)")
    db.execute("create table p1 partition of p for values from (0) to (100)")
    db.execute("insert into p select generate_series(1, 5)")
    one = reader(owner=True, **OFTEN, **{"publish.via.partition.root": "true"}).start()
    one.catch_up(db)
    db.execute("insert into p values (6)")
    one.catch_up(db)
    assert not has(one, "tables-"), "its changes come under the parent's name"
    db.execute("alter table p detach partition p1; insert into p1 values (7)")
    one.until(lambda: has(one, "tables-"))
    one.catch_up(db)
    assert sorted(rows(one, "public", "p1")) == [1, 2, 3, 4, 5, 6, 7]


def test_a_table_that_is_not_published_while_it_is_loaded_is_loaded_when_it_is(table, reader):
    one = reader(publication_name="p", publication_autocreate_mode="disabled", **OFTEN)
    table.execute("create publication p for table a, b")
    one.start()
    table.execute("alter publication p drop table a")
    one.until(one.loaded)
    assert not one.events("r")
    table.execute("alter publication p add table a")
    one.until(lambda: has(one, "tables-"))
    one.catch_up(table)
    assert sorted(rows(one, "public", "a")) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("decoder", ["true", pytest.param("false", marks=pytest.mark.long)])
def test_rows_without_a_column_that_is_published_are_counted(db, reader, decoder):
    db.execute("create table z(); insert into z default values; insert into z default values")
    one = reader(**{"decoder.native": decoder}).start()
    one.catch_up(db)
    db.execute("insert into z default values")
    one.catch_up(db)
    assert [(change.op, change.after) for change in one.log] == [("r", ()), ("r", ()), ("c", ())]


HELD = CdcError(VALUE, "a value without a form")


def held(one, **troubles: CdcError) -> None:
    one.kill()
    one.start({f"public.{name}": error for name, error in troubles.items()})


def lifted(one) -> None:
    """A config that has changed brings back what is held."""
    one.kill()
    one.config["snapshot.chunk.max.bytes"] = "30000"
    one.start()


def test_a_table_that_was_held_back_while_it_was_loaded_begins_anew_when_it_comes_back(db, reader):
    db.execute("create table a(id int primary key, v text)")
    db.execute("insert into a select g, repeat('x', 100) from generate_series(1, 2000) g")
    one = reader(**SLOWLY).start()
    one.until(lambda: len(one.events("r")) > 100)
    held(one, a=HELD)
    assert len(one.events("r")) < 2000
    one.catch_up(db)
    db.execute("delete from a where id <= 100")
    lifted(one)
    one.until(lambda: has(one, "tables-"))
    one.catch_up(db)
    last = max(at for at, change in enumerate(one.log) if change.op == "t")
    assert sorted(change.after[0] for change in one.log[last + 1 :]) == list(range(101, 2001))


@pytest.mark.parametrize("restarted", [False, True])
def test_a_new_table_begins_without_a_truncate_once_the_one_that_was_held_back_goes_on(table, reader, restarted):
    one = reader(owner=True, publication_name="p", **OFTEN).start()
    one.catch_up(table)
    held(one, a=HELD)
    table.execute(MISSED)
    one.catch_up(table)
    lifted(one)
    one.until(lambda: has(one, "tables-"))
    one.catch_up(table)
    table.execute("create table c(id int primary key); insert into c values (1), (2)")
    if restarted:
        one.kill()
        one.start()
    one.until(lambda: len(rows(one, "public", "c")) == 2)
    table.execute("insert into a values (7, 'later'); insert into c values (3)")
    one.catch_up(table)
    assert rows(one, "public", "a") == EXPECTED
    assert sorted(rows(one, "public", "c")) == [1, 2, 3]
    assert [change.table.path[1] for change in one.events("t")] == ["a"]
    assert sorted(change.after[0] for change in one.events("r") if change.table.path[1] == "b") == []


def test_what_leaves_while_others_are_waited_for_is_read_again_as_well(table, given, monkeypatch):
    given.config["table.discovery.interval.ms"] = "0"
    given.start()
    given.catch_up(table)
    with psycopg.connect(table.info.dsn, password=table.info.password) as other:
        # As long as it is open nobody knows what of it was published, so that the boundary is not reached.
        other.execute("insert into b values (500)")
        taken_out(table, "p")
        table.execute("alter publication p add table a; insert into a values (7, 'later')")
        with monkeypatch.context() as patch:
            # Without a look at tables: what the start does not notice nobody does.
            for name in ("AGAIN_S", "OPEN_S"):
                patch.setattr(rounds, name, float("inf"))
            held(given, b=HELD)
            given.catch_up_stream(table)
            assert given.loading == ["public.a"]
            table.execute("insert into b values (1)")
            given.catch_up_stream(table)
            lifted(given)
            given.catch_up_stream(table)
            assert given.loading == ["public.a", "public.b"]
        other.rollback()
    given.until(lambda: has(given, "tables-"))
    given.catch_up(table)
    assert (rows(given, "public", "a"), rows(given, "public", "b")) == (EXPECTED, {1: (1,)})


def test_a_source_of_rows_only_is_not_complete_before_the_tables_that_it_waits_for(table, given):
    table.execute("insert into a select g, repeat('x', 100) from generate_series(10, 2000) g; insert into b values (1)")
    given.config |= {"snapshot.mode": "initial_only", **SLOWLY}
    given.start()
    given.until(lambda: len(given.events("r")) > 100)
    given.kill()
    with psycopg.connect(table.info.dsn, password=table.info.password) as other:
        other.execute("insert into b values (500)")
        table.execute("alter publication p drop table b; insert into b values (2); alter publication p add table b")
        given.start()
        given.until(lambda: len({change.after[0] for change in given.events("r")}) >= 1996)
        given.kill()
        given.start()
        other.rollback()
    given.until(lambda: sorted(rows(given, "public", "b")) == [1, 2])
    given.until(given.loaded)
