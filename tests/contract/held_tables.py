"""Tables that cannot be read are held back while the others go on, and come back whole: one suite over each source database."""

from __future__ import annotations

import itertools

import pytest
from cdcworker.connectors.api.source import HoldsTables
from cdcworker.schemas.errors import CdcError

from .polled_task import PolledTask, asked
from .source_databases import SourceDatabase, values_of

ROWS = 2000
SMALL = {"snapshot_max_threads": "2", "snapshot_chunk_max_bytes": "20000", "table_discovery_interval_ms": "50"}


def rows_read(database: SourceDatabase, one: PolledTask, table: str) -> int:
    return sum(change.op == "r" for change in database.of(one, table))


def a_large_table_without_a_key_is_held_back(database: SourceDatabase) -> None:
    """A request for it fails, and all others are loaded."""
    database.run("create table large(id int)", "create table small(id int)", "create table keyed(id int primary key)")
    for name, rows in (("large", 5000), ("small", 100), ("keyed", 5000)):
        database.run(f"insert into {name} values {values_of([(number,) for number in range(rows)])}")
    database.count_anew("large", "small", "keyed")
    one = database.task(snapshot_keyless_max_bytes="65536").start()
    error = one.trouble()
    assert (error.code, error.where["table"]) == (f"{database.code}.keyless_too_large", database.name("large"))
    one.until(one.loaded)
    assert [rows_read(database, one, name) for name in ("large", "small", "keyed")] == [0, 100, 5000]
    database.run(f"insert into small values {values_of([(number,) for number in range(5000)])}")
    database.count_anew("small")
    one.jobs = (asked("grown", tables=[database.name("small")]),)
    one.until(lambda: one.outcome("grown"))
    assert (one.outcome("grown") or {})["error"]["code"] == f"{database.code}.keyless_too_large"
    one.kill()


def tables_that_may_not_be_read_are_held_back(database: SourceDatabase) -> None:
    """Each is read in another way: in one range, divided, as a whole. They come back with the right to read them."""
    code = f"{database.code}.table_closed"
    database.run("create table good(id int primary key)")
    one = database.reader_of(["good"], **SMALL).start()
    database.catch_up(one)
    tables = {"plain": "id int primary key", "large": "id int primary key, v varchar(200)", "bare": "id int"}
    for name, columns in tables.items():
        rows = values_of([(number,) for number in range(1, ROWS + 1)])
        database.run(f"create table {name}({columns})", f"insert into {name}(id) values {rows}")
        database.show(one, name)
        error = one.trouble()
        assert (error.code, error.where["table"]) == (code, database.name(name))
    database.run("insert into good values (1)", f"insert into plain values ({ROWS + 1})")
    database.catch_up(one)
    held, good = one.held(), database.ids(one, "good")
    assert (held, good) == ({database.name(name): code for name in tables}, [1])
    database.open(one, *tables)
    one.jobs = ({"id": "again", "kind": "snapshot", "wanted": "RUNNING", "spec": {"tables": [database.name(".*")]}},)
    more = itertools.count(2)
    with pytest.raises(CdcError) as caught:
        # Also while there is always something to read.
        one.until(lambda: database.run(f"insert into good values ({next(more)})"))
    assert caught.value.code == f"{database.code}.table_returns"
    one.again()
    one.until(lambda: one.loaded() and sum(rows_read(database, one, name) for name in tables) >= 3 * ROWS)
    assert (one.held(), len(database.ids(one, "plain")), len(database.ids(one, "large"))) == ({}, ROWS + 1, ROWS)
    one.kill()


def with_the_policy_halt_none_is(database: SourceDatabase) -> None:
    database.run("create table good(id int primary key)")
    one = database.reader_of(["good"], **SMALL, table_failure_policy="halt").start()
    database.catch_up(one)
    database.run("create table plain(id int primary key)", "insert into plain values (1)")
    database.show(one, "plain")
    with pytest.raises(CdcError) as caught:
        one.until(lambda: False)
    assert caught.value.code == f"{database.code}.table_closed"
    assert isinstance(one.task, HoldsTables)
    assert not one.task.holds(caught.value)
    one.kill()
