"""The simulated outside: a source database with slots, a warehouse with a ledger, and the connectors that use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.api.sink import SinkSpec
from cdcworker.connectors.postgres.errors import SLOT_ADVANCED
from cdcworker.coordinator.kafka import errors as kafka_errors
from cdcworker.schemas.change import OutRecord, PollBatch
from cdcworker.schemas.errors import CdcError

from .clients import Client, Consumer
from .engine import TIMED_OUT, World, block

DATABASE, WAREHOUSE = "db", "warehouse"
POLL_S = 0.3
ROWS_PER_POLL_MAX = 4
AWAY, ADVANCED = -1, -2
"""The answers of a server that refuses to open a stream."""


@dataclass
class Slot:
    """A replication slot. Rows are numbered, and a position is the number of rows before it."""

    name: str
    bounds: list[int] = field(default_factory=lambda: [0])
    """The positions at which transactions end."""
    confirmed: int = 0
    owner: object = None

    @property
    def end(self) -> int:
        return self.bounds[-1]


class Database:
    """One server. Each task has a slot of its own; a slot has one walsender at a time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.slots: dict[str, Slot] = {}
        self.down_until = 0.0
        self.on_confirm: list[Callable[[Slot, int], None]] = []
        self.committed: Callable[[str], int] = lambda _name: 0
        """The position of a slot's task that is in the offsets log."""

    def slot(self, name: str) -> Slot:
        return self.slots.setdefault(name, Slot(name))

    def commit(self, name: str, rows: int) -> None:
        slot = self.slot(name)
        slot.bounds.append(slot.end + rows)

    def restart(self, down_s: float) -> None:
        self.down_until = self.world.now + down_s
        for slot in self.slots.values():
            slot.owner = None

    # --- requests ---------------------------------------------------------------------------------------------------

    def open(self, name: str, owner: object, position: int | None) -> int:
        """Takes the slot from its present reader; returns where the stream starts. Confirmed rows are not sent again.

        A reader that asks for them is refused. It may be a process that was replaced after it had read its position.
        """
        if self.world.now < self.down_until:
            return AWAY
        slot = self.slot(name)
        if slot.confirmed > self.committed(name):
            self.world.violate(
                "I14 confirm", f"{name} was confirmed to {slot.confirmed}, the task stands at {position}"
            )
        if slot.confirmed > (position or 0):
            return ADVANCED
        slot.owner = owner
        return position or 0

    def read(self, name: str, owner: object, position: int) -> tuple[int, int] | None:
        """Returns the number of rows from a position to at most the end of the transaction, and where that is."""
        slot = self.slot(name)
        if slot.owner is not owner or self.world.now < self.down_until:
            return None
        if position >= slot.end:
            return 0, position
        end = next(bound for bound in slot.bounds if bound > position)
        return min(end - position, ROWS_PER_POLL_MAX), end

    def confirm(self, name: str, owner: object, position: int) -> None:
        slot = self.slot(name)
        if slot.owner is owner and self.world.now >= self.down_until:
            for action in self.on_confirm:
                action(slot, position)
            slot.confirmed = max(slot.confirmed, position)

    def close(self, name: str, owner: object) -> None:
        slot = self.slot(name)
        if slot.owner is owner:
            slot.owner = None


class Row(NamedTuple):
    """A change, as far as anybody looks at it here. When it was committed is of no concern."""

    name: str
    number: int
    op = "r"


