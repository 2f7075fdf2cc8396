"""A slot, a server and a stored position that do not belong together any more: never silent, told within ten seconds, and
repaired where told to."""

from __future__ import annotations

import psycopg
import pytest
from cdcworker.connectors.postgres.server import publication_operations as operations
from cdcworker.schemas.errors import CdcError

from tests.contract.polled_task import materialise

from ..postgres_reader import Reader, halted, in_time, refused

pytestmark = pytest.mark.postgres


@pytest.fixture
def db(postgres, database):
    with psycopg.connect(postgres.dsn(database), autocommit=True) as connection:
        connection.execute("create table t(id int primary key, v text); insert into t values (1, 'a'), (2, 'b')")
        yield connection


def drop_slot(db, name: str) -> None:
    """Also of a reader that is at it."""
    db.execute("select pg_terminate_backend(active_pid, 10000) from pg_replication_slots where slot_name = %s", (name,))
    db.execute("select pg_drop_replication_slot(%s)", (name,))


def make_slot(db, name: str) -> None:
    db.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))


def advance(db, name: str) -> None:
    db.execute("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", (name,))


def refused_for_good(one: Reader) -> CdcError:
    error = refused(one)
    assert not error.retriable
    return error


def test_a_slot_that_goes_while_it_is_read_is_a_passing_error_and_then_a_halt(db, reader):
    one = reader().start()
    one.until(one.loaded)
    drop_slot(db, one.config["slot.name"])
    with in_time():
        with pytest.raises(CdcError) as caught:
            one.poll_often()
        assert caught.value.retriable
        one.kill()
        assert refused_for_good(one).code == "postgres.slot_missing"


def test_a_server_whose_log_ends_before_the_position_was_restored(db, reader):
    one = reader().start()
    one.until(one.loaded)
    one.kill()
    one.position["safe_lsn"] += 1 << 30
    error = refused_for_good(one)
    assert error.code == "postgres.restored"
    assert {"safe_lsn", "flush_lsn"} <= set(error.where)
    # Rows of such a server would be taken for old ones: it halts whatever the policy is.
    one.config["position.lost.policy"] = "resnapshot"
    assert refused_for_good(one).code == "postgres.restored"


def test_a_slot_of_prepared_transactions_is_refused(db, reader):
    one = reader()
    db.execute("select pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", (one.config["slot.name"],))
    assert refused_for_good(one).code == "postgres.slot_unfit"


@pytest.mark.parametrize("losses", [(drop_slot,), (drop_slot, make_slot), (advance,)])
def test_a_lost_position_is_made_good_by_reading_all_rows_again_where_that_is_wanted(db, reader, losses):
    one = reader(**{"position.lost.policy": "resnapshot"}).start()
    one.until(one.loaded)
    db.execute("insert into t values (3, 'c')")
    one.catch_up(db)
    one.kill()
    # What happens now is in no log that the connector will ever read.
    db.execute("delete from t where id = 1; update t set v = 'changed' where id = 2; insert into t values (4, 'd')")
    for loss in losses:
        loss(db, one.config["slot.name"])
    before = len(one.log)
    # Killed before the fresh start was committed, it is made again.
    one.start()
    one.poll(commit=False)
    one.kill()
    one.start()
    db.execute("insert into t values (5, 'e')")
    one.until(one.loaded)
    one.catch_up(db)
    assert [change.op for change in one.log[before:]].count("t") == 1
    found = {key: row["v"] for key, row in materialise(one.log)["public", "t"].items()}
    assert found == {(2,): "changed", (3,): "c", (4,): "d", (5,): "e"}


def test_another_slot_of_an_earlier_place_brings_nothing_again(db, reader):
    one = reader(**{"position.lost.policy": "resnapshot"}).start()
    one.until(one.loaded)
    older = f"{one.config['slot.name']}_older"
    make_slot(db, older)
    db.execute("insert into t values (3, 'c')")
    one.catch_up(db)
    one.kill()
    db.execute("delete from t where id = 3; insert into t values (4, 'd')")
    before, last = len(one.log), max(change.position for change in one.log)
    one.config["slot.name"] = older
    one.start()
    db.execute("insert into t values (5, 'e')")
    one.until(one.loaded)
    one.catch_up(db)
    assert min(change.position for change in one.log[before:]) > last
    assert [change.after for change in one.log[before:] if change.op == "c"] == [(4, "d"), (5, "e")]
    found = {key: row["v"] for key, row in materialise(one.log)["public", "t"].items()}
    assert (3,) not in found
    assert (found[4,], found[5,]) == ("d", "e")


