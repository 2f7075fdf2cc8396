"""Which files of a table are better one new file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, Any]
    Mask = Numbers | None

MEMORY_BYTES_MAX: Final = 192 << 20
"""Of rows that become one file: they are held in memory, and so is a copy."""
MEMORY_FACTOR: Final = 4
"""How many bytes of memory a byte of a file becomes, about. What it really is shows when it is read."""
ROWS_MAX: Final = 2_000_000
GONE_SHARE_MAX: Final = 0.1
"""A file of which a larger share of rows is deleted is written again without them: readers take them out each time."""
SMALL_SHARE: Final = 0.75
"""A file that has this share of the wanted size is left alone."""
GROWTH_MIN: Final = 2
"""Files become one that is so many times as large as the largest of them: so a row is written again as often as the size of its
file doubles, and not once for every small file that comes."""


@dataclass(frozen=True, slots=True)
class FileSize:
    """A data file: `number` tells it from the others of its table, `live` is how many of its rows are not deleted, `memory` how
    many bytes all of its rows take in memory."""

    number: int
    bytes: int
    rows: int
    live: int
    memory: int

    @property
    def live_bytes(self) -> int:
        return self.bytes * self.live // max(1, self.rows)


@dataclass(slots=True)
class CompactionBudget:
    """What may still be read in a run; `is_short` once something was left to the next one."""

    bytes: int
    files: int
    bytes_max: int = field(init=False)
    files_max: int = field(init=False)
    is_short: bool = False

    def __post_init__(self) -> None:
        self.bytes_max, self.files_max = self.bytes, self.files

    def takes(self, group: Sequence[FileSize]) -> bool:
        return sum(file.bytes for file in group) <= self.bytes and len(group) <= self.files

    def spend(self, group: Sequence[FileSize]) -> None:
        self.bytes -= sum(file.bytes for file in group)
        self.files -= len(group)


@dataclass(slots=True)
class _Group:
    budget: CompactionBudget
    files: list[FileSize] = field(default_factory=list)
    bytes: int = 0
    read: int = 0
    rows: int = 0
    memory: int = 0

    def has_room(self, file: FileSize, bytes_max: int) -> bool:
        return (
            len(self.files) < self.budget.files_max
            and self.read + file.bytes <= self.budget.bytes_max
            and self.bytes + file.live_bytes <= bytes_max
            and self.rows + file.live <= ROWS_MAX
            and self.memory + file.memory <= MEMORY_BYTES_MAX
        )

    def add(self, file: FileSize) -> None:
        self.files.append(file)
        self.bytes += file.live_bytes
        self.read += file.bytes
        self.rows += file.live
        self.memory += file.memory

    def worth_it(self) -> list[FileSize]:
        """Returns the files without those that are large beside the others, and have few deleted rows."""
        kept = list(self.files)
        while (
            kept and not _has_many_gone(kept[-1]) and sum(f.live_bytes for f in kept) < GROWTH_MIN * kept[-1].live_bytes
        ):
            kept.pop()
        return kept if len(kept) > 1 or any(map(_has_many_gone, kept)) else []


def _has_many_gone(file: FileSize) -> bool:
    return file.rows - file.live > GONE_SHARE_MAX * file.rows


def groups_of(files: Iterable[FileSize], file_bytes: int, budget: CompactionBudget) -> list[list[FileSize]]:
    """Returns groups of files of which each is to become one file of at most about `file_bytes`, and takes them from the budget, of
    which none needs more than there is of it in a run. A file whose rows do not fit into memory is left alone."""
    wanted = [
        file
        for file in files
        if (file.bytes < SMALL_SHARE * file_bytes or _has_many_gone(file))
        and file.memory <= MEMORY_BYTES_MAX
        and file.live <= ROWS_MAX
    ]
    found, group = [], _Group(budget)
    for file in sorted(wanted, key=lambda file: (file.live_bytes, file.number)):
        if not group.has_room(file, file_bytes):
            found.append(group)
            group = _Group(budget)
        group.add(file)
    out = []
    for full in [*found, group]:
        some = full.worth_it()
        if some and budget.takes(some):
            budget.spend(some)
            out.append(some)
        elif some:
            budget.is_short = True
    return out


def moved_rows(before: Sequence[Mask], now: Sequence[Mask], counts: Sequence[int]) -> Numbers | None:
    """Returns which rows of a new file have been deleted meanwhile from the files that it was made of, without their rows that
    were deleted `before`; `counts` are the rows of each. None: a row that was deleted has come back, and the new file lacks it."""
    import numpy as np

    start, found = 0, [np.empty(0, np.int64)]
    for old, new, count in zip(before, now, counts, strict=True):
        then = np.zeros(count, np.bool_) if old is None else old
        today = np.zeros(count, np.bool_) if new is None else new
        if (then & ~today).any():
            return None
        kept = ~then
        found.append(start + np.flatnonzero(today[kept]))
        start += int(kept.sum())
    return np.concatenate(found)
