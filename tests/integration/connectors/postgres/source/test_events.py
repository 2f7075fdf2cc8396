"""What becomes of events by configuration and by the table's own settings, against a real server."""

from __future__ import annotations

import hashlib

import psycopg
import pytest
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.postgres.doctor.examined_server import ExaminedServer
from cdcworker.connectors.postgres.doctor.tables import CHECKS
from cdcworker.schemas.change import NO_DEFAULT
from cdcworker.schemas.errors import CdcError

from tests.contract.polled_task import materialise

from ..postgres_reader import Reader

pytestmark = pytest.mark.postgres


def rows(one: Reader, table: str, *ops: str) -> list[tuple]:
    return [change.after for change in one.events(*ops) if change.table.path[1] == table]


def test_columns_are_masked_hashed_cut_and_left_out_in_the_snapshot_and_in_the_stream(db, reader):
    db.execute(
        "create table t(email varchar(40) primary key, name text not null default 'nobody', card text, notes text)"
    )
    db.execute("alter table t replica identity full")
    db.execute("insert into t values ('a@b.c', 'Ann', '4711', 'long text'), ('d@e.f', 'Bob', null, 'more text')")
    one = reader(
        **{
            "column.mask.hash.v2.SHA-256.with.salt.pepper": r"public\.t\.email",
            "column.mask.with.4.chars": r"public\.t\.card,public\.t\.name",
            "column.truncate.to.4.chars": r".*\.notes",
            "snapshot.chunk.max.bytes": "4096",
        }
    )
    one.start()
    one.until(one.loaded)
    db.execute("update t set notes = 'changed' where name = 'Ann'")
    db.execute("delete from t where name = 'Bob'")
    one.catch_up(db)
    keys = [hashlib.sha256(b"pepper" + text).hexdigest()[:40] for text in (b"a@b.c", b"d@e.f")]
    ann, bob = (keys[0], "****", "****", "long"), (keys[1], "****", None, "more")
    assert sorted(rows(one, "t", "r")) == sorted([ann, bob])
    updated, deleted = one.log[-2:]
    assert (updated.op, updated.before, updated.after) == ("u", ann, (*ann[:3], "chan"))
    assert (deleted.op, deleted.before) == ("d", bob)
    assert updated.table.columns[1].default == "****"


def test_records_have_the_key_that_the_config_says(db, reader):
    db.execute("create table t(id int primary key, city text, n int); alter table t replica identity full")
    db.execute("insert into t select g, 'c' || g % 2, g from generate_series(1, 300) g")
    one = reader(**{"message.key.columns": "public.t:city", "snapshot.chunk.max.bytes": "4096"})
    one.start()
    one.until(one.loaded)
    assert sorted(row[0] for row in rows(one, "t", "r")) == list(range(1, 301))
    db.execute("update t set id = 1000 where id = 1")
    db.execute("update t set city = 'x' where id = 2")
    db.execute("delete from t where id = 3")
    one.catch_up(db)
    assert {tuple(column.name for column in change.table.key_columns) for change in one.log} == {("city",)}
    moved, gone, come, deleted = one.log[-4:]
    assert (moved.op, moved.before, moved.after, moved.other_key) == ("u", (1, "c1", 1), (1000, "c1", 1), None)
    assert (gone.op, gone.before, gone.other_key) == ("d", (2, "c0", 2), ("x",))
    assert (come.op, come.after, come.other_key) == ("c", (2, "x", 2), ("c0",))
    assert (deleted.op, deleted.before) == ("d", (3, "c1", 3))


def test_a_message_key_that_a_deletion_would_not_hold_is_refused(db, reader):
    db.execute("create table t(id int primary key, city text); insert into t values (1, 'x')")
    one = reader(**{"message.key.columns": "public.t:city"})
    one.start()
    with pytest.raises(CdcError) as caught:
        one.until(one.loaded)
    assert (caught.value.code, caught.value.where["table"]) == ("postgres.message_key", "public.t")


def test_masks_and_keys_that_cannot_be_are_found_before_the_start(db, reader):
    db.execute("create table t(id int primary key, city text); create table fine(id int primary key, city text)")
    one = reader(**{"message.key.columns": "public.t:city", "column.mask.with.3.chars": r"public\.fine\.id"})
    examined = ExaminedServer(parse(one.config))
    (check,) = [check for check in CHECKS if check.name == "tables.plans"]
    found = [result.code for result in check.run(examined) if result.status == "error"]
    examined.close()
    assert sorted(found) == ["postgres.mask_unfit", "postgres.message_key"]
    one.config = {name: value for name, value in one.config.items() if not name.startswith(("message", "column"))}
    examined = ExaminedServer(parse(one.config))
    statuses = [result.status for result in check.run(examined)]
    examined.close()
    assert statuses == ["ok"]


