"""The catalog is newer than the stream: a table was altered or dropped while nobody read, and its older changes come now."""

from __future__ import annotations

import pytest

from tests.contract.polled_task import materialise

pytestmark = [pytest.mark.postgres, pytest.mark.sampled(2, "catalogs")]


def keys(changes) -> list[tuple[str, ...]]:
    return [tuple(column.name for column in change.table.key_columns) for change in changes]


@pytest.mark.parametrize(
    "later",
    [
        "alter table t rename id to ident",
        "alter table t drop constraint t_pkey",
        "alter table t drop constraint t_pkey; alter table t rename id to ident",
        "alter table t rename v to old; alter table t rename id to v; alter table t rename old to id",
        "alter table t drop column id",
        "drop table t",
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
def test_changes_under_a_full_identity_keep_the_key_that_their_table_had(db, reader, later, streamed):
    db.execute("create table t(id int primary key, v int, n int); alter table t replica identity full")
    db.execute("insert into t values (1, 10, 1), (2, 20, 2)")
    one = reader().start()
    one.until(one.loaded)
    if streamed:
        db.execute("insert into t values (3, 30, 3)")
        one.catch_up(db)
    one.kill()
    seen = len(one.log)
    db.execute("update t set n = 5 where id = 2")
    db.execute("delete from t where id = 1")
    db.execute(later)
    one.start()
    one.catch_up(db)
    changes = one.log[seen:]
    assert [(change.op, change.before[0]) for change in changes] == [("u", 2), ("d", 1)]
    assert keys(changes) == [("id",)] * 2
    assert {column.type for change in changes for column in change.table.columns} == {"int"}


def test_a_key_that_is_gone_for_good_is_kept_until_the_stream_is_where_it_was_seen_to_be_gone(db, reader):
    db.execute("create table t(id int primary key, v int); alter table t replica identity full")
    one = reader().start()
    one.until(one.loaded)
    db.execute("insert into t values (1, 10)")
    one.catch_up(db)
    one.kill()
    db.execute("insert into t values (2, 20)")
    db.execute("alter table t drop constraint t_pkey")
    one.start()
    one.catch_up(db)
    assert "keys" in one.position
    db.execute("insert into t values (2, 20)")
    one.catch_up(db)
    assert keys(one.log) == [("id",), ("id",), ()]
    assert "keys" not in one.position
    one.kill()
    one.start()
    db.execute("insert into t values (2, 20)")
    one.catch_up(db)
    assert keys(one.log[3:]) == [()]


@pytest.mark.parametrize("policy", ["halt", "pause-table"])
def test_a_full_identity_is_no_change_of_a_shape_and_another_key_under_it_is_one(db, reader, policy):
    db.execute("create table t(id int primary key, n int not null)")
    one = reader(schema_change_policy=policy).start()
    one.until(one.loaded)
    db.execute("insert into t values (1, 1)")
    one.catch_up(db)
    db.execute("alter table t replica identity full")
    db.execute("insert into t values (2, 1)")
    one.catch_up(db)
    one.kill()
    one.start()
    db.execute("insert into t values (3, 1)")
    one.catch_up(db)
    assert [change.after[0] for change in one.log] == [1, 2, 3]
    db.execute("alter table t drop constraint t_pkey; alter table t add primary key (id, n)")
    db.execute("insert into t values (3, 2)")
    with pytest.raises(Exception, match="columns or key have changed"):
        one.until(lambda: False)


@pytest.mark.parametrize(
    "later",
    [
        "alter table t drop column a; alter table t add column a int",
        "alter table t rename a to x; alter table t rename b to a; alter table t rename x to b",
    ],
)
def test_no_column_has_the_number_of_another_one(db, reader, later):
    db.execute("create table t(id int primary key, a int, b int, c int)")
    one = reader().start()
    one.until(one.loaded)
    one.kill()
    db.execute("insert into t values (1, 2, 3, 4)")
    db.execute(later)
    db.execute("insert into t(id, a, b, c) values (5, 6, 7, 8)")
    one.start()
    one.catch_up(db)
    wanted = {"id": 1, "a": 2, "b": 3, "c": 4}
    numbers = {column.name: column.column_id for column in one.log[0].table.columns}
    assert all(number in (0, wanted[name]) for name, number in numbers.items())
    assert numbers["id"] == 1
    now = db.execute(
        "select attname, attnum from pg_attribute where attrelid = 't'::regclass and attnum > 0"
    ).fetchall()
    assert {column.name: column.column_id for column in one.log[1].table.columns}.items() <= dict(now).items()


def test_a_composite_that_was_made_shorter_holds_its_table_and_one_that_has_grown_does_not(db, reader):
    db.execute("create type pair as (a int, b int); create table t(id int primary key, v pair)")
    db.execute("create type grown as (a int, b text); create table u(id int primary key, v grown)")
    one = reader(composite_handling_mode="record", table_failure_policy="quarantine").start()
    one.until(one.loaded)
    one.kill()
    db.execute("insert into t values (1, row(1, 2)); insert into u values (1, row(1, 'x'))")
    db.execute("alter type pair drop attribute a; alter type pair add attribute c int, add attribute d int")
    db.execute("alter type grown add attribute c int")
    one.start()
    found = one.trouble()
    assert (found.where["table"], found.kind) == ("public.t", "data")
    one.catch_up(db)
    assert [(c.table.path[1], c.after[1]) for c in one.log] == [("u", {"a": 1, "b": "x", "c": None})]


def test_attributes_that_are_others_are_named_so_once_a_look_has_seen_them(db, reader):
    db.execute("create type pair as (a int, b int); create type outer_one as (p pair[])")
    db.execute("create table t(id int primary key, v outer_one); create table u(id int primary key, v pair)")
    one = reader(composite_handling_mode="record", table_discovery_interval_ms="1").start()
    one.until(one.loaded)
    db.execute("insert into t values (1, row(array[row(1, 2)::pair])); insert into u values (1, row(1, 2))")
    one.catch_up(db)
    db.execute("insert into t values (2, row(array[row(3, 4)::pair])); insert into u values (2, row(3, 4))")
    db.execute("alter type pair drop attribute a; alter type pair add attribute c int")
    session = one.task._session
    # The rows of before are still to come.
    plans = map(session.decoder.plan, session.snapshot.progress.known())
    session.scope.composites.look(session.catalog, filter(None, plans))
    db.execute("insert into t values (3, row(array[row(5, 6)::pair])); insert into u values (3, row(5, 6))")
    one.catch_up(db)
    assert not session.scope.composites.until
    db.execute("alter type pair drop attribute b; alter type pair add attribute d int")
    one.until(lambda: len(session.scope.composites.until) == 2)
    db.execute("insert into t values (4, row(array[row(7, 8)::pair])); insert into u values (4, row(7, 8))")
    one.catch_up(db)
    wanted = [{"a": 1, "b": 2}, {"a": 3, "b": 4}, {"b": 5, "c": 6}, {"c": 7, "d": 8}]
    assert [change.after[1] for change in one.log if change.table.path[1] == "u"] == wanted
    assert [change.after[1]["p"] for change in one.log if change.table.path[1] == "t"] == [[value] for value in wanted]


def test_a_renamed_table_goes_on_in_the_topic_of_its_new_name(db, reader):
    db.execute("create table t(id int primary key)")
    db.execute("insert into t values (1)")
    one = reader().start()
    one.until(one.loaded)
    db.execute("insert into t values (2)")
    db.execute("alter table t rename to u")
    db.execute("insert into u values (3)")
    one.catch_up(db)
    assert [(c.op, c.table.path[1], c.after[0]) for c in one.log] == [("r", "t", 1), ("c", "t", 2), ("c", "u", 3)]
    assert set(materialise(one.log)) == {("public", "t"), ("public", "u")}
