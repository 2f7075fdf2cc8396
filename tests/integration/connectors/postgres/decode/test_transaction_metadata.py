"""Transaction metadata and heartbeats against a real server: every event counted once, whatever ends the reader."""

from __future__ import annotations

from itertools import groupby

import psycopg
import pytest

from tests.contract.polled_task import materialise

from ..postgres_reader import Reader

pytestmark = pytest.mark.postgres


def check(one: Reader) -> dict[str, int]:
    """Each transaction has one begin, one end that counts its events, and their places without a gap; by id."""
    events = [change for change in one.log if change.transaction is not None]
    begun = [change.after[1] for change in one.beside if change.after[0] == "BEGIN"]
    ended = {change.after[1]: change.after for change in one.beside if change.after[0] == "END"}
    groups = {id: list(group) for id, group in groupby(events, key=lambda change: change.transaction["id"])}
    assert begun == list(ended) == list(groups)
    for identity, group in groups.items():
        _, _, total, counts, _ = ended[identity]
        assert [change.transaction["total_order"] for change in group] == list(range(1, total + 1))
        found: dict[str, int] = {}
        for change in group:
            name = ".".join(change.table.path)
            found[name] = found.get(name, 0) + 1
            assert change.transaction["data_collection_order"] == found[name]
        assert found == {item["data_collection"]: item["event_count"] for item in counts}
        assert identity == f"{group[0].source['txId']}:{group[0].source['commit_lsn']}"
    return {identity: len(group) for identity, group in groups.items()}


@pytest.fixture
def small(postgres, database, db, tmp_path):
    """A database whose transactions are sent ahead of their end very soon."""
    db.execute(f"alter database {database} set logical_decoding_work_mem = '64kB'")
    with psycopg.connect(postgres.dsn(database), autocommit=True) as connection:
        connection.execute("create table t(id int primary key, v text); create table u(id int primary key)")
        connection.execute("insert into t values (-1, 'there before')")
        yield connection


def test_transactions_are_counted_also_when_they_are_sent_ahead_and_handed_on_in_parts(reader, small, tmp_path):
    one = reader(**{"provide.transaction.metadata": "true"})
    one.state_dir = str(tmp_path)
    one.start()
    one.until(one.loaded)
    assert [change.transaction for change in one.log] == [None]
    with small.transaction():
        small.execute("insert into t select g, repeat('x', 50) from generate_series(1, 20000) g")
        small.execute("savepoint s; insert into u select generate_series(1, 5000); rollback to savepoint s")
        small.execute("insert into u select generate_series(1, 3); update t set id = 0 where id = 1")
    small.execute("delete from t where id = 0")
    parts = 0
    while parts < 3:
        # Each part is all that a life hands on of the transaction.
        batch = one.poll(parts=True)
        if batch.part is not None:
            parts += 1
            assert one.position["orders"]
            one.kill()
            one.start()
    one.until(lambda: len(one.beside) == 4)
    assert list(check(one).values()) == [20005, 1]
    assert "orders" not in one.position
    state = materialise(one.log)
    assert len(state["public", "t"]) == 20000
    assert len(state["public", "u"]) == 3


def test_heartbeats_are_written_and_their_statement_is_run_while_nothing_happens(db, reader):
    db.execute("create table t(id int primary key); create table beat(n int); insert into beat values (0)")
    one = reader(
        owner=True,
        **{
            "heartbeat.interval.ms": "100",
            "heartbeat.action.query": "update beat set n = n + 1",
            "table.include.list": "public.t",
        },
    )
    one.start()
    one.until(lambda: len(one.beside) >= 3)
    assert {change.after[0] for change in one.beside} == {"shop"}
    times = [change.after[1] for change in one.beside]
    assert times == sorted(times)
    assert db.execute("select n from beat").fetchone()[0] >= 3
    assert one.log == []
