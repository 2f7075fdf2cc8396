"""A warehouse that shows whole transactions of the source only: whoever looks at it sees every invariant of it hold."""

from __future__ import annotations

import json
import random
import signal
import threading

import psycopg
import pytest
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchemas
from cdcworker.connectors.transactions.whole_transactions import WholeTransactions
from cdcworker.connectors.warehouses.postgres.writer import PostgresWriter

from tests import change_streams
from tests.change_streams import ID, column, table

from .. import spark_world
from ..spark_world import await_end_of_group, eventually

ACCOUNTS, TOTAL = 8, 1600
GIRO, SAVINGS = (table(ID, column("balance", "int", "integer"), name=name) for name in ("giro", "savings"))
TOPICS = ["shop.public.giro", "shop.public.savings"]
MARKS = "shop.watermark"
LOOK = """select (select sum(balance) from public.giro) + (select sum(balance) from public.savings),
                 (select (position - '0/0')::bigint from _cdcworker.watermark), (select max(balance) from public.giro)"""


class Bank:
    """Moves money between accounts of two tables; the sum of all never changes."""

    def __init__(self, stream, chance):
        self.stream, self.chance = stream, chance
        self.balance = {(of.path[1], id): 100 for of in (GIRO, SAVINGS) for id in range(ACCOUNTS)}

    def open(self):
        self.stream.lsn += 8
        rows = [(of, id) for of in (GIRO, SAVINGS) for id in range(ACCOUNTS)]
        self._emit("r", [(of, (id, self.balance[of.path[1], id])) for of, id in rows])

    def transfer(self):
        self.stream.lsn += 8
        changes = []
        for _ in range(self.chance.randint(1, 3)):
            one, other = self.chance.sample(sorted(self.balance), 2)
            amount = self.chance.randint(1, 50)
            self.balance[one] -= amount
            self.balance[other] += amount
            for name, id in (one, other):
                changes.append((GIRO if name == "giro" else SAVINGS, (id, self.balance[name, id])))
        self._emit("u", changes)

    def _emit(self, op, rows):
        # A number above 0 keeps the position of the commit.
        self.stream.emit(*(self.stream.change(op, of, sub=n, after=row) for n, (of, row) in enumerate(rows, 1)))


class Looker(threading.Thread):
    """Reads all tables in one statement, again and again."""

    def __init__(self, dsn):
        super().__init__(daemon=True)
        self.dsn = dsn
        self.ending = threading.Event()
        self.looks = []
        self.error = None

    def run(self):
        try:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                while not self.ending.is_set():
                    found = connection.execute("select to_regclass('public.savings')").fetchone()
                    if found[0] is not None:
                        self.looks.append(connection.execute(LOOK).fetchone())
                    self.ending.wait(0.005)
        except psycopg.Error as error:
            self.error = error

    def stop(self):
        self.ending.set()
        self.join(30)
        assert self.error is None


@pytest.fixture
def dsn(postgres):
    name = postgres.create_database()
    yield postgres.dsn(name)
    postgres.drop_database(name)


class Sink:
    """The driver's part without Spark: reads each partition up to somewhere, passes on what is complete."""

    def __init__(self, writer, stream, marks, tmp_path, epoch):
        self.stream, self.marks = stream, marks
        self.writer = writer
        self.writer.fence((1, epoch))
        self.writer.claim([*TOPICS, MARKS])
        shapes = EnvelopeSchemas(stream.schemas, wait_s_max=0)
        self.whole = WholeTransactions(TOPICS, shapes, stream.assembler().build, tmp_path / "held", self)
        self.read = dict(self.writer.ledger())
        self.whole.begin(self.writer.through(), self.read, getattr(self.writer, "ahead", dict)())

    def ends(self):
        out = {}
        for record in self.stream.records:
            out[record["topic"], record["partition"]] = record["offset"] + 1
        return out

    def partitions(self, topics):
        return dict.fromkeys(topics, 1)

    def step(self, chance):
        rows, to = [], {}
        ends = {**self.ends(), (MARKS, 0): len(self.marks)}
        for place, end in ends.items():
            to[place] = end if chance is None else chance.randint(self.read.get(place, 0), end)
        for record in [*self.stream.records, *self.marks]:
            place = (record["topic"], record["partition"])
            if self.read.get(place, 0) <= record["offset"] < to[place]:
                rows.append(record)
        self.read.update(to)
        found = self.whole.take(change_streams.arrow(rows), to)
        if found is not None:
            self.writer.apply_all(found)
            found.drop()


