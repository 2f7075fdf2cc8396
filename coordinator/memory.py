"""Coordination in memory, with the broker's fencing rules, for tests within one process."""

from __future__ import annotations

import bisect
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from cdcworker.coordinator.api import Done, Ends, LogRecord, Term, TermOver, WriterFenced, WriteUnknown

Clock = Callable[[], float]
Fault = Literal["unknown_done", "unknown_lost", "stale", "fenced"]
"""The fate of the next write: no answer although it was stored, no answer and not stored, or a refusal."""


@dataclass(slots=True)
class MemoryTopic:
    """One compacted topic with one partition. Compaction removes records and keeps offsets."""

    records: list[LogRecord] = field(default_factory=list)
    end: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def append(self, records: Sequence[LogRecord]) -> None:
        """Adds records at the next offsets."""
        with self.lock:
            for record in records:
                self.records.append(replace(record, offset=self.end))
                self.end += 1

    def compact(self, drop_tombstones: bool = False) -> None:
        """Keeps the last record of each key, as the broker does; the newest record of the topic always stays."""
        last = {record.key: record.offset for record in self.records}
        self.records = [
            record
            for record in self.records
            if record.offset == last[record.key]
            and not (drop_tombstones and record.value is None and record.offset != self.end - 1)
        ]

    def since(self, offset: int) -> list[LogRecord]:
        """Returns the records from an offset on."""
        return self.records[bisect.bisect_left(self.records, offset, key=lambda record: record.offset) :]


class MemoryLog:
    """A TailedLog over a MemoryTopic, which several logs may share."""

    def __init__(self, topic: MemoryTopic) -> None:
        self._topic = topic
        self._position = 0
        self._sent: list[Done] = []

    def read_to_end(self, timeout_s: float) -> Sequence[LogRecord]:
        return self.poll(timeout_s)

    def poll(self, timeout_s: float) -> Sequence[LogRecord]:
        with self._topic.lock:
            records = self._topic.since(self._position)
            self._position = self._topic.end
            return records

    def append(self, records: Sequence[LogRecord], timeout_s: float) -> None:
        self._topic.append(records)

    def reconnect(self) -> None:
        """Does nothing: there is no connection."""

    def rewind(self) -> None:
        self._position = 0

    def ends(self, timeout_s: float) -> Ends:
        return {0: self._topic.end}

    def reached(self, ends: Ends) -> bool:
        return self._position >= ends[0]

    def send(self, records: Sequence[LogRecord], done: Done | None = None) -> None:
        self._topic.append(records)
        if done is not None:
            self._sent.append(done)

    def serve(self) -> int:
        sent, self._sent = self._sent, []
        for done in sent:
            done(None)
        return 0

    def close(self) -> None:
        """Does nothing: a log in memory holds no resources."""


@dataclass(slots=True)
class MemoryGroup:
    """A group coordinator: members with sessions, generations, and one partition whose owner is the elected leader.

    Assignment is sticky. A member learns of a new generation at its next tick: until then it holds the proof of the
    previous one, which the broker refuses.
    """

    clock: Clock
    session_s: float = 10.0
    generation: int = 0
    members: dict[str, float] = field(default_factory=dict)
    owner: str | None = None
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def heartbeat(self, member: str) -> None:
        """Renews a member's session; a new member joins."""
        self.expire()
        is_new = member not in self.members
        self.members[member] = self.clock()
        if is_new:
            self.rebalance()

    def expire(self) -> None:
        """Removes members whose session has ended."""
        late = [m for m, seen in self.members.items() if self.clock() - seen > self.session_s]
        for member in late:
            del self.members[member]
        if late:
            self.rebalance()

    def leave(self, member: str) -> None:
        """Removes a member at once."""
        if self.members.pop(member, None) is not None:
            self.rebalance()

    def rebalance(self) -> None:
        """Starts a new generation; the partition stays with its owner if that is still a member."""
        self.generation += 1
        if self.owner not in self.members:
            self.owner = min(self.members, default=None)

    def accepts(self, proof: bytes | None) -> bool:
        """Tells whether a proof is of the present generation and of a live member."""
        self.expire()
        generation, _, member = (proof or b"").decode().partition(":")
        return generation == str(self.generation) and member in self.members


class MemoryLeadership:
    """Leadership over a MemoryGroup. The proof is captured in the tick that learns of a generation."""

    def __init__(self, group: MemoryGroup, member: str) -> None:
        self._group = group
        self._member = member
        self._term: Term | None = None
        self._closed = False

    def tick(self, timeout_s: float) -> None:
        group = self._group
        if self._closed:
            return
        with group.lock:
            group.heartbeat(self._member)
            if group.owner != self._member:
                self._term = None
            elif self._term is None or self._term.hint != group.generation:
                self._term = Term(f"{group.generation}:{self._member}".encode(), group.generation, member=self._member)

    def term(self) -> Term | None:
        return self._term

    def close(self) -> None:
        self._term, self._closed = None, True
        with self._group.lock:
            self._group.leave(self._member)


@dataclass(slots=True)
class MemoryTransactions:
    """A transaction coordinator: the producer epoch of each transactional id, and the faults of the next writes."""

    epochs: dict[str, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)
    """Held during each write and each `init`, over all ids."""

    def init(self, transactional_id: str) -> int:
        """Raises the producer epoch of an id, which fences earlier producers, and returns it."""
        with self.lock:
            self.epochs[transactional_id] = self.epochs.get(transactional_id, -1) + 1
            return self.epochs[transactional_id]


class MemoryLeaderWriter:
    """A leader's writer: fenced by a newer writer of its id, refused without the group's present generation."""

    def __init__(
        self, topic: MemoryTopic, group: MemoryGroup, transactions: MemoryTransactions, transactional_id: str
    ) -> None:
        self._topic = topic
        self._group = group
        self._transactions = transactions
        self._id = transactional_id
        self._epoch = transactions.init(transactional_id)

    def write(self, records: Sequence[LogRecord], term: Term) -> None:
        with self._transactions.lock, self._group.lock:
            self._write(records, term)

    def _write(self, records: Sequence[LogRecord], term: Term) -> None:
        if self._transactions.epochs[self._id] != self._epoch:
            raise WriterFenced(f"a newer writer of {self._id} exists")
        if not self._group.accepts(term.proof):
            raise TermOver("the proof is of another generation")
        fault = self._transactions.faults.pop(0) if self._transactions.faults else None
        if fault == "fenced":
            raise WriterFenced("injected")
        if fault == "stale":
            raise TermOver("injected")
        if fault != "unknown_lost":
            self._topic.append(records)
        if fault is not None:
            raise WriteUnknown("injected")

    def close(self) -> None:
        """Does nothing: there is never an open transaction."""


@dataclass(slots=True)
class MemoryCluster:
    """All that the herders of one group share."""

    group: MemoryGroup
    configs: MemoryTopic = field(default_factory=MemoryTopic)
    status: MemoryTopic = field(default_factory=MemoryTopic)
    transactions: MemoryTransactions = field(default_factory=MemoryTransactions)


_clusters: dict[str, MemoryCluster] = {}
_members = itertools.count(1)


def cluster(group_id: str, session_s: float) -> MemoryCluster:
    """Returns this process's cluster of this name; the first call creates it and sets its session time-out in
    seconds."""
    return _clusters.setdefault(group_id, MemoryCluster(MemoryGroup(time.monotonic, session_s)))


def next_member() -> int:
    """Returns a new member number: two herders with one worker id are two members, as they are for a broker."""
    return next(_members)
