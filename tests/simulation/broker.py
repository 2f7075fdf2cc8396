"""The simulated Kafka: partitions with transactions and compaction, the coordinators of transactions and of the
group."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from confluent_kafka import KafkaError

from .engine import World

Code = int
OK: Code = 0
Kind = Literal["data", "commit", "abort"]
MARKER_DELAY_S = 0.01


@dataclass(slots=True)
class Entry:
    """A record or control record. `state` tells whether read_committed readers get it."""

    offset: int
    kind: Kind
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int
    pid: int
    epoch: int
    state: Literal["open", "committed", "aborted"]


class Partition:
    def __init__(self, world: World, topic: str, number: int, compacted: bool) -> None:
        self.world = world
        self.topic, self.number = topic, number
        self.name = f"{topic}/{number}"
        self.service = f"p:{self.name}"
        self.compacted = compacted
        self.log: list[Entry] = []
        self.hw = 0
        self.lso = 0
        self.open: dict[int, int] = {}
        self.producers: dict[int, tuple[int, int]] = {}
        self.waiting: dict[Callable[[], None], None] = {}
        """Readers of committed records, until the last stable offset moves."""
        self.awaiting_end: dict[Callable[[], None], None] = {}
        """Readers of all records, until the log grows."""
        self.on_stable: list[Callable[[Sequence[Entry]], None]] = []
        self.check: Callable[[Entry], None] | None = None

    def append(self, records: Sequence[tuple[bytes | None, bytes | None, Any]], pid: int, epoch: int, txn: bool) -> int:
        first, now_ms = self.hw, int(self.world.now * 1000)
        state: Literal["open", "committed"] = "open" if txn else "committed"
        if txn:
            self.open.setdefault(pid, first)
        for key, value, headers in records:
            entry = Entry(self.hw, "data", key, value, headers, now_ms, pid, epoch, state)
            self.log.append(entry)
            self.hw += 1
            if self.check is not None:
                self.check(entry)
        self._advance()
        return first

    def mark(self, pid: int, epoch: int, kind: Literal["commit", "abort"]) -> None:
        first = self.open.pop(pid, None)
        self.producers[pid] = (epoch, -1) if self.producers.get(pid, (-1, -1))[0] < epoch else self.producers[pid]
        if first is not None:
            for entry in self.log[self._index(first) :]:
                if entry.pid == pid and entry.state == "open":
                    entry.state = "committed" if kind == "commit" else "aborted"
        self.log.append(Entry(self.hw, kind, None, None, (), int(self.world.now * 1000), pid, epoch, "committed"))
        self.hw += 1
        self.world.trace(kind, f"{self.name} pid={pid} epoch={epoch} end={self.hw}")
        self._advance()

    def _advance(self) -> None:
        awaiting_end, self.awaiting_end = self.awaiting_end, {}
        for wake in awaiting_end:
            wake()
        before, self.lso = self.lso, min(self.open.values(), default=self.hw)
        if self.lso <= before:
            return
        if self.on_stable:
            stable = self.log[self._index(before) : self._index(self.lso)]
            for action in self.on_stable:
                action(stable)
        waiting, self.waiting = self.waiting, {}
        for wake in waiting:
            wake()

    def _index(self, offset: int) -> int:
        if self.log and self.log[-1].offset < offset:
            return len(self.log)
        return bisect_left(self.log, offset, key=lambda entry: entry.offset)

    def open_of(self, pid: int) -> list[Entry]:
        """Returns the records of the producer's open transaction."""
        first = self.open.get(pid)
        if first is None:
            return []
        return [entry for entry in self.log[self._index(first) :] if entry.pid == pid and entry.state == "open"]

    def fetch(self, offset: int, most: int = 500, *, uncommitted: bool = False) -> tuple[list[Entry], int]:
        """Returns the records from an offset on and the next offset: the committed ones, or all up to the log's end."""
        out: list[Entry] = []
        end = self.hw if uncommitted else self.lso
        for entry in self.log[self._index(offset) :]:
            if entry.offset >= end:
                break
            if entry.kind == "data" and (uncommitted or entry.state == "committed"):
                out.append(entry)
                if len(out) == most:
                    return out, entry.offset + 1
        return out, max(offset, end)

    def committed(self) -> list[Entry]:
        return self.fetch(0, 1 << 60)[0]

    def compact(self, retention_s: float) -> int:
        """Keeps the last committed record of each key below the last stable offset, and tombstones for `retention_s`.

        Offsets never change.
        """
        old_ms = int((self.world.now - retention_s) * 1000)
        edge = min(self.lso, self.hw - 1)
        last: dict[bytes | None, int] = {}
        for entry in self.log:
            if entry.offset < edge and entry.kind == "data" and entry.state == "committed":
                last[entry.key] = entry.offset
        before = len(self.log)
        self.log = [entry for entry in self.log if entry.offset >= edge or self._survives(entry, last, old_ms)]
        return before - len(self.log)

    @staticmethod
    def _survives(entry: Entry, last: dict[bytes | None, int], old_ms: int) -> bool:
        if entry.kind != "data" or entry.state != "committed":
            return False
        return last.get(entry.key) == entry.offset and not (entry.value is None and entry.timestamp_ms < old_ms)

    def produce(
        self, pid: int, epoch: int, sequence: int, records: Sequence[Any], txn: Callable[[], Code] | None
    ) -> tuple[Code, int]:
        """A produce request: the producer epoch fences it, the sequence keeps it from being stored twice."""
        known_epoch, known_sequence = self.producers.get(pid, (-1, -1))
        if epoch < known_epoch:
            return KafkaError.INVALID_PRODUCER_EPOCH, -1
        if epoch == known_epoch and sequence <= known_sequence:
            return OK, -1
        if txn is not None and (code := txn()) != OK:
            return code, -1
        self.producers[pid] = (epoch, sequence)
        return OK, self.append(records, pid, epoch, txn is not None)


