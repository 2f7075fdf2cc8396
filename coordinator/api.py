"""The seams of coordination: a compacted log and leadership, implemented for Kafka, ZooKeeper and in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cdcworker.schemas.errors import CdcError

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a log. `value` None is a tombstone; `headers` are text (`e` leader epoch, `w` worker, `ts`, `v`)."""

    key: str
    value: JsonObject | None
    headers: Mapping[str, str] = field(default_factory=dict)
    offset: int = -1
    partition: int = 0
    timestamp_ms: int = 0


class Log(Protocol):
    """A compacted topic, read from its first offset and tailed. Thread-confined."""

    def read_to_end(self, timeout_s: float) -> Sequence[Record]:
        """Everything committed up to the end as it is now (high watermark, not the last stable offset)."""

    def poll(self, timeout_s: float) -> Sequence[Record]:
        """New records since the last call, waiting at most `timeout_s` for the first."""

    def append(self, records: Sequence[Record], timeout_s: float) -> None:
        """Unfenced append (status, presence), acknowledged by all in-sync replicas."""

    def close(self) -> None: ...


Done = Callable[[CdcError | None], None]
Ends = Mapping[int, int]


class TailedLog(Log, Protocol):
    """A Log that a thread with other work reads and writes without ever waiting for it."""

    def reconnect(self) -> None:
        """Go on reading where it stands, by a new connection."""

    def rewind(self) -> None:
        """Read again from the first offset."""

    def ends(self, timeout_s: float) -> Ends:
        """The true end of each partition as it is now; may be called from any thread."""

    def reached(self, ends: Ends) -> bool:
        """Whether everything before these ends has been handed out."""

    def send(self, records: Sequence[Record], done: Done | None = None) -> None:
        """Append without waiting; `done` runs inside `serve`, once, when all are stored or one failed."""

    def serve(self) -> int:
        """Run what `send` is waiting for; gives the number of records still under way."""


@dataclass(frozen=True, slots=True)
class Term:
    """What the election gave us; there is none when we are not the owner."""

    proof: bytes | None
    """What the broker checks; None where nobody can check one: then a claim in the log must come before decisions."""
    hint: int
    """Generation, or czxid of the lock's node."""
    ensemble: str = ""
    """Whose hint it is: hints of another ensemble cannot be compared with it."""


class Leadership(Protocol):
    def tick(self, timeout_s: float) -> None:
        """Serve the group protocol; all callbacks run inside this call."""

    def term(self) -> Term | None: ...

    def close(self) -> None:
        """Leave the group at once."""


class Stale(Exception):
    """The broker refused the proof: the term is over. The write did not happen."""


class Fenced(Exception):
    """A newer claim exists: drop the writer. The write did not happen."""


class Unknown(Exception):
    """No certain answer: drop the writer, claim again, re-read, then look whether it happened."""


class Writer(Protocol):
    """A leader's pen: one per claim, thread-confined."""

    def write(self, records: Sequence[Record], term: Term) -> None:
        """All records in one transaction with the term's proof (INV-6). Raises Stale, Fenced or Unknown."""

    def close(self) -> None: ...


ClaimWriter = Callable[[], Writer]
"""Makes a new writer: `init_transactions` has run when it returns, so the predecessor is fenced."""
