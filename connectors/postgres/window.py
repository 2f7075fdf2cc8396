"""One chunk between its opening and its boundary: which of its rows the stream has newer versions of. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cdcworker.connectors.postgres import wire
from cdcworker.schemas.change import Row, Table

if TYPE_CHECKING:
    from cdcworker.connectors.postgres.chunks import Chunk
    from cdcworker.connectors.postgres.events import Event
    from cdcworker.connectors.postgres.progress import Load, Part, TableLoad
    from cdcworker.connectors.postgres.relations import Plan

TOUCHES_MAX: Final = 100_000
"""Events that are kept while a chunk is being read; beyond it the chunk is read again. # INV-10"""

_NEW: Final = ord("N")
"""Stands before a new tuple without an old one."""

Identity = Any


def identity_of(row: Row, key: tuple[int, ...]) -> Identity:
    """A key as something that can be looked up, also where a value is NaN or cannot be hashed."""
    return identity(tuple(row[i] for i in key))


def identity(values: tuple[Any, ...]) -> Identity:
    for value in values:
        if value != value or isinstance(value, dict | list):
            return repr(values)
    return values


def differ(old: Sequence[Any], new: Row, key: tuple[int, ...]) -> bool:
    """Whether these are rows of two keys."""
    return any(old[i] != new[i] for i in key) and identity_of(tuple(old), key) != identity_of(new, key)


class Touch(NamedTuple):
    """What an event means to a chunk."""

    xid: int
    key_names: tuple[str, ...]
    truncated: bool
    old: Identity | None
    new: Identity | None
    incomplete: bool
    """The new row's event lacks values that were not sent."""
    emitted: bool


def touch_of(xid: int, plan: Plan, event: Event) -> Touch:
    key = plan.table.key
    return Touch(
        xid,
        tuple(column.name for column in plan.table.key_columns),
        event.op == "t",
        None if event.before is None else identity_of(event.before, key),
        None if event.after is None else identity_of(event.after, key),
        bool(event.unchanged),
        event.emitted,
    )


def new_key_texts(plan: Plan, data: bytes) -> list[str] | None:
    """The new key of an update's row, as text. What was not sent of it stands in the old tuple; None: it does not."""
    names = [column.name for column in plan.relation.columns]
    old: list[bytes | None] = [None] * len(names)
    p = 31
    if data[30] != _NEW:
        old, p = wire.read_texts(data, p, len(names))
        p += 1
    new, _ = wire.read_texts(data, p, len(names))
    at = [names.index(column.name) for column in plan.table.key_columns]
    texts = [new[i] if new[i] is not None else old[i] for i in at]
    known = [text.decode() for text in texts if text is not None]
    return known if len(known) == len(at) else None


@dataclass(slots=True, eq=False)
class Window:
    """Opened at a boundary of the stream. From then on every event of its table is shown to it.

    While the rows are being read it remembers the events; once they are there, with the snapshot that they were read
    in, the rows leave it of which an event tells that the snapshot does not see.
    """

    load: Load
    table: TableLoad
    part: Part | None
    """None: single keys are read again."""
    keys: list[list[str]] = field(default_factory=list)
    chunk: Chunk | None = None
    void: bool = False
    """Of no use: to be read again."""
    again: list[list[str]] = field(default_factory=list)
    """Keys of rows that left it and whose event does not stand for the whole row."""
    shape: Table | None = None
    """What the stream has said the table looks like since the opening."""
    touches: list[Touch] = field(default_factory=list)
    visible: bool = False
    """The chunk's snapshot sees the transaction that is being delivered."""

    @property
    def size(self) -> int:
        return self.chunk.size if self.chunk else 0

    def began(self, xid: int) -> None:
        self.visible = self.chunk is not None and self.chunk.view.snap.sees(xid)

    def touched(self, touch: Touch) -> None:
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

    def read(self, chunk: Chunk) -> None:
        """The rows have come. What happened meanwhile takes its effect."""
        self.chunk = chunk
        if self.shape is not None and self.shape != chunk.plan.table:
            self.void = True
        touches, self.touches = self.touches, []
        if not self.void:
            snap = chunk.view.snap
            for touch in touches:
                if not snap.sees(touch.xid):
                    self._drop(touch, chunk)

    def _drop(self, touch: Touch, chunk: Chunk) -> None:
        if touch.key_names != chunk.key_names:
            self.void = True
            return
        if touch.truncated:
            chunk.rows.clear()
            return
        for hit_by in (touch.old, touch.new):
            if hit_by is None:
                continue
            hit = chunk.rows.pop(hit_by, None)
            if hit and (not touch.emitted or (touch.incomplete and hit_by == touch.new)):
                self.again.append(list(hit[1]))


def is_first(window: Window, windows: Sequence[Window]) -> bool:
    """Windows of one range are closed in the order in which they were opened."""
    return window.part is None or next(w for w in windows if w.part is window.part) is window
