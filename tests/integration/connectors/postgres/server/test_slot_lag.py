"""How far a source is behind its server: while nothing is written, and beside what it has confirmed."""

from __future__ import annotations

import time

import psycopg
import pytest

from ..postgres_reader import Reader, lsn

pytestmark = pytest.mark.postgres


@pytest.fixture(params=["200", "0"])
def one(primary, request):
    """A source with heartbeats and without, on a server of its own, to which nobody else writes."""
    name = primary.create_database()
    with psycopg.connect(primary.dsn(name), autocommit=True) as db:
        db.execute("create table t(id int primary key, v text); insert into t values (0, 'row')")
        one = Reader(primary, name, **{"heartbeat.interval.ms": request.param}).start()
        one.until(one.loaded)
        one.catch_up(db)
        yield one, db
        one.kill()


def test_a_source_to_whose_server_nobody_writes_says_that_it_has_everything(one):
    one, db = one
    wanted_ms, told_ms = int(time.time() * 1000) + 3_000, 0
    deadline = time.monotonic() + 60
    while told_ms < wanted_ms:
        assert time.monotonic() < deadline
        told_ms = (one.poll().watermark or {}).get("ts_ms", told_ms)
    assert db.execute("select count(*) from t").fetchone() == (1,)


def test_the_lag_is_measured_against_the_end_of_the_log_as_it_is_now(one):
    one, db = one
    db.execute("insert into t select g, repeat('x', 1000) from generate_series(1, 5000) g")
    end = lsn(db.execute("select pg_current_wal_lsn()::text").fetchone()[0])
    before = one.position["safe_lsn"]
    told = len(one.reports)
    deadline = time.monotonic() + 60
    while len(one.reports) == told:
        assert time.monotonic() < deadline
        one.poll(commit=False)
    assert one.reports[-1]["lag_bytes"] >= end - before - 65_536, "what waits is not confirmed"
