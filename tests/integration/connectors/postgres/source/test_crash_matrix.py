"""The PostgreSQL source as a process, killed, paused and failed at every step, against what another slot has seen.
One slot, or two of which each is read by a process of its own.

The witness is a second slot of another plugin, read by code that shares nothing with the source.
"""

from __future__ import annotations

import random
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from cdcworker.schemas.change import JsonObject
from cdcworker.worker.quickstart.roles import make_reader

from tests.contract.source_crashes import (
    EXACT,
    LOOSE,
    MESSAGES,
    SOURCE_POINTS,
    UNSENT,
    Child,
    CrashStage,
    Told,
    actions_of,
    check,
    check_loosely,
    run,
)

from ..postgres_reader import optional_parts
from .decoding_oracle import read_test_decoding

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]

PASSWORD = "only for tests"
POINTS = (
    "postgres.streaming",
    "postgres.chunk_kept",
    "postgres.replayed",
    "postgres.part_read",
    "postgres.read",
    *SOURCE_POINTS,
    "postgres.before_confirm",
    "postgres.after_confirm",
    "postgres.reconnected",
)
STREAMED = ("postgres.streaming", "postgres.chunk_kept", "postgres.replayed")
"""Met by transactions that are sent before they commit."""
PARTED = ("postgres.part_read", "source.half_produced")
"""Met by transactions of which one poll takes a part only."""
APART = "postgres.reconnected"
"""Met by a large transaction with messages beside savepoints that are taken back. What is ahead of its end is not kept
then, so that who meets it leaves nothing for steps of that."""
ONCE = frozenset(("postgres.streaming", "postgres.replayed", APART, "source.schema_written", *PARTED))
"""Met once in a turn; the others again with each transaction that is committed while they are waited for."""
ACTIONS = actions_of("postgres")
TABLES = ("a", "t")
"""Of two slots each has one of them."""
PAIRS = ("a", "b", "t", "u")
"""Of two slots the first has the first two."""