def mark(number, position):
    key, value = {"connector": "c", "task": 0}, {"v": 1, "commit_lsn": position, "ts_ms": position}
    return {"topic": MARKS, "partition": 0, "offset": number, "key": json.dumps(key).encode(),
            "value": json.dumps(value).encode(), "headers": None}  # fmt: skip


@pytest.mark.sampled(2, "transactions")
@pytest.mark.postgres
def test_every_look_sees_whole_transactions_however_batches_are_cut_and_tasks_end(dsn, tmp_path):
    chance = random.Random(5)
    stream, marks = change_streams.Stream(), []
    bank, looker = Bank(stream, chance), Looker(dsn)
    sink, epoch = Sink(PostgresWriter(dsn, "sink"), stream, marks, tmp_path, 0), 0
    looker.start()
    bank.open()
    for _ in range(150):
        for _ in range(chance.randint(0, 4)):
            bank.transfer()
        if chance.random() < 0.5:
            marks.append(mark(len(marks), stream.lsn + 1))
        sink.step(chance)
        if chance.random() < 0.1:
            sink.writer.close()
            epoch += 1
            sink = Sink(PostgresWriter(dsn, "sink"), stream, marks, tmp_path, epoch)
    marks.append(mark(len(marks), stream.lsn + 1))
    sink.step(None)
    looker.stop()
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "select 'giro', id, balance from public.giro union all select 'savings', id, balance from public.savings"
        ).fetchall()
        shown = connection.execute("select source, (position - '0/0')::bigint, left_out from _cdcworker.watermark")
        assert shown.fetchall() == [("shop", stream.lsn + 1, [])]
    assert {(name, id): balance for name, id, balance in rows} == bank.balance
    assert {total for total, _, _ in looker.looks} == {TOTAL}
    positions = [position for _, position, _ in looker.looks]
    assert positions == sorted(positions)
    assert len(set(positions)) > 10
    sink.writer.close()


@pytest.mark.sampled(2, "transactions")
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.postgres
def test_a_driver_shows_whole_transactions_only_also_when_it_is_killed(world):
    chance = random.Random(3)
    bank = Bank(world.stream, chance)
    names = [f"{world.name}.public.{of.path[1]}" for of in (GIRO, SAVINGS)]
    for name in names:
        world.create(name)
    world.create(f"{world.name}.watermark", 1)
    looker = Looker(world.dsn)
    looker.start()

    def send(count):
        for _ in range(count):
            for _ in range(chance.randint(1, 5)):
                bank.transfer()
            world.send(watermark=world.stream.lsn + 1)

    def caught_up():
        return looker.looks and looker.looks[-1][1] == world.stream.lsn + 1

    bank.open()
    world.send(watermark=world.stream.lsn + 1)
    process = world.start(names, "sink.before_commit=kill@3", consistency="source")
    eventually(lambda: looker.looks, "the first look")
    deadline = threading.Event()
    while process.poll() is None and not deadline.wait(0.05):
        send(1)
    assert process.wait(spark_world.START_S_MAX) == -signal.SIGKILL
    await_end_of_group(process.pid)
    process = world.start(names, consistency="source")
    send(30)
    eventually(caught_up, "the last transaction")
    world.stop(process)
    looker.stop()
    assert process.returncode == 0
    assert {total for total, _, _ in looker.looks} == {TOTAL}