def test_without_rows_to_read_a_lost_position_halts_whatever_the_policy_is(db, reader):
    one = reader(snapshot_mode="no_data", **{"position.lost.policy": "resnapshot"}).start()
    one.catch_up(db)
    one.kill()
    drop_slot(db, one.config["slot.name"])
    assert refused_for_good(one).code == "postgres.slot_missing"


def is_kept_on_standbys(db, one: Reader) -> bool:
    if db.info.server_version < 170000:
        pytest.skip("failover slots came with PostgreSQL 17")
    row = db.execute("select failover from pg_replication_slots where slot_name = %s", (one.config["slot.name"],))
    return row.fetchone()[0]


def test_a_slot_that_is_there_follows_failovers_once_that_is_asked_for(db, reader):
    one = reader()
    make_slot(db, one.config["slot.name"])
    one.start()
    one.until(one.loaded)
    assert is_kept_on_standbys(db, one) is False, "it was made so, perhaps on purpose"
    one.kill()
    one.config["slot.failover"] = "true"
    one.start()
    assert is_kept_on_standbys(db, one) is True
    one.until(lambda: any(report.get("slot_failover") for report in one.reports))
    assert one.reports[-1]["slot_failover_ready"] == 0, "there is no standby"


def test_a_new_slot_follows_failovers_unless_that_is_not_wanted(db, reader):
    one = reader().start()
    assert is_kept_on_standbys(db, one) is True
    one.kill()
    drop_slot(db, one.config["slot.name"])
    one.position, one.config["slot.failover"] = None, "false"
    one.start()
    assert is_kept_on_standbys(db, one) is False


# -- operations that leave the publication ------------------------------------------------------------------------------


@pytest.fixture
def looks_often(monkeypatch):
    monkeypatch.setattr(operations, "LOOK_S", 0.05)


def publish(db, what: str) -> None:
    (name,) = db.execute("select pubname from pg_publication").fetchone()
    db.execute(f"alter publication {name} set (publish = '{what}')")


def known(one: Reader) -> bool:
    return bool(((one.position or {}).get("snapshot") or {}).get("published"))


def rows_of(one: Reader) -> dict:
    return {key[0]: row["v"] for key, row in materialise(one.log)["public", "t"].items()}


def a_restart_reads_nothing_again(one: Reader, db) -> None:
    one.kill()
    one.start()
    one.catch_up(db)
    assert len(one.events("t")) == 1, "the gap is made good once"


WHOLE = "insert, update, delete, truncate"


@pytest.mark.usefixtures("looks_often")
def test_an_operation_that_leaves_the_publication_halts_and_no_row_is_wrong_once_it_is_back(db, reader):
    one = reader(**{"heartbeat.interval.ms": "100"}).start()
    one.catch_up(db)
    one.until(lambda: known(one))
    publish(db, "insert, update")
    db.execute("delete from t where id = 1; insert into t values (3, 'c')")
    error = halted(one)
    assert (error.code, error.where["operations"]) == ("postgres.publication_narrowed", "delete, truncate")
    one.kill()
    one.start()
    assert halted(one).code == error.code, "it does not pass by a restart"
    one.kill()
    publish(db, WHOLE)
    db.execute("insert into t values (4, 'd'); update t set v = 'changed' where id = 2")
    one.start()
    one.until(lambda: bool(one.events("t")))
    one.catch_up(db)
    assert rows_of(one) == {2: "changed", 3: "c", 4: "d"}
    a_restart_reads_nothing_again(one, db)


