"""A server that was put back in place from an older copy of its disk, and one that has crashed, which looks alike."""

from __future__ import annotations

import shutil
import threading
import time

import psycopg
import pytest
from cdcworker.connectors.capture.stream import limits
from cdcworker.connectors.postgres.doctor import position_checks as safety
from cdcworker.connectors.postgres.source import limits as paces
from cdcworker.connectors.postgres.source import periodic_checks as rounds
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.postgres import EmbeddedPostgres

from ..postgres_reader import Reader, optional_parts

pytestmark = [pytest.mark.postgres, pytest.mark.sampled(2, "restores")]


@pytest.fixture
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("restored")
    path.chmod(0o711)
    for parent in path.parents[:2]:
        parent.chmod(0o711)
    made = EmbeddedPostgres(path / "postgres", {"fsync": "on", "checkpoint_timeout": "1h"})
    made.start()
    yield made
    made.remove()


def execute(server, *statements: str) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as db:
        for statement in statements:
            db.execute(statement)


def caught_up(one: Reader, server) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as db:
        one.catch_up(db)


def test_a_log_that_has_grown_past_the_position_since_an_older_copy_is_told_from_one_that_crashed(server, monkeypatch):
    monkeypatch.setattr(rounds, "MARK_S", 0.05)
    execute(server, "create table t(id int primary key, v text); insert into t values (1, 'a')")
    one = Reader(server, "postgres").start()
    caught_up(one, server)
    one.kill()
    server.stop()
    shutil.copytree(server.data, server.directory / "copy", symlinks=True)
    server.start()
    one.start()
    execute(server, "insert into t values (2, 'b')")
    # Marked by the task itself, behind what was published.
    one.until(lambda: one.position["mark_lsn"] > one.events("c")[-1].position.commit if one.events("c") else False)
    # Confirmations that no checkpoint has kept are lost in a crash: the slot stands before the mark again.
    one.kill()
    server.kill()
    server.start()
    one.start()
    execute(server, "insert into t values (3, 'c')")
    one.until(lambda: len(one.events("c")) == 2)
    one.kill()
    position = one.position
    server.stop()
    shutil.rmtree(server.data)
    (server.directory / "copy").rename(server.data)
    server.start()
    execute(
        server,
        "insert into t values (5, 'e')",
        "insert into t select g, repeat('x', 500) from generate_series(10, 500) g",
    )
    with monkeypatch.context() as slow:
        slow.setattr(safety, "MARK_MS_MIN", 1)
        slow.setattr(safety, "_MARK", f"select pg_sleep(10) is null from ({safety._MARK}) m")
        with pytest.raises(CdcError) as caught:
            one.start()
    assert (caught.value.code, caught.value.retriable) == ("postgres.mark_unseen", True)
    with pytest.raises(CdcError) as caught:
        one.start()
    assert caught.value.code == "postgres.restored"
    assert caught.value.where["mark_lsn"]
    assert one.position == position
    # By the mark alone: the slot, the system, the timeline and the log's end are as they should be, and without it what
    # the new log holds below the position would be lost in silence.
    one.position["mark_lsn"] = 0
    one.start()
    caught_up(one, server)
    assert {change.after[0] for change in one.events("c")} & {5, 10} == {10}
    one.kill()


def test_an_idle_log_is_not_marked_again_and_again(db, reader, monkeypatch):
    monkeypatch.setattr(rounds, "MARK_S", 0.0)
    db.execute("create table t(id int primary key)")
    one = reader().start()
    one.until(one.loaded)
    witness = f"w_{db.info.dbname}"
    with optional_parts():
        db.execute("select pg_create_logical_replication_slot(%s, 'test_decoding')", (witness,))
    db.execute("insert into t values (1)")
    one.until(lambda: one.events("c") and one.position["mark_lsn"] > one.events("c")[-1].position.commit)
    for _ in range(20):
        one.poll()
    told = db.execute("select data from pg_logical_slot_get_changes(%s, null, null)", (witness,)).fetchall()
    db.execute("select pg_drop_replication_slot(%s)", (witness,))
    # As many as are under way before the first of them has come back.
    assert 1 <= sum("prefix: cdcworker" in row[0] for row in told) <= 5


@pytest.mark.parametrize("standby", ["of_which_none_is_there", "*"])
def test_a_mark_waits_for_no_standby_and_not_for_our_own_walsender(server, monkeypatch, standby):
    monkeypatch.setattr(rounds, "MARK_S", 0.05)
    execute(server, "create table t(id int primary key)")
    one = Reader(server, "postgres").start()
    one.until(one.loaded)
    local = "set synchronous_commit = local"
    execute(server, local, f"alter system set synchronous_standby_names = '{standby}'", "select pg_reload_conf()")
    for number in range(3):
        marked = one.task._session.decoder.marked_lsn
        execute(server, local, f"insert into t values ({number})")
        one.until(lambda least=marked: one.task._session.decoder.marked_lsn > least)
    one.kill()
    assert [change.after for change in one.events("c")] == [(0,), (1,), (2,)]


def test_a_row_that_moved_in_a_later_part_of_a_transaction_is_not_read_before_the_transaction_is_visible(
    server, monkeypatch
):
    monkeypatch.setattr(limits, "BATCH_CHANGES_MAX", 50)
    monkeypatch.setattr(paces, "PUSH_S", 1e9)
    execute(
        server,
        "create table t(id int primary key, big text, n int)",
        "alter table t alter column big set storage external",
        "insert into t select g, repeat('x', 3000), 0 from generate_series(1, 300) g",
    )
    one = Reader(server, "postgres").start()
    one.until(one.loaded)
    one.log.clear()
    execute(server, "alter system set synchronous_standby_names = 'of_which_none_is_there'", "select pg_reload_conf()")

    def large():
        with psycopg.connect(server.dsn()) as writer:
            writer.execute("set synchronous_commit = on")
            writer.execute("update t set n = 1 where id <= 200")
            writer.execute("update t set id = id + 1000 where id = 250")
            writer.execute("update t set n = 2 where id <= 200")

    thread = threading.Thread(target=large)
    thread.start()
    deadline = time.monotonic() + 30
    while not (one.position.get("part") and one.position["snapshot"].get("loads")):
        one.poll(parts=True)
        assert time.monotonic() < deadline
    one.kill()
    one.start()
    one.until(lambda: not one.position.get("part"))
    execute(
        server,
        "set synchronous_commit = local",
        "alter system reset synchronous_standby_names",
        "select pg_reload_conf()",
    )
    thread.join(30)
    caught_up(one, server)
    one.until(one.loaded)
    one.kill()
    assert [change.op for change in one.log if (change.after or change.before)[0] == 1250] == ["c", "r"]