class SourceTask(Client):
    """A connector's task as the runner calls it."""

    def __init__(self, database: Database, name: str, hang: Callable[[], bool]) -> None:
        super().__init__()
        self.database, self.name, self._hang = database, name, hang
        self.position = 0

    def _call(self, handler: Callable[[], Any]) -> Any:
        answer = self.ask(DATABASE, handler, 2.0)
        if answer is TIMED_OUT or answer is None or answer == AWAY:
            raise CdcError(kafka_errors.TRANSIENT, "the connection is gone")
        if answer == ADVANCED:
            raise CdcError(SLOT_ADVANCED, "the slot was confirmed beyond the position")
        return answer

    def open(self, position: Mapping[str, Any] | None) -> None:
        start = None if position is None else int(position["lsn"])
        self.position = self._call(lambda: self.database.open(self.name, self, start))

    def poll(self) -> PollBatch:
        if self._hang():
            block(None)
        rows, end = self._call(lambda: self.database.read(self.name, self, self.position))
        if rows == 0:
            block(POLL_S)
            return PollBatch(idle=True)
        first, self.position = self.position, self.position + rows
        changes: Any = tuple(Row(self.name, number) for number in range(first, self.position))
        is_over = self.position == end
        return PollBatch(
            changes, {"lsn": end} if is_over else None, idle=is_over and self.database.slot(self.name).end == end
        )

    def ack(self, position: Mapping[str, Any]) -> None:
        lsn = int(position["lsn"])
        self.cluster.network.send(self.proc, self, DATABASE, lambda: self.database.confirm(self.name, self, lsn))

    def close(self) -> None:
        if self.proc.alive:
            self.cluster.network.send(self.proc, self, DATABASE, lambda: self.database.close(self.name, self))


class Encoder:
    def encode(self, changes: Sequence[Any]) -> list[OutRecord]:
        return [OutRecord(topic_of(name), b"%d" % number, b"%d" % number, None, 0) for name, number in changes]


def topic_of(slot: str) -> str:
    return f"data.{slot}"


@dataclass
class Ledger:
    epoch: tuple[int, int] = (0, 0)
    offsets: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    """The applied rows of each topic."""


class Warehouse:
    """A target that takes a batch, its ledger and the fence's comparison in one transaction."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ledgers: dict[str, Ledger] = {}

    def fence(self, sink: str, epoch: tuple[int, int]) -> dict[str, int] | None:
        ledger = self.ledgers.setdefault(sink, Ledger())
        if epoch < ledger.epoch:
            return None
        ledger.epoch = epoch
        return dict(ledger.offsets)

    def apply(self, sink: str, epoch: tuple[int, int], topic: str, following: int, rows: Sequence[int]) -> bool:
        ledger = self.ledgers[sink]
        if epoch != ledger.epoch:
            return False
        if following <= ledger.offsets.get(topic, 0):
            return True  # the answer to the same batch was lost
        for row in rows:
            expected = ledger.rows.get(topic, 0)
            if row != expected:
                self.world.violate("sink rows", f"{sink} got row {row} of {topic} in place of {expected}")
            ledger.rows[topic] = row + 1
        ledger.offsets[topic] = following
        return True


class SinkConnector:
    """A sink that reads its topics from the positions of the ledger."""

    warehouse: Warehouse

    def __init__(self, config: Mapping[str, str]) -> None:
        self.config = config

    def run(self, spec: SinkSpec, context: TaskContext) -> None:
        client, sink = Client(), f"{spec.connector}-{spec.task}"
        offsets = _answered(client.ask(WAREHOUSE, lambda: self.warehouse.fence(sink, spec.epoch), 2.0))
        if offsets is None:
            raise CdcError(kafka_errors.FENCED, "a newer task has this target")
        consumer = Consumer({"isolation.level": "read_committed"})
        try:
            self._follow(consumer, client, sink, spec, context)
        finally:
            if client.proc.alive:
                consumer.close()

    def _follow(self, consumer: Consumer, client: Client, sink: str, spec: SinkSpec, context: TaskContext) -> None:
        from confluent_kafka import TopicPartition

        consumer.assign([TopicPartition(topic, 0) for topic in spec.topics])
        while not context.stopping():
            message = consumer.poll(POLL_S)
            if message is None:
                continue
            for got in (message, *consumer.consume(20)):
                topic, following, row = got.topic(), got.offset() + 1, int(got.value() or b"0")
                if following > self.warehouse.ledgers[sink].offsets.get(topic, 0):
                    done = _answered(
                        client.ask(
                            WAREHOUSE,
                            lambda topic=topic, following=following, row=row: self.warehouse.apply(
                                sink, spec.epoch, topic, following, (row,)
                            ),
                            2.0,
                        )
                    )
                    if not done:
                        raise CdcError(kafka_errors.FENCED, "a newer task has this target")


def _answered(answer: Any) -> Any:
    if answer is TIMED_OUT:
        raise CdcError(kafka_errors.TIMEOUT, "the warehouse does not answer")
    return answer
