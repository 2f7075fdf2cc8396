"""A scripted source and a Kafka that is a list: transactions, fencing and failures at any call."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.log.offset_records import OffsetRecord, parse_offset_value
from cdcworker.schemas.change import Change, EncodedRecords, OutRecord, PollBatch, Position, Table
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.protocol.control import TaskControl
from cdcworker.worker.source.runner import SourceRunner
from cdcworker.worker.source.session import RecordTargets, TransactionLimits
from cdcworker.worker.source.topic_facts import TopicFacts


@pytest.fixture(scope="module", autouse=True)
def _long_lived_objects_are_not_collected():
    """The runner collects garbage after each failure: what a thousand tests before left would be walked each time."""
    gc.freeze()
    yield
    gc.unfreeze()


TABLE = Table(("public", "t"), 1, (), (), {})
PLACE = RecordTargets("shop", 0, "inc", 5, "g.offsets", 3, '["shop",{"server":"p","task":0}]', "p.watermark")


def change(lsn: int, index: int) -> Change:
    return Change("c", TABLE, Position(lsn, index, 0), {"ts_ms": lsn})


def transactions(sizes: Sequence[int]) -> list[list[Change]]:
    """Source transactions 1..n with so many changes each."""
    return [[change(lsn, index) for index in range(size)] for lsn, size in enumerate(sizes, 1)]


def failure(code: str = e.TIMEOUT) -> CdcError:
    return CdcError(code, "scripted")


@dataclass
class Faults:
    """Fails the n-th call of an operation with an error. `lost_answer`: the operation takes effect all the same."""

    plan: dict[tuple[str, int], CdcError] = field(default_factory=dict)
    lost_answer: bool = False
    counts: dict[str, int] = field(default_factory=dict)

    def due(self, name: str) -> CdcError | None:
        self.counts[name] = self.counts.get(name, 0) + 1
        return self.plan.pop((name, self.counts[name]), None)

    def pass_(self, name: str) -> None:
        error = self.due(name)
        if error is not None:
            raise error


@dataclass
class Broker:
    """What read_committed readers see, and who holds the transactional id."""

    committed: list[tuple[str, bytes | None, bytes | None, int]] = field(default_factory=list)
    transactions: list[list[tuple[str, bytes | None, bytes | None, int]]] = field(default_factory=list)
    holder: object = None

    def data(self) -> list[str]:
        return [value.decode() for topic, _, value, _ in self.committed if topic.startswith("p.public") and value]

    def position(self) -> OffsetRecord | None:
        values = [value for topic, _, value, _ in self.committed if topic == PLACE.offsets_topic]
        return parse_offset_value(json.loads(values[-1])) if values else None


class FakeProducer:
    def __init__(self, broker: Broker, faults: Faults, clock: Callable[[], float]) -> None:
        faults.pass_("init")
        self._broker, self._faults, self._clock = broker, faults, clock
        broker.holder = self
        self.opened_at: float | None = None
        self._open: list[tuple[str, bytes | None, bytes | None, int]] = []
        self.closed = False
        self.on_commit: Callable[[], None] = lambda: None

    def _guard(self, name: str) -> None:
        self._faults.pass_(name)
        if self._broker.holder is not self:
            raise failure(e.FENCED)

    def begin(self) -> None:
        assert self.opened_at is None
        self._guard("begin")
        self.opened_at = self._clock()

    def produce(self, topic, key, value, partition, headers=None) -> None:
        assert self.opened_at is not None
        self._guard("produce")
        self._open.append((topic, key, value, partition))

    def produce_all(self, records) -> None:
        for topic, value, key, partition in records:
            self.produce(topic, key, value, partition)

    def serve(self) -> None:
        pass

    def flush(self, timeout_s: float) -> None:
        self._faults.pass_("flush")

    def commit(self) -> None:
        assert self.opened_at is not None
        self.on_commit()
        error = self._faults.due("commit")
        if self._broker.holder is not self:
            raise failure(e.FENCED)
        if error is None or self._faults.lost_answer:
            self._broker.committed += self._open
            self._broker.transactions.append(self._open)
        if error is not None:
            raise error
        self._open, self.opened_at = [], None

    def abort(self) -> None:
        self._open, self.opened_at = [], None

    def close(self) -> None:
        self.closed = True


class FakeEncoder:
    def __init__(self, register) -> None:
        self._register = register

    def encode(self, changes):
        self._register(())
        return [
            OutRecord("p.public.t", b"k", f"{c.position.commit}.{c.position.event}".encode(), None, c.position[0])
            for c in changes
        ]


def as_ready(change: Change) -> EncodedRecords:
    """What the encoder would make of it, as the arguments of produce."""
    (made,) = FakeEncoder(lambda _: ()).encode((change,))
    assert made.key
    assert made.value
    record = (made.topic, made.value, made.key, change.position[0] % 4)
    return EncodedRecords(
        [record],
        len(made.key) + len(made.value),
        len(made.value) + 1,
        made.topic,
        {made.topic: 1},
        change.source["ts_ms"],
    )


class FakeRegistrar:
    def __init__(self, faults: Faults) -> None:
        faults.pass_("schema_init")
        self._faults = faults

    def __call__(self, registrations):
        self._faults.pass_("register")
        return []

    def close_idle(self) -> None:
        pass

    abort = close = close_idle


class ScriptedTask:
    """Hands out whole transactions; `split` > 0 hands a transaction out in parts of so many changes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._next: list[PollBatch] = []

    def open(self, position) -> None:
        self._world.faults.pass_("open")
        done = position["lsn"] if position else 0
        world = self._world
        part = position.get("part", 0) if position else 0
        self._next = [
            batch
            for lsn, tx in enumerate(world.source, 1)
            if lsn > done
            for batch in world.batches(lsn, tx, part if lsn == done + 1 else 0)
        ]
        world.opened.append(position)

    def poll(self) -> PollBatch:
        world = self._world
        world.now += world.poll_takes_s
        world.faults.pass_("poll")
        world.polls += 1
        if world.on_poll:
            world.on_poll(world)
        if self._next:
            return self._next.pop(0)
        world.idle_polls += 1
        if world.idle_polls > world.idle_polls_max:
            world.control.apply({"type": "stop"})
        return PollBatch(idle=True, watermark=world.idle_watermark)

    def ack(self, position) -> None:
        # INV-1: what is acknowledged is committed.
        stored = self._world.broker.position()
        assert stored is not None
        assert stored.position["lsn"] >= position["lsn"]
        self._world.faults.pass_("ack")
        self._world.acked.append(position["lsn"])

    def close(self) -> None:
        self._world.closed += 1