class Stage(CrashStage):
    """A database with a table for each slot, whose second slots are the witness."""

    columns = "id int primary key, v text"

    def __init__(self, kafka, postgres, rng: random.Random, state_dir: Path, delivery: str, slots: int = 1) -> None:
        with optional_parts(), psycopg.connect(postgres.dsn()) as db:
            db.execute("load 'test_decoding'")
        super().__init__(kafka.bootstrap, rng, state_dir, delivery, slots)
        self._postgres = postgres
        self.tables = self.tables_of(slots)
        self.database = postgres.create_database()
        self.db = psycopg.connect(postgres.dsn(self.database), autocommit=True)
        self.db.execute(f"alter database {self.database} set logical_decoding_work_mem = '64kB'")
        for table in self.tables:
            self.db.execute(f"create table {table}({self.columns})")
        # The processes have a source's rights and no others.
        tables = [("public", table) for table in self.tables]
        role, dsn = f"reader_{self.database}", postgres.dsn(self.database)
        self.login = make_reader(dsn, role, PASSWORD, tables, "dbz_publication", slots)
        self.filled = self.tables
        """Into which rows are written."""
        self.kept = self.tables

    def tables_of(self, slots: int) -> tuple[str, ...]:
        return TABLES[-slots:]

    def close(self) -> None:
        super().close()
        self.db.close()
        self._postgres.drop_database(self.database)

    def config(self) -> dict[str, str]:
        info = psycopg.conninfo.conninfo_to_dict(self.login)
        names = {"hostname": "host", "port": "port", "user": "user", "password": "password"}
        return {
            "connector.class": "postgres",
            **{f"database.{key}": str(info[name]) for key, name in names.items()},
            "database.dbname": self.database,
            "slot.name": f"s_{self.database}",
            "slot.count": str(self.slots),
        }

    def is_behind(self, position: JsonObject, place: Any) -> bool:
        return position["safe_lsn"] >= place

    def place_of(self, table: str) -> str:
        return table if table == MESSAGES else f"public.{table}"

    def work(self, shape: int, point: str = "") -> int:
        """Transactions of all kinds, overlapping, and what `point` is met by; the LSN that a reader has to reach.
        `shape`: columns are added."""
        rng, share = self.rng, len(self.tables) // self.slots
        if shape % 4 == 3 or point == "source.schema_written":
            for table in self.tables:
                self.db.execute(f"alter table {table} add column c{shape} int")
        if point in PARTED:
            # More than one poll takes, in changes and in bytes.
            with self.db.transaction():
                self._insert(self.db, 6000 // share, width=1000)
        with psycopg.connect(self._postgres.dsn(self.database)) as large:
            self._insert(large, 1500 // share)
            large.execute("savepoint s")
            self._insert(large, 700 // share)
            if rng.random() < 0.5:
                large.execute("rollback to savepoint s")
            self.besides(large, 2 if point in (APART, "") else 0)
            for _ in range(rng.randrange(2, 6)):
                with self.db.transaction(force_rollback=rng.random() < 0.2):
                    self._insert(self.db, rng.randrange(1, 20))
                    self.besides(self.db)
                    for table in self.tables:
                        self.db.execute(f"update {table} set v = v || '.' where id %% 97 = %s", (rng.randrange(97),))
                        self.db.execute(f"delete from {table} where id %% 89 = %s", (rng.randrange(89),))
        self.alone(self.db)
        self._insert(self.db, 1)
        return self.end()

    def besides(self, connection, said: int | None = None) -> None:
        """What else a transaction does while others are open; `said`: how many messages it has each time, with two for sure
        beside what is taken back."""

    def alone(self, connection) -> None:
        """What is done while no other is."""

    def end(self) -> int:
        return postgres_lsn(self.db.execute("select pg_current_wal_lsn()::text").fetchone()[0])

    def insert(self, count: int) -> None:
        with self.db.transaction():
            self._insert(self.db, count)

    def go_on(self, point: str = "") -> None:
        """The large transactions of `work` may have come whole, for the sake of what came before them."""
        if point in STREAMED:
            self.now_and_then(3.0, 1500 * self.slots // len(self.tables))
        else:
            super().go_on(point)

    def _insert(self, connection, count: int, width: int = 40) -> None:
        first, self.next_id = self.next_id, self.next_id + count
        rows = "select g, repeat('x', %s) || g from generate_series(%s::int, %s::int) g"
        for table in self.filled:
            connection.execute(f"insert into {table} {rows}", (width, first, first + count - 1))

    def begin(self) -> None:
        """A first life, until a position is stored; from then on there is a witness."""
        first = self.child()
        first.wait(lambda: "RUNNING" in first.states() and self.cluster.position() is not None, "its first position")
        first.close()
        self.begin_witness()

    def begin_witness(self) -> None:
        self.db.execute("select pg_create_logical_replication_slot(%s, 'test_decoding')", (f"w_{self.database}",))

    def witnessed_all(self) -> list[tuple[str, Told]]:
        """(table, change) of everything, in the order of the log."""
        rows = self.db.execute(
            "select xid::text::bigint, data from pg_logical_slot_peek_changes(%s, null, null, 'include-xids', '0')",
            (f"w_{self.database}",),
        ).fetchall()
        return [told for xid, data in rows for told in read_test_decoding(xid, data)]


class Rich(Stage):
    """Pairs of tables, and of every kind of change: keys that change, large values that stay as they are, savepoints that
    are taken back, truncates, and messages inside and outside of transactions."""

    columns = "id int primary key, v text, big text"

    def __init__(self, *parts) -> None:
        super().__init__(*parts)
        for table in self.tables:
            self.db.execute(f"alter table {table} alter column big set storage external")
        self.kept = (*self.tables, MESSAGES)

    def tables_of(self, slots: int) -> tuple[str, ...]:
        return PAIRS[-2 * slots :]

    def besides(self, connection, said: int | None = None) -> None:
        """On rows of its own: others wait for no lock of it."""
        for taken_back in (False, said == 2 or self.rng.random() < 0.6):
            first, self.next_id = self.next_id, self.next_id + 10
            connection.execute("savepoint back")
            for table in self.tables:
                self._change(connection, table, first)
                self._say(connection, f"{table} {first}", self.rng.randrange(3) if said is None else said)
            if said == 2:
                # More than the server keeps in memory: it is sent ahead, messages and all, before it is taken back.
                self._insert(connection, 100, width=1000)
            if taken_back:
                connection.execute("rollback to savepoint back")

    def _change(self, connection, table: str, first: int) -> None:
        large = "select g, 'v', repeat('y', 3000) || g from generate_series(%s::int, %s::int) g"
        connection.execute(f"insert into {table}(id, v, big) {large}", (first, first + 3))
        connection.execute(f"update {table} set v = 'w' where id in (%s, %s)", (first, first + 1))
        for old, new, change in ((1, 5, "v = 'moved'"), (2, 6, "big = repeat('z', 3000)"), (3, 7, "big = null")):
            connection.execute(f"update {table} set id = %s, {change} where id = %s", (first + new, first + old))
        connection.execute(f"delete from {table} where id = %s", (first + self.rng.choice((0, 5, 7)),))

    def _say(self, connection, what: str, count: int) -> None:
        for inside in self.rng.sample((True, False), count):
            connection.execute("select pg_logical_emit_message(%s, 'news', %s)", (inside, what))

    def alone(self, connection) -> None:
        """A truncate keeps all others out, so also in whatever order one of two would come to its tables."""
        rng = self.rng
        for names in ([rng.choice(self.tables)], self.tables):
            # One of all tables is never taken back: each sample of crashes has truncates.
            share = 0.3 if names is not self.tables else 0.0
            with connection.transaction(force_rollback=rng.random() < share):
                self._insert(connection, 3)
                connection.execute("savepoint s")
                connection.execute(f"truncate {', '.join(names)}")
                self.besides(connection)
                if rng.random() < share:
                    connection.execute("rollback to savepoint s")

    def check_more(self) -> None:
        check_kinds([told for _, told in self.witnessed_all()])
        super().check_more()


def postgres_lsn(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)


def check_kinds(witnessed: list[Told]) -> None:
    """What the comparison is worth: everything has been there."""
    assert {op for _, op, *_ in witnessed} == set("cudtm")
    assert {op for _, op, _, _, big in witnessed if big == UNSENT} == set("cu")
    assert {xid is None for xid, op, *_ in witnessed if op == "m"} == {True, False}


def record(offset: int, xid: int, index: int, op: str, number: int, v: str | None = "x") -> tuple[int, dict]:
    row = {"id": number, "v": v}
    source = {"txId": xid, "commit_lsn": xid * 10, "tx_index": index, "tx_sub": 0}
    return offset, {
        "op": op,
        "before": row if op == "d" else None,
        "after": None if op == "d" else row,
        "source": source,
    }


WITNESSED = [
    *((1, "c", number, "x", None) for number in range(1, 1001)),
    (2, "d", 1, None, None),
    (2, "u", 2, "x", None),
]
DELIVERED = [
    *(record(number - 1, 1, number, "c", number) for number in range(1, 1001)),
    # 1000 is the marker's offset, 1002 the tombstone's.
    record(1001, 2, 0, "d", 1, None),
    record(1003, 2, 1, "u", 2),
]


@pytest.mark.parametrize(
    ("harm", "is_found"),
    [
        (lambda records: records, False),
        (lambda records: records[:-1], True),
        (lambda records: records[:500] + records[501:], True),
        (lambda records: records[:500] + records[499:], True),
        (lambda records: [*records[:500], records[501], records[500], *records[502:]], True),
        (lambda records: [*records[:-1], record(1003, 2, 1, "u", 2, "y")], True),
        (lambda records: [*records[:-1], record(1004, 2, 1, "u", 2)], True),
        (lambda records: [*records, record(1005, 3, 0, "c", 5000)], True),
    ],
)
def test_the_comparison_with_the_witness_finds_what_it_is_for(harm, is_found):
    stage = SimpleNamespace(delivered=lambda _: harm(list(DELIVERED)), witnessed=lambda _: WITNESSED)
    if is_found:
        with pytest.raises(AssertionError):
            check(stage)
    else:
        check(stage)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("BEGIN 7", []),
        ("COMMIT 7", []),
        (
            "table public.t: INSERT: id[integer]:1 v[text]:'it''s new-' big[text]:null",
            [("t", (7, "c", 1, "it's new-", None))],
        ),
        (
            "table public.t: UPDATE: id[integer]:1 v[character varying]:'w' big[text]:unchanged-toast-datum",
            [("t", (7, "u", 1, "w", UNSENT))],
        ),
        (
            "table public.t: UPDATE: old-key: id[integer]:1 new-tuple: id[integer]:2 v[text]:'w' big[text]:'y' c3[integer]:null",
            [("t", (7, "d", 1, None, None)), ("t", (7, "c", 2, "w", "y"))],
        ),
        (
            "table public.t: UPDATE: old-key: id[integer]:1 v[text]:'v' new-tuple: id[integer]:1 v[text]:'w'",
            [("t", (7, "u", 1, "w", None))],
        ),
        ("table public.t: DELETE: id[integer]:5", [("t", (7, "d", 5, None, None))]),
        (
            "table public.t, public.u: TRUNCATE: (no-flags)",
            [("t", (7, "t", None, None, None)), ("u", (7, "t", None, None, None))],
        ),
        ("message: transactional: 1 prefix: news, sz: 3 content:a:b", [(MESSAGES, (7, "m", "news", "a:b", None))]),
        ("message: transactional: 0 prefix: news, sz: 1 content:a", [(MESSAGES, (None, "m", "news", "a", None))]),
        ("message: transactional: 1 prefix: cdcworker, sz: 2 content:go", []),
    ],
)
def test_the_witness_is_understood(line, told):
    assert read_test_decoding(7, line) == told


@pytest.mark.parametrize("line", ["table public.t: MERGE: id[integer]:1", "PREPARE TRANSACTION 'p'"])
def test_what_of_the_witness_is_not_understood_is_no_silence(line):
    with pytest.raises(AssertionError):
        read_test_decoding(7, line)


@pytest.mark.parametrize(
    ("order", "is_found"),
    [
        (range(1002), False),
        ([*range(700), *range(300, 1002)], False),
        ([*range(1002), *range(900, 1002)], False),
        (range(1001), True),
        ([*range(500), *range(501, 1002)], True),
        ([*range(500), 501, 500, *range(501, 1002)], True),
        ([*range(1002), 5], True),
    ],
)
def test_the_loose_comparison_takes_repeats_and_nothing_else(order, is_found):
    stage = SimpleNamespace(delivered=lambda _: [DELIVERED[n] for n in order], witnessed=lambda _: WITNESSED)
    if is_found:
        with pytest.raises(AssertionError):
            check_loosely(stage)
    else:
        assert check_loosely(stage) == len(order) - 1002


@pytest.mark.parametrize(
    ("action", "returncode", "stopped", "log", "is_met"),
    [
        ("kill", None, False, b"failpoint a.b", False),
        ("kill", -signal.SIGKILL, False, b"", True),
        ("stop", None, False, b"failpoint a.b", False),
        ("stop", None, True, b"", True),
        (ACTIONS[1], None, False, b"failpoint a.c", False),
        (ACTIONS[1], None, False, b"failpoint a.b", True),
        (ACTIONS[3], None, False, b"failpoint a.c sleeps", False),
        (ACTIONS[3], None, False, b"failpoint a.b sleeps", True),
    ],
)
def test_a_failpoint_is_met_when_it_has_fired(action, returncode, stopped, log, is_met):
    process = SimpleNamespace(returncode=returncode)
    child = SimpleNamespace(ended=lambda: returncode is not None, stopped=lambda: stopped, process=process, log=log)
    assert Child.met(child, "a.b", action) is is_met


@pytest.mark.parametrize(("action", "returncode"), [("kill", 0), ("kill", 1), ("stop", -9), (ACTIONS[1], -9)])
def test_a_process_that_ended_in_another_way_has_met_no_failpoint(action, returncode):
    child = SimpleNamespace(ended=lambda: True, process=SimpleNamespace(returncode=returncode), log=b"")
    with pytest.raises(AssertionError):
        Child.met(child, "a.b", action)


@pytest.fixture
def stage(kafka, postgres, tmp_path, rng, request):
    given = getattr(request, "param", EXACT)
    made = Rich(kafka, postgres, rng, tmp_path, *(given if isinstance(given, tuple) else (given,)))
    for number in range(made.slots):
        # Before anything was stored the slot of a start that was killed is found again.
        first = made.child("postgres.slot_created=kill", number)
        first.wait(first.ended, "its death")
        second = made.child(number=number)
        second.wait(lambda: "RUNNING" in second.states(), "running")  # noqa: B023 - called at once
        second.close()
    made.begin_witness()
    yield made
    made.close()


def test_a_sample_of_crashes_leaves_exactly_what_the_witness_saw(stage):
    rng = stage.rng
    points = sorted(rng.sample(POINTS, 3), key=lambda point: point == APART)
    counts = [1 if point in ONCE else rng.randrange(1, 3) for point in points]
    actions = ("kill", "stop", rng.choice([action for action in ACTIONS if action not in ("kill", "stop")]))
    run(stage, list(zip(points, actions, counts, strict=True)))


@pytest.mark.parametrize("stage", [LOOSE], indirect=True)
def test_a_crash_with_at_least_once_delivery_loses_nothing_and_keeps_the_order(stage):
    run(stage, [("source.before_ack", "kill", 2), ("source.before_commit", "stop", 2)])


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("stage", [EXACT, LOOSE, (EXACT, 2)], indirect=True, ids=[EXACT, LOOSE, "two slots"])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("side", ["postgres", "source"])
def test_a_crash_at_every_step_leaves_exactly_what_the_witness_saw(stage, side, action):
    points = [point for point in POINTS if point.startswith(side)]
    run(stage, [(point, action, count) for count in (1, 3) for point in points if count == 1 or point not in ONCE])
