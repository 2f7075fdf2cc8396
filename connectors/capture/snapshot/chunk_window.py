"""One chunk between its opening and its boundary: which of its rows the stream has newer versions of. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cdcworker.connectors.capture.snapshot.chunks import Chunk
from cdcworker.connectors.capture.snapshot.observer import PlansTable, RowEvent
from cdcworker.connectors.capture.snapshot.progress import KeyRange, SnapshotLoad, TableLoad
from cdcworker.connectors.capture.snapshot.row_identity import Identity, identity_of
from cdcworker.connectors.capture.snapshot.visibility import TransactionId
from cdcworker.schemas.change import Table

TOUCHES_MAX: Final = 100_000
"""Events that are kept while a chunk is being read; beyond it the chunk is read again. # INV-10"""


class KeyEvent(NamedTuple):
    """What an event means to a chunk."""

    transaction: TransactionId
    key_names: tuple[str, ...]
    truncated: bool
    old: Identity | None
    new: Identity | None
    incomplete: bool
    """The new row's event lacks values that were not sent."""
    emitted: bool


def touch_of(transaction: TransactionId, plan: PlansTable, event: RowEvent) -> KeyEvent:
    key = plan.table.key
    return KeyEvent(
        transaction,
        tuple(column.name for column in plan.table.key_columns),
        event.op == "t",
        None if event.before is None else identity_of(event.before, key),
        None if event.after is None else identity_of(event.after, key),
        bool(event.unchanged),
        event.emitted,
    )


@dataclass(slots=True, eq=False)
class ChunkWindow:
    """Opened at a boundary of the stream. From then on every event of its table is shown to it.

    While the rows are being read it remembers the events; once they are there, with the snapshot that they were read
    in, the rows leave it of which an event tells that the snapshot does not see.
    """

    load: SnapshotLoad
    table: TableLoad
    part: KeyRange | None
    """None: single keys are read again."""
    keys: list[list[str]] = field(default_factory=list)
    chunk: Chunk | None = None
    void: bool = False
    """Of no use: to be read again."""
    again: list[list[str]] = field(default_factory=list)
    """Keys of rows that left it and whose event does not stand for the whole row."""
    shape: Table | None = None
    """What the stream has said the table looks like since the opening."""
    touches: list[KeyEvent] = field(default_factory=list)
    visible: bool = False
    """The chunk's snapshot sees the transaction that is being delivered."""

    @property
    def size(self) -> int:
        return self.chunk.size if self.chunk else 0

    def began(self, transaction: TransactionId) -> None:
        self.visible = self.chunk is not None and self.chunk.view.snap.sees(transaction)

    def touched(self, touch: KeyEvent) -> None:
        if self.void or self.visible:
            return
        if self.chunk is not None:
            self._drop(touch, self.chunk)
        elif len(self.touches) < TOUCHES_MAX:
            self.touches.append(touch)
        else:
            self.void, self.touches = True, []

    def reshaped(self, table: Table) -> None:
        self.shape = table
        if self.chunk is not None and self.chunk.plan.table != table:
            self.void = True

    def undone(self) -> None:
        self.void, self.touches = self.void or not self.visible, []

    def read(self, chunk: Chunk) -> None:
        """The rows have come. What happened meanwhile takes its effect."""
        self.chunk = chunk
        if self.shape is not None and self.shape != chunk.plan.table:
            self.void = True
        touches, self.touches = self.touches, []
        if not self.void:
            snap = chunk.view.snap
            for touch in touches:
                if not snap.sees(touch.transaction):
                    self._drop(touch, chunk)

    def _drop(self, touch: KeyEvent, chunk: Chunk) -> None:
        if touch.key_names != chunk.key_names:
            self.void = True
            return
        if touch.truncated:
            chunk.rows.clear()
            chunk.absent.clear()
            return
        for hit_by in (touch.old, touch.new):
            if hit_by is None:
                continue
            hit, gone = chunk.rows.pop(hit_by, None), chunk.absent.pop(hit_by, None)
            key = hit[1] if hit else gone
            if key is not None and (not touch.emitted or (touch.incomplete and hit_by == touch.new)):
                self.again.append(list(key))


def is_first(window: ChunkWindow, windows: Sequence[ChunkWindow]) -> bool:
    """Windows of one range are closed in the order in which they were opened."""
    return window.part is None or next(w for w in windows if w.part is window.part) is window
