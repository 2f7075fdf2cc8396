"""Schema changes by policy, and tables that are held back while the others go on, against a real server."""

from __future__ import annotations

import itertools
import threading

import psycopg
import pytest
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.postgres.doctor.examined_server import ExaminedServer
from cdcworker.connectors.postgres.doctor.tables import CHECKS
from cdcworker.schemas.encode import Encoder
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import SchemaLog, register_in_memory

from tests.unit.connectors.native_records import Registry

from ..postgres_reader import Reader, materialise, optional_parts

pytestmark = pytest.mark.postgres
EXACT = {"out.of.range.handling.mode": "exact"}
"""As nanoseconds a timestamp of the year 2500 has no exact form."""


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


def test_tables_that_the_role_may_not_read_are_held_back_and_come_back_with_the_right(db, reader):
    db.execute("create table good(id int primary key); create publication p for table good")
    more = {"snapshot.max.threads": "2", "snapshot.chunk.max.bytes": "20000", "table.discovery.interval.ms": "50"}
    one = reader(publication_name="p", publication_autocreate_mode="disabled", **more).start()
    one.catch_up(db)
    # Each is read in another way: in one range, divided by a sample, as a whole.
    tables = {
        "plain": "id int primary key",
        "large": "id int primary key, v text default repeat('x', 200)",
        "bare": "id int",
    }
    for name, columns in tables.items():
        db.execute(f"create table {name}({columns}); revoke all on {name} from {one.config['database.user']}")
        db.execute(f"insert into {name} select generate_series(1, 2000); alter publication p add table {name}")
        error = one.trouble()
        assert (error.code, error.where["table"]) == ("postgres.table_closed", f"public.{name}")
    db.execute("insert into good values (1); insert into plain values (2001)")
    one.catch_up(db)
    assert (held(one), ids(one, "good")) == ({f"public.{name}": "postgres.table_closed" for name in tables}, [1])
    db.execute(f"grant select on plain, large, bare to {one.config['database.user']}")
    one.jobs = ({"id": "again", "kind": "snapshot", "wanted": "RUNNING", "spec": {"tables": [r"public\..*"]}},)
    more_rows = itertools.count(2)
    with pytest.raises(CdcError) as caught:
        # Also while there is always something to read.
        one.until(lambda: not db.execute("insert into good values (%s)", (next(more_rows),)))
    assert caught.value.code == "postgres.table_returns"
    one.kill()
    one.start()
    one.until(lambda: one.loaded() and len(one.events("r")) >= 3 * 2000)
    assert (held(one), len(ids(one, "plain")), len(ids(one, "large"))) == ({}, 2001, 2000)


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

CHANGES = [
    ("add", "alter table t add column extra int default 7"),
    ("widen", "alter table t alter column n type bigint"),
    ("narrow", "alter table t alter column n type smallint"),
    ("retype", "alter table t alter column n type text using n::text"),
    ("rename", "alter table t rename column v to w"),
    ("drop", "alter table t drop column v"),
    ("key", "alter table t drop constraint t_pkey; alter table t add primary key (id, n)"),
]


def place(change) -> tuple[int, int]:
    return change.position.commit, change.position.event


def written(table: str) -> str:
    """A change of this table, as another is changed."""
    return f"insert into {table} values (2, 2)"


def changed(number: int) -> str:
    """The change of schema that is this table's."""
    text = CHANGES[number][1]
    return text.replace("table t ", f"table t{number} ").replace("t_pkey", f"t{number}_pkey")


def prepared(db, reader, policy: str) -> Reader:
    """A table for each change, of which rows were handed on, and one that stays as it is."""
    db.execute("create table good(id int primary key)")
    for number in range(len(CHANGES)):
        db.execute(f"create table t{number}(id int primary key, n int not null, v text)")
    one = reader(**{"schema.change.policy": policy, "snapshot.mode": "no_data"}).start()
    for number in range(len(CHANGES)):
        db.execute(f"insert into t{number} values (1, 1, 'a')")
    one.catch_up(db)
    return one