@pytest.mark.usefixtures("looks_often")
def test_the_source_goes_on_without_the_operation_where_the_policy_is_to_read_rows_again(db, reader, caplog):
    one = reader(**{"position.lost.policy": "resnapshot", "heartbeat.interval.ms": "100"}).start()
    one.catch_up(db)
    one.until(lambda: known(one))
    publish(db, "insert")
    db.execute("delete from t where id = 1; insert into t values (3, 'c')")
    one.until(lambda: "postgres.publication_narrowed" in caplog.text)
    one.catch_up(db)
    assert sorted(rows_of(one)) == [1, 2, 3]
    publish(db, WHOLE)
    one.until(lambda: bool(one.events("t")))
    one.catch_up(db)
    assert sorted(rows_of(one)) == [2, 3]


@pytest.mark.usefixtures("looks_often")
def test_what_was_never_published_or_is_skipped_on_purpose_is_no_gap(db, reader):
    db.execute("create publication own for table t with (publish = 'insert, update, truncate')")
    more = {"publication.name": "own", "publication.autocreate.mode": "disabled", "skipped.operations": "t"}
    one = reader(**more, **{"heartbeat.interval.ms": "100"}).start()
    one.catch_up(db)
    one.until(lambda: known(one))
    publish(db, "insert, update")
    db.execute("insert into t values (3, 'c')")
    one.catch_up(db)
    one.until(lambda: one.position["snapshot"]["published"] == "cu")
    assert "gap" not in one.position["snapshot"]


@pytest.mark.usefixtures("looks_often")
@pytest.mark.parametrize("stopped", [False, True])
def test_after_an_operation_may_have_been_gone_between_two_looks_all_rows_are_read_again(db, reader, caplog, stopped):
    one = reader(**{"heartbeat.interval.ms": "100"}).start()
    one.catch_up(db)
    one.until(lambda: known(one))
    if stopped:
        one.kill()
    (name,) = db.execute("select pubname from pg_publication").fetchone()
    before = operations.let_through(db, name).altered
    with db.transaction():
        publish(db, "insert")
        db.execute("delete from t where id = 1")
        publish(db, WHOLE)
    after = operations.let_through(db, name).altered
    assert after != before
    if stopped:
        one.start()
    one.until(lambda: bool(one.events("t")))
    one.catch_up(db)
    assert rows_of(one) == {2: "b"}
    one.until(lambda: one.position["snapshot"]["altered"] == after)
    assert "gap" not in one.position["snapshot"]
    assert caplog.text.count("is as before") == 1
    a_restart_reads_nothing_again(one, db)


@pytest.mark.usefixtures("looks_often")
def test_what_else_is_done_to_a_publication_makes_no_row_be_read_again(db, reader, caplog):
    one = reader(owner=True, **{"heartbeat.interval.ms": "100"}).start()
    one.catch_up(db)
    one.until(lambda: known(one))
    (name,) = db.execute("select pubname from pg_publication").fetchone()
    before = operations.let_through(db, name).altered
    db.execute("create table u(id int primary key)")
    db.execute(f"alter publication {name} add table u")
    assert operations.let_through(db, name).altered == before, "tables come and go without a word"
    one.kill()
    one.config["publish.via.partition.root"] = "true"
    one.start()
    one.until(lambda: one.position["snapshot"]["altered"] != before)
    one.catch_up(db)
    assert "was altered" not in caplog.text, "it was the source itself"
    db.execute(f"alter publication {name} owner to current_user; create role {name}_{db.info.dbname} superuser")
    before = one.position["snapshot"]["altered"]
    db.execute(f"alter publication {name} owner to {name}_{db.info.dbname}")
    one.until(lambda: one.position["snapshot"]["altered"] != before)
    assert caplog.text.count("was altered") == 1, "that explains it"
    one.catch_up(db)
    assert one.events("t") == []


@pytest.mark.usefixtures("looks_often")
def test_a_publication_that_is_dropped_halts_also_where_the_stream_goes_on(db, reader):
    one = reader(**{"heartbeat.interval.ms": "100", "publication.name": "p"}).start()
    one.catch_up(db)
    db.execute("drop publication p")
    error = halted(one)
    assert (error.code, error.where["publication"]) == ("postgres.publication", "p")
