"""Rows that are read beside the stream while others change the table at each hand-over of the algorithm: none is ever stale.

A test calls `proved` or `repaired` with a database and a seed.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cdcworker.connectors.snapshot_jobs import RepairedRows, repair_spec
from cdcworker.schemas import failpoints
from cdcworker.schemas.change import Change

from .polled_task import Key, PolledTask, apply, asked, materialise
from .source_databases import Session, SourceDatabase, WriteRefused, values_of

PLACES = ("window_opened", "snapshot_taken", "rows_read", "read_ended", "before_emit")
KEYS = 150
SMALL = {"snapshot_chunk_max_bytes": "40000", "snapshot_lock_timeout_ms": "20"}
Rows = dict[Key, dict[str, Any]]


class Interference:
    """At each hand-over of the algorithm others change the table: at once, or in transactions that stay open."""

    def __init__(self, database: SourceDatabase, seed: int) -> None:
        self.rng = random.Random(seed)
        self.database = database
        self.version = 0
        self.count = 0
        self.most = 120
        self.places: set[str] = set()
        self.sessions = [database.session() for _ in range(3)]
        self.lock = threading.Lock()
        self.acted = time.monotonic()

    def at(self, name: str) -> None:
        """Several threads may be at hand-overs at the same time; a connection is for one of them."""
        with self.lock:
            place = name.removeprefix("snapshot.")
            if place in PLACES and self.count < self.most:
                self.places.add(place)
                self.acted = time.monotonic()
                for _ in range(self.rng.randrange(3)):
                    self.act()

    def act(self) -> None:
        """Short lock waits only: two of the open transactions may want the same row."""
        session = self.rng.choice(self.sessions)
        self.count += 1
        try:
            for _ in range(self.rng.randrange(1, 4)):
                self.change(session)
            if self.rng.random() < 0.8:
                session.rollback() if self.rng.random() < 0.1 else session.commit()
        except WriteRefused:
            session.rollback()

    def change(self, session: Session) -> None:
        self.version += 1
        key, other = self.rng.randrange(KEYS), self.rng.randrange(KEYS)
        kind = self.rng.random()
        value = str(self.version)
        if kind < 0.35:
            session.execute(f"update t set v = '{value}' where id = {key}")
        elif kind < 0.45:
            session.execute(f"update t set n = n + 1 where id = {key}")
        elif kind < 0.6:
            session.execute(f"delete from t where id = {key}")
        elif kind < 0.8:
            row = f"(id, v, big) values ({key}, '{value}', repeat('{value[-1]}', 3000))"
            session.execute(self.database.upsert(row, "v"))
        elif kind < 0.97:
            taken = f"exists (select 1 from (select id from t where id = {other}) found)"
            session.execute(f"update t set id = {other} where id = {key} and not {taken}")
        else:
            session.execute("truncate table t")

    def are_done(self) -> bool:
        """Where a read waits for all that they have left open, there is no hand-over at which they would end it."""
        with self.lock:
            if time.monotonic() - self.acted > 2:
                self.acted = time.monotonic()
                for session in self.sessions:
                    session.commit()
        return self.count >= self.most

    def settle(self) -> None:
        """A thread that is at a hand-over by now ends first, and one that comes behind it does nothing."""
        with self.lock:
            self.most = 0
            for session in self.sessions:
                session.commit()
                session.close()


def proved(database: SourceDatabase, seed: int) -> None:
    """One seeded run: loads, restarts and a load on demand under interference; then all is equal, and nothing stale."""
    rng = random.Random(seed)
    _fill(database)
    one = database.task(**SMALL, snapshot_max_threads=rng.choice(["1", "2", "3"]))
    others = Interference(database, seed)
    with _interfered(others):
        one.start()
        if rng.random() < 0.5:
            _broken_off(one, rng.randrange(30))
        one.jobs = (asked("again", tables=[database.name("t")]),) if rng.random() < 0.5 else ()
        others.most = 40 + rng.randrange(80)
        one.until(lambda: others.are_done() or (one.loaded() and (not one.jobs or one.outcome("again"))))
    one.until(lambda: not one.jobs or one.outcome("again"))
    database.catch_up(one)
    one.kill()
    assert others.places == set(PLACES)
    _require_equal(database, materialise(one.log).get(database.path("t"), {}), seed)
    not_stale(one.log, seed)


def repaired(database: SourceDatabase, seed: int) -> None:
    """One seeded run: a reader's rows are spoilt, all keys are repaired under interference and with a kill; then all is equal."""
    rng = random.Random(seed)
    _fill(database)
    one = database.task(**SMALL).start()
    one.until(one.loaded)
    rows, since = spoilt(materialise(one.log)[database.path("t")], rng), len(one.log)
    others = Interference(database, seed)
    keys = [[str(key)] for key in range(KEYS)]
    one.jobs = (asked("r", **repair_spec({database.name("t"): RepairedRows(["id"], keys, deletes=True)})),)
    with _interfered(others):
        if rng.random() < 0.5:
            _broken_off(one, rng.randrange(20))
        one.until(lambda: one.outcome("r"))
    database.catch_up(one)
    one.kill()
    for change in one.log[since:]:
        apply(rows, change)
    _require_equal(database, rows, seed)


def _fill(database: SourceDatabase) -> None:
    columns = "id int primary key, v varchar(40), big text, n int default 0"
    database.run(f"create table t({columns})", *database.kept_apart("t", "big"))
    rows = values_of([(key, "'v'", "repeat('b', 3000)", 0) for key in range(1, KEYS) if key % 3])
    database.run(f"insert into t values {rows}")


@contextmanager
def _interfered(others: Interference) -> Iterator[None]:
    failpoints.listen(others.at)
    try:
        yield
    finally:
        failpoints.listen(None)
        others.settle()


def _broken_off(one: PolledTask, polls: int) -> None:
    for _ in range(polls):
        one.poll()
    one.again()


def _require_equal(database: SourceDatabase, rows: Rows, seed: int) -> None:
    found = {key[0]: (row["v"], row["big"], row["n"]) for key, row in rows.items() if key[0] != "moved"}
    assert found == {row[0]: row[1:] for row in database.rows("select id, v, big, n from t")}, f"seed {seed}"


def spoilt(rows: Rows, rng: random.Random) -> Rows:
    """Returns the rows without some, with some that the table does not have, and with some other values."""
    out: Rows = {}
    for number in range(KEYS):
        row, kind = rows.get((number,)), rng.random()
        if kind < 0.3:
            row = None if row is not None else {"id": number, "v": "surplus", "big": "s", "n": 1}
        elif kind < 0.5 and row is not None:
            row = {**row, "v": "other", "n": -1}
        if row is not None:
            out[number,] = row
    return out


def not_stale(log: Sequence[Change], seed: int) -> None:
    """A row that was read never brings back a version older than what an event of its key had said."""
    last: dict[Any, int] = {}
    for change in log:
        if change.op == "t":
            last.clear()
        elif change.op == "d":
            assert change.before is not None
            last.pop(change.before[0], None)
        elif change.op in ("c", "u", "r"):
            assert change.after is not None
            key, text = change.after[0], change.after[1]
            if 1 in change.unchanged:
                continue
            version = int(text) if text.isdigit() else 0
            if change.op == "r":
                assert version >= last.get(key, 0), f"seed {seed}: key {key}"
            else:
                last[key] = version
