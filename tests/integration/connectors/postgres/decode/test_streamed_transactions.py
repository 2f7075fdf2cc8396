"""Transactions that the server sends ahead of their end: the same changes as without, whatever ends them and when."""

from __future__ import annotations

import random
from pathlib import Path

import psycopg
import pytest

from tests.contract.polled_task import materialise

from ..postgres_reader import Reader

pytestmark = pytest.mark.postgres


@pytest.fixture
def database(postgres):
    """A database whose transactions are large very soon."""
    name = postgres.create_database()
    with psycopg.connect(postgres.dsn(name), autocommit=True) as connection:
        connection.execute(f"alter database {name} set logical_decoding_work_mem = '64kB'")
    yield name
    postgres.drop_database(name)


@pytest.fixture
def reader(postgres, database, tmp_path):
    made: list[Reader] = []

    def make(**config: str) -> Reader:
        made.append(Reader(postgres, database, **config))
        made[-1].state_dir = str(tmp_path)
        return made[-1]

    yield make
    for one in made:
        if one.task:
            one.task.close()


def streamed(db, slot: str) -> int:
    """Transactions that the server has sent ahead."""
    row = db.execute("select stream_txns from pg_stat_replication_slots where slot_name = %s", (slot,)).fetchone()
    return row[0] if row else 0


def told(changes) -> list[tuple]:
    """Everything that a consumer sees of a change, the commit before it aside."""
    return [
        (c.op, c.position, c.before, c.after, c.unchanged, c.table, {**c.source, "sequence": None}) for c in changes
    ]


class Session:
    """A writer with a transaction of its own, which takes random steps."""

    def __init__(self, dsn: str, rng: random.Random, ids: range) -> None:
        self._connection = psycopg.connect(dsn)
        self._rng = rng
        self._ids = ids
        self._depth = 0

    def step(self) -> None:
        execute, rng = self._connection.execute, self._rng
        kind = rng.random()
        if kind < 0.25:
            low = rng.choice(self._ids)
            execute(
                "insert into t select g, repeat('x', 50) || g, null from generate_series(%s::int, %s::int) g"
                " on conflict (id) do update set v = excluded.v || 'again'",
                (low, min(low + rng.randrange(500), self._ids[-1])),
            )
        elif kind < 0.4:
            execute("update t set v = v || '.' where id between %s and %s", self._some())
        elif kind < 0.5:
            execute("delete from t where id between %s and %s", self._some())
        elif kind < 0.6:
            execute("update t set big = repeat('y', 9000) where id between %s and %s", self._some(3))
        elif kind < 0.75:
            self._depth += 1
            execute(f"savepoint s{self._depth}")
        elif kind < 0.85 and self._depth:
            back = rng.randrange(1, self._depth + 1)
            execute(f"rollback to savepoint s{back}")
            self._depth = back
        elif kind < 0.9:
            # No transactional ones: beside a rolled-back savepoint they are read again, which has a test of its own.
            execute("select pg_logical_emit_message(false, 'note', %s)", (str(rng.random()),))
        else:
            self._depth = 0
            if rng.random() < 0.25:
                self._connection.rollback()
            else:
                self._connection.commit()

    def _some(self, most: int = 300) -> tuple[int, int]:
        low = self._rng.choice(self._ids)
        return low, min(low + self._rng.randrange(most), self._ids[-1])

    def end(self) -> None:
        self._connection.commit()
        self._connection.close()


def test_open_transactions_that_are_sent_ahead_give_the_same_changes(postgres, database, db, reader):
    rng = random.Random(4)
    db.execute(
        "create table t(id int primary key, v text, big text); alter table t alter column big set storage external"
    )
    ahead = reader(slot_name=f"a_{database}", snapshot_mode="no_data").start()
    behind = reader(slot_name=f"b_{database}", snapshot_mode="no_data", transaction_streaming="false").start()
    writers = [Session(postgres.dsn(database), rng, range(n * 5000, (n + 1) * 5000)) for n in range(3)]
    for number in range(250):
        rng.choice(writers).step()
        if number % 3 == 0:
            ahead.poll(parts=rng.random() < 0.5)
        if number % 60 == 59:
            ahead.kill()
            ahead.start()
    for writer in writers:
        writer.end()
    for one in (ahead, behind):
        one.catch_up(db)
    assert streamed(db, f"a_{database}") > 3
    assert streamed(db, f"b_{database}") == 0
    assert len(behind.log) > 5000
    assert told(ahead.log) == told(behind.log)
    assert len(materialise(ahead.log)["public", "t"]) == db.execute("select count(*) from t").fetchone()[0]
    assert not files(ahead)


