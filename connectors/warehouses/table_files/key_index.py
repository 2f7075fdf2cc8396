"""The keys of a table's rows in memory: in which data file each row lies, where in it, and the position of its last change.

A key is held as a fingerprint of 128 bits: a row takes 40 bytes. Two keys of up to 15 bytes never share one. Longer keys do as seldom
as random numbers, and nobody can tell which: what fingerprints depend on is drawn for each process. The entries are sorted runs:
rows that are added make a run, and runs of like size are merged.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Numbers = np.ndarray[Any, Any]

INDEX_BYTES_MAX: Final = 192 << 20
"""Of all tables of a task: nearly five million rows. Files past it are read through for each batch."""
IDLE_S: Final = 600.0
"""An index that was not used for so long makes room for others."""
ENTRY_BYTES: Final = 40
ROW_BITS: Final = 32
"""A place is the number of a file and, in so many low bits, the number of a row in it."""
POSITION_BYTES: Final = 16
GROWTH: Final = 4
"""A run is merged with the one before it until that has so many times its rows."""
ROWS_AT_ONCE, BYTES_AT_ONCE = 1 << 15, 1 << 20
"""Fingerprints are made of so many keys at once, which stay in a processor's cache."""
_BLOCK: Final = 16
_ROUNDS: Final = tuple(secrets.randbits(64) for _ in range(4))
_FACTORS: Final = (secrets.randbits(64) | 1, secrets.randbits(64) | 1)


# -- places -------------------------------------------------------------------------------------------------------------


def places_of(file: int, rows: Numbers) -> Numbers:
    """Returns the places of rows in a file."""
    import numpy as np

    return np.uint64(file << ROW_BITS) | rows.astype(np.uint64)


def by_file(places: Numbers) -> dict[int, Numbers]:
    """Returns the numbers of the rows of each file; files and rows rise."""
    import numpy as np

    ordered = np.sort(places)
    rows = (ordered & np.uint64((1 << ROW_BITS) - 1)).astype(np.int64)
    files, starts = np.unique(ordered >> np.uint64(ROW_BITS), return_index=True)
    ends = [*starts[1:], len(rows)]
    return {int(file): rows[start:end] for file, start, end in zip(files, starts, ends, strict=False)}


# -- fingerprints -------------------------------------------------------------------------------------------------------


def fingerprints(keys: pa.Array) -> Numbers:
    """Returns two numbers of 64 bits for each key, as two rows; keys are binary, and none is null."""
    import numpy as np

    count = len(keys)
    out = np.empty((2, count), np.uint64)
    if not count:
        return out
    edges = np.frombuffer(keys.buffers()[1], np.int32, count + 1, 4 * keys.offset).astype(np.int64)
    data = memoryview(keys.buffers()[2] or b"")
    start = 0
    while start < count:
        fitting = int(np.searchsorted(edges, edges[start] + BYTES_AT_ONCE, "right")) - 1
        end = min(max(fitting, start + 1), start + ROWS_AT_ONCE, count)
        raw = data[edges[start] : edges[end]].tobytes() + bytes(_BLOCK)
        out[:, start:end] = _chained(raw, edges[start : end + 1] - edges[start])
        start = end
    return out


def _chained(raw: bytes, edges: Numbers) -> Numbers:
    """A key is cut into blocks of 16 bytes, of which the last one holds at most 15 and their number. Each block is added to what
    those before it made, and a permutation of all numbers of 128 bits is applied."""
    import numpy as np

    # A word of eight bytes at every byte, of which bytes of the next key are cut off.
    words = np.ndarray((len(raw) - 7,), "<u8", raw, strides=(1,))
    masks = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
    starts, sizes = edges[:-1], np.diff(edges)
    out = np.zeros((2, len(sizes)), np.uint64)
    for begin in range(0, int(sizes.max()) + 1, _BLOCK):
        mine = np.flatnonzero(sizes >= begin) if begin else slice(None)
        at, left = starts[mine] + begin, sizes[mine] - begin
        block = np.stack([words[at] & masks[np.clip(left, 0, 8)], words[at + 8] & masks[np.clip(left - 8, 0, 8)]])
        block[1] |= np.where(left < _BLOCK, left, 0).astype(np.uint64) << np.uint64(56)
        out[:, mine] = _permuted(block ^ out[:, mine])
    return out


