"""The PostgreSQL source against a real server: nothing lost, nothing twice, whatever is killed and whenever."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from cdcworker.schemas.errors import CdcError

from tests.contract.polled_task import materialise

from ..postgres_reader import Reader, drop_slot, lsn, optional_parts, refused

pytestmark = pytest.mark.postgres


def slot_row(db, name: str):
    return db.execute(
        "select confirmed_flush_lsn::text, active_pid from pg_replication_slots where slot_name = %s", (name,)
    ).fetchone()


def table(db, name: str, columns: str = "*") -> dict[tuple, tuple]:
    return {row[:1]: row for row in db.execute(f"select {columns} from {name}").fetchall()}


# -- what a change looks like -----------------------------------------------------------------------------------------


def test_rows_come_first_and_changes_after_them(db, reader):
    db.execute("create table orders(id int primary key, note text, price numeric(10,2) not null)")
    db.execute("insert into orders select g, 'n' || g, g * 1.5 from generate_series(1, 500) g")
    one = reader().start()
    one.until(one.loaded)
    db.execute("insert into orders values (1000, 'new', 2)")
    db.execute("update orders set note = 'changed' where id = 1000")
    db.execute("delete from orders where id = 1000")
    one.catch_up(db)
    assert [change.op for change in one.log] == ["r"] * 500 + ["c", "u", "d"]
    created, updated, deleted = one.log[-3:]
    assert created.after == (1000, "new", b"\x00\xc8")
    assert (updated.before, updated.after) == (None, (1000, "changed", b"\x00\xc8"))
    assert (deleted.before, deleted.after) == ((1000, None, None), None)
    assert [column.optional for column in created.table.columns] == [False, True, False]
    assert created.source["table"] == "orders"
    assert created.source["snapshot"] == "false"
    row = one.log[0].source
    assert (row["snapshot"], row["txId"], row["sequence"]) == ("true", None, None)
    assert created.source["txId"] is not None
    assert (created.source["commit_lsn"], created.source["tx_index"]) == created.position[:2]


def test_messages_are_numbered_before_any_filter(db, reader):
    db.execute("create table a(id int primary key); create table b(id int primary key)")
    one = reader(skipped_operations="u").start()
    one.until(one.loaded)
    with db.transaction():
        db.execute("insert into a values (1)")
        db.execute("update a set id = id")
        db.execute("insert into b values (2)")
    one.catch_up(db)
    assert [(change.table.path[1], change.position.event) for change in one.log] == [("a", 0), ("b", 2)]


@pytest.mark.parametrize("skipped", [*(pytest.param(op, marks=pytest.mark.long) for op in "cd"), "u", "t", "c,d"])
def test_operations_that_are_skipped_are_left_out_and_no_others(db, reader, skipped):
    db.execute("create table a(id int primary key, v int)")
    one = reader(skipped_operations=skipped).start()
    one.until(one.loaded)
    with db.transaction():
        db.execute("insert into a values (1)")
        db.execute("update a set v = 2")
        db.execute("delete from a")
        db.execute("truncate a")
    one.catch_up(db)
    wanted = [(op, number) for number, op in enumerate("cudt") if op not in skipped.split(",")]
    assert [(change.op, change.position.event) for change in one.log] == wanted


def test_a_key_change_is_a_delete_and_a_create_that_name_each_other(db, reader):
    db.execute("create table t(id int primary key, v text)")
    db.execute("insert into t values (1, 'x')")
    one = reader().start()
    one.until(one.loaded)
    db.execute("update t set id = 2")
    one.catch_up(db)
    gone, come = one.log[-2:]
    assert (gone.op, gone.before, gone.other_key) == ("d", (1, None), (2,))
    assert (come.op, come.after, come.other_key) == ("c", (2, "x"), (1,))
    assert gone.position[:2] == come.position[:2]
    assert (gone.position.part, come.position.part) == (0, 1)


def test_unsent_toast_values_are_marked_and_taken_from_a_full_identity(db, reader):
    db.execute("create table plain(id int primary key, big text, n int)")
    db.execute("create table whole(id int primary key, big text, n int)")
    db.execute("alter table whole replica identity full")
    for name in ("plain", "whole"):
        db.execute(f"alter table {name} alter column big set storage external")
        db.execute(f"insert into {name} values (1, repeat('x', 10000), 1)")
    one = reader().start()
    one.until(one.loaded)
    db.execute("update plain set n = 2")
    db.execute("update plain set id = 5")
    db.execute("update whole set n = 2")
    one.catch_up(db)
    plain, gone, moved, whole = one.events("u", "d", "c")
    assert (plain.op, plain.after, plain.unchanged) == ("u", (1, None, 2), (1,))
    assert (gone.op, moved.op, moved.after, moved.unchanged) == ("d", "c", (5, None, 2), (1,))
    assert (whole.after, whole.unchanged) == ((1, "x" * 10000, 2), ())
    assert whole.before == (1, "x" * 10000, 1)
    # Of its new key a reader may have nothing else: it is read again.
    assert [change.after for change in one.events("r")[2:]] == [(5, "x" * 10000, 2)]
    assert materialise(one.log)["public", "plain"] == {(5,): {"id": 5, "big": "x" * 10000, "n": 2}}


def test_truncate_is_one_change_per_table(db, reader):
    db.execute("create table a(id int primary key); create table b(id int primary key)")
    db.execute("insert into a values (1); insert into b values (1)")
    one = reader().start()
    one.until(one.loaded)
    db.execute("truncate a, b")
    one.catch_up(db)
    assert [(change.op, change.table.path[1]) for change in one.log[-2:]] == [("t", "a"), ("t", "b")]
    assert one.log[-1].position > one.log[-2].position


def test_a_column_added_while_streaming_is_in_the_next_row(db, reader):
    db.execute("create table t(id int primary key)")
    one = reader().start()
    one.until(one.loaded)
    db.execute("insert into t values (1)")
    db.execute("alter table t add column kind varchar(10) not null default 'it''s'")
    db.execute("insert into t values (2)")
    db.execute("alter table t rename column kind to sort; alter table t alter column id type bigint")
    db.execute("insert into t values (3)")
    db.execute("alter table t drop column sort")
    db.execute("insert into t values (4)")
    one.catch_up(db)
    assert [change.after for change in one.log] == [(1,), (2, "it's"), (3, "it's"), (4,)]
    first, second, third, _ = (change.table for change in one.log)
    assert [column.name for column in second.columns] == ["id", "kind"]
    assert third.columns[1].name == "sort"
    assert third.columns[0].type == "long"
    assert first.table_id == third.table_id


def test_a_null_from_before_a_not_null_makes_the_column_optional(db, reader):
    db.execute("create table t(id int primary key, v int)")
    one = reader().start()
    one.until(one.loaded)
    db.execute("insert into t values (1, null)")
    db.execute("update t set v = 1; alter table t alter column v set not null")
    one.catch_up(db)
    assert one.log[0].after == (1, None)
    assert one.log[0].table.columns[1].optional


@pytest.mark.parametrize(
    ("mode", "content"),
    [
        ("bytes", b"\xfb\xff\x00\xfe"),
        ("base64", "+/8A/g=="),
        pytest.param("base64-url-safe", "-_8A_g==", marks=pytest.mark.long),
        pytest.param("hex", "fbff00fe", marks=pytest.mark.long),
    ],
)
def test_logical_messages_have_the_form_of_binary_values(db, reader, mode, content):
    db.execute("create table t(id int primary key, v bytea)")
    one = reader(**{"binary.handling.mode": mode}).start()
    one.until(one.loaded)
    db.execute("select pg_logical_emit_message(true, 'news', '\\xfbff00fe'::bytea)")
    db.execute("select pg_logical_emit_message(false, 'news', '\\xfbff00fe'::bytea)")
    db.execute("insert into t values (1, '\\xfbff00fe')")
    one.catch_up(db)
    values = [("m", ("news", content)), ("m", ("news", content)), ("c", (1, content))]
    assert [(change.op, change.after) for change in one.log] == values


@pytest.mark.parametrize(
    ("stored", "mode", "text"),
    [
        ("new", "auto", "2024-02-29T12:34:56.000000Z"),
        pytest.param("new", "shortest", "2024-02-29T12:34:56Z", marks=pytest.mark.long),
        ("old", "auto", "2024-02-29T12:34:56Z"),
        pytest.param("old", "padded", "2024-02-29T12:34:56.000000Z", marks=pytest.mark.long),
    ],
)
def test_keys_of_a_topic_that_an_earlier_version_has_written_keep_their_timestamps(db, reader, stored, mode, text):
    db.execute("create table t(at timestamptz primary key)")
    one = reader(**{"timestamptz.handling.mode": mode}).start()
    one.until(one.loaded)
    one.kill()
    if stored == "old":
        del one.position["timestamptz"]
    for number in range(2):
        one.start()
        db.execute("insert into t values ('2024-02-29 12:34:56+00'::timestamptz + %s * interval '1 day')", (number,))
        one.catch_up(db)
        one.kill()
    assert [change.after[0] for change in one.log] == [text, text.replace("02-29", "03-01")]


@pytest.mark.parametrize(
    ("stored", "mode", "written"),
    [
        ("new", "auto", b"\x01\x86\xa0"),
        pytest.param("new", "empty", b"", marks=pytest.mark.long),
        ("old", "auto", b""),
        pytest.param("old", "number", b"\x01\x86\xa0", marks=pytest.mark.long),
    ],
)
def test_keys_of_a_topic_that_an_earlier_version_has_written_keep_their_nan(db, reader, stored, mode, written):
    db.execute("create table t(n numeric(5,2) primary key, at int)")
    db.execute("insert into t values ('NaN', 0)")
    one = reader(**{"key.nan.handling.mode": mode}).start()
    one.until(one.loaded)
    one.kill()
    if stored == "old":
        del one.position["key_nan"]
    first = len(one.log)
    for _ in range(2):
        one.start()
        db.execute("update t set at = at + 1")
        one.catch_up(db)
        one.kill()
    assert [change.after for change in one.log[first:]] == [(written, 1), (written, 2)]
    assert one.position["key_nan"] == ("number" if written else "empty")


def test_logical_messages_are_handed_on(db, reader):
    db.execute("create table t(id int primary key)")
    one = reader(**{"message.prefix.exclude.list": "noise"}).start()
    one.until(one.loaded)
    db.execute("select pg_logical_emit_message(true, 'news', 'a'), pg_logical_emit_message(true, 'noise', 'b')")
    db.execute("select pg_logical_emit_message(false, 'news', 'c')")
    one.catch_up(db)
    one.kill()
    one.start()
    one.catch_up(db)
    assert [(change.op, change.after) for change in one.log] == [("m", ("news", b"a")), ("m", ("news", b"c"))]


# -- exactly once -----------------------------------------------------------------------------------------------------


def test_nothing_is_confirmed_before_it_is_acknowledged(db, reader):
    db.execute("create table t(id int primary key)")
    one = reader().start()
    one.until(one.loaded)
    db.execute("insert into t select generate_series(1, 100)")
    while len(one.open_changes) < 100:
        one.poll(commit=False)
    before = one.position["safe_lsn"]
    # A committed position that was not acknowledged is not confirmed either, also not by a status message.
    one.log.extend(one.open_changes)
    one.open_changes = []
    for _ in range(3):
        one.task._session.connections.stream.status(reply=True)
        one.poll(commit=False)
    assert lsn(slot_row(db, one.config["slot.name"])[0]) <= before
    db.execute("insert into t values (0)")
    one.until(lambda: one.position["safe_lsn"] > before)
    deadline = time.monotonic() + 60
    while lsn(slot_row(db, one.config["slot.name"])[0]) <= before:
        assert time.monotonic() < deadline
        one.poll()


def test_a_large_transaction_is_handed_out_in_parts_without_a_position(db, reader):
    db.execute("create table t(id int primary key)")
    one = reader().start()
    one.until(one.loaded)
    db.execute("insert into t values (0)")
    db.execute("insert into t select generate_series(1, 23000)")
    sizes = []
    while len(one.log) < 23001:
        batch = one.poll()
        sizes.append((len(batch.changes), batch.position is not None))
    assert max(size for size, _ in sizes) <= 5000
    parts = [with_position for size, with_position in sizes if size]
    assert parts.count(False) >= 3
    assert parts[-1] is True
    materialise(one.log)


def test_restarts_at_any_batch_lose_nothing_and_repeat_nothing(db, reader):
    db.execute("create table t(id int primary key, v text)")
    one = reader().start()
    one.until(one.loaded)
    rng = random.Random(5)
    for round_number in range(12):
        for _ in range(rng.randrange(1, 40)):
            with db.transaction():
                for _ in range(rng.randrange(1, 30)):
                    change_at_random(db, rng, "t", 200)
        for _ in range(rng.randrange(0, 6)):
            one.poll(commit=rng.random() < 0.7, ack=rng.random() < 0.7)
        if round_number % 2:
            one.kill()
            one.start()
    # Batches that were read and not committed are gone with the task that read them.
    one.kill()
    one.start()
    one.catch_up(db)
    positions = [change.position for change in one.log]
    assert len(set(positions)) == len(positions)
    assert {row["id"]: row["v"] for row in materialise(one.log)["public", "t"].values()} == dict(
        db.execute("select id, v from t").fetchall()
    )
    again = {change.position: change for change in one.log}
    replayed = [(lost, again[at]) for at, lost in one.lost.items() if at in again]
    assert replayed
    assert all(same(lost, found) for lost, found in replayed)


def same(one, other) -> bool:
    fields = ("op", "before", "after", "unchanged", "other_key", "table")
    stable = {name: value for name, value in one.source.items() if name != "sequence"}
    return all(getattr(one, name) == getattr(other, name) for name in fields) and stable == {
        name: value for name, value in other.source.items() if name != "sequence"
    }


def change_at_random(connection, rng: random.Random, name: str, ids: int) -> None:
    """One statement: insert, update, delete, or a change of the key."""
    number, other = rng.randrange(ids), rng.randrange(ids)
    kind = rng.random()
    if kind < 0.4:
        connection.execute(
            f"insert into {name}(id, v) values (%s, %s) on conflict (id) do update set v = excluded.v",
            (number, f"i{rng.random()}"),
        )
    elif kind < 0.7:
        connection.execute(f"update {name} set v = %s where id = %s", (f"u{rng.random()}", number))
    elif kind < 0.85:
        connection.execute(f"delete from {name} where id = %s", (number,))
    else:
        connection.execute(
            f"update {name} set id = %s where id = %s and not exists (select from {name} where id = %s)",
            (other, number, other),
        )


# -- snapshot ---------------------------------------------------------------------------------------------------------


class Writers:
    """Sessions that change a table at random until they are stopped."""

    def __init__(self, dsn: str, name: str, ids: int, seed: int, count: int = 3, toast: bool = False) -> None:
        self._stop = threading.Event()
        self.error: BaseException | None = None
        self._args = (dsn, name, ids, toast)
        self._threads = [threading.Thread(target=self._run, args=(seed + i,)) for i in range(count)]

    def _run(self, seed: int) -> None:
        dsn, name, ids, toast = self._args
        rng = random.Random(seed)
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                while not self._stop.is_set():
                    try:
                        with connection.transaction(force_rollback=rng.random() < 0.05):
                            for _ in range(rng.randrange(1, 12)):
                                change_at_random(connection, rng, name, ids)
                                if toast and rng.random() < 0.3:
                                    connection.execute(
                                        f"update {name} set big = %s where id = %s",
                                        (str(rng.randrange(10)) * 9000, rng.randrange(ids)),
                                    )
                            if rng.random() < 0.2:
                                time.sleep(rng.random() * 0.05)
                    except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                        continue
        except BaseException as exc:  # noqa: BLE001 - told to the test
            self.error = exc

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert self.error is None, self.error


SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_snapshot_under_writes_and_kills_equals_the_table(postgres, database, db, reader, seed):
    db.execute("create table t(id int primary key, v text, big text)")
    db.execute("alter table t alter column big set storage external")
    db.execute("insert into t select g, 'v' || g, repeat(chr(65 + g % 26), 9000) from generate_series(1, 1500) g")
    one = reader(**{"snapshot.chunk.max.bytes": "400000"})
    rng = random.Random(seed)
    kills = 0
    with Writers(postgres.dsn(database), "t", 2000, seed * 100, toast=True):
        one.start()
        deadline = time.monotonic() + 60
        while not one.loaded() or kills < 6:
            assert time.monotonic() < deadline
            one.poll(commit=rng.random() < 0.8, ack=rng.random() < 0.8)
            if rng.random() < 0.08 and kills < 8:
                one.kill()
                one.start()
                kills += 1
    one.kill()
    one.start()
    one.catch_up(db)
    found = materialise(one.log)["public", "t"]
    expected = {
        (row[0],): dict(zip(("id", "v", "big"), row, strict=True)) for row in db.execute("select id, v, big from t")
    }
    assert found == expected
    assert len(one.events("r")) >= 1000
    positions = [change.position for change in one.log]
    assert len(set(positions)) == len(positions)


def test_a_table_without_a_key_is_read_whole_and_started_again_after_a_kill(postgres, database, db, reader):
    db.execute("create table log(n int, v text)")
    db.execute("insert into log select g, repeat('x', 200) from generate_series(1, 9000) g")
    one = reader()
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(postgres.dsn(database), autocommit=True) as connection:
            number = 100_000
            while not stop.is_set():
                connection.execute("insert into log values (%s)", (number,))
                number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        one.start()
        one.until(lambda: bool(one.events("r")))
        one.kill()
        assert 0 < len(one.events("r")) < 9000
        one.start()
        one.until(one.loaded)
    finally:
        stop.set()
        writer.join()
    one.catch_up(db)
    rows: list[int] = []
    for change in one.log:
        if change.op == "t":
            rows.clear()
        else:
            rows.append(change.after[0])
    assert len(one.events("t")) == 1
    assert sorted(rows) == sorted(row[0] for row in db.execute("select n from log").fetchall())


def test_odd_keys_are_walked_in_order(db, reader):
    db.execute("create type mood as enum ('sad', 'ok', 'glad')")
    db.execute("create table odd(a text, m mood, n numeric, d timestamptz, primary key (a, m, n, d))")
    db.execute(
        "insert into odd select a, m, n, d from unnest(array['', 'a', 'A', E'tab\\t', 'it''s', E'back\\\\slash', 'ü', '%s'])"
        " a, unnest(enum_range(null::mood)) m, unnest(array[1, 1.50, 'NaN', -3]::numeric[]) n,"
        " unnest(array['infinity', '-infinity', '2020-01-01 00:00+00']::timestamptz[]) d"
    )
    one = reader(**{"snapshot.chunk.max.bytes": "4096"}).start()
    one.until(one.loaded)
    total = db.execute("select count(*) from odd").fetchone()[0]
    assert len(one.log) == total == 288
    assert len({str(change.after) for change in one.log}) == total


def test_a_table_added_to_the_include_list_is_read_too(db, reader):
    db.execute("create table a(id int primary key); create table b(id int primary key)")
    db.execute("insert into a values (1); insert into b values (1), (2)")
    one = reader(owner=True, table_include_list="public.a").start()
    one.until(one.loaded)
    one.kill()
    db.execute("insert into b values (3)")
    one.config["table.include.list"] = "public.a,public.b"
    one.start()
    db.execute("insert into b values (4)")
    one.poll()
    one.until(one.loaded)
    one.catch_up(db)
    assert sorted(materialise(one.log)["public", "b"]) == [(1,), (2,), (3,), (4,)]
    assert sorted(materialise(one.log)["public", "a"]) == [(1,)]


@pytest.mark.parametrize(
    ("lists", "shapes"),
    [
        (
            {
                "schema_exclude_list": "other",
                "table_exclude_list": "public.u",
                "column_include_list": r"public\.t\.(id|b)",
            },
            {"public.t": ["id", "b"]},
        ),
        (
            {"schema_include_list": "public", "column_exclude_list": "public.t.a,public.t.id"},
            # A column of the key stays.
            {"public.t": ["id", "b"], "public.u": ["id", "a"]},
        ),
        ({"table_include_list": "other.*", "column_exclude_list": ".*[.]a"}, {"other.t": ["id", "b"]}),
    ],
)
def test_lists_say_which_schemas_tables_and_columns_snapshot_and_stream_have(db, reader, lists, shapes):
    db.execute("create schema other; create table other.t(id int primary key, a text, b text)")
    db.execute("create table t(id int primary key, a text, b text); create table u(id int primary key, a text)")
    tables = {"public.t": ["id", "a", "b"], "public.u": ["id", "a"], "other.t": ["id", "a", "b"]}

    def insert(number):
        for table, columns in tables.items():
            values = [str(number), *(f"'{column}'" for column in columns[1:])]
            db.execute(f"insert into {table} values ({', '.join(values)})")

    insert(1)
    one = reader(**lists).start()
    one.until(one.loaded)
    insert(2)
    one.catch_up(db)
    found = [(".".join(change.table.path), change) for change in one.log]
    assert {name: [column.name for column in change.table.columns] for name, change in found} == shapes
    expected = [
        (name, "rc"[number - 1], (number, *columns[1:])) for name, columns in shapes.items() for number in (1, 2)
    ]
    assert sorted((name, change.op, change.after) for name, change in found) == sorted(expected)


def test_a_table_that_was_left_out_for_a_while_is_read_again(db, reader):
    db.execute("create table a(id int primary key); create table b(id int primary key)")
    one = reader(table_include_list="public.a,public.b").start()
    one.until(one.loaded)
    one.kill()
    one.config["table.include.list"] = "public.a"
    one.start()
    db.execute("insert into b values (1)")
    one.catch_up(db)
    one.kill()
    one.config["table.include.list"] = "public.a,public.b"
    one.start()
    one.poll()
    one.until(one.loaded)
    one.catch_up(db)
    assert sorted(materialise(one.log)["public", "b"]) == [(1,)]


def test_rows_of_an_inheriting_table_are_its_own_and_those_of_partitions_the_roots(db, reader):
    db.execute("create table parent(id int primary key); create table child(primary key (id)) inherits (parent)")
    db.execute("create table root(id int primary key) partition by range (id)")
    db.execute("create table part partition of root for values from (0) to (10)")
    db.execute("insert into parent values (1); insert into child values (2); insert into root values (3)")
    one = reader(publish_via_partition_root="true").start()
    one.until(one.loaded)
    found = {path[1]: sorted(rows) for path, rows in materialise(one.log).items()}
    assert found == {"parent": [(1,)], "child": [(2,)], "root": [(3,)]}


def test_a_chunk_of_rows_wider_than_guessed_is_cut(db, reader):
    db.execute("create table wide(id int primary key, body text)")
    db.execute("insert into wide select i, repeat('x', 300000) from generate_series(1, 60) i")
    one = reader(**{"snapshot.chunk.max.bytes": "1000000"}).start()
    most = 0
    while not one.loaded():
        most = max(most, len(one.poll().changes))
    assert 0 < most < 20
    assert len(materialise(one.log)["public", "wide"]) == 60


def test_a_new_table_that_is_published_later_is_read_with_the_rows_from_before(db, reader):
    db.execute("create table a(id int primary key); create publication p for table a")
    one = reader(owner=True, publication_name="p", publication_autocreate_mode="disabled").start()
    one.until(one.loaded)
    db.execute("create table b(id int primary key); insert into b values (1)")
    db.execute("alter publication p add table b")
    db.execute("insert into b values (2)")
    one.catch_up(db)
    assert sorted(materialise(one.log)["public", "b"]) == [(1,), (2,)]


def test_a_slot_that_another_connector_reads_is_left_to_it(db, reader):
    db.execute("create table t(id int primary key)")
    one = reader().start()
    one.until(one.loaded)
    two = reader()
    two.config["name"] = "another"
    assert refused(two).code == "postgres.slot_in_use"
    one.poll_often()


def test_a_slot_that_another_cluster_reads_is_left_to_it_and_taken_over_within_one(db, reader):
    db.execute("create table t(id int primary key)")
    one, two = reader().start(), reader()
    one.until(one.loaded)
    two.group = "another cluster"
    error = refused(two)
    assert error.code == "postgres.slot_in_use"
    assert "slot.name" in error.hint
    one.poll_often()
    two.group, two.position = one.group, one.position
    two.start()
    two.poll_often()
    with pytest.raises(CdcError) as caught:
        one.poll_often()
    assert caught.value.retriable


def test_the_slot_is_dropped_at_the_end_and_not_at_each_failure(db, reader):
    db.execute("create table t(id int primary key)")
    one = reader(slot_drop_on_stop="true").start()
    one.until(one.loaded)
    one.kill()
    assert slot_row(db, one.config["slot.name"])
    one.start()
    one.task._context = replace(one.task._context, ending=lambda: True)
    one.kill()
    assert not slot_row(db, one.config["slot.name"])


def test_no_data_streams_only_and_initial_only_stops_and_frees_the_slot(db, reader):
    db.execute("create table t(id int primary key)")
    db.execute("insert into t values (1)")
    changes_only = reader(snapshot_mode="no_data", slot_name="only_changes").start()
    rows_only = reader(snapshot_mode="initial_only", slot_name="only_rows").start()
    rows_only.until(lambda: slot_row(db, "only_rows") is None)
    db.execute("insert into t values (2)")
    changes_only.catch_up(db)
    for _ in range(3):
        assert not rows_only.poll().changes
    rows_only.kill()
    rows_only.start()
    assert not rows_only.poll().changes
    assert [(change.op, change.after) for change in changes_only.log] == [("c", (2,))]
    assert [(change.op, change.after) for change in rows_only.log] == [("r", (1,))]


def test_a_long_lock_on_a_table_does_not_stop_the_stream(postgres, database, db, reader):
    db.execute("create table locked(id int primary key); create table free(id int primary key)")
    db.execute("insert into locked values (1)")
    one = reader(**{"snapshot.lock.timeout.ms": "50"})
    with psycopg.connect(postgres.dsn(database)) as holder:
        one.start()
        holder.execute("lock table locked in access exclusive mode")
        db.execute("insert into free values (1)")
        one.until(lambda: any(change.table.path[1] == "free" for change in one.log))
    one.until(one.loaded)
    assert sorted(materialise(one.log)["public", "locked"]) == [(1,)]


def test_locked_tables_keep_no_reader_from_the_others(postgres, database, db, reader):
    names = [f"a{number}" for number in range(6)]
    for name in (*names, "free"):
        db.execute(f"create table {name}(id int primary key); insert into {name} values (1)")
    one = reader(**{"snapshot.lock.timeout.ms": "50"})
    with psycopg.connect(postgres.dsn(database)) as holder:
        one.start()
        holder.execute(f"lock table {', '.join(names)} in access exclusive mode")
        one.until(lambda: any(change.table.path[1] == "free" for change in one.log))
    one.until(one.loaded)
    assert {table: len(rows) for (_, table), rows in materialise(one.log).items()} == dict.fromkeys((*names, "free"), 1)


# -- the slot ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def other_database(postgres):
    name = postgres.create_database()
    with psycopg.connect(postgres.dsn(name), autocommit=True) as connection:
        yield connection
    postgres.drop_database(name)


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["another table", "another database"])
def test_an_idle_table_does_not_hold_the_log_back(db, other_database, reader, is_elsewhere):
    db.execute("create table t(id int primary key)")
    writer = other_database if is_elsewhere else db
    writer.execute("create table foreign_traffic(id int, v text)")
    one = reader(table_include_list="public.t", heartbeat_interval_ms="100").start()
    one.until(one.loaded)
    before = lsn(slot_row(db, one.config["slot.name"])[0])
    writer.execute("insert into foreign_traffic select g, repeat('x', 100) from generate_series(1, 5000) g")
    target = lsn(db.execute("select pg_current_wal_lsn()::text").fetchone()[0])
    assert target - before > 100_000
    one.until(lambda: lsn(slot_row(db, one.config["slot.name"])[0]) >= target - 64)
    assert one.log == []


def test_a_second_start_takes_the_slot_over_and_the_first_one_notices(db, reader):
    db.execute("create table t(id int primary key)")
    one = reader().start()
    one.until(one.loaded)
    two = reader()
    two.position = one.position
    two.start()
    db.execute("insert into t values (1)")
    two.catch_up(db)
    assert [change.after for change in two.log] == [(1,)]
    with pytest.raises(CdcError) as caught:
        one.poll_often()
    assert caught.value.retriable


def started(one: Reader, db) -> dict:
    db.execute("create table t(id int primary key); insert into t values (1)")
    one.start()
    one.until(one.loaded)
    one.kill()
    deadline = time.monotonic() + 60
    while slot_row(db, one.config["slot.name"])[1] is not None:
        assert time.monotonic() < deadline
    return one.position


def test_a_missing_slot_halts(db, reader):
    one = reader()
    started(one, db)
    drop_slot(db, one.config["slot.name"])
    error = refused(one)
    assert (error.code, error.retriable) == ("postgres.slot_missing", False)
    assert "safe_lsn" in error.where


def test_a_recreated_slot_halts(db, reader):
    one = reader()
    started(one, db)
    db.execute("insert into t values (2)")
    drop_slot(db, one.config["slot.name"])
    db.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (one.config["slot.name"],))
    assert refused(one).code == "postgres.slot_recreated"


def test_an_advanced_slot_halts(db, reader):
    one = reader()
    started(one, db)
    db.execute("insert into t values (2)")
    db.execute("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", (one.config["slot.name"],))
    assert refused(one).code in ("postgres.slot_advanced", "postgres.slot_recreated")


def test_another_servers_position_halts(db, reader):
    one = reader()
    started(one, db)["system_id"] = "1"
    assert refused(one).code == "postgres.other_server"


def test_a_slot_of_another_kind_is_refused(db, reader):
    db.execute("create table t(id int primary key)")
    with optional_parts():
        db.execute("select pg_create_logical_replication_slot('strange', 'test_decoding')")
    assert refused(reader(slot_name="strange")).code == "postgres.slot_unfit"


def test_a_killed_backend_is_a_passing_error_and_the_next_start_goes_on(db, reader):
    db.execute("create table t(id int primary key)")
    one = reader().start()
    one.until(one.loaded)
    db.execute("select pg_terminate_backend(%s)", (slot_row(db, one.config["slot.name"])[1],))
    with pytest.raises(CdcError) as caught:
        one.poll_often()
    assert caught.value.retriable
    one.kill()
    db.execute("insert into t values (1)")
    one.start()
    one.catch_up(db)
    assert [change.after for change in one.log] == [(1,)]


def test_a_server_restart_is_survived(postgres, database, reader):
    with psycopg.connect(postgres.dsn(database), autocommit=True) as db:
        db.execute("create table t(id int primary key)")
        one = reader().start()
        one.until(one.loaded)
    postgres.restart()
    with pytest.raises(CdcError) as caught:
        one.poll_often()
    assert caught.value.retriable
    one.kill()
    with psycopg.connect(postgres.dsn(database), autocommit=True) as db:
        db.execute("insert into t values (1)")
        one.start()
        one.catch_up(db)
    assert [change.after for change in one.log] == [(1,)]


# -- values -----------------------------------------------------------------------------------------------------------

VALUES: dict[str, list[str]] = {
    "boolean": ["true", "false"],
    "smallint": ["-32768", "32767", "0"],
    "integer": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "oid": ["4294967295"],
    "real": ["0.1", "'NaN'", "'Infinity'", "'-Infinity'", "-1e-37"],
    "double precision": ["0.1", "'NaN'", "'Infinity'", "1e308", "-5e-324"],
    "numeric(10,2)": ["-99999999.99", "0.01", "-0.005", "'NaN'", "1.28", "-1.28"],
    "numeric": ["1e-20", "-123456789012345678901234567890.5", "'NaN'", "'Infinity'", "'-Infinity'", "1.500"],
    "numeric(5,-2)": ["12345"],
    "money": ["-1234567.89", "0.05"],
    "char(5)": ["'ab'"],
    "varchar(10)": ["'zwölf'", "''"],
    "text": [r"E'tab\\tnew\\nback\\\\slash'", r"'\\N'", "'{\"a,b\"}'"],
    '"char"': ["'x'"],
    "name": ["'who'"],
    "bytea": [r"'\\x00ff5c'", "''"],
    "json": ["'{\"a\" : 1}'"],
    "jsonb": ["'{\"a\": [1, null]}'"],
    "xml": ["'<a>1</a>'"],
    "uuid": ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"],
    "date": ["'2024-02-29'", "'infinity'", "'-infinity'", "'0044-03-15 BC'", "'5874897-12-31'", "'4713-01-01 BC'"],
    "time": ["'04:05:06.789'", "'24:00:00'"],
    "time(3)": ["'04:05:06.789'"],
    "timetz": ["'04:05:06.789-08'", "'04:05:06+05:30'", "'00:00:00+00'"],
    "timestamp": ["'2024-02-29 12:34:56.123456'", "'infinity'", "'-infinity'", "'0044-03-15 01:02:03 BC'"],
    "timestamp(3)": ["'1969-12-31 23:59:59.999'", "'infinity'"],
    "timestamptz": [
        "'2024-02-29 12:34:56.12+02'",
        "'infinity'",
        "'12345-01-01 00:00+00'",
        "'0044-03-15 01:02:03+00 BC'",
    ],
    "interval": ["'1 year 2 mons 3 days 04:05:06.78'", "'-1 day +00:00:01'", "'0'"],
    "inet": ["'192.168.0.1/24'", "'::1'"],
    "cidr": ["'10.0.0.0/8'"],
    "macaddr": ["'08:00:2b:01:02:03'"],
    "bit(1)": ["B'1'"],
    "bit(10)": ["B'1000000001'"],
    "varbit(10)": ["B'00'", "B'1000000001'"],
    "point": ["'(1.5,-2)'"],
    "box": ["'(1,1),(0,0)'"],
    "int4range": ["'[1,5)'", "'empty'"],
    "int4multirange": ["'{[1,5),[7,9)}'"],
    "tsvector": ["'a b:2'"],
    "tsquery": ["'a & b'"],
    "pg_lsn": ["'16/B374D848'"],
    "mood": ["'ok'"],
    "pair": ["row(1, 'x y')"],
    "positive": ["5"],
    "price": ["1.25"],
    "int[]": ["'{1,NULL,-3}'", "'{}'", "'[2:3]={7,8}'"],
    "text[]": ["array['a,b', 'c\"d', NULL, 'NULL', '', 'e\\f']"],
    "numeric(6,2)[]": ["'{1.5,NULL}'"],
    "timestamptz[]": ["array['2024-01-01 00:00+00'::timestamptz]"],
    "mood[]": ["'{sad,ok}'"],
    "bytea[]": [r"array['\\x00ff'::bytea]"],
    "hstore": ["'a=>1, \"b c\"=>NULL'"],
    "citext": ["'MiXed'"],
}

OPTIONAL = {"xml", "hstore", "citext"}
"""Some builds of the server are without the library or the extension."""


def known(db, name: str, values: list[str]) -> list[str]:
    """None where the server lacks the type."""
    try:
        db.execute(f"select cast({values[0]} as {name})".replace("\\\\", "\\"))
    except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedObject):
        return []
    return values


def make_values(db) -> dict[str, list[str]]:
    """One table with a column per type, and as many rows as the longest list of values: those of each type."""
    for extension in ("hstore", "citext"):
        with contextlib.suppress(psycopg.errors.FeatureNotSupported):
            db.execute(f"create extension {extension}")
    db.execute("create type mood as enum ('sad', 'ok'); create type pair as (a int, b text)")
    db.execute("create domain positive as int check (value > 0); create domain price0 as numeric(8,3)")
    db.execute("create domain price as price0")
    given = {name: known(db, name, values) if name in OPTIONAL else values for name, values in VALUES.items()}
    columns = ", ".join(f"c{i} {name if values else 'text'}" for i, (name, values) in enumerate(given.items()))
    db.execute(f"create table v(id int primary key, {columns})")
    for row in range(max(map(len, given.values()))):
        items = ", ".join(
            f"cast({values[row]} as {name})" if row < len(values) else "null" for name, values in given.items()
        )
        db.execute(f"insert into v select {row}, {items}".replace("\\\\", "\\"))
    return given


@pytest.mark.parametrize(
    "modes",
    [
        {},
        {"decimal_handling_mode": "string", "time_precision_mode": "connect", "binary_handling_mode": "base64"},
        {"decimal_handling_mode": "double", "time_precision_mode": "isostring", "hstore_handling_mode": "map"},
        {"interval_handling_mode": "string", "time_precision_mode": "adaptive_time_microseconds"},
    ],
)
def test_every_type_reads_the_same_from_the_snapshot_and_from_the_stream(db, reader, modes):
    from cdcworker.schemas.encode import Encoder

    rows = max(map(len, make_values(db).values()))
    one = reader(**modes).start()
    one.until(one.loaded)
    db.execute("create table copy as select * from v")
    db.execute("delete from v; insert into v select * from copy")
    one.catch_up(db)
    snapshot = sorted((change.after for change in one.events("r")), key=lambda row: row[0])
    stream = sorted((change.after for change in one.events("c")), key=lambda row: row[0])
    assert len(snapshot) == rows
    assert repr(snapshot) == repr(stream)
    assert one.events("r")[0].table == one.events("c")[0].table
    ids: dict[str, int] = {}
    encoder = Encoder("shop", lambda many: [ids.setdefault(str(one), len(ids) + 1) for one in many])
    assert len(encoder.encode(one.log)) == 4 * rows


def test_values_have_debeziums_form(db, reader):
    given = make_values(db)
    one = reader(**{"out.of.range.handling.mode": "exact"}).start()
    one.until(one.loaded)
    columns = {column.name: (i, column) for i, column in enumerate(one.log[0].table.columns)}
    by_type = {name: columns[f"c{i}"] for i, name in enumerate(VALUES)}
    rows = sorted((change.after for change in one.log), key=lambda row: row[0])

    def values(name: str) -> list:
        at = by_type[name][0]
        return [row[at] for row in rows[: len(VALUES[name])]]

    def semantic(name: str) -> str:
        kind = by_type[name][1].type
        return kind.get("connect.name", "") if isinstance(kind, dict) else kind

    assert values("numeric(10,2)") == [
        (-9999999999).to_bytes(5, "big", signed=True), b"\x01", b"\xff", b"", b"\x00\x80", b"\x80",
    ]  # fmt: skip
    assert semantic("numeric(10,2)") == "org.apache.kafka.connect.data.Decimal"
    assert values("numeric")[2:] == [
        {"scale": 0, "value": b""}, {"scale": 1, "value": b""}, {"scale": -1, "value": b""},
        {"scale": 3, "value": b"\x05\xdc"},
    ]  # fmt: skip
    assert values("date") == [19782, 2**31 - 1, -(2**31), -735160, 2145042905, -2440550]
    assert values("time") == [14706789000, 86400000000]
    assert semantic("time(3)") == "io.debezium.time.Time"
    assert values("timestamp")[:3] == [1709210096123456, 9223372036825200000, -9223372036832400000]
    assert values("timestamp(3)") == [-1, 9223372036825200]
    assert values("timestamptz") == [
        "2024-02-29T10:34:56.120000Z", "infinity", "+12345-01-01T00:00:00.000000Z", "-0043-03-15T01:02:03.000000Z",
    ]  # fmt: skip
    assert values("timetz") == ["04:05:06.789-08:00", "04:05:06+05:30", "00:00:00Z"]
    assert values("bit(10)") == [b"\x01\x02"]
    assert values("varbit(10)") == [b"", b"\x01\x02"]
    assert values("mood") == ["ok"]
    assert by_type["mood"][1].type["connect.parameters"] == {"allowed": "sad,ok"}
    assert values("price") == [(1250).to_bytes(2, "big")]
    assert by_type["price"][1].type["scale"] == 3
    assert values("int[]") == [[1, None, -3], [], [7, 8]]
    assert [getattr(value, "bounds", "") for value in values("int[]")] == ["", "", "[2:3]"]
    assert values("text[]") == [["a,b", 'c"d', None, "NULL", "", "e\\f"]]
    assert not given["hstore"] or values("hstore") == ['{"a":"1","b c":null}']
    assert values("bytea") == [b"\x00\xff\\", b""]
    assert values("pair") == ['(1,"x y")']
    assert not given["citext"] or by_type["citext"][1].source_type == "public.citext"
    assert by_type["numeric(10,2)"][1].source_type == "numeric(10,2)"


def test_a_bit_without_a_length_is_read_as_one_of_any(db, reader):
    db.execute("create table t as select 1 id, B'101' b, array[B'1', B'0011'] l; alter table t add primary key (id)")
    one = reader().start()
    one.until(one.loaded)
    db.execute("insert into t values (2, B'100000001', array[B'01'])")
    one.catch_up(db)
    assert [change.after for change in one.log] == [
        (1, b"\x05", [b"\x01", b"\x03"]),
        (2, b"\x01\x01", [b"\x01"]),
    ]


def test_an_enum_that_grows_is_described_before_the_first_row_with_its_new_value(db, reader):
    db.execute("create type mood as enum ('sad', 'glad'); create table t(id int primary key, v mood, l mood[])")
    one = reader().start()
    one.until(one.loaded)
    db.execute("insert into t values (1, 'sad')")
    one.catch_up(db)
    db.execute("alter type mood add value 'ok' before 'glad'")
    with db.transaction():
        db.execute("insert into t values (2, 'sad')")
        db.execute("insert into t values (3, 'ok')")
        db.execute("insert into t values (4, 'glad', array['ok', 'sad']::mood[])")
    db.execute("alter type mood rename value 'ok' to 'fine'")
    db.execute("update t set v = 'sad', l = null where id > 2")
    one.catch_up(db)
    allowed = [change.table.columns[1].type["connect.parameters"]["allowed"] for change in one.log]
    assert [change.after[1] for change in one.log[:4]] == ["sad", "sad", "ok", "glad"]
    assert one.log[3].after[2] == ["ok", "sad"]
    assert [change.position.event for change in one.log[1:4]] == [0, 1, 2]
    assert allowed[:2] == ["sad,glad"] * 2
    assert len({*allowed[2:4]}) == 1
    assert allowed[2] in ("sad,ok,glad", "sad,fine,glad")


def test_a_composite_as_a_record_follows_its_type(db, reader):
    db.execute("create type pair as (a int, b text); create table t(id int primary key, v pair)")
    one = reader(composite_handling_mode="record").start()
    one.until(one.loaded)
    db.execute("insert into t values (1, row(1, 'x'))")
    one.catch_up(db)
    db.execute("alter type pair add attribute c int")
    db.execute("insert into t values (2, row(2, 'y', 3))")
    one.catch_up(db)
    assert [change.after[1] for change in one.log] == [{"a": 1, "b": "x"}, {"a": 2, "b": "y", "c": 3}]
    assert [len(change.table.columns[1].type["fields"]) for change in one.log] == [2, 3]


@pytest.mark.parametrize(
    ("mode", "columns"),
    [("skip", ["id"]), ("text", ["id", "v"]), pytest.param("bytes", ["id", "v"], marks=pytest.mark.long)],
)
def test_a_type_without_a_form_is_treated_as_the_policy_says(db, reader, mode, columns):
    with optional_parts():
        db.execute("create extension cube")
    db.execute("create table t(id int primary key, v cube); insert into t values (1, '(1)')")
    one = reader(unknown_type_handling_mode=mode).start()
    one.until(one.loaded)
    db.execute("update t set v = '(2)'")
    one.catch_up(db)
    assert [[column.name for column in change.table.columns] for change in one.log] == [columns] * 2
    if mode != "skip":
        texts = [change.after[1] for change in one.log]
        assert texts == (["(1)", "(2)"] if mode == "text" else [b"(1)", b"(2)"])


# -- live checks ------------------------------------------------------------------------------------------------------


def codes(one: Reader, severity: str = "error") -> set[tuple[str, str]]:
    from cdcworker.connectors.postgres.source.connector import PostgresSource

    return {(found.key, found.code) for found in PostgresSource(one.config).check() if found.severity == severity}


def test_a_good_configuration_has_no_findings_and_the_check_leaves_nothing(db, reader):
    db.execute("create table t(id int primary key)")
    one = reader()
    assert codes(one) == codes(one, "warning") == set()
    assert slot_row(db, one.config["slot.name"]) is None
    assert db.execute("select count(*) from pg_publication").fetchone()[0] == 0


@pytest.mark.parametrize(
    ("key", "value", "finding"),
    [
        ("database.password", "wrong", ("database.password", "postgres.authentication_failed")),
        ("database.dbname", "nowhere", ("database.dbname", "postgres.database_missing")),
        ("database.port", "1", ("database.hostname", "postgres.unreachable")),
        ("table.include.list", "public.nothing", ("table.include.list", "postgres.table_missing")),
        ("publication.autocreate.mode", "disabled", ("publication.name", "postgres.publication")),
    ],
)
def test_a_live_check_names_the_key_and_the_code(db, reader, key, value, finding):
    db.execute("create table t(id int primary key)")
    one = reader()
    one.config[key] = value
    assert finding in codes(one)


def test_a_wrong_password_is_not_retried(db, reader):
    one = reader()
    one.config["database.password"] = "wrong"
    error = refused(one)
    assert (error.code, error.retriable) == ("postgres.authentication_failed", False)
    assert "wrong" not in str(error)


def test_a_role_without_rights_is_told_which(db, reader):
    db.execute("create table t(id int primary key); create table keyless(id int)")
    role = f"weak_{db.info.dbname}"
    db.execute(f"create role {role} login password 'weak'")
    try:
        one = reader()
        one.config |= {"database.user": role, "database.password": "weak"}
        found = codes(one)
        assert ("database.user", "postgres.no_replication_right") in found
        assert ("database.user", "postgres.permission_denied") in found
        assert ("publication.name", "postgres.publication") in found
        assert ("table.include.list", "postgres.table_without_key") in codes(one, "warning")
    finally:
        db.execute(f"drop role {role}")


def test_a_slot_that_lost_its_log_halts(tmp_path_factory):
    from cdcworker.worker.devstack.postgres import EmbeddedPostgres

    directory = tmp_path_factory.mktemp("small")
    directory.chmod(0o711)
    limits = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB", "wal_segment_size": ""}
    server = EmbeddedPostgres(directory / "pg", {k: v for k, v in limits.items() if v})
    server.start()
    try:
        name = server.create_database()
        with psycopg.connect(server.dsn(name), autocommit=True) as db:
            one = Reader(server, name)
            started(one, db)
            for _ in range(4):
                db.execute(
                    "select pg_logical_emit_message(false, 'filler', repeat('x', 1000000)) from generate_series(1, 8)"
                )
                db.execute("select pg_switch_wal()")
                db.execute("checkpoint")
            error = refused(one)
            assert (error.code, error.retriable) == ("postgres.slot_lost", False)
            assert ("slot.name", "postgres.slot_lost") in codes(one)
    finally:
        server.remove()


# -- what a snapshot must wait for ------------------------------------------------------------------------------------


def test_a_write_from_before_the_publication_is_waited_for(postgres, database, db, reader):
    db.execute("create table a(id int primary key); create table b(id int primary key)")
    one = reader(owner=True, table_include_list="public.a").start()
    one.until(one.loaded)
    one.kill()
    one.config["table.include.list"] = "public.a,public.b"
    with psycopg.connect(postgres.dsn(database)) as early:
        early.execute("insert into b values (1)")
        one.start()
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            one.poll()
        assert not one.loaded()
    one.until(one.loaded)
    one.catch_up(db)
    assert sorted(materialise(one.log)["public", "b"]) == [(1,)]


def hang_in_commit(dsn: str, statement: str) -> threading.Thread:
    """A commit that is in the log and not yet visible: it waits for a standby that does not exist."""

    def run() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("set synchronous_commit = on")
            connection.execute(statement)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_commit_that_is_in_the_log_but_not_visible_yet_is_waited_for(tmp_path_factory):
    from cdcworker.worker.devstack.postgres import EmbeddedPostgres

    directory = tmp_path_factory.mktemp("sync")
    directory.chmod(0o711)
    settings = {"synchronous_standby_names": "ghost", "synchronous_commit": "local"}
    server = EmbeddedPostgres(directory / "pg", settings)
    server.start()
    hanging = None
    try:
        name = server.create_database()
        with psycopg.connect(server.dsn(name), autocommit=True) as db, psycopg.connect(server.dsn(name)) as holder:
            db.execute("create table a(id int primary key); create table t(id int primary key, v text)")
            db.execute("insert into t values (1, 'old')")
            one = Reader(server, name, **{"snapshot.lock.timeout.ms": "20"}).start()
            holder.execute("lock table a in access exclusive mode")
            hanging = hang_in_commit(server.dsn(name), "update t set v = 'new'")
            one.until(lambda: bool(one.events("u")))
            holder.rollback()
            for restart in (False, True):
                if restart:
                    one.kill()
                    one.start()
                for _ in range(30):
                    one.poll()
                assert not one.events("r")
            db.execute("select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'")
            hanging.join()
            one.until(one.loaded)
            assert materialise(one.log)["public", "t"] == {(1,): {"id": 1, "v": "new"}}
            one.kill()
    finally:
        server.remove()
        if hanging:
            hanging.join()


def test_a_snapshot_under_writes_and_schema_changes_equals_the_table(postgres, database, db, reader):
    db.execute("create table t(id int primary key, v text)")
    db.execute("insert into t select g, 'v' || g from generate_series(1, 20000) g")
    one = reader(**{"snapshot.chunk.max.bytes": "20000"})
    alters = [
        "add column extra int default 7",
        "alter id type bigint",
        "drop column extra",
        "alter v type varchar(100)",
    ]
    with Writers(postgres.dsn(database), "t", 21000, 7):
        one.start()
        number = 0
        deadline = time.monotonic() + 60
        while not one.loaded():
            assert time.monotonic() < deadline
            one.poll()
            if number < 12 and len(one.log) > 1000 * (number + 1):
                db.execute(f"alter table t {alters[number % 4]}")
                number += 1
                if number % 5 == 4:
                    one.kill()
                    one.start()
        assert number >= 4
    one.catch_up(db)
    found = {key: row["v"] for key, row in materialise(one.log)["public", "t"].items()}
    assert found == {(row[0],): row[1] for row in db.execute("select id, v from t").fetchall()}


@pytest.mark.long
def test_a_process_that_is_killed_at_any_moment_loses_nothing_and_repeats_nothing(
    postgres, database, db, reader, tmp_path
):
    db.execute("create table t(id int primary key, v text)")
    db.execute("insert into t select g, 'v' || g from generate_series(1, 5000) g")
    config = reader(**{"snapshot.chunk.max.bytes": "20000"}).config
    path, rng = tmp_path / "log", random.Random(3)
    argv = [sys.executable, str(Path(__file__).parent / "postgres_child.py"), str(path), json.dumps(config)]

    def committed() -> list[dict]:
        return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []

    with Writers(postgres.dsn(database), "t", 6000, 50, count=2):
        for _ in range(7):
            with subprocess.Popen(argv) as child:
                size = path.stat().st_size if path.exists() else 0
                deadline = time.monotonic() + 20
                while (path.stat().st_size if path.exists() else 0) <= size and time.monotonic() < deadline:
                    time.sleep(0.01)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(rng.random() * 0.3)
                child.kill()
    target = lsn(db.execute("select pg_current_wal_insert_lsn()::text").fetchone()[0])
    with subprocess.Popen(argv) as child:
        deadline = time.monotonic() + 60
        while not (
            (lines := committed())
            and lines[-1]["position"]["safe_lsn"] >= target
            and not lines[-1]["position"]["snapshot"].get("loads")
        ):
            assert time.monotonic() < deadline
            time.sleep(0.1)
            db.execute("select pg_logical_emit_message(true, 'cdcworker', 'go on')")
        child.kill()
    lines = committed()
    changes = [change for line in lines for change in line["changes"]]
    positions = [tuple(change[1]) for change in changes]
    assert positions == sorted(set(positions))
    rows: dict[int, str] = {}
    for op, _, before, after, _ in changes:
        if op == "d":
            rows.pop(before[0], None)
        else:
            rows[after[0]] = after[1]
    assert rows == dict(db.execute("select id, v from t").fetchall())


def test_a_task_that_is_not_polled_keeps_its_walsender(postgres, database, db, reader):
    db.execute(f"alter database {database} set wal_sender_timeout = '1500ms'")
    db.execute("create table t(id int primary key)")
    one = reader().start()
    one.until(one.loaded)
    walsender = slot_row(db, one.config["slot.name"])[1]
    # Longer than the server waits: a Kafka commit may take that long.
    age = "select extract(epoch from clock_timestamp() - backend_start) from pg_stat_activity where pid = %s"
    begun = float(db.execute(age, (walsender,)).fetchone()[0])
    deadline = time.monotonic() + 30
    while float(db.execute(age, (walsender,)).fetchone()[0]) < begun + 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    db.execute("insert into t values (1)")
    one.catch_up(db)
    assert slot_row(db, one.config["slot.name"])[1] == walsender
    assert len(one.log) == 1
