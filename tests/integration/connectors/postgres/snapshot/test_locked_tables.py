"""A table that somebody has locked keeps nothing waiting but itself: no start, no stream, and no rows of the others."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import psycopg
import pytest
from cdcworker.connectors.capture.snapshot import chunk_scheduler as loading
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.postgres.doctor.live_checks import check

from tests.contract.polled_task import asked, materialise

from ..postgres_reader import Reader, refused
from .test_snapshots import ended, reported

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(60), pytest.mark.sampled(2, "locks")]

QUICKLY = {"snapshot.lock.timeout.ms": "50"}
PUBLICATIONS = {
    "tables": "for table locked, free, tree",
    "all tables": "for all tables",
    "schema": "for tables in schema public",
    "filtered rows": "for table locked where (id > 0), free, tree",
}


@pytest.fixture
def holder(postgres, database):
    """Locks what it is told until it rolls back; `pid` names it."""
    with psycopg.connect(postgres.dsn(database)) as connection:
        yield connection


def made(db) -> None:
    db.execute("create table locked(id int primary key, v text default 'plain', n int default 1 + 1)")
    db.execute("create table free(id int primary key, v text default 'plain')")
    db.execute("create table tree(id int primary key) partition by range (id)")
    db.execute("create table leaf partition of tree for values from (0) to (100)")
    for name in ("locked", "free", "tree"):
        db.execute(f"insert into {name} values (1), (2)")


def rows(one: Reader, name: str) -> list[tuple]:
    return [change.after for change in one.log if change.table.path[1] == name]


def waits(one: Reader) -> str:
    return next((str(report["snapshot_waits_for"]) for report in reversed(one.reports)), "")


def told(one: Reader) -> list[str]:
    """Of the tables of the load `itself`, what they wait for."""
    return [str(table["waits_for"]).split(" (")[0] for table in reported(one, "itself").get("tables", ())]


@pytest.mark.parametrize("root", ["true", "false"], ids=["by root", "by partition"])
@pytest.mark.parametrize("kind", PUBLICATIONS)
def test_a_start_waits_for_no_table_that_was_locked_before_it(db, holder, reader, kind, root):
    if kind in ("schema", "filtered rows") and db.info.server_version < 150000:
        pytest.skip("missing part of this server: publications of schemas, row filters")
    made(db)
    one = reader(**QUICKLY, publish_via_partition_root=root, publication_autocreate_mode="disabled", owner=True)
    db.execute(f"create publication dbz_publication {PUBLICATIONS[kind]} with (publish_via_partition_root = {root})")
    one.start()
    one.until(one.loaded)
    one.kill()
    db.execute("insert into locked values (3); insert into free values (3)")
    holder.execute("lock table locked, leaf in access exclusive mode")
    one.start()
    # What was written before the lock is in the log, and its description with it.
    one.until(lambda: len(rows(one, "locked")) == len(rows(one, "free")) == 3)
    one.jobs = (
        asked("others", tables=["public.free"]),
        asked("itself", tables=["public.locked", "public.(tree|leaf)"]),
    )
    db.execute("insert into free values (4)")
    one.until(lambda: ended(one, "others"))
    assert sorted(row[0] for row in rows(one, "free")) == [1, 1, 2, 2, 3, 3, 4, 4]
    one.until(lambda: told(one) == [f"a lock on the table: backend {holder.info.backend_pid}"] * 2)
    assert not ended(one, "itself")
    holder.rollback()
    one.until(lambda: ended(one, "itself"))
    one.catch_up(db)
    found = materialise(one.log)
    assert {name: len(keys) for (_, name), keys in found.items()} == {
        "locked": 3, "free": 4, "tree" if root == "true" else "leaf": 2
    }  # fmt: skip
    # Once at the first start, as a change, and once as it was asked for.
    assert sorted(row[0] for row in rows(one, "locked")) == [1, 1, 2, 2, 3, 3]


@contextmanager
def vacuuming(dsn: str, table: str):
    """Amid VACUUM FULL of the table, whose index waits for us; gives its backend."""
    with psycopg.connect(dsn, autocommit=True) as db, psycopg.connect(dsn, autocommit=True) as other:
        db.execute(
            "create or replace function slowly(int) returns int immutable language plpgsql as"
            " 'begin perform pg_advisory_xact_lock_shared(77); return $1; end'"
        )
        db.execute(f"create index on {table} (slowly(id))")
        db.execute("select pg_advisory_lock(77)")
        thread = threading.Thread(target=lambda: other.execute(f"vacuum full {table}"))
        thread.start()
        try:
            deadline, pid = time.monotonic() + 20, None
            while pid is None:
                assert time.monotonic() < deadline
                pid = db.execute(
                    "select max(pid) from pg_locks where locktype = 'advisory' and not granted"
                ).fetchone()[0]
            yield pid
        finally:
            db.execute("select pg_advisory_unlock(77)")
            thread.join(20)
        assert not thread.is_alive()


def test_amid_a_vacuum_full_all_others_are_streamed_and_read_also_those_that_come_new(postgres, database, db, reader):
    made(db)
    one = reader(**QUICKLY, owner=True, table_discovery_interval_ms="200").start()
    one.until(one.loaded)
    with vacuuming(postgres.dsn(database), "locked") as pid:
        one.kill()
        db.execute("create table late(id int primary key); insert into late values (7)")
        one.start()
        db.execute("insert into free values (3)")
        one.until(lambda: len(rows(one, "free")) == 3 and rows(one, "late") == [(7,)])
        one.jobs = (asked("others", tables=["public.free"]), asked("itself", tables=["public.locked"]))
        one.until(lambda: ended(one, "others"))
        one.until(lambda: f"backend {pid} (public.locked)" in waits(one))
        assert not ended(one, "itself")
    one.until(lambda: ended(one, "itself"))
    assert [row[0] for row in rows(one, "locked")] == [1, 2, 1, 2]


def test_a_publication_that_cannot_be_altered_for_a_lock_is_altered_later(db, holder, reader, caplog):
    made(db)
    one = reader(**QUICKLY, owner=True, table_discovery_interval_ms="200").start()
    one.until(one.loaded)
    one.kill()
    db.execute("create table late(id int primary key); insert into late values (7)")
    holder.execute("lock table late in share update exclusive mode")
    one.start()
    db.execute("insert into free values (3)")
    one.until(lambda: len(rows(one, "free")) == 3)
    assert f"the publication waits for a lock of backend {holder.info.backend_pid} (public.late)" in caplog.text
    assert not rows(one, "late")
    holder.rollback()
    one.until(lambda: bool(rows(one, "late")))
    db.execute("insert into late values (8)")
    one.catch_up(db)
    assert rows(one, "late") == [(7,), (8,)]


def test_a_publication_that_cannot_be_made_for_a_lock_names_who_holds_it(db, holder, reader):
    made(db)
    one = reader(owner=True)
    holder.execute("lock table locked in share mode")
    error = refused(one)
    assert (error.code, error.retriable) == ("postgres.table_locked", True)
    assert f"backend {holder.info.backend_pid} (public.locked)" in error.message
    holder.rollback()
    one.start()
    one.until(one.loaded)


def test_a_column_that_comes_while_the_lock_is_waited_for_is_read(db, holder, reader, monkeypatch):
    db.execute("create table t(id int primary key); insert into t values (1)")
    one = reader(owner=True, **{"snapshot.lock.timeout.ms": "20000"}).start()
    monkeypatch.setattr(
        loading, "hit", lambda name: holder.execute("alter table t add column if not exists v int default 7")
    )
    waiting = "select 1 from pg_locks where not granted and relation = 't'::regclass"
    one.until(lambda: db.execute(waiting).fetchone() is not None)
    monkeypatch.undo()
    holder.commit()
    one.until(one.loaded)
    assert materialise(one.log)["public", "t"] == {(1,): {"id": 1, "v": 7}}


def test_a_table_without_a_key_that_is_locked_does_not_stop_the_stream(db, holder, reader):
    db.execute("create table bare(v int); insert into bare values (1); create table free(id int primary key)")
    one = reader(**{"snapshot.lock.timeout.ms": "60000"}, owner=True).start()
    holder.execute("lock table bare in access exclusive mode")
    one.until(lambda: f"backend {holder.info.backend_pid} (public.bare)" in waits(one))
    db.execute("insert into free values (1)")
    one.until(lambda: rows(one, "free") == [(1,)])
    holder.rollback()
    one.until(one.loaded)
    assert rows(one, "bare") == [(1,)]


def test_a_configuration_is_examined_while_a_table_is_locked(db, holder, reader):
    made(db)
    one = reader(owner=True).start()
    one.until(one.loaded)
    before = list(check(parse(one.config)))
    holder.execute("lock table locked, leaf in access exclusive mode")
    assert list(check(parse(one.config))) == before