def test_updates_that_change_nothing_are_left_out_and_lose_no_row_of_a_snapshot(db, reader):
    db.execute("create table t(id int primary key, v text, hidden int); alter table t replica identity full")
    db.execute("insert into t select g, 'v', 0 from generate_series(1, 400) g")
    one = reader(
        **{
            "skip.messages.without.change": "true",
            "column.exclude.list": r"public\.t\.hidden",
            "snapshot.chunk.max.bytes": "4096",
        }
    )
    one.start()
    while not one.loaded():
        one.poll()
        db.execute("update t set hidden = hidden + 1")
    db.execute("update t set v = 'w' where id = 7")
    one.catch_up(db)
    assert [change.after for change in one.events("u")] == [(7, "w")]
    assert {row["id"] for row in materialise(one.log)["public", "t"].values()} == set(range(1, 401))


def test_tables_and_schemas_are_chosen_by_whole_names_without_case(db, reader):
    db.execute(
        "create schema a; create schema ab; create table a.t(id int primary key); create table ab.t(id int primary key)"
    )
    db.execute("create table a.tt(id int primary key); create table a.other(id int primary key)")
    one = reader(**{"schema.include.list": "A", "table.exclude.list": r"a\.other"}).start()
    one.until(one.loaded)
    for name in ("a.t", "ab.t", "a.tt", "a.other"):
        db.execute(f"insert into {name} values (1)")
    one.catch_up(db)
    assert sorted(change.table.path for change in one.log) == [("a", "t"), ("a", "tt")]


def test_names_of_any_kind_and_columns_that_the_server_fills(db, reader):
    db.execute('create schema "Ünï.code"')
    db.execute(
        'create table "Ünï.code"."Tab ""le"" $1" ("Id" int generated always as identity primary key, "select" text,'
        ' "grün %s {}" int default 7, twice int generated always as ("grün %s {}" * 2) stored)'
    )
    name = '"Ünï.code"."Tab ""le"" $1"'
    db.execute(f"insert into {name} (\"select\") select 'a' from generate_series(1, 300)".replace("%", "%%"), ())
    one = reader(**{"snapshot.chunk.max.bytes": "4096"}).start()
    one.until(one.loaded)
    db.execute(f"insert into {name} (\"select\") values ('b')")
    one.catch_up(db)
    last = one.log[-1]
    assert last.table.path == ("Ünï.code", 'Tab "le" $1')
    assert [column.name for column in last.table.columns] == ["Id", "select", "grün %s {}"]
    assert (last.op, last.after) == ("c", (301, "b", 7))
    assert one.events("r")[0].table == last.table
    assert len(one.events("r")) == 300


def test_each_replica_identity_gives_the_old_row_that_it_holds(db, reader):
    for name in ("usual", "whole", "by_index", "none"):
        db.execute(f"create table {name}(id int primary key, code text not null, v int)")
    db.execute("create unique index by_code on by_index(code)")
    db.execute("alter table whole replica identity full; alter table none replica identity nothing")
    db.execute("alter table by_index replica identity using index by_code")
    one = reader().start()
    one.until(one.loaded)
    for name in ("usual", "whole", "by_index", "none"):
        db.execute(f"insert into {name} values (1, 'a', 1)")
    for name in ("usual", "whole", "by_index"):
        db.execute(f"update {name} set v = 2")
        db.execute(f"delete from {name}")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        db.execute("delete from none")
    one.catch_up(db)
    found = {
        name: [(change.op, change.before) for change in one.log if change.table.path[1] == name]
        for name in ("usual", "whole", "by_index", "none")
    }
    assert found == {
        "usual": [("c", None), ("u", None), ("d", (1, None, None))],
        "whole": [("c", None), ("u", (1, "a", 1)), ("d", (1, "a", 2))],
        "by_index": [("c", None), ("u", None), ("d", (None, "a", None))],
        "none": [("c", None)],
    }
    keys = {change.table.path[1]: [column.name for column in change.table.key_columns] for change in one.log}
    assert keys == {"usual": ["id"], "whole": ["id"], "by_index": ["code"], "none": ["id"]}


def test_partitions_are_tables_of_their_own_and_moves_between_them_are_a_delete_and_a_create(db, reader):
    db.execute("create table root(id int, part int, v text, primary key (id, part)) partition by list (part)")
    db.execute(
        "create table p1 partition of root for values in (1); create table p2 partition of root for values in (2)"
    )
    db.execute("insert into root values (1, 1, 'a')")
    one = reader().start()
    one.until(one.loaded)
    db.execute("update root set part = 2")
    db.execute("truncate root")
    one.catch_up(db)
    assert [(change.op, change.table.path[1]) for change in one.log] == [
        ("r", "p1"), ("d", "p1"), ("c", "p2"), ("t", "p1"), ("t", "p2"),
    ]  # fmt: skip


