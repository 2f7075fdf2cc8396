"""What is asked of the connections that read rows for a snapshot, and what they answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from cdcworker.connectors.capture.snapshot.observer import PlansTable
from cdcworker.connectors.capture.snapshot.row_identity import Identity, KeyTexts
from cdcworker.connectors.capture.snapshot.visibility import LogPlace, TransactionId, Visibility

ROWS_MIN: Final = 200
ROWS_MAX: Final = 20_000
"""Rows of one chunk: memory is bounded by bytes, this bounds what a wrong estimate of the width can cost."""


@dataclass(frozen=True, slots=True)
class ReadView:
    """What one short transaction sees, a place `hw` of the log that no commit visible in it lies behind, and the
    server's time in microseconds."""

    snap: Visibility
    hw: LogPlace
    ts_us: int


class KeyedRows(Protocol):
    """The rows of a chunk by key, in whichever form the reader keeps them."""

    def pop(self, wanted: Identity, default: None, /) -> tuple[Any, KeyTexts] | None:
        """Takes the row of a key out and returns it; None: there is none."""

    def clear(self) -> None: ...


class Chunk(Protocol):
    """The rows of one range, read in one short transaction."""

    @property
    def view(self) -> ReadView: ...

    @property
    def plan(self) -> PlansTable: ...

    @property
    def rows(self) -> KeyedRows: ...

    @property
    def last(self) -> KeyTexts | None:
        """The key of the last row."""

    @property
    def size(self) -> int:
        """Bytes of the rows as they were read."""

    @property
    def count(self) -> int:
        """Returns how many rows were read."""

    @property
    def ended(self) -> bool:
        """No rows of the range lie behind this chunk."""

    @property
    def unread(self) -> list[list[str]]:
        """Returns those of the requested keys that the chunk had no room for."""

    @property
    def absent(self) -> dict[Identity, KeyTexts]:
        """The requested keys of which the read found no row, where the request asks for them."""

    @property
    def key_names(self) -> tuple[str, ...]:
        """Names of the key's columns."""


@dataclass(slots=True)
class ReadChunk:
    """What every reader's `Chunk` has; `plan` and `rows` are of the reader's own kinds."""

    view: ReadView
    plan: Any
    rows: Any = field(default_factory=dict)
    last: KeyTexts | None = None
    size: int = 0
    count: int = 0
    ended: bool = False
    unread: list[list[str]] = field(default_factory=list)
    absent: dict[Identity, KeyTexts] = field(default_factory=dict)

    @property
    def key_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.plan.table.key_columns)


@dataclass(frozen=True, slots=True)
class TableSurvey:
    """What is found out about a table before its first chunk."""

    keyless: bool
    bounds: tuple[KeyTexts, ...] = ()
    """Upper ends of its ranges but for the last one."""
    size: int | None = None
    """Bytes on disk, by what the server remembers of it."""


@dataclass(frozen=True, slots=True)
class RequiredVisibility:
    """What a read has to see before its rows may be used."""

    floor: int = 0
    """Every transaction up to this id must have ended,"""
    exempt: frozenset[int] = frozenset()
    """but for these."""
    before: tuple[TransactionId, ...] = ()
    """Transactions that the stream has delivered."""

    def met(self, snap: Visibility) -> bool:
        """Returns whether a read that saw this much saw all it must."""
        if self.floor and not snap.all_ended(self.floor, self.exempt):
            return False
        return all(snap.sees_delivered(transaction) for transaction in self.before)


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """A range of one table in the order of its key, or exactly the rows of `keys`."""

    table_id: int
    must_see: RequiredVisibility
    after: KeyTexts | None = None
    upto: KeyTexts | None = None
    keys: tuple[KeyTexts, ...] = ()
    tells_absent: bool = False
    """The chunk says of which of `keys` there is no row."""
    key_names: tuple[str, ...] = ()
    """Names of the columns that all these go by; empty: nothing is known of the table yet."""
    limit: int = ROWS_MIN
    bytes_max: int = 1 << 30
    filter: str = ""


class RowReader(Protocol):
    """Reads rows over a connection of its own; used by one thread at a time. Both reads raise what keeps a table from
    being read now: one of the exceptions below, or CdcError."""

    def survey(self, table_id: int, parts_max: int, bytes_min: int) -> TableSurvey:
        """Divides a table of at least `bytes_min` bytes into at most `parts_max` ranges of its key."""

    def chunk(self, want: ChunkRequest) -> Chunk:
        """Reads one chunk in one short transaction."""

    def is_broken(self) -> bool:
        """Returns whether the connection is of no more use."""

    def cancel(self) -> None:
        """Breaks off what is being read, called by another thread; never raises."""

    def close(self) -> None:
        """Never raises."""


class TableGone(Exception):
    """The table does not exist any more, or is no longer captured."""


class TableKeyless(Exception):
    """The table has no key."""


class KeyChanged(Exception):
    """The table's key is not the one that its ranges go by."""


class TableLocked(Exception):
    """Somebody holds a lock that the read would have to wait for: `holders`, where that is known."""

    def __init__(self, holders: str = "") -> None:
        super().__init__(holders)
        self.holders = holders


class NotVisibleYet(Exception):
    """The read does not see a transaction that it must see."""
