"""Debezium's slot and publication are taken over: what it has confirmed does not come again, and all that follows does."""

from __future__ import annotations

import pytest
from cdcworker.connectors.postgres.source.connector import PostgresSource
from cdcworker.schemas.errors import CdcError

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


# -- with Debezium's offset ------------------------------------------------------------------------------------------------


def messages(db, slot, publication):
    """What the slot holds: the LSN of each message and its kind."""
    options = f"'proto_version', '1', 'publication_names', '{publication}', 'messages', 'true'"
    rows = db.execute(
        f"select lsn::text, data from pg_logical_slot_peek_binary_changes(%s, null, null, {options})", (slot,)
    )
    return [(lsn(at), chr(data[0])) for at, data in rows.fetchall()]


def offset_of(at, *, commit, kind="INSERT", **more):
    """As Debezium stores it with a record."""
    return {
        "lsn": at,
        "lsn_proc": at,
        "lsn_commit": commit,
        "messageType": kind,
        "ts_usec": 1_700_000_000_000_000,
        **more,
    }


def source_of(one):
    return PostgresSource(one.config)


def goes_on(one, db, offset):
    """What a task hands on that begins where this offset says."""
    found = source_of(one).from_debezium(0, offset)
    one.position = found.content
    one.start()
    db.execute("update orders set v = 'since' where id = 1")
    one.catch_up(db)
    one.kill()
    return ids(one), found.notes


def test_of_a_transaction_that_was_written_in_part_the_rest_comes(left, db):
    one, slot, publication = left
    first, second = [at for at, kind in messages(db, slot, publication) if kind == "I"]
    commit = next(at for at, kind in messages(db, slot, publication) if kind == "C")
    confirmed = db.execute("select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s", (slot,))
    before = lsn(confirmed.fetchone()[0])
    position = source_of(one).from_debezium(0, offset_of(first, commit=before)).content
    assert position["part"][1] == 1
    back = source_of(one).to_debezium(0, position).content
    assert (back["lsn"], back["lsn_events_processed"], back["messageType"]) == (first, 1, "INSERT")
    assert source_of(one).from_debezium(0, back).content["part"] == position["part"]
    assert source_of(one).from_debezium(0, offset_of(second, commit=before)).content["part"][1] == 2
    whole = source_of(one).from_debezium(0, offset_of(commit, commit=commit, kind="COMMIT")).content
    assert (whole.get("part"), whole["safe_lsn"]) == (None, commit)
    assert goes_on(one, db, offset_of(first, commit=before)) == ([("c", 5), ("u", 1)], ())


def test_of_the_first_transaction_behind_a_snapshot_the_rest_comes(left, db):
    one, slot, publication = left
    first = next(at for at, kind in messages(db, slot, publication) if kind == "I")
    snapshot = {"lsn": first - 8, "ts_usec": 1, "snapshot": "INITIAL", "snapshot_completed": True}
    assert "part" not in source_of(one).from_debezium(0, snapshot).content
    assert goes_on(one, db, offset_of(first, commit=None)) == ([("c", 5), ("u", 1)], ())


def test_behind_a_whole_transaction_debezium_is_told_where_to_begin_and_no_message_to_look_for(left, db):
    one, slot, publication = left
    end = next(at for at, kind in messages(db, slot, publication) if kind == "C")
    position = source_of(one).from_debezium(0, offset_of(end, commit=end, kind="COMMIT")).content
    offset = source_of(one).to_debezium(0, position).content
    # With lsn_proc, versions before 3.7 leave out a transaction under way of which a change lies just behind the commit.
    assert offset == {"lsn": end, "ts_usec": 1_700_000_000_000_000}
    assert source_of(one).from_debezium(0, offset).content == position


def test_changes_with_one_lsn_are_told_apart_by_their_count(left, db):
    one, slot, publication = left
    with db.cursor().copy("copy orders from stdin") as copy:
        copy.write("10\ta\n11\tb\n12\tc\n")
    found = messages(db, slot, publication)
    commits = [at for at, kind in found if kind == "C"]
    (shared,) = {at for at, kind in found[-5:] if kind == "I"}
    source = source_of(one)
    assert source.from_debezium(0, offset_of(shared, commit=commits[0])).notes
    position = source.from_debezium(0, offset_of(shared, commit=commits[0], lsn_events_processed=2)).content
    assert position["part"][1] == 2
    # Debezium before 3.7 would leave out the rest of them.
    back = source.to_debezium(0, position)
    assert (back.content, len(back.notes)) == ({"lsn": position["safe_lsn"], "ts_usec": 1_700_000_000_000_000}, 1)
    whole = source.to_debezium(0, {**position, "part": [position["part"][0], 3]})
    assert (whole.content["lsn"], whole.content["lsn_events_processed"], whole.notes) == (shared, 3, ())
    offset = offset_of(shared, commit=commits[0], lsn_events_processed=2)
    assert goes_on(one, db, offset)[0] == [("c", 12), ("u", 1)]


def test_what_nobody_can_go_on_from_is_refused(left, db):
    one, slot, _ = left
    source = source_of(one)
    for offset, code in (
        ({"lsn": 1, "snapshot": "INITIAL", "snapshot_completed": False}, "debezium.snapshot_unfinished"),
        ({"lsn": "1/2"}, "debezium.offset_unfit"),
        ({"lsn": None}, "debezium.offset_unfit"),
    ):
        with pytest.raises(CdcError) as caught:
            source.from_debezium(0, offset)
        assert caught.value.code == code
    drop_slot(db, slot)
    with pytest.raises(CdcError) as caught:
        source.from_debezium(0, offset_of(100, commit=100))
    assert caught.value.code == "postgres.slot_missing"
    db.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