def test_each_schema_change_holds_its_own_table_back_and_no_other_row_is_lost(db, reader):
    one = prepared(db, reader, "pause-table")
    for number in range(len(CHANGES)):
        with db.transaction():
            # In the middle of a transaction that is about others as well.
            db.execute(f"insert into good values ({10 * number})")
            db.execute(f"insert into t{number} values (11, 1, 'a')")
            db.execute(changed(number))
            db.execute(written(f"t{number}"))
            db.execute(f"insert into good values ({10 * number + 1})")
        error = one.trouble()
        assert (error.code, error.where["table"]) == ("postgres.schema_paused", f"public.t{number}")
        for other in range(number + 1, len(CHANGES)):
            db.execute(f"insert into t{other} values ({100 + number}, 1, 'a')")
        one.catch_up(db)
    assert held(one) == {f"public.t{number}": "postgres.schema_paused" for number in range(len(CHANGES))}
    assert ids(one, "good") == sorted([*range(0, 70, 10), *range(1, 70, 10)])
    for number in range(len(CHANGES)):
        # The whole transaction that changed the table stays out of it.
        assert ids(one, f"t{number}") == [1, *range(100, 100 + number)]
        shapes = {change.table for change in one.log if change.table.path[1] == f"t{number}"}
        assert [[column.name for column in shape.columns] for shape in shapes] == [["id", "n", "v"]]


def test_each_schema_change_halts_and_goes_on_from_there_once_the_policy_lets_it(db, reader):
    one = prepared(db, reader, "halt")
    for number in range(len(CHANGES)):
        db.execute(f"insert into good values ({number})")
        db.execute(changed(number))
        db.execute(written(f"t{number}"))
        for _ in range(2):
            # A restart changes nothing about it.
            with pytest.raises(CdcError) as caught:
                one.catch_up(db)
            assert (caught.value.code, caught.value.where["table"]) == ("postgres.schema_changed", f"public.t{number}")
            one.kill()
            one.start()
        one.kill()
        one.config["schema.change.policy"] = "evolve"
        one.start()
        one.catch_up(db)
        assert one.log[-1].after[0] == 2
        assert one.log[-1].table.path[1] == f"t{number}"
        one.kill()
        one.config["schema.change.policy"] = "halt"
        one.start()
        # A shape is known from the first row on that was seen under the policy.
        for table in range(len(CHANGES)):
            db.execute(f"update t{table} set n = 1 where id = 1")
        one.catch_up(db)
    assert ids(one, "good") == list(range(len(CHANGES)))
    assert [change.op for change in one.log].count("c") == 3 * len(CHANGES)


@pytest.mark.parametrize("where", ["between transactions", "inside of one"])
def test_every_schema_change_is_followed_with_the_right_rows_on_both_sides(db, reader, where):
    one = None
    for number, (_, statement) in enumerate(CHANGES):
        name = f"t{number}"
        db.execute(f"create table {name}(id int primary key, n int not null, v text)")
        if one is None:
            one = reader(owner=True, **{"publication.autocreate.mode": "all_tables"}).start()
            one.until(one.loaded)
        changed = statement.replace("table t ", f"table {name} ").replace("t_pkey", f"{name}_pkey")
        statements = [f"insert into {name} values (1, 1, 'a')", changed, f"insert into {name} values (2, 2)"]
        if where == "inside of one":
            with db.transaction():
                for text in statements:
                    db.execute(text)
        else:
            for text in statements:
                db.execute(text)
    one.catch_up(db)
    log = SchemaLog()
    Encoder("shop", register_in_memory(log)).encode([change for change in one.log if change.op != "m"])
    for number, (kind, _) in enumerate(CHANGES):
        before, after = (change for change in one.log if change.table.path[1] == f"t{number}")
        assert before.after[:3] == (1, 1, "a")
        assert after.after[0] == 2
        assert [column.name for column in before.table.columns] == ["id", "n", "v"]
        subject = f"shop.public.t{number}-{'key' if kind == 'key' else 'value'}"
        first, *_, last = log.versions(subject)
        assert last.change == kind
        assert [version.effective for version in (first, last)] == [place(before), place(after)]
        assert [log.in_force(subject, *place(change)) for change in (before, after)] == [first, last]
    columns = {change.table.path[1]: change.table.columns for change in one.log}
    assert [column.name for column in columns["t0"]] == ["id", "n", "v", "extra"]
    assert [column.name for column in columns["t4"]] == ["id", "n", "w"]
    assert [column.name for column in columns["t5"]] == ["id", "n"]
    assert [columns[f"t{i}"][1].type for i in (1, 3)] == ["long", "string"]
    assert one.log[-1].table.key == (0, 1)


