"""A standby takes over: the slot has followed it, and nothing is lost or doubled; and transactions in two phases."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import psycopg
import pytest
from cdcworker.connectors.capture.snapshot.chunks import RequiredVisibility
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.postgres.doctor import risks as doctor_risk
from cdcworker.connectors.postgres.doctor import slots as doctor_slots
from cdcworker.connectors.postgres.doctor.compared_source import PostgresSourceSide
from cdcworker.connectors.postgres.doctor.examined_server import ExaminedServer
from cdcworker.connectors.postgres.errors import translate
from cdcworker.connectors.postgres.server import slot
from cdcworker.connectors.postgres.snapshot import chunk_reader as chunks
from cdcworker.connectors.postgres.source import lag_monitor as monitor
from cdcworker.connectors.postgres.transport.server_functions import END_OF_LOG
from cdcworker.schemas.errors import CdcError

from tests.contract.polled_task import materialise

from ..postgres_reader import Reader, in_time, lsn, refused
from ..standbys import STANDBY_SLOT, copy, follow

pytestmark = pytest.mark.postgres

FAILOVER_S_MAX = 10.0
"""From the promotion to the first change on the new primary."""


def wait(condition, what: str) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.long
def test_after_a_failover_the_stream_goes_on_where_it_was(primary, standby, monkeypatch):
    monkeypatch.setattr(monitor, "MONITOR_S", 0.5)
    name = primary.create_database()
    with psycopg.connect(primary.dsn(name), autocommit=True) as db:
        if db.info.server_version < 170000:
            pytest.skip("failover slots came with PostgreSQL 17")
        follow(primary, standby, db, waits=True)
        db.execute("create table t(id int primary key, v text); insert into t values (0, 'row')")
        one = Reader(primary, name, **{"heartbeat.interval.ms": "200"})
        one.config["database.hostname"] = "127.0.0.1,127.0.0.1"
        one.config["database.port"] = f"{primary.port},{standby.port}"
        one.start()
        one.until(one.loaded)
        ids = iter(range(1, 100_000))
        state = "select synced and not temporary and invalidation_reason is null from pg_replication_slots"
        with psycopg.connect(standby.dsn(), autocommit=True) as other:

            def ready() -> bool:
                # A slot that does not move is not kept.
                db.execute("insert into t values (%s, 'before')", (next(ids),))
                one.poll()
                row = other.execute(f"{state} where slot_name = %s", (one.config["slot.name"],)).fetchone()
                return bool(row and row[0])

            wait(ready, "the slot is on the standby")
            one.until(lambda: one.reports[-1]["slot_failover_ready"] == 1)
            one.catch_up(db)
            read = len(one.log)
            db.execute("insert into t select g, 'unread' from generate_series(200001, 200100) g")
            end = lsn(db.execute("select pg_current_wal_lsn()::text").fetchone()[0])
            seen = "select pg_last_wal_receive_lsn()::text"
            wait(lambda: lsn(other.execute(seen).fetchone()[0]) >= end, "the standby has it all")
        assert len(one.log) == read
    primary.kill()
    with pytest.raises(CdcError) as caught:
        one.poll_often()
    assert caught.value.retriable
    one.kill()
    with psycopg.connect(standby.dsn(name), autocommit=True) as db:
        db.execute("select pg_promote(true, 60)")
        began = time.monotonic()
        one.start()
        db.execute("insert into t values (300000, 'after')")
        one.until(lambda: bool(one.log) and one.log[-1].after == (300000, "after"))
        took = time.monotonic() - began
        print(f"went on {took:.1f} s after the promotion")
        assert took <= FAILOVER_S_MAX
        assert one.position["timeline"] == 2
        told = [change.after[0] for change in one.log]
        assert sorted(told) == sorted(row[0] for row in db.execute("select id from t").fetchall())
        assert len(told) == len(set(told))
        one.kill()
        # What the old primary had handed on beyond the point where the standby took over is in no log any more.
        ahead = {**one.position, "timeline": 1, "safe_lsn": one.position["safe_lsn"] + (1 << 30)}
        one.position, last = ahead, one.position
        error = refused(one)
        assert (error.code, error.retriable) == ("postgres.diverged", False)
        one.position = last


@pytest.mark.long
def test_a_failover_before_the_slot_has_come_to_the_standby_halts_and_makes_no_slot(primary, standby):
    """As every failover before PostgreSQL 17."""
    name = primary.create_database()
    # It would be there in a moment, and this is about the moment before.
    del standby.settings["sync_replication_slots"]
    with psycopg.connect(primary.dsn(name), autocommit=True) as db:
        follow(primary, standby, db, waits=False)
        db.execute("create table t(id int primary key, v text); insert into t values (0, 'row')")
        one = Reader(primary, name)
        one.config["database.hostname"] = "127.0.0.1,127.0.0.1"
        one.config["database.port"] = f"{primary.port},{standby.port}"
        one.start()
        one.until(one.loaded)
        end = lsn(db.execute("select pg_current_wal_lsn()::text").fetchone()[0])
        with psycopg.connect(standby.dsn(), autocommit=True) as other:
            seen = "select pg_last_wal_receive_lsn()::text"
            wait(lambda: lsn(other.execute(seen).fetchone()[0]) >= end, "the standby has it all")
    primary.kill()
    one.kill()
    with psycopg.connect(standby.dsn(name), autocommit=True) as db:
        db.execute("select pg_promote(true, 60)")
        db.execute("insert into t values (1, 'in no slot')")
        with in_time():
            for _ in range(2):
                error = refused(one)
                assert (error.code, error.retriable) == ("postgres.slot_missing", False)
        slots = "select 1 from pg_replication_slots where slot_name = %s"
        assert db.execute(slots, (one.config["slot.name"],)).fetchall() == []


@contextmanager
def logged(primary):
    """The primary says again and again which transactions run: an idle one does not."""
    enough = threading.Event()

    def log() -> None:
        with psycopg.connect(primary.dsn(), autocommit=True) as db:
            while not enough.wait(0.1):
                db.execute("select pg_log_standby_snapshot()")

    thread = threading.Thread(target=log)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def test_a_slot_on_a_standby_is_read_there_and_after_its_promotion(primary, standby):
    name = primary.create_database()
    # Its own slot, not the primary's.
    del standby.settings["sync_replication_slots"]
    with psycopg.connect(primary.dsn(name), autocommit=True) as db:
        if db.info.server_version < 160000:
            pytest.skip("standbys decode their log since PostgreSQL 16")
        db.execute("select pg_create_physical_replication_slot(%s, true)", (STANDBY_SLOT,))
        db.execute(
            "create table t(id int primary key, v text); insert into t select g, 'row' from generate_series(1, 500) g"
        )
        copy(primary, standby)
        standby.start()
        one = Reader(standby, name, **{"publication.name": "p", "heartbeat.interval.ms": "200"})
        error = refused(one)
        assert (error.code, error.retriable) == ("postgres.standby", True)
        assert "slot.on.standby=true" in error.hint
        one.config |= {"slot.on.standby": "true", "slot.creation.timeout.ms": "1000"}
        assert refused(one).code == "postgres.publication", "it has to be made on the primary"
        db.execute("create publication p for table t")
        with psycopg.connect(primary.dsn(name)) as holder:
            holder.execute("insert into t values (1000, 'open')")
            wait(lambda: published(standby, name), "the publication is there")
            # As on a primary that nobody writes to: no start of a slot is in the log.
            error = refused(one)
            assert (error.code, error.retriable) == ("postgres.slot_creation_blocked", True)
            assert "pg_log_standby_snapshot()" in error.hint
        one.config["slot.creation.timeout.ms"] = "60000"
        with logged(primary):
            one.start()
        one.until(one.loaded)
        assert len(one.events("r")) + len(one.events("c")) >= 501
        rows_do_not_hide_who_runs(primary, standby, name, parse(one.config))
        a_standby_can_be_examined(standby, name, one.config)
        db.execute(
            "update t set v = 'changed' where id <= 10; delete from t where id = 11; insert into t values (2000, 'new')"
        )
        one.catch_up(db)
        one.kill()
        db.execute("insert into t values (2001, 'new')")
        one.start()
        one.catch_up(db)
        expected = dict(db.execute("select id, v from t").fetchall())
        assert {key[0]: row["v"] for key, row in materialise(one.log)["public", "t"].items()} == expected
        one.kill()
    primary.kill()
    with psycopg.connect(standby.dsn(name), autocommit=True) as db:
        db.execute("select pg_promote(true, 60)")
        db.execute("insert into t values (3000, 'after')")
        one.start()
        one.until(lambda: one.log[-1].after == (3000, "after"))
        assert one.position["timeline"] == 2
        one.kill()


def rows_do_not_hide_who_runs(primary, standby, name: str, settings) -> None:
    """Rows are read on the standby while a transaction runs that began before the last one that has ended."""
    current = "select pg_current_xact_id()::text::bigint"
    with (
        psycopg.connect(primary.dsn(name)) as older,
        psycopg.connect(primary.dsn(name)) as newer,
        psycopg.connect(primary.dsn(name)) as last,
        psycopg.connect(standby.dsn(name), autocommit=True) as db,
    ):
        older.execute("update t set v = 'older' where id = 20")
        newer.execute("insert into t values (4000, 'newer')")
        last.execute("insert into t values (4001, 'last')")
        xids = [one.execute(current).fetchone()[0] for one in (older, newer, last)]
        newer.commit()
        wait(lambda: db.execute("select 1 from t where id = 4000").fetchall(), "the newer one is on the standby")
        (oid,) = db.execute("select 't'::regclass::oid").fetchone()
        reader = chunks.ChunkReader(db, settings)
        chunk = reader.chunk(chunks.ChunkRequest(oid, RequiredVisibility(before=(xids[1],))))
        assert not chunk.view.snap.exact
        assert not chunk.view.snap.sees(xids[0])
        assert not chunk.view.snap.sees(xids[2])
        with pytest.raises(chunks.NotVisibleYet):
            reader.chunk(chunks.ChunkRequest(oid, RequiredVisibility(floor=xids[0])))
        # Also of those that began after it, once the standby has heard of them.
        wait(lambda: slot.mark(db, settings, "c")[1] >= xids[2], "the barrier is behind all that run")
        for one in (older, last):
            one.commit()
    with psycopg.connect(standby.dsn(name), autocommit=True) as db:
        reader = chunks.ChunkReader(db, settings)
        wait(lambda: is_visible(reader, chunks.ChunkRequest(oid, RequiredVisibility(floor=xids[2]))), "all have ended")


def a_standby_can_be_examined(standby, name: str, config: dict) -> None:
    examined = ExaminedServer(parse(config))
    try:
        for check in (*doctor_slots.CHECKS, *doctor_risk.CHECKS):
            list(check.run(examined))
        (feedback,) = [check for check in doctor_slots.CHECKS if check.name == "decoding.feedback"]
        assert [result.status for result in feedback.run(examined)] == ["ok"]
        told = examined.server
        for setting, lacks in (("hot_standby_feedback", "off"), ("primary_slot_name", "")):
            examined.__dict__["server"] = {**told, setting: lacks}
            (result,) = feedback.run(examined)
            assert (result.status, setting in str(result.fix)) == ("warning", True)
    finally:
        examined.close()
    source = PostgresSourceSide(psycopg.connect(standby.dsn(name), autocommit=True), translate, END_OF_LOG)
    try:
        assert source.begin() > 0
    finally:
        source.close()


def is_visible(reader, want) -> bool:
    try:
        return reader.chunk(want).view.snap.sees(want.must_see.floor)
    except chunks.NotVisibleYet:
        return False


def published(server, name: str) -> bool:
    with psycopg.connect(server.dsn(name)) as db:
        return bool(db.execute("select 1 from pg_publication").fetchall())


def test_a_prepared_transaction_is_handed_on_when_it_commits(primary):
    name = primary.create_database()
    with psycopg.connect(primary.dsn(name), autocommit=True) as db:
        db.execute(f"alter database {name} set logical_decoding_work_mem = '64kB'")
        db.execute("create table t(id int primary key, v text)")
        one = Reader(primary, name, snapshot_mode="no_data").start()
        for number, size in ((1, 3), (2, 3000), (3, 3000)):
            db.execute("begin")
            db.execute(
                "insert into t select g, 'kept' from generate_series(%s::int, %s::int) g",
                (number * 10_000, number * 10_000 + size - 1),
            )
            db.execute("savepoint s; insert into t values (1, 'lost'); rollback to savepoint s")
            db.execute(f"prepare transaction 'p{number}'")
        db.execute("insert into t values (5, 'between')")
        one.until(lambda: len(one.log) == 1)
        # Prepared is not committed: also a restart meanwhile brings nothing of it.
        one.kill()
        one.start()
        one.catch_up(db)
        assert [change.after for change in one.log] == [(5, "between")]
        db.execute("commit prepared 'p2'")
        db.execute("commit prepared 'p1'")
        db.execute("rollback prepared 'p3'")
        one.catch_up(db)
        one.kill()
    assert [change.after[0] for change in one.log] == [5, *range(20_000, 23_000), *range(10_000, 10_003)]
    assert [change.position.event for change in one.log] == [0, *range(3000), *range(3)]
