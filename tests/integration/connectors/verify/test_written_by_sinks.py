"""Verify of lakes that a sink has written: planted differences are found by key and column, a moving source has none."""

from __future__ import annotations

import random
import threading

import psycopg
import pytest
from cdcworker.connectors.postgres.doctor.compared_source import PostgresSourceSide
from cdcworker.connectors.postgres.errors import translate
from cdcworker.connectors.postgres.transport.server_functions import END_OF_LOG
from cdcworker.connectors.verify.canonical_text import SourceModes
from cdcworker.connectors.verify.compare import CompareSettings, Comparison
from cdcworker.connectors.verify.databases import VerifyLimits
from cdcworker.connectors.verify.plan import plan
from cdcworker.connectors.warehouses.lake.delta import DeltaTables
from cdcworker.connectors.warehouses.lake.iceberg import IcebergTables
from cdcworker.connectors.warehouses.lake.tables import LakeName
from cdcworker.connectors.warehouses.lake.verify_side import LakeTarget
from cdcworker.connectors.warehouses.lake.writer import LakeWriter
from cdcworker.connectors.warehouses.target_columns import OutputForm

from tests import change_streams
from tests.contract import warehouses as contract

from .test_compare import Now

pytestmark = [
    pytest.mark.spark,
    pytest.mark.iceberg,
    pytest.mark.postgres,
    pytest.mark.timeout(1800),
    # pyspark leaves the sockets over which Arrow tables come to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]
LONG_DELTA = pytest.param("delta", marks=[pytest.mark.delta, pytest.mark.long])
LOOKS = 3
ORDERS = "create table orders (id bigint primary key, n int, a text, big text)"
INSERT = "insert into orders values (%s, %s, %s, %s)"


class Both:
    """A source, a lake that a sink writes, and what they are compared by."""

    def __init__(self, spark, kind, root, dsn, **output):
        self.spark, self.kind, self.root, self.output = spark, kind, root, output
        self.db = psycopg.connect(dsn, autocommit=True)
        self.db.execute(ORDERS)
        self.stream = change_streams.Stream(1)
        self.writer = self.lake()
        self.writer.fence((1, 0))
        self.dsn, self.opened = dsn, [self.writer]

    def lake(self):
        root = str(self.root)
        tables = DeltaTables(root) if self.kind == "delta" else IcebergTables({"type": "hadoop", "warehouse": root})
        writer = LakeWriter(tables, "sink", output=OutputForm(**self.output))
        writer.attach(lambda: self.spark)
        return writer

    def insert(self, *row):
        self.db.execute(INSERT, row)
        self.stream.insert(change_streams.NARROW, row)

    def delete(self, id):
        self.db.execute("delete from orders where id = %s", (id,))
        self.stream.delete(change_streams.NARROW, (id,))

    def plant(self, *statements):
        """In the lake, as somebody who is no sink does."""
        session, table = self.writer._spark(), self.writer._tables.name(LakeName("public", "orders"))
        for statement in statements:
            session.sql(statement.format(table=table))

    def compared(self, goal=lambda *_: Now(), rounds=12):
        source = PostgresSourceSide(psycopg.connect(self.dsn, autocommit=True), translate, END_OF_LOG)
        target = LakeTarget(self.lake(), "sink")
        try:
            source.prepare(VerifyLimits())
            ours, theirs = source.table("public", "orders", ("id",)), target.table("public", "orders")
            made = plan(contract.TOPIC, ours, theirs, SourceModes())
            settings = CompareSettings(VerifyLimits(range_rows=16, rows_per_s=0), rounds=rounds)
            (state,) = Comparison(source, target, goal, settings).run([made]).tables
        finally:
            source.close()
            target.close()
        assert state.reason == ""
        found = {item.key[0]: (item.kind, item.columns) for item in state.found}
        return state.source_rows, state.target_rows, found

    def close(self):
        self.db.close()
        for writer in self.opened:
            writer.close()


@pytest.fixture
def open_both(spark, tmp_path, postgres, database):
    made = []

    def opened(kind, **output):
        made.append(Both(spark, kind, tmp_path / "lake", postgres.dsn(database), **output))
        return made[-1]

    yield opened
    for both in made:
        both.close()


def rows_as_they_were(*ids):
    columns = ("id", "CAST(1 AS int) AS n", "'name' AS a", "'text' AS big")
    return "INSERT INTO {table} (id, n, a, big) " + f"SELECT {', '.join(columns)} FROM VALUES " + ", ".join(
        f"(CAST({id} AS bigint))" for id in ids
    ) + " AS v(id)"  # fmt: skip


@pytest.mark.parametrize("kind", ["iceberg", LONG_DELTA])
def test_every_planted_difference_is_found_with_its_key_and_its_columns(open_both, kind):
    both = open_both(kind)
    for id in range(20):
        both.insert(id, 1, "name", {3: None, 4: ""}.get(id, "text"))
    both.delete(19)
    contract.run(both.stream, both.writer, [12])
    assert both.compared() == (19, 19, {})
    # Two errors that cancel in the count.
    both.plant("DELETE FROM {table} WHERE id = 6", rows_as_they_were(1006))
    wanted = {"6": ("missing", ()), "1006": ("extra", ())}
    assert both.compared() == (19, 19, wanted)
    both.plant(
        "UPDATE {table} SET a = CASE id WHEN 1 THEN 'nbme' WHEN 5 THEN big ELSE a END,"
        " big = CASE id WHEN 3 THEN '' WHEN 4 THEN NULL WHEN 5 THEN a ELSE big END WHERE id IN (1, 3, 4, 5)",
        "DELETE FROM {table} WHERE id = 2",
        # A row that nobody has sent, and one that was deleted.
        rows_as_they_were(1000, 19),
    )
    wanted |= {
        "1": ("different", ("a",)),
        "2": ("missing", ()),
        "3": ("different", ("big",)),
        "4": ("different", ("big",)),
        "5": ("different", ("a", "big")),
        "19": ("extra", ()),
        "1000": ("extra", ()),
    }
    assert both.compared() == (19, 20, wanted)


@pytest.mark.sampled(2)
def test_rows_that_a_soft_delete_left_are_none(open_both):
    both = open_both("iceberg", soft=True)
    for id in range(5):
        both.insert(id, 1, "name", "text")
    both.delete(4)
    contract.run(both.stream, both.writer)
    assert both.compared() == (4, 4, {})


class Mover(threading.Thread):
    """Changes rows at random, with deletes and changes of keys; a sink applies them later."""

    def __init__(self, both, ids=60):
        super().__init__(daemon=True)
        self.both, self.ids, self.random = both, ids, random.Random(5)
        self.ending = threading.Event()
        self.model = dict.fromkeys(range(ids), 1)
        self.written, self.error, self.batches = [], None, 0
        """Of each transaction how far the log was behind it, and the stream."""

    def change(self):
        id, other = self.random.randrange(self.ids), self.random.randrange(self.ids)
        kind, stream, db = self.random.random(), self.both.stream, self.both.db
        if id not in self.model:
            self.model[id] = 0
            self.both.insert(id, 0, "new", "text")
        elif kind < 0.4:
            self.model[id] += 1
            row = (id, self.model[id], "changed", "other")
            db.execute("update orders set n = %s, a = %s, big = %s where id = %s", (*row[1:], id))
            stream.update(change_streams.NARROW, row)
        elif kind < 0.7:
            del self.model[id]
            self.both.delete(id)
        elif other not in self.model:
            self.model[other] = self.model.pop(id) + 1
            row = (other, self.model[other], "moved", "text")
            db.execute("update orders set id = %s, n = %s, a = %s, big = %s where id = %s", (*row, id))
            stream.move(change_streams.NARROW, (id,), row)

    def run(self):
        try:
            while not self.ending.is_set():
                # A few of the keys: those that have moved between two looks are looked at once more.
                for _ in range(self.random.randrange(2, 10)):
                    with self.both.db.transaction():
                        for _ in range(self.random.randrange(1, 4)):
                            self.change()
                    ((at,),) = self.both.db.execute("select (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchall()
                    self.written.append((at, self.both.stream.records[-1]["offset"] + 1))
                self.apply()
        except BaseException as error:
            self.error = error
            raise

    def apply(self):
        stream, writer = self.both.stream, self.both.writer
        start = writer.ledger().get((contract.TOPIC, 0), 0)
        records = [record for record in stream.records if record["offset"] >= start]
        # Not all of it: the lake is behind.
        records = records[: self.random.randrange(1, len(records) + 1)] if records else []
        writer.apply(stream.assembler().build(change_streams.arrow(records), writer.ledger(), 1))
        self.batches += 1

    def goal(self, position, _deadline):
        return Reached(self, position)


class Reached:
    def __init__(self, mover, position):
        self.mover, self.position = mover, position

    def reached(self, ledger):
        ends = [end for at, end in self.mover.written if at >= self.position]
        return bool(ends) and ledger.get((contract.TOPIC, 0), 0) >= ends[0]

    def lagging(self, ledger):
        return "behind"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["iceberg", LONG_DELTA])
def test_a_moving_source_with_deletes_and_key_changes_has_no_differences_but_real_ones(open_both, kind):
    both = open_both(kind)
    for id in [*range(60), *range(1000, 1040)]:
        both.insert(id, 1, "name", "text")
    contract.run(both.stream, both.writer)
    mover = Mover(both)
    mover.start()
    try:
        for _ in range(LOOKS):
            before = mover.batches
            assert both.compared(mover.goal, 40)[2] == {}
            assert mover.is_alive(), mover.error
            assert mover.batches > before
        mover.ending.set()
        mover.join(120)
        both.plant("UPDATE {table} SET a = 'nbme' WHERE id = 1020")
        mover = moved_on(mover)
        assert both.compared(mover.goal, 40)[2] == {"1020": ("different", ("a",))}
    finally:
        mover.ending.set()
        mover.join(120)
    assert mover.error is None


def moved_on(before):
    """Another one, from where that one ended."""
    mover = Mover(before.both)
    mover.model, mover.written = before.model, before.written
    mover.start()
    return mover
