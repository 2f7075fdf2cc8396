"""A stream in binary hands on what one in text does, type by type: the same values at the same positions."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import psycopg
import pytest
from cdcworker.connectors.postgres.source import binary_fallback as turning
from cdcworker.schemas.change import Change
from cdcworker.schemas.errors import CdcError

from tests.integration.connectors.postgres.types.test_binary_values import WITHOUT
from tests.integration.connectors.postgres.types.test_types import (
    EXTENSIONS,
    FAMILIES,
    OTHER_MODES,
    SETUP,
    fitting,
    generated,
    is_known,
)
from tests.unit.connectors.native_records import Registry

pytestmark = pytest.mark.postgres

BINARY = {turning.NOTE: {"until": 2**62, "xid": 0, "timeline": 1}}
"""As if a row that does not fit text lay ahead."""
MODES = ({}, {key.replace("_", "."): value for key, value in OTHER_MODES.items()})


@pytest.fixture
def tables(db):
    """One table per family; by table the columns' types and rows of values."""
    for extension in EXTENSIONS:
        with suppress(psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFile):
            db.execute(f"create extension {extension}")
    db.execute(SETUP)
    made = {}
    for number, kinds in enumerate(FAMILIES.values()):
        known = [(kind, fitting(db, kind, generated(kind.values))) for kind in kinds if kind.type not in WITHOUT]
        known = [(kind, values) for kind, values in known if is_known(db, kind, values)]
        columns = "".join(f", c{i} {kind.type}" for i, (kind, _) in enumerate(known))
        db.execute(f"create table f{number}(id int primary key{columns})")
        if number % 2:
            db.execute(f"alter table f{number} replica identity full")
        rows = [[values[i] if i < len(values) else None for _, values in known] for i in range(25)]
        made[f"f{number}"] = [kind.type for kind, _ in known], rows
    db.execute("create table unsent(id int primary key, n int, v text, data bytea)")
    db.execute("alter table unsent alter v set storage external, alter data set storage external")
    return made


def write(db, tables) -> None:
    for name, (types, rows) in tables.items():
        holes = ", ".join(["%s", *(f"%s::{type}" for type in types)])
        with db.transaction(), db.cursor() as cursor:
            cursor.executemany(f"insert into {name} values ({holes})", [(i, *row) for i, row in enumerate(rows)])
        # Onto other rows' values, under another key, and away.
        db.execute(f"update {name} set id = id + 100 where id % 3 = 0; delete from {name} where id % 5 = 0")
        if types:
            db.execute(f"update {name} set c0 = (select c0 from {name} where id = 1) where id > 100")


def shown(change: Change) -> tuple:
    table = change.table
    rows = [
        [(repr(value), getattr(value, "bounds", "")) for value in row] if row else None
        for row in (change.before, change.after)
    ]
    source = {name: value for name, value in change.source.items() if name not in ("sequence",)}
    return change.op, change.position, table.path, [c.type for c in table.columns], rows, change.unchanged, source


@pytest.mark.sampled(2, "binary")
@pytest.mark.parametrize(
    ("modes", "transport"),
    [
        pytest.param(MODES[0], "socket", id="default-socket"),
        pytest.param(MODES[1], "socket", id="other-socket", marks=pytest.mark.long),
        pytest.param(MODES[0], "psycopg", id="default-psycopg", marks=pytest.mark.long),
        pytest.param(MODES[1], "psycopg", id="other-psycopg"),
    ],
)
def test_all_types_with_a_form_are_read_alike(db, reader, tables, modes, transport):
    make = partial(reader, owner=True, snapshot_mode="no_data", **modes, **{"database.transport": transport})
    readers = [make(slot_name="in_text"), make(slot_name="in_binary")]
    readers[1].notes.update(BINARY)
    for one in readers:
        one.start()
    write(db, tables)
    db.execute(
        "insert into unsent select g, 1, repeat('ä', 9000), decode(repeat('ab', 9000), 'hex') from generate_series(1, 3) g"
    )
    db.execute("update unsent set n = 2; update unsent set id = 9 where id = 1; delete from unsent where id = 2")
    for one in readers:
        one.catch_up(db)
    assert readers[1].task._session.decoder.transcode is not None
    in_text, in_binary = ([shown(change) for change in one.log] for one in readers)
    assert len(in_text) > 25 * len(tables)
    assert in_binary == in_text
    assert any(change.unchanged for change in readers[0].log)