def test_changes_of_partitions_come_under_their_roots_name_wherever_rows_move(db, reader):
    db.execute("create table root(id int, part int, big text, n int, primary key (id, part)) partition by list (part)")
    db.execute("alter table root alter column big set storage external")
    for number in (1, 2):
        db.execute(f"create table p{number} partition of root for values in ({number})")
    one = reader(publish_via_partition_root="true").start()
    one.until(one.loaded)

    def events(statement: str) -> list:
        one.log.clear()
        db.execute(statement)
        one.catch_up(db)
        assert {change.table.path for change in one.log} <= {("public", "root")}
        return [(c.op, (c.after or c.before)[:2] if c.op != "t" else None, c.unchanged) for c in one.log]

    inserted = "insert into {} select g, {}, repeat('x', 5000) || g, 0 from generate_series({}, {}) g"
    assert events(inserted.format("root", 1, 1, 3)) == [("c", (n, 1), ()) for n in (1, 2, 3)]
    assert events("update root set n = 1 where id = 1") == [("u", (1, 1), (2,))]
    # From partition to partition the value is written anew, so it is sent; within one it is not, and is read again.
    assert events("update root set part = 2 where id = 1") == [("d", (1, 1), ()), ("c", (1, 2), ())]
    assert one.log[1].after[2] == "x" * 5000 + "1"
    moved = events("update root set id = 20 where id = 2")
    assert moved == [("d", (2, 1), ()), ("c", (20, 1), (2,)), ("r", (20, 1), ())]
    assert one.log[2].after == (20, 1, "x" * 5000 + "2", 0)
    assert events("delete from p1 where id = 3") == [("d", (3, 1), ())]
    db.execute("create table p3(id int, part int, big text, n int, primary key (id, part))")
    one.catch_up(db)
    # What a partition brings is not in the log; what happens to it from then on is.
    db.execute(inserted.format("p3", 3, 30, 31))
    assert events("alter table root attach partition p3 for values in (3)") == []
    if db.info.server_version < 150000:
        # A table of which it has left out a change it leaves out until the stream is opened anew, behind that.
        events("update root set n = 5 where id = 20")
        one.kill()
        one.start()
    changed = events("update root set big = 'y', n = 3 where part = 3; " + inserted.format("root", 3, 32, 32))
    assert changed == [("u", (30, 3), ()), ("u", (31, 3), ()), ("c", (32, 3), ())]
    # Of one partition a truncate is not told under the root's name.
    assert events("truncate p2") == []
    assert events("truncate root") == [("t", None, ())]


def test_generated_columns_that_are_published_come_with_rows_and_changes(db, reader):
    if db.info.server_version < 180000:
        pytest.skip("missing part PostgreSQL 18: publish_generated_columns")
    db.execute(
        "create table t(id int generated by default as identity primary key, n int not null default 7, v text default 'x',"
        " sum numeric(8,2) generated always as (n * 1.5) stored, shown text generated always as (v || id) stored,"
        " dreamt int generated always as (n + 1) virtual)"
    )
    db.execute("create publication p for table t with (publish_generated_columns = stored)")
    db.execute("insert into t(v) values ('a'); insert into t(n, v) values (2, null)")
    one = reader(
        owner=True, publication_name="p", publication_autocreate_mode="disabled", decimal_handling_mode="string"
    )
    one.start()
    one.until(one.loaded)
    db.execute("insert into t(n, v) values (3, 'b'); update t set n = 4 where id = 2; delete from t where id = 1")
    one.catch_up(db)
    assert [(change.op, change.after or change.before) for change in one.log] == [
        ("r", (1, 7, "a", "10.50", "a1")),
        ("r", (2, 2, None, "3.00", None)),
        ("c", (3, 3, "b", "4.50", "b3")),
        ("u", (2, 4, None, "6.00", None)),
        ("d", (1, None, None, None, None)),
    ]
    tables = {change.table for change in one.log}
    columns = {column.name: column for column in tables.pop().columns}
    assert not tables
    # A default that the server computes is none that a reader could put in.
    assert {name: column.default for name, column in columns.items() if column.default is not NO_DEFAULT} == {
        "n": 7,
        "v": "x",
    }
    assert [name for name, column in columns.items() if not column.optional] == ["id", "n"]


def test_savepoints_and_copy_leave_what_was_committed(db, reader):
    db.execute("create table t(id int primary key, v text)")
    one = reader().start()
    one.until(one.loaded)
    with db.transaction():
        db.execute("insert into t values (1, 'kept')")
        with db.transaction(force_rollback=True):
            db.execute("insert into t values (2, 'gone')")
        with db.cursor().copy("copy t from stdin") as copy:
            for number in range(10, 20):
                copy.write_row((number, "copied"))
    one.catch_up(db)
    assert [change.after[0] for change in one.log] == [1, *range(10, 20)]
    assert [change.position.event for change in one.log] == list(range(11))
    assert len({change.position.commit for change in one.log}) == 1
