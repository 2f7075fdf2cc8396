"""Schema changes by policy, and tables that are held back while the others go on, against a real server."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.postgres.doctor.examined_server import ExaminedServer
from cdcworker.connectors.postgres.doctor.tables import CHECKS
from cdcworker.schemas.errors import CdcError

from tests.contract import held_tables, schema_matrix
from tests.contract.polled_task import materialise
from tests.unit.connectors.native_records import Registry

from ..postgres_database import PostgresDatabase
from ..postgres_reader import Reader, optional_parts

pytestmark = pytest.mark.postgres
EXACT = {"out.of.range.handling.mode": "exact"}
"""As nanoseconds a timestamp of the year 2500 has no exact form."""


@pytest.fixture
def source(postgres, database):
    with closing(PostgresDatabase(postgres, database, role=True)) as made:
        yield made


def held(one: Reader) -> dict[str, str]:
    return {table: why["code"] for table, why in one.position.get("quarantine", {}).items()}


def ids(one: Reader, table: str) -> list[int]:
    return sorted(key[0] for key in materialise(one.log).get(("public", table), {}))


# -- tables that are held back ----------------------------------------------------------------------------------------


def test_a_table_with_a_value_that_has_no_form_is_held_back_and_comes_back_whole(db, reader):
    db.execute("create table bad(id int primary key, at timestamp); create table good(id int primary key)")
    db.execute("insert into bad select g, '2020-01-01' from generate_series(1, 5) g")
    one = reader(**{**EXACT, "time.precision.mode": "nanoseconds"}).start()
    one.until(one.loaded)
    with db.transaction():
        db.execute("insert into good values (1)")
        db.execute("insert into bad values (6, '2500-01-01')")
        db.execute("insert into good values (2)")
    error = one.trouble()
    assert (error.code, error.where["table"]) == ("postgres.value_unsupported", "public.bad")
    db.execute("delete from bad where id < 3; insert into bad values (7, '2020-01-01'); insert into good values (3)")
    one.catch_up(db)
    assert (held(one), ids(one, "good")) == ({"public.bad": "postgres.value_unsupported"}, [1, 2, 3])
    assert "2500" not in str(one.position["quarantine"])
    assert (one.reports[-1]["tables_held"], one.reports[-1]["quarantine"][0]["table"]) == (1, "public.bad")
    examined = ExaminedServer(parse(one.config), one.position)
    (check,) = [check for check in CHECKS if check.name == "tables.held"]
    assert [result.code for result in check.run(examined)] == ["postgres.value_unsupported"]
    one.kill()
    one.start()
    db.execute("insert into good values (4)")
    one.catch_up(db)
    assert (held(one), ids(one, "good")) == ({"public.bad": "postgres.value_unsupported"}, [1, 2, 3, 4])
    # Another config may be one that can.
    one.kill()
    one.config["time.precision.mode"] = "adaptive"
    one.start()
    db.execute("insert into bad values (8, '2020-01-01')")
    one.catch_up(db)
    assert (held(one), ids(one, "bad")) == ({}, [3, 4, 5, 6, 7, 8])
    assert [change.table.path[1] for change in one.events("t")] == ["bad"]


@pytest.mark.long
def test_a_row_that_the_server_cannot_write_holds_its_table_back_or_is_named_by_the_stream(db, reader):
    db.execute("create table bad(id int primary key, data bytea); create table good(id int primary key)")
    large = "insert into bad select 1, convert_to(repeat('x', 600000000), 'SQL_ASCII')"
    db.execute(large)
    db.execute("insert into good values (1)")
    one = reader().start()
    error = one.trouble(120)
    assert (error.code, error.where["table"]) == ("postgres.row_too_large", "public.bad")
    db.execute("insert into good values (2)")
    one.catch_up(db)
    assert (held(one), ids(one, "good")) == ({"public.bad": "postgres.row_too_large"}, [1, 2])
    db.execute("truncate bad")
    one.kill()
    one.config |= {"snapshot.chunk.max.bytes": "1000000", "binary.columns": "never"}
    one.start()
    one.catch_up(db)
    assert held(one) == {}
    db.execute(large)
    with pytest.raises(CdcError) as caught:
        one.until(lambda: False, 120)
    # The server does not tell of which table the row is.
    assert (caught.value.code, caught.value.retriable) == ("postgres.row_too_large", False)


def test_a_row_of_a_snapshot_that_has_no_form_holds_its_table_back_and_the_rest_is_loaded(db, reader):
    db.execute("create table bad(id int primary key, at timestamp); create table good(id int primary key)")
    db.execute("insert into bad values (1, '2500-01-01'); insert into good values (1)")
    one = reader(**{**EXACT, "time.precision.mode": "nanoseconds"}).start()
    one.trouble()
    one.catch_up(db)
    assert (held(one), ids(one, "good"), ids(one, "bad")) == ({"public.bad": "postgres.value_unsupported"}, [1], [])


def test_with_the_policy_halt_no_table_is_held_back(db, reader):
    db.execute("create table bad(id int primary key, at timestamp); insert into bad values (1, '2500-01-01')")
    one = reader(**{**EXACT, "time.precision.mode": "nanoseconds", "table.failure.policy": "halt"}).start()
    with pytest.raises(CdcError) as caught:
        one.until(one.loaded)
    assert not one.task.holds(caught.value)


def test_a_refused_type_holds_its_table_back(db, reader):
    with optional_parts():
        db.execute("create extension cube")
    db.execute("create table bad(id int primary key, v cube); create table good(id int primary key)")
    one = reader(**{"unknown.type.handling.mode": "refuse"}).start()
    db.execute("insert into good values (1)")
    assert one.trouble().code == "postgres.type_refused"
    one.catch_up(db)
    assert (held(one), ids(one, "good")) == ({"public.bad": "postgres.type_refused"}, [1])


@pytest.mark.sampled(2, "held")
def test_tables_that_the_role_may_not_read_are_held_back_and_come_back_with_the_right(source):
    held_tables.tables_that_may_not_be_read_are_held_back(source)


@pytest.mark.sampled(2, "held")
def test_with_the_policy_halt_no_table_that_may_not_be_read_is_held_back(source):
    held_tables.with_the_policy_halt_none_is(source)


def without_rights(one: Reader, db, tables: list[str]) -> Reader:
    prepare = one.before_first_start

    def revoke(it):
        if prepare:
            prepare(it)
        db.execute(f"revoke all on {', '.join(tables)} from {one.config['database.user']}, public")

    one.before_first_start = revoke
    return one


def test_tables_that_the_role_may_not_read_are_held_back_together_with_the_first_that_is_found(db, reader):
    names = [f"closed_{number}" for number in range(5)]
    db.execute("create table good(id int primary key); create table loaded(id int primary key)")
    db.execute("".join(f"create table {name}(id int primary key); insert into {name} values (1);" for name in names))
    one = without_rights(reader(), db, names).start()
    assert one.trouble().code == "postgres.table_closed"
    one.catch_up(db)
    assert held(one) == {f"public.{name}": "postgres.table_closed" for name in names}
    db.execute("insert into good values (1)")
    one.catch_up(db)
    assert ids(one, "good") == [1]


def test_a_role_that_may_read_no_table_at_all_does_not_start_and_leaves_no_slot(db, reader):
    db.execute("create table a(id int primary key); create table b(id int primary key)")
    one = without_rights(reader(), db, ["a", "b"])
    with pytest.raises(CdcError) as caught:
        one.start()
    assert (caught.value.code, caught.value.where["tables"]) == ("postgres.permission_denied", 2)
    assert (
        db.execute(
            "select count(*) from pg_replication_slots where slot_name = %s", (one.config["slot.name"],)
        ).fetchone()[0]
        == 0
    )
    db.execute(f"grant select on a to {one.config['database.user']}; insert into a values (1)")
    one.start()
    assert one.trouble().code == "postgres.table_closed"
    one.catch_up(db)
    assert ids(one, "a") == [1]


# -- schema changes ---------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2, "held")
def test_each_schema_change_holds_its_own_table_back_and_no_other_row_is_lost(source):
    schema_matrix.each_holds_its_own_table_back(source)


@pytest.mark.sampled(2, "held")
def test_each_schema_change_halts_and_goes_on_from_there_once_the_policy_lets_it(source):
    schema_matrix.each_halts_until_the_policy_lets_it(source)


@pytest.mark.sampled(2, "held")
@pytest.mark.parametrize(
    "inside", [False, pytest.param(True, marks=pytest.mark.long)], ids=["between transactions", "inside of one"]
)
def test_every_schema_change_is_followed_with_the_right_rows_on_both_sides(source, inside):
    schema_matrix.each_is_followed(source, inside=inside)


@pytest.mark.sampled(2, "held")
@pytest.mark.parametrize("policy", ["pause-table", pytest.param("halt", marks=pytest.mark.long)])
def test_a_schema_change_that_the_policy_does_not_allow_stops_its_table_or_the_task(source, policy):
    schema_matrix.one_that_is_not_allowed_stops(source, policy)


@pytest.mark.sampled(2, "held")
def test_schema_changes_under_load_with_kills_leave_every_row_in_the_shape_of_its_time(source):
    schema_matrix.under_load_with_kills(source)


@pytest.fixture
def unencoded(postgres):
    name = "of_no_encoding"
    with psycopg.connect(postgres.dsn(), autocommit=True) as server:
        server.execute(f"create database {name} encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C' template template0")
    yield name
    postgres.drop_database(name)


@pytest.mark.sampled(2, "held")
@pytest.mark.parametrize("native", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.parametrize("transport", ["socket", "psycopg"])
def test_text_that_is_not_utf8_holds_its_table_back_and_no_other(postgres, unencoded, native, transport, caplog):
    caplog.set_level("INFO")
    with psycopg.connect(postgres.dsn(unencoded), autocommit=True, client_encoding="utf8") as db:
        db.execute(
            "create table good(id int primary key, body text); create table streamed(id int primary key, body text)"
        )
        db.execute("create table loaded(id int primary key, n int, body text[]); create table bare(body varchar)")
        db.execute("create table keyed(body text primary key)")
        db.execute("insert into good values (1, 'größe'); insert into loaded values (1, 2, E'{\"canary \\xe9\"}')")
        db.execute("insert into bare values (E'canary \\xe9'); insert into keyed values (E'canary \\xe9')")
        db.execute('create table grün(id int primary key, "größe" text)')
        db.execute("insert into grün values (7, 'ß')")
        one = Reader(postgres, unencoded, **{"database.transport": transport})
        one.registry = Registry() if native else None
        try:
            one.start()
            found = [one.trouble() for _ in range(3)]
            one.until(one.loaded)
            db.execute("insert into good values (2, 'é'); insert into streamed values (1, 'whole')")
            db.execute("insert into streamed values (2, E'canary \\xe9'); insert into good values (3, 'ß')")
            found.append(one.trouble())
            one.catch_up(db)
            assert {error.where["table"]: error.code for error in found} == held(one)
            assert held(one) == {
                f"public.{name}": "postgres.text_not_utf8" for name in ("loaded", "bare", "keyed", "streamed")
            }
            assert {error.where["column"] for error in found} == {"body"}
            told = sorted((change.table.path[1], change.after) for change in one.events("c", "r"))
            assert told.pop(3) == ("grün", (7, "ß"))
            assert told[:3] == [("good", (1, "größe")), ("good", (2, "é")), ("good", (3, "ß"))]
            assert {name for name, _ in told[3:]} <= {"streamed"}
        finally:
            one.kill()
        db.execute("update streamed set body = 'mended' where id = 2")
        one.config["heartbeat.interval.ms"] = "9000"
        one.config["table.exclude.list"] = "public.bare,public.loaded,public.keyed"
        one.start()
        one.until(lambda: (2, "mended") in [change.after for change in one.events("r")])
        one.kill()
    assert "canary" not in caplog.text + str(found)
