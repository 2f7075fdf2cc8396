"""The keys of a table's rows in memory: in which file each row lies, and the position of its last change.

A key is held as 128 bits of a hash that is seeded for each process, so that no two keys of a table share them; a row takes 40
bytes. The entries are sorted runs: rows that are added make a run, and runs of like size are merged.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Numbers = np.ndarray[Any, Any]

ROW_BITS: Final = 32
"""A place is the number of a file and, in so many low bits, the number of a row in it."""
POSITION_BYTES: Final = 16
GROWTH: Final = 4
"""A run is merged with the one before it until that has so many times its rows."""
HASHED_BYTES: Final = 4 * 1024 * 1024
"""Keys are hashed in portions of about this size."""
_SEEDS: Final = (secrets.randbits(64), secrets.randbits(64))
_FACTORS: Final = ((0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9), (0xC2B2AE3D27D4EB4F, 0x94D049BB133111EB))


def places_of(file: int, rows: Numbers) -> Numbers:
    """Returns the places of rows in a file."""
    import numpy as np

    return np.uint64(file << ROW_BITS) | rows.astype(np.uint64)


def by_file(places: Numbers) -> dict[int, Numbers]:
    """Returns the numbers of the rows of each file, in the order of the places."""
    import numpy as np

    files, rows = places >> np.uint64(ROW_BITS), places & np.uint64((1 << ROW_BITS) - 1)
    return {int(file): rows[files == file].astype(np.int64) for file in np.unique(files)}


def hashes(keys: pa.Array) -> tuple[Numbers, Numbers]:
    """Returns two hashes of 64 bits of each key, which are binary and not null."""
    import numpy as np

    ends = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    data = np.frombuffer(keys.buffers()[2] or b"", np.uint8)
    sizes = np.diff(ends)
    out = np.empty((2, len(keys)), np.uint64)
    for size in np.unique(sizes):
        of_size = np.flatnonzero(sizes == size)
        step = max(1, HASHED_BYTES // max(1, int(size)))
        for start in range(0, len(of_size), step):
            some = of_size[start : start + step]
            words = _words(data, ends[some], int(size))
            for lane in range(2):
                out[lane, some] = _hash(words, int(size), lane)
    return out[0], out[1]


def _words(data: Numbers, begins: Numbers, size: int) -> Numbers:
    """Returns the keys of one size as rows of 64-bit numbers, filled with zeros."""
    import numpy as np

    padded = np.zeros((len(begins), -(-max(size, 1) // 8) * 8), np.uint8)
    if size:
        padded[:, :size] = data[begins[:, None] + np.arange(size)]
    return padded.view(np.uint64)


def _hash(words: Numbers, size: int, lane: int) -> Numbers:
    import numpy as np

    first, second = (np.uint64(factor) for factor in _FACTORS[lane])
    found = np.full(len(words), (_SEEDS[lane] + size * _FACTORS[lane][0]) % 2**64, np.uint64)
    with np.errstate(over="ignore"):
        for word in words.T:
            found = (found ^ word) * first
            found = (found ^ (found >> np.uint64(32))) * second
            found ^= found >> np.uint64(29)
    return found


@dataclass(frozen=True, slots=True)
class Entries:
    """Rows of a table: hashes of their keys, their places, and their positions as two numbers."""

    keys: Numbers
    more: Numbers
    places: Numbers
    high: Numbers
    low: Numbers

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, at: Numbers) -> Entries:
        return Entries(*(column[at] for column in self._columns()))

    def _columns(self) -> tuple[Numbers, ...]:
        return self.keys, self.more, self.places, self.high, self.low

    @property
    def nbytes(self) -> int:
        return sum(int(column.nbytes) for column in self._columns())

    def sorted(self) -> Entries:
        import numpy as np

        return self.take(np.argsort(self.keys, kind="stable"))

    @staticmethod
    def joined(parts: Sequence[Entries]) -> Entries:
        import numpy as np

        return Entries(*(np.concatenate(columns) for columns in zip(*(part._columns() for part in parts), strict=True)))


def entries_of(keys: pa.Array, positions: pa.Array, places: Numbers) -> Entries | None:
    """None where a key is null or a position is not one of 16 bytes: such rows can be in no index."""
    import numpy as np

    if keys.null_count or positions.null_count:
        return None
    ends = np.frombuffer(positions.buffers()[1], np.int32)[positions.offset : positions.offset + len(positions) + 1]
    if (np.diff(ends) != POSITION_BYTES).any():
        return None
    data = positions.buffers()[2] or b""
    numbers = np.frombuffer(data, ">u8", 2 * len(positions), int(ends[0])).astype(np.uint64).reshape(-1, 2)
    return Entries(*hashes(keys), places, numbers[:, 0].copy(), numbers[:, 1].copy())


def positions_of(entries: Entries) -> pa.Array:
    """Returns the positions of entries as tables hold them."""
    import numpy as np
    import pyarrow as pa

    numbers = np.column_stack([entries.high, entries.low]).astype(">u8")
    ends = pa.py_buffer(np.arange(len(entries) + 1, dtype=np.int32) * np.int32(POSITION_BYTES))
    return pa.Array.from_buffers(pa.binary(), len(entries), [None, ends, pa.py_buffer(numbers.tobytes())])


class KeyIndex:
    """The live rows of one table. `gone` has for each file which of its rows were deleted; entries of such rows are left out."""

    def __init__(self, gone: Mapping[int, Numbers]) -> None:
        self._gone = gone
        self._runs: list[Entries] = []

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self._runs)

    def add(self, entries: Entries) -> None:
        if not len(entries):
            return
        self._runs.append(entries.sorted())
        while len(self._runs) > 1 and len(self._runs[-2]) < GROWTH * len(self._runs[-1]):
            last, before = self._runs.pop(), self._runs.pop()
            both = Entries.joined([before, last])
            self._runs.append(both.take(self._live(both.places)).sorted())

    def find(self, keys: pa.Array) -> tuple[Numbers, Entries]:
        """Returns the live rows under these keys, and for each of them which of the keys it has."""
        import numpy as np

        first, second = hashes(keys)
        order = np.argsort(first)
        first, second = first[order], second[order]
        numbers, found = [np.empty(0, np.int64)], []
        for run in self._runs:
            begins, ends = np.searchsorted(run.keys, first, "left"), np.searchsorted(run.keys, first, "right")
            counts = ends - begins
            at = np.repeat(np.arange(len(first)), counts)
            slots = np.repeat(begins, counts) + np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
            same = run.more[slots] == second[at]
            at, slots = at[same], slots[same]
            live = self._live(run.places[slots])
            numbers.append(order[at[live]])
            found.append(run.take(slots[live]))
        return np.concatenate(numbers), Entries.joined(found) if found else _nothing()

    def _live(self, places: Numbers) -> Numbers:
        import numpy as np

        live = np.ones(len(places), np.bool_)
        files = places >> np.uint64(ROW_BITS)
        rows = (places & np.uint64((1 << ROW_BITS) - 1)).astype(np.int64)
        for file in np.unique(files):
            mine = np.flatnonzero(files == file)
            gone = self._gone.get(int(file))
            live[mine] = False if gone is None else ~gone[rows[mine]]
        return live


def _nothing() -> Entries:
    import numpy as np

    return Entries(*(np.empty(0, np.uint64) for _ in range(5)))