def _permuted(block: Numbers) -> Numbers:
    """A Feistel network: whatever `mixed` is, no two blocks become one."""
    import numpy as np

    one, other = block
    first, second = (np.uint64(factor) for factor in _FACTORS)
    for added in _ROUNDS:
        mixed = one + np.uint64(added)
        mixed *= first
        mixed ^= mixed >> np.uint64(32)
        mixed *= second
        mixed ^= mixed >> np.uint64(29)
        one, other = other ^ mixed, one
    return np.stack([one, other])


# -- entries ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entries:
    """Rows of a table: fingerprints of their keys, their places, and their positions as two numbers."""

    keys: Numbers
    more: Numbers
    places: Numbers
    high: Numbers
    low: Numbers

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def columns(self) -> tuple[Numbers, ...]:
        return self.keys, self.more, self.places, self.high, self.low

    @property
    def nbytes(self) -> int:
        return sum(int(column.nbytes) for column in self.columns)

    def take(self, at: Numbers) -> Entries:
        return Entries(*(column[at] for column in self.columns))

    @staticmethod
    def joined(parts: Sequence[Entries]) -> Entries:
        import numpy as np

        if not parts:
            return Entries(*(np.empty(0, np.uint64) for _ in range(5)))
        return Entries(*map(np.concatenate, zip(*(part.columns for part in parts), strict=True)))

    @property
    def positions(self) -> pa.Array:
        """The positions as tables hold them."""
        import numpy as np
        import pyarrow as pa

        numbers = np.column_stack([self.high, self.low]).astype(">u8")
        ends = pa.py_buffer(np.arange(len(self) + 1, dtype=np.int32) * np.int32(POSITION_BYTES))
        return pa.Array.from_buffers(pa.binary(), len(self), [None, ends, pa.py_buffer(numbers.tobytes())])


def entries_of(keys: pa.Array, positions: pa.Array, places: Numbers) -> Entries | None:
    """None where a key is null or a position is not one of 16 bytes: such rows can be in no index."""
    import numpy as np

    if keys.null_count or positions.null_count:
        return None
    if not len(keys):
        return Entries.joined(())
    ends = np.frombuffer(positions.buffers()[1], np.int32, len(positions) + 1, 4 * positions.offset)
    if (np.diff(ends) != POSITION_BYTES).any():
        return None
    numbers = np.frombuffer(positions.buffers()[2], ">u8", 2 * len(positions), int(ends[0]))
    high, low = numbers.astype(np.uint64).reshape(-1, 2).T.copy()
    first, second = fingerprints(keys)
    return Entries(first, second, places, high, low)


# -- the index ----------------------------------------------------------------------------------------------------------


class IndexMemory:
    """Bounds the memory of the indexes of all tables of a task, whose threads share it. An index whose table is forgotten gives
    its memory back by itself."""

    def __init__(self, bytes_max: int = INDEX_BYTES_MAX, clock: Callable[[], float] = time.monotonic) -> None:
        self._bytes_max = bytes_max
        self._clock = clock
        self._lock = threading.Lock()
        self._used: WeakKeyDictionary[KeyIndex, tuple[float, int]] = WeakKeyDictionary()
        """When each index was used last, and how many bytes it may have."""

    def use(self, index: KeyIndex, more: int = 0) -> bool:
        """Notes that an index is in use, and returns whether it may grow by so many bytes. Where there is no room those that
        nobody has used for long are emptied."""
        with self._lock:
            now, size = self._clock(), index.nbytes + more
            others = [(*noted, other) for other, noted in self._used.items() if other is not index]
            room = self._bytes_max - sum(held for _, held, _ in others)
            for used, held, other in others:
                if more and room < size and now - used >= IDLE_S:
                    freed = other.clear()
                    self._used[other] = used, held - freed
                    room += freed
            granted = size <= room
            self._used[index] = now, size if granted else size - more
            return granted


@dataclass(frozen=True, slots=True)
class FoundKeys:
    """Live rows under some keys, by their places: which of the keys each has, and its entry. All rows of `files` were looked at."""

    numbers: Numbers
    entries: Entries
    files: frozenset[int]


