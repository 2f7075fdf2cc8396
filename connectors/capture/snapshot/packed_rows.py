"""Rows as the server has sent them, one behind the other: looked at only where that is needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from cdcworker.connectors.capture.snapshot.row_identity import Identity, KeyTexts
from cdcworker.connectors.capture.snapshot.row_positions import RowPositions
from cdcworker.schemas.change import Change, EncodedRecords


@dataclass(slots=True)
class PackedRows(ABC):
    """Those of a key are looked up only when an event asks for one: the `KeyedRows` of a chunk."""

    mark: ClassVar[int]
    """Where in a row's frame stands the byte that says whether it is left."""
    gone: ClassVar[int]
    """That byte of a row that is not handed on; the native core knows it too."""

    data: bytearray
    end: int
    count: int
    last: int
    """Where the last one begins."""
    whole: bool
    """The server has sent no more."""
    _index: dict[Identity, int] | None = field(default=None, init=False, repr=False)

    @abstractmethod
    def next_at(self, at: int) -> int:
        """Returns the offset behind the row at this one."""

    @abstractmethod
    def taken(self, at: int) -> tuple[Any, KeyTexts]:
        """Returns the row at an offset and the texts of its key."""

    @abstractmethod
    def indexed(self) -> dict[Identity, int]:
        """Returns the offset of each row that is left by its key. Of rows whose keys have one form the last one counts."""

    def is_left(self, at: int) -> bool:
        """Returns whether the row at an offset is handed on."""
        return self.data[at + self.mark] != self.gone

    def offsets(self) -> Iterator[int]:
        """Yields the offsets of all rows that are left."""
        at = 0
        while at < self.end:
            if self.is_left(at):
                yield at
            at = self.next_at(at)

    def pop(self, wanted: Identity, default: None = None) -> tuple[Any, KeyTexts] | None:
        """The row of a key leaves them: it and the texts of its key."""
        if self._index is None:
            self._index = self.indexed()
        at = self._index.pop(wanted, None)
        if at is None:
            return default
        self.data[at + self.mark] = self.gone
        return self.taken(at)

    def clear(self) -> None:
        self.end, self._index = 0, {}


def records_of(
    core: Any,
    rows: PackedRows,
    layout: Any,
    around: tuple[bytes, bytes],
    stamp: RowPositions,
    change: Callable[[int], Change],
) -> list[Change | EncodedRecords]:
    """Returns the rows that are left, in their order, as the records that a native core writes; of a row that it leaves, `change` makes a
    change. `around`: what stands in front of the last number of the source block, and what follows the transaction block."""
    out: list[Change | EncodedRecords] = []
    at = 0
    while at < rows.end:
        at, number = core.write(rows.data, at, rows.end, layout, around, stamp.progress.n)
        stamp.passed(number)
        if at < rows.end:
            if (made := core.take()) is not None:
                out.append(EncodedRecords(*made))
            if rows.is_left(at):
                out.append(change(at))
            at = rows.next_at(at)
    if (made := core.take()) is not None:
        out.append(EncodedRecords(*made))
    return out