@pytest.mark.sampled(2, "binary")
def test_records_written_beside_the_native_core_are_those_that_it_writes(db, reader):
    db.execute("create table t(id int primary key, n numeric(9,2), at timestamptz, data bytea, v text)")
    readers = [reader(owner=True, slot_name=name, snapshot_mode="no_data") for name in ("in_text", "in_binary")]
    readers[1].notes.update(BINARY)
    for one in readers:
        one.registry = Registry()
        one.start()
    db.execute(
        "insert into t select g, g / 7.0, '2020-01-01'::timestamptz + g * interval '1 s', '\\x00ff', 'v' from generate_series(1, 500) g"
    )
    db.execute(
        "update t set v = repeat('ä', 9000) where id < 9; update t set n = 1 where id < 9; delete from t where id > 480"
    )
    for one in readers:
        one.catch_up(db)
    assert [shown(c) for c in readers[0].log] == [shown(c) for c in readers[1].log]


@pytest.mark.sampled(2, "binary")
def test_a_type_without_a_form_holds_its_table_back_and_no_other(db, reader):
    db.execute("create table bad(id int primary key, v tsquery); create table good(id int primary key)")
    db.execute("create table spared(id int primary key, v tsquery)")
    one = reader(**{"column.exclude.list": "public.spared.v"})
    one.notes.update(BINARY)
    one.start()
    one.until(one.loaded)
    db.execute(
        "insert into good values (1); insert into bad values (1, 'a & b'); insert into spared values (1, 'a & b')"
    )
    error = one.trouble()
    assert (error.code, error.where["table"], error.where["column"]) == (
        "postgres.type_without_binary_form",
        "public.bad",
        "v",
    )
    db.execute("insert into good values (2)")
    one.catch_up(db)
    assert sorted((c.table.path[1], c.after[0]) for c in one.events("c")) == [("good", 1), ("good", 2), ("spared", 1)]


@pytest.mark.sampled(2, "binary")
def test_an_array_that_the_server_cannot_send_in_binary_is_told_of_and_is_read_as_text_where_that_is_asked_for(
    db, reader
):
    db.execute("create table t(id int primary key, v aclitem[])")
    one = reader()
    one.notes.update(BINARY)
    one.start()
    one.until(one.loaded)
    db.execute("insert into t select 1, acldefault('r', oid) from pg_roles limit 1")
    with pytest.raises(CdcError) as caught:
        one.until(lambda: False)
    assert (caught.value.code, caught.value.kind) == ("postgres.type_without_send_function", "data")
    one.kill()
    one.config["binary.columns"] = "never"
    one.start()
    one.catch_up(db)
    assert [c.after[0] for c in one.events("c")] == [1]


@pytest.mark.sampled(2, "binary")
def test_it_goes_back_to_text_behind_the_transaction_that_called_for_it(db, reader):
    db.execute("create table t(id int primary key, v text)")
    one = reader().start()
    one.until(one.loaded)
    one.kill()
    db.execute("insert into t values (1, 'a')")
    # Until behind what is there now.
    end = db.execute("select (pg_current_wal_lsn() - '0/0')::bigint").fetchone()[0]
    one.notes[turning.NOTE] = {"until": end, "xid": 0, "timeline": 1}
    one.start()
    assert one.task._session.decoder.transcode is not None
    db.execute("insert into t values (2, 'b')")
    one.until(lambda: turning.NOTE not in one.notes)
    assert one.task._session.decoder.transcode is None
    db.execute("insert into t values (3, 'c')")
    one.catch_up(db)
    assert [c.after for c in one.events("c")] == [(1, "a"), (2, "b"), (3, "c")]