class KeyIndex:
    """The live rows of one table. `gone` has for each of its files which rows are deleted, None: none is; files have numbers
    that no other file of the table had before. Entries of rows that are gone, or whose file is, are left out.

    One thread at a time uses it; another one may clear it meanwhile."""

    def __init__(self, gone: Mapping[int, Numbers | None], memory: IndexMemory) -> None:
        self.gone = gone
        self._memory = memory
        self._held: tuple[tuple[Entries, ...], frozenset[int]] = (), frozenset()
        """Runs, and the files whose rows they have."""
        self._unfit: set[int] = set()
        """Files with rows that can be in no index."""

    @property
    def nbytes(self) -> int:
        masks = (int(gone.nbytes) for gone in self.gone.values() if gone is not None)
        return sum(run.nbytes for run in self._held[0]) + sum(masks)

    def clear(self) -> int:
        """Leaves out all files and returns how many bytes that gives back."""
        (runs, _), self._held = self._held, ((), frozenset())
        return sum(run.nbytes for run in runs)

    def missing(self) -> list[int]:
        """Returns the files that are to be added."""
        return [file for file in self.gone if file not in self._held[1] and file not in self._unfit]

    def add(self, file: int, rows: int, parts: Iterable[tuple[pa.Array, pa.Array]]) -> None:
        """Adds a file with so many rows, given as keys and positions in their order. One for which there is no room is not
        read, and one with rows that can be in no index is left out: `find` does not have their rows."""
        import numpy as np

        if not self._memory.use(self, rows * ENTRY_BYTES):
            return
        made, start = [Entries.joined(())], 0
        for keys, positions in parts:
            entries = entries_of(keys, positions, places_of(file, np.arange(start, start + len(keys))))
            if entries is None:
                self._unfit.add(file)
                return
            made.append(entries)
            start += len(keys)
        held, files = self._held
        runs = [*held, self._merged(made)]
        while len(runs) > 1 and len(runs[-2]) < GROWTH * len(runs[-1]):
            runs[-2:] = [self._merged(runs[-2:])]
        self._held = tuple(runs), frozenset({file, *filter(self.gone.__contains__, files)})

    def _merged(self, parts: Sequence[Entries]) -> Entries:
        """Returns the live ones as one run, made column by column, which takes little more memory than the run itself."""
        import numpy as np

        columns = list(zip(*(part.columns for part in parts), strict=True))
        keys, _, places, _, _ = columns
        kept = np.flatnonzero(self._live(np.concatenate(places)))
        order = kept[np.argsort(np.concatenate(keys)[kept], kind="stable")]
        return Entries(*(np.concatenate(column)[order] for column in columns))

    def find(self, keys: pa.Array) -> FoundKeys:
        """Returns the live rows under these keys in the files that the index has."""
        import numpy as np

        self._memory.use(self)
        runs, files = self._held
        first, second = fingerprints(keys)
        order = np.argsort(first)
        first, second = first[order], second[order]
        numbers, found = [np.empty(0, np.int64)], []
        for run in runs:
            at, slots = _hits(run, first, second)
            live = self._live(run.places[slots])
            numbers.append(order[at[live]])
            found.append(run.take(slots[live]))
        entries = Entries.joined(found)
        by_place = np.argsort(entries.places)
        return FoundKeys(np.concatenate(numbers)[by_place], entries.take(by_place), files)

    def _live(self, places: Numbers) -> Numbers:
        import numpy as np

        files = (places >> np.uint64(ROW_BITS)).astype(np.int64)
        there = np.zeros(max([*self.gone, int(files.max(initial=0))]) + 1, np.bool_)
        there[list(self.gone)] = True
        live = there[files]
        for file, gone in self.gone.items():
            if gone is not None:
                mine = np.flatnonzero(files == file)
                live[mine] = ~gone[(places[mine] & np.uint64((1 << ROW_BITS) - 1)).astype(np.int64)]
        return live


def _hits(run: Entries, first: Numbers, second: Numbers) -> tuple[Numbers, Numbers]:
    """Returns which of the sorted fingerprints stand in a run, and in which slots of it."""
    import numpy as np

    if not len(run):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    low = np.searchsorted(run.keys, first)
    hit = np.flatnonzero(run.keys[np.minimum(low, len(run) - 1)] == first)
    low = low[hit]
    counts = np.searchsorted(run.keys, first[hit], "right") - low
    at = np.repeat(hit, counts)
    slots = np.repeat(low, counts) + np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
    same = run.more[slots] == second[at]
    return at[same], slots[same]