class World:
    """The ports of a runner over one broker and one source."""

    place = PLACE

    def __init__(
        self, sizes: Sequence[int], *, split: int = 0, limits: TransactionLimits | None = None, idle: bool = False
    ) -> None:
        self.source = transactions(sizes)
        self.split = split
        self.resumes_within = False
        self.idle = idle
        self.ready: Callable[[int], bool] = lambda number: False
        """Which changes of a part are handed on as records, by their place in it."""
        self.limits = limits or TransactionLimits()
        self.now = 1000.0
        self.poll_takes_s = 0.001
        self.commit_takes_s = 0.0
        """Of the next commit."""
        self.control = TaskControl(1e9, clock=self.clock)
        self.control.wait = self._wait  # type: ignore[method-assign]
        self.broker, self.faults = Broker(), Faults()
        self.owner = True
        self.record_bytes_max: int | None = None
        self.record_bytes_max_of: dict[str, int] = {}
        """Of topics that differ from the others."""
        self.opened: list[object] = []
        self.checked_at: list[float] = []
        self.committed: dict | None = None
        self.acked: list[int] = []
        self.closed = self.polls = self.idle_polls = 0
        self.idle_polls_max = 2
        self.idle_watermark: dict | None = None
        self.on_poll: Callable[[World], None] | None = None
        self.statuses: list[tuple[str, CdcError | None]] = []
        self.numbers: list[dict] = []
        self.producers: list[FakeProducer] = []
        self.topics = self

    def clock(self) -> float:
        return self.now

    def fail(self, operation: str, number: int = 1, code: str = e.TIMEOUT) -> None:
        """The n-th call from now on of an operation raises."""
        self.faults.plan[operation, self.faults.counts.get(operation, 0) + number] = failure(code)

    def run(self) -> int:
        return SourceRunner(self, self.control, self, self.clock).run()

    def _wait(self, timeout_s, until=None) -> None:
        self.now += timeout_s

    def batches(self, lsn: int, tx: list[Change], done: int = 0) -> list[PollBatch]:
        """Of a transaction, of which the first `done` changes were handed on before."""
        size = self.split or len(tx) or 1
        batches = []
        for at in range(done, len(tx), size):
            end = min(at + size, len(tx))
            last = end == len(tx)
            within = {"lsn": lsn - 1, "part": end} if self.resumes_within and not last else None
            mark = {"commit_lsn": lsn, "ts_ms": lsn} if last else None
            position = {"lsn": lsn} if last else None
            batches.append(PollBatch(self._written(tx[at:end]), position, mark, self.idle and last, part=within))
        return batches

    def _written(self, part: list[Change]) -> list[Change | EncodedRecords]:
        return [as_ready(change) if self.ready(number) else change for number, change in enumerate(part)]

    # ports

    def prepare(self) -> None:
        pass

    def release(self) -> None:
        pass

    def producer(self):
        producer = FakeProducer(self.broker, self.faults, self.clock)
        producer.on_commit = self._commit_passes
        self.producers.append(producer)
        return producer

    def _commit_passes(self) -> None:
        self.now += self.commit_takes_s
        self.commit_takes_s = 0.0

    def registrar(self):
        return FakeRegistrar(self.faults)

    def assigned(self) -> bool:
        self.faults.pass_("assigned")
        return self.owner

    def position(self):
        self.faults.pass_("position")
        return self.broker.position()

    def encoder(self, register):
        return FakeEncoder(register)

    def task(self):
        return ScriptedTask(self)

    def __call__(self, topic: str) -> TopicFacts:
        self.faults.pass_("topics")
        return TopicFacts(4, self.record_bytes_max_of.get(topic, self.record_bytes_max))

    def all(self, topics) -> dict[str, TopicFacts]:
        return {topic: self(topic) for topic in topics}

    def close_idle(self) -> None:
        pass

    def compacted(self) -> list[str]:
        return []

    def check_ended(self) -> None:
        self.checked_at.append(self.now)
        self.faults.pass_("check_ended")

    # reports

    def status(self, state, error=None) -> None:
        self.statuses.append((state, error))

    def metrics(self, numbers) -> None:
        self.numbers.append(dict(numbers))

    @property
    def expected(self) -> list[str]:
        return [f"{c.position.commit}.{c.position.event}" for tx in self.source for c in tx]


@pytest.fixture
def make_world():
    return World