def files(one: Reader) -> list[Path]:
    return [path for path in Path(one.state_dir).rglob("*") if path.is_file()]


def test_a_transaction_is_invisible_until_it_commits_and_resumed_in_the_middle_of_it(postgres, database, db, reader):
    db.execute("create table t(id int primary key, v text)")
    one = reader(snapshot_mode="no_data").start()
    with psycopg.connect(postgres.dsn(database)) as writer:
        writer.execute("insert into t select g, 'v' || g from generate_series(1, 15000) g")
        one.until(lambda: bool(files(one)))
        db.execute("insert into t values (0, 'other')")
        one.until(lambda: len(one.log) == 1)
        writer.commit()
    assert not one.open_changes
    while len(one.log) < 5001:
        one.poll(parts=True)
    part = one.position["part"]
    # Twice: the second start does not see the transaction's end before it is killed.
    for _ in range(2):
        one.kill()
        one.start()
        one.poll()
        assert one.position["part"] == part
    one.catch_up(db)
    assert "part" not in one.position
    assert [change.after[0] for change in one.log] == [0, *range(1, 15001)]
    assert [change.position.event for change in one.log[1:]] == list(range(15000))


def test_what_does_not_fit_is_left_to_the_server_until_it_has_been_read(postgres, database, db, reader, monkeypatch):
    monkeypatch.setattr("cdcworker.connectors.postgres.source.streaming_fallback.LOOK_S", 0.0)
    db.execute("create table t(id int primary key, v text)")
    one = reader(snapshot_mode="no_data", **{"spool.max.bytes": "1048576"}).start()
    with psycopg.connect(postgres.dsn(database)) as writer:
        writer.execute("insert into t select g, repeat('x', 100) from generate_series(1, 20000) g")
        one.until(lambda: one.task._session.state.fallback is not None)
        db.execute("insert into t values (0, 'other')")
        one.until(lambda: len(one.log) == 1)
        writer.commit()
    one.catch_up(db)
    assert [change.after[0] for change in one.log] == [0, *range(1, 20001)]
    one.until(lambda: one.task._session.state.fallback is None)
    # Logical messages beside a rolled-back savepoint: the server does not say which were rolled back.
    with psycopg.connect(postgres.dsn(database)) as writer:
        writer.execute("select pg_logical_emit_message(true, 'note', 'kept')")
        writer.execute("savepoint s")
        writer.execute("select pg_logical_emit_message(true, 'note', 'lost')")
        writer.execute("insert into t select g, 'lost' from generate_series(30001, 33000) g")
        writer.execute("rollback to savepoint s")
        writer.execute("insert into t select g, 'v' from generate_series(40001, 40010) g")
    one.catch_up(db)
    assert [change.op for change in one.log[20001:]] == ["m", *["c"] * 10]
    assert one.log[20001].after == ("note", b"kept")
    assert len({change.position for change in one.log}) == len(one.log)


def test_changes_that_came_from_elsewhere_are_left_out_where_that_is_wanted(postgres, database, db, reader):
    db.execute("create table t(id int primary key, v text)")
    own = reader(slot_name=f"own_{database}", snapshot_mode="no_data", **{"replication.origin": "none"}).start()
    everything = reader(slot_name=f"all_{database}", snapshot_mode="no_data").start()
    with psycopg.connect(postgres.dsn(database), autocommit=True) as other:
        other.execute("select pg_replication_origin_create(%s)", (f"o_{database}",))
        other.execute("select pg_replication_origin_session_setup(%s)", (f"o_{database}",))
        # One that is sent at its end, one that is sent ahead of it.
        other.execute("insert into t values (1, 'elsewhere')")
        other.execute("insert into t select g, 'elsewhere' from generate_series(101, 3000) g")
        db.execute("insert into t values (2, 'here')")
    for one in (own, everything):
        one.catch_up(db)
    assert [change.after for change in own.log] == [(2, "here")]
    assert len(everything.log) == 2902
    assert {change.source["origin"] for change in everything.log} == {f"o_{database}", None}
    with psycopg.connect(postgres.dsn(database), autocommit=True) as other:
        other.execute("select pg_replication_origin_drop(%s)", (f"o_{database}",))
