"""Every kind of schema change under every policy, and under load with kills: one suite over each source database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cdcworker.connectors.api.source import HoldsTables
from cdcworker.schemas.change import Change
from cdcworker.schemas.encode import Encoder
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import SchemaLog, register_in_memory

from .polled_task import PolledTask
from .source_databases import SourceDatabase

KINDS = ("add", "widen", "narrow", "retype", "rename", "drop", "key")
ALONE = 11
"""The key of a row that is written in the transaction in which its table is changed."""


def place(change: Change) -> tuple[int, int]:
    return change.position.commit, change.position.event


def written(table: str) -> str:
    """A change of this table that every shape of it allows."""
    return f"insert into {table}(id, n) values (2, 2)"


def prepared(database: SourceDatabase, policy: str) -> PolledTask:
    """A table for each change, of which rows were handed on, and one that stays as it is."""
    tables = [f"t{number}" for number in range(len(KINDS))]
    database.run("create table good(id int primary key)")
    database.run(*(f"create table {table}(id int primary key, n int not null, v varchar(90))" for table in tables))
    one = database.task(schema_change_policy=policy, snapshot_mode="no_data").start()
    # The log is read from where the first start finds it.
    one.until(lambda: one.position)
    database.run(*(f"insert into {table} values (1, 1, 'a')" for table in tables))
    database.catch_up(one)
    return one


def each_holds_its_own_table_back(database: SourceDatabase) -> None:
    """And no row of another table is lost, also where the transaction that changed the table is about others as well."""
    one = prepared(database, "pause-table")
    for number, kind in enumerate(KINDS):
        table = f"t{number}"
        database.together(
            f"insert into good values ({10 * number})",
            f"insert into {table} values ({ALONE}, 1, 'a')",
            *database.altered(kind, table),
            written(table),
            f"insert into good values ({10 * number + 1})",
        )
        error = one.trouble()
        assert (error.code, error.where["table"]) == (f"{database.code}.schema_paused", database.name(table))
        for other in range(number + 1, len(KINDS)):
            database.run(f"insert into t{other} values ({100 + number}, 1, 'a')")
        database.catch_up(one)
    tables = [f"t{number}" for number in range(len(KINDS))]
    assert one.held() == {database.name(table): f"{database.code}.schema_paused" for table in tables}
    assert database.ids(one, "good") == sorted(n + m for n in range(0, 10 * len(KINDS), 10) for m in (0, 1))
    for number, table in enumerate(tables):
        # Where a statement that alters a table ends the transaction, what stands before it may have been handed on.
        apart = {ALONE} if database.alters_commit else set()
        assert set(database.ids(one, table)) - apart == {1, *range(100, 100 + number)}
        shapes = {change.table for change in database.of(one, table)}
        assert [[column.name for column in shape.columns] for shape in shapes] == [["id", "n", "v"]]
    one.kill()


def each_halts_until_the_policy_lets_it(database: SourceDatabase) -> None:
    """A restart changes nothing about it; under a policy that allows it the task goes on from there."""
    one = prepared(database, "halt")
    for number, kind in enumerate(KINDS):
        table = f"t{number}"
        database.run(f"insert into good values ({number})", *database.altered(kind, table), written(table))
        for _ in range(2):
            with pytest.raises(CdcError) as caught:
                database.catch_up(one)
            code, name = f"{database.code}.schema_changed", database.name(table)
            assert (caught.value.code, caught.value.where["table"]) == (code, name)
            one.again()
        _go_on(database, one, "evolve")
        last = one.log[-1]
        assert (last.table.path, (last.after or ())[0]) == (database.path(table), 2)
        one.kill()
        one.config["schema.change.policy"] = "halt"
        one.start()
        # A shape is known from the first row on that was seen under the policy.
        database.run(*(f"update t{other} set n = n + 1 where id = 1" for other in range(number + 1, len(KINDS))))
        database.catch_up(one)
    assert database.ids(one, "good") == list(range(len(KINDS)))
    assert [change.op for change in one.log].count("c") == 3 * len(KINDS)
    one.kill()


def _go_on(database: SourceDatabase, one: PolledTask, policy: str) -> None:
    one.kill()
    one.config["schema.change.policy"] = policy
    one.start()
    database.catch_up(one)


def each_is_followed(database: SourceDatabase, *, inside: bool) -> None:
    """With the right rows on both sides. `inside`: in the middle of a transaction."""
    tables = [f"t{number}" for number in range(len(KINDS))]
    database.run(*(f"create table {table}(id int primary key, n int not null, v varchar(90))" for table in tables))
    one = database.task().start()
    one.until(one.loaded)
    for kind, table in zip(KINDS, tables, strict=True):
        statements = [f"insert into {table} values (1, 1, 'a')", *database.altered(kind, table), written(table)]
        (database.together if inside else database.run)(*statements)
    database.catch_up(one)
    prefix, log = one.config["topic.prefix"], SchemaLog()
    Encoder(prefix, register_in_memory(log)).encode([change for change in one.log if change.op != "m"])
    for kind, table in zip(KINDS, tables, strict=True):
        before, after = database.of(one, table)
        assert (before.after or ())[:3] == (1, 1, "a")
        assert (after.after or ())[0] == 2
        assert [column.name for column in before.table.columns] == ["id", "n", "v"]
        subject = f"{prefix}.{database.name(table)}-{'key' if kind == 'key' else 'value'}"
        first, *_, last = log.versions(subject)
        assert last.change == (kind if kind != "rename" or database.knows_renames else "drop")
        assert [version.effective for version in (first, last)] == [place(before), place(after)]
        assert [log.in_force(subject, *place(change)) for change in (before, after)] == [first, last]
    columns = {change.table.path[1]: change.table.columns for change in one.log}
    assert [column.name for column in columns["t0"]] == ["id", "n", "v", "extra"]
    assert [column.name for column in columns["t4"]] == ["id", "n", "w"]
    assert [column.name for column in columns["t5"]] == ["id", "n"]
    assert [columns[f"t{i}"][1].type for i in (1, 3)] == ["long", "string"]
    assert one.log[-1].table.key == (0, 1)
    one.kill()


def one_that_is_not_allowed_stops(database: SourceDatabase, policy: str) -> None:
    """Also a change that is made while nobody looks: it stops its table or the task."""
    database.run("create table t(id int primary key, v varchar(90))", "create table good(id int primary key)")
    one = database.task(schema_change_policy=policy).start()
    one.until(one.loaded)
    database.run("insert into t values (1, 'a')")
    database.catch_up(one)
    one.kill()
    database.run("alter table t add column n int", "insert into t values (2, 'b', 2)", "insert into good values (1)")
    one.start()
    if policy == "halt":
        with pytest.raises(CdcError) as caught:
            database.catch_up(one)
        assert caught.value.code == f"{database.code}.schema_changed"
        assert isinstance(one.task, HoldsTables)
        assert not one.task.holds(caught.value)
        one.kill()
        return
    paused = f"{database.code}.schema_paused"
    assert one.trouble().code == paused
    database.catch_up(one)
    held, t, good = one.held(), database.ids(one, "t"), database.ids(one, "good")
    assert (held, t, good) == ({database.name("t"): paused}, [1], [1])
    one.kill()
    one.config["heartbeat.interval.ms"] = "9000"
    one.start()
    database.run("insert into t values (3, 'c', 3)")
    database.catch_up(one)
    assert (one.held(), database.ids(one, "t")) == ({}, [1, 2, 3])
    database.run("alter table t drop column n", "insert into t values (4, 'd')")
    assert one.trouble().code == paused
    one.kill()


@contextmanager
def _rows_written(database: SourceDatabase) -> Iterator[None]:
    stop = threading.Event()

    def write() -> None:
        session, number = database.session(), 0
        while not stop.is_set():
            number += 1
            session.patient(f"insert into t(id) values ({number})")
        session.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def under_load_with_kills(database: SourceDatabase) -> None:
    """Every row is there in the shape of its time."""
    database.run("create table t(id int primary key, n bigint default 0)")
    one = database.task().start()
    one.until(one.loaded)
    with _rows_written(database):
        for number in range(8):
            seen = len(one.log)
            database.run(f"alter table t add column c{number} int default {number}")
            one.until(lambda seen=seen: len(one.log) > seen + 20)
            if number % 3 == 2:
                one.again()
            if number % 2:
                database.run(f"alter table t drop column c{number - 1}")
    database.catch_up(one)
    one.kill()
    assert database.ids(one, "t") == sorted(row[0] for row in database.rows("select id from t"))
    for change in one.log:
        values = zip(change.table.columns, change.after or (), strict=True)
        assert all(value == int(column.name[1:]) for column, value in values if column.name.startswith("c"))
    assert len({change.table for change in one.log}) >= 8
