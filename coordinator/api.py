"""The interfaces of coordination: compacted logs, leadership and the leader's writer; on Kafka, ZooKeeper, in
memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cdcworker.schemas.errors import CdcError

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record of a compacted log. A `value` of None is a tombstone.

    Headers are text: `e` the leader epoch, `w` the worker id, `ts` the wall clock in ms, `v` the format, `d` the
    request that the record belongs to, `b` the write, and `z` marks the last record of a write.
    """

    key: str
    value: JsonObject | None
    headers: Mapping[str, str] = field(default_factory=dict)
    offset: int = -1
    partition: int = 0
    timestamp_ms: int = 0
    refused: str = ""
    """Why the value was refused; it is then an empty object, so that nobody takes the record for a tombstone."""


class CompactedLog(Protocol):
    """A compacted topic that is read from its first offset and then followed. An instance belongs to one thread."""

    def read_to_end(self, timeout_s: float) -> Sequence[LogRecord]:
        """Returns all committed records up to the present end of the topic: the high watermark, not the last stable
        offset."""

    def poll(self, timeout_s: float) -> Sequence[LogRecord]:
        """Returns the records since the last call; waits at most `timeout_s` for the first one."""

    def append(self, records: Sequence[LogRecord], timeout_s: float) -> None:
        """Appends records without fencing (status, presence); returns once all in-sync replicas have them."""

    def close(self) -> None: ...


Done = Callable[[CdcError | None], None]
"""The callback of an append: called once, with None when all records are stored and with the error otherwise."""
Ends = Mapping[int, int]
"""The end offset of each partition: one past the last record."""


class TailedLog(CompactedLog, Protocol):
    """A compacted log for a thread that has other work: no method waits for Kafka longer than its `timeout_s`."""

    def reconnect(self) -> None:
        """Opens a new connection and goes on reading at the present position."""

    def rewind(self) -> None:
        """Starts reading again from the first offset."""

    def ends(self, timeout_s: float) -> Ends:
        """Returns the present end offset of each partition. Safe to call from any thread."""

    def reached(self, ends: Ends) -> bool:
        """Tells whether all records before these ends have been returned by `poll` or `read_to_end`."""

    def send(self, records: Sequence[LogRecord], done: Done | None = None) -> None:
        """Appends without waiting. `done` is called inside `serve`, once, when all records are stored or one failed."""

    def serve(self) -> int:
        """Calls the callbacks of finished appends; returns the number of records that are still in flight."""


@dataclass(frozen=True, slots=True)
class Term:
    """The outcome of an election won by this worker. A worker that is not elected has no term."""

    proof: bytes | None
    """The consumer group metadata that the broker checks on each write; None with ZooKeeper, where a claim in the
    config log has to precede all decisions instead."""
    hint: int
    """The number of the term: the consumer group's generation, or the czxid of the ZooKeeper lock node."""
    ensemble: str = ""
    """The identity of the ZooKeeper ensemble that gave the `hint`; hints of different ensembles cannot be compared."""
    member: str = ""
    """What names this worker's place in the election, so that others can end it: the member id of the consumer group, or
    the name of the ZooKeeper lock node. It is never used again for another place."""


class Leadership(Protocol):
    """Membership in the leader election. An instance belongs to one thread."""

    def tick(self, timeout_s: float) -> None:
        """Serves the election's protocol; waits at most `timeout_s`. All callbacks run inside this call."""

    def term(self) -> Term | None:
        """Returns the present term; None while this worker is not elected."""

    def close(self) -> None:
        """Leaves the election at once, so that another worker can be elected."""


class TermOver(Exception):
    """The broker refused the proof of the term, so the term is over. The write did not happen."""


class WriterFenced(Exception):
    """A newer leader has fenced this writer, which must be dropped. The write did not happen."""


class WriteUnknown(Exception):
    """The write may or may not have happened: drop the writer, claim again, and look into the log."""


class LeaderWriter(Protocol):
    """The leader's transactional writer to the config log. Each claim opens a new one; it belongs to one thread."""

    def write(self, records: Sequence[LogRecord], term: Term) -> None:
        """Writes all records in one transaction that carries the term's proof (INV-6).

        Raises TermOver, WriterFenced or WriteUnknown. Whoever gets one of them drops the writer and claims anew: it may be
        spent.
        """

    def close(self) -> None: ...


ClaimWriter = Callable[[], LeaderWriter]
"""Opens a new writer. `init_transactions` has completed when it returns, so all earlier writers are fenced."""