@dataclass(slots=True)
class Transaction:
    """The coordinator's state of one transactional id."""

    pid: int
    epoch: int = -1
    state: Literal["empty", "ongoing", "prepare_commit", "prepare_abort", "committed", "aborted"] = "empty"
    partitions: dict[Partition, None] = field(default_factory=dict)
    timeout_s: float = 10.0
    round: int = 0

    @property
    def is_preparing(self) -> bool:
        return self.state in ("prepare_commit", "prepare_abort")


class Transactions:
    """The transaction coordinator, as of Kafka 4 with a client that speaks the first version of its protocol."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ids: dict[str, Transaction] = {}
        self.pids = 1000
        self.marker_delay_s = MARKER_DELAY_S
        self.on_init: list[Callable[[str, int], None]] = []
        self.on_commit: list[Callable[[str, Transaction], None]] = []
        """A callback for each decided commit, before its markers are written."""

    def new_pid(self) -> int:
        self.pids += 1
        return self.pids

    def init(self, name: str, timeout_s: float) -> tuple[Code, int, int]:
        """Raises the producer epoch; the predecessor's open transaction is aborted first."""
        txn = self.ids.get(name)
        if txn is None:
            txn = self.ids[name] = Transaction(self.new_pid())
        if txn.is_preparing:
            return KafkaError.CONCURRENT_TRANSACTIONS, -1, -1
        if txn.state == "ongoing":
            txn.epoch += 1
            self._prepare(name, txn, "abort")
            return KafkaError.CONCURRENT_TRANSACTIONS, -1, -1
        txn.epoch += 1
        txn.state, txn.timeout_s = "empty", timeout_s
        self.world.trace("init", f"{name} epoch={txn.epoch}")
        for action in self.on_init:
            action(name, txn.epoch)
        return OK, txn.pid, txn.epoch

    def _is_current(self, name: str, pid: int, epoch: int) -> Code:
        txn = self.ids.get(name)
        if txn is None or txn.pid != pid:
            return KafkaError.INVALID_PRODUCER_ID_MAPPING
        return OK if txn.epoch == epoch else KafkaError.INVALID_PRODUCER_EPOCH

    def add(self, name: str, pid: int, epoch: int, partitions: Sequence[Partition]) -> Code:
        code = self._is_current(name, pid, epoch)
        txn = self.ids[name] if code == OK else None
        if txn is None:
            return code
        if txn.is_preparing:
            return KafkaError.CONCURRENT_TRANSACTIONS
        if txn.state != "ongoing":
            txn.state, txn.partitions = "ongoing", {}
            txn.round += 1
            self.world.at(txn.timeout_s, self._time_out, name, txn, txn.round)
        txn.partitions.update(dict.fromkeys(partitions))
        return OK

    def verify(self, name: str, pid: int, epoch: int, partition: Partition) -> Code:
        """Verifies a transactional write for a partition leader."""
        code = self._is_current(name, pid, epoch)
        if code != OK:
            return code
        txn = self.ids[name]
        return OK if txn.state == "ongoing" and partition in txn.partitions else KafkaError.INVALID_TXN_STATE

    def end(self, name: str, pid: int, epoch: int, commit: bool) -> Code:
        code = self._is_current(name, pid, epoch)
        if code != OK:
            return code
        txn = self.ids[name]
        done = "committed" if commit else "aborted"
        if txn.state == done:
            return OK
        if txn.is_preparing:
            same = txn.state == ("prepare_commit" if commit else "prepare_abort")
            return KafkaError.CONCURRENT_TRANSACTIONS if same else KafkaError.INVALID_TXN_STATE
        if txn.state != "ongoing":
            return KafkaError.INVALID_TXN_STATE
        self._prepare(name, txn, "commit" if commit else "abort")
        return OK

    def _time_out(self, name: str, txn: Transaction, round_: int) -> None:
        if txn.state == "ongoing" and txn.round == round_:
            self.world.trace("time-out", f"{name} epoch={txn.epoch}")
            txn.epoch += 1
            self._prepare(name, txn, "abort")

    def _prepare(self, name: str, txn: Transaction, kind: Literal["commit", "abort"]) -> None:
        txn.state = "prepare_commit" if kind == "commit" else "prepare_abort"
        left = dict(txn.partitions)
        self.world.trace("end", f"{name} epoch={txn.epoch} {kind}")
        if kind == "commit":
            for action in self.on_commit:
                action(name, txn)
        for partition in list(left):
            delay = self.marker_delay_s * self.world.random.random()
            self.world.at(delay, self._mark, txn, partition, kind, left)
        if not left:
            self._complete(txn, kind)

    def _mark(
        self, txn: Transaction, partition: Partition, kind: Literal["commit", "abort"], left: dict[Partition, None]
    ) -> None:
        partition.mark(txn.pid, txn.epoch, kind)
        del left[partition]
        if not left:
            self._complete(txn, kind)

    @staticmethod
    def _complete(txn: Transaction, kind: Literal["commit", "abort"]) -> None:
        txn.state, txn.partitions = "committed" if kind == "commit" else "aborted", {}


class Broker:
    """Topics and coordinators, which are only reached through the simulated network."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.topics: dict[str, list[Partition]] = {}
        self.transactions = Transactions(world)

    def create(self, topic: str, partitions: int, compacted: bool = True) -> list[Partition]:
        made = self.topics[topic] = [Partition(self.world, topic, n, compacted) for n in range(partitions)]
        return made

    def partition(self, topic: str, number: int) -> Partition:
        """Returns a partition; a data topic is created when it is first used."""
        if topic not in self.topics:
            self.create(topic, 1, compacted=False)
        return self.topics[topic][number]

    def all(self) -> list[Partition]:
        return [partition for partitions in self.topics.values() for partition in partitions]