@pytest.mark.parametrize("policy", ["pause-table", "halt"])
def test_a_schema_change_that_the_policy_does_not_allow_stops_its_table_or_the_task(db, reader, policy):
    db.execute("create table t(id int primary key, v text); create table good(id int primary key)")
    one = reader(**{"schema.change.policy": policy}).start()
    one.until(one.loaded)
    db.execute("insert into t values (1, 'a')")
    one.catch_up(db)
    one.kill()
    # Also a change that is made while nobody looks.
    db.execute("alter table t add column n int; insert into t values (2, 'b', 2); insert into good values (1)")
    one.start()
    if policy == "halt":
        with pytest.raises(CdcError) as caught:
            one.catch_up(db)
        assert (caught.value.code, one.task.holds(caught.value)) == ("postgres.schema_changed", False)
        return
    assert one.trouble().code == "postgres.schema_paused"
    one.catch_up(db)
    assert (held(one), ids(one, "t"), ids(one, "good")) == ({"public.t": "postgres.schema_paused"}, [1], [1])
    one.kill()
    one.config["heartbeat.interval.ms"] = "9000"
    one.start()
    db.execute("insert into t values (3, 'c', 3)")
    one.catch_up(db)
    assert (held(one), ids(one, "t")) == ({}, [1, 2, 3])
    db.execute("alter table t drop column n; insert into t values (4, 'd')")
    assert one.trouble().code == "postgres.schema_paused"


def test_schema_changes_under_load_with_kills_leave_every_row_in_the_shape_of_its_time(postgres, database, db, reader):
    db.execute("create table t(id int primary key, n bigint default 0)")
    one = reader().start()
    one.until(one.loaded)
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(postgres.dsn(database), autocommit=True) as connection:
            number = 0
            while not stop.is_set():
                number += 1
                connection.execute("insert into t(id) values (%s)", (number,))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(8):
            seen = len(one.log)
            db.execute(f"alter table t add column c{number} int default {number}")
            one.until(lambda seen=seen: len(one.log) > seen + 20)
            if number % 3 == 2:
                one.kill()
                one.start()
            if number % 2:
                db.execute(f"alter table t drop column c{number - 1}")
    finally:
        stop.set()
        writer.join()
    one.catch_up(db)
    assert ids(one, "t") == sorted(row[0] for row in db.execute("select id from t").fetchall())
    for change in one.log:
        found = {column.name: value for column, value in zip(change.table.columns, change.after, strict=True)}
        added = [name for name in found if name.startswith("c")]
        assert [found[name] for name in added] == [int(name[1:]) for name in added]
    assert len({change.table for change in one.log}) >= 8


@pytest.fixture
def unencoded(postgres):
    name = "of_no_encoding"
    with psycopg.connect(postgres.dsn(), autocommit=True) as server:
        server.execute(f"create database {name} encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C' template template0")
    yield name
    postgres.drop_database(name)


@pytest.mark.parametrize("native", [True, False])
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
