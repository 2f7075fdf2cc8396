"""Debezium's slot and publication are taken over: what it has confirmed does not come again, and all that follows does."""

from __future__ import annotations

import pytest

from ..postgres_reader import Reader, drop_slot, lsn, refused

pytestmark = pytest.mark.postgres

SCOPES = {"all_tables": "for all tables", "filtered": "for table public.orders"}
TABLES = "create table orders(id int primary key, v text); create table other(id int primary key, v text)"


@pytest.fixture(params=SCOPES)
def left(request, postgres, database, db):
    """What Debezium leaves when it is stopped: it has confirmed the first three orders, and written two more to its topics."""
    db.execute(TABLES)
    publication, slot = f"dbz_publication_{database}", f"debezium_{database}"
    db.execute(f"create publication {publication} {SCOPES[request.param]}")
    db.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    db.execute("insert into orders select g, 'confirmed' from generate_series(1, 3) g")
    end = db.execute("select pg_current_wal_lsn()::text").fetchone()[0]
    db.execute("select pg_replication_slot_advance(%s, %s)", (slot, end))
    db.execute("insert into orders select g, 'not confirmed' from generate_series(4, 5) g")
    one = Reader(
        postgres,
        database,
        **{
            "slot.name": slot,
            "publication.name": publication,
            "publication.autocreate.mode": request.param,
            "snapshot.mode": "no_data",
            "table.include.list": "public.orders",
            # Of a config that Debezium ran with.
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
        },
    )
    yield one, slot, publication
    if one.task is not None:
        one.kill()
    drop_slot(db, slot)


def ids(one: Reader) -> list[tuple[str, int]]:
    return [(change.op, (change.after or change.before)[0]) for change in one.log]


def test_the_first_events_are_those_behind_the_confirmed_position(left, db):
    one, slot, publication = left
    before = db.execute("select oid, puballtables from pg_publication where pubname = %s", (publication,)).fetchone()
    confirmed = db.execute("select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s", (slot,))
    at = lsn(confirmed.fetchone()[0])
    one.start()
    db.execute("update orders set v = 'written since' where id = 1; delete from orders where id = 2")
    db.execute("insert into orders values (6, 'written since'); insert into other values (1, 'not chosen')")
    one.catch_up(db)
    assert ids(one) == [("c", 4), ("c", 5), ("u", 1), ("d", 2), ("c", 6)], "no row is read, and nothing is left out"
    assert all(change.position.commit >= at for change in one.log)
    found = db.execute("select oid, puballtables from pg_publication where pubname = %s", (publication,)).fetchone()
    assert found == before, "the publication stays Debezium's"
    slots = db.execute("select slot_name from pg_replication_slots where database = current_database()").fetchall()
    assert slots == [(slot,)]


def test_a_restart_goes_on_from_its_own_position(left, db):
    one, _, _ = left
    one.start()
    one.catch_up(db)
    one.kill()
    db.execute("insert into orders values (6, 'while nobody read')")
    one.start()
    one.catch_up(db)
    assert ids(one) == [("c", 4), ("c", 5), ("c", 6)]


def test_while_debezium_reads_the_slot_it_is_left_alone(left, db, postgres, database):
    one, slot, publication = left
    other = Reader(
        postgres, database, **{"slot.name": slot, "publication.name": publication, "snapshot.mode": "no_data"}
    )
    other.config["name"], other.group = "debezium", "another cluster"
    other.start()
    try:
        assert refused(one).code == "postgres.slot_in_use"
        one.task = None
    finally:
        other.kill()
