"""Where the rows of a table are by the hashes of their keys, kept from batch to batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Numbers = np.ndarray[Any, Any]

ENTRY_BYTES: Final = 16
_ODD: Final = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_WORD = 8


def hashes(keys: pa.Array) -> Numbers:
    """Returns a hash of 64 bits for each key; keys are bytes, and none is null."""
    import numpy as np

    _, ends, data = keys.buffers()
    count = len(keys)
    if not count:
        return np.empty(0, np.uint64)
    edges = np.frombuffer(ends, np.int32, count + 1, 4 * keys.offset).astype(np.int64)
    starts, sizes = edges[:-1], np.diff(edges)
    raw = (b"" if data is None else memoryview(data)[: edges[-1]].tobytes()) + bytes(_WORD)
    # A word of eight bytes at every byte.
    words = np.ndarray((len(raw) - _WORD + 1,), "<u8", raw, strides=(1,))
    out = sizes.astype(np.uint64) * np.uint64(_ODD[0])
    for at in range(0, int(sizes.max()), _WORD):
        left = sizes - at
        if (left > 0).all():
            out = _mixed(out, _word(words, starts + at, left))
        else:
            more = np.flatnonzero(left > 0)
            out[more] = _mixed(out[more], _word(words, starts[more] + at, left[more]))
    return out


def _word(words: Numbers, at: Numbers, left: Numbers) -> Numbers:
    import numpy as np

    cut = np.uint64(8) * np.maximum(_WORD - left, 0).astype(np.uint64)
    # What belongs to the next key is shifted out.
    shifted: Numbers = words[at] << cut
    return shifted


def _mixed(out: Numbers, word: Numbers) -> Numbers:
    import numpy as np

    out = (out ^ word) * np.uint64(_ODD[1])
    out ^= out >> np.uint64(29)
    out *= np.uint64(_ODD[2])
    out ^= out >> np.uint64(32)
    return out


class KeyIndex:
    """Hashes of keys to files (numbers that the owner gives) and rows. Entries of rows that are gone stay until their
    run is merged: the owner tells which those are."""

    def __init__(self) -> None:
        self._runs: list[tuple[Numbers, Numbers, Numbers]] = []

    @property
    def size(self) -> int:
        return sum(len(run[0]) for run in self._runs)

    def add(self, file: int, found: Numbers, alive: Any) -> None:
        """The hashes of a file's rows. `alive(files, rows)` says which entries are of rows that are there."""
        import numpy as np

        order = np.argsort(found, kind="stable")
        self._runs.append((found[order], np.full(len(found), file, np.int32), order.astype(np.int32)))
        while len(self._runs) > 1 and len(self._runs[-2][0]) < 2 * len(self._runs[-1][0]):
            one, other = self._runs.pop(), self._runs.pop()
            self._runs.append(_merged(other, one, alive))

    def find(self, wanted: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Returns files, rows, and which of the sorted hashes each of them is for."""
        import numpy as np

        files, rows, numbers = [], [], []
        for hashed, file, row in self._runs:
            low, high = np.searchsorted(hashed, wanted, "left"), np.searchsorted(hashed, wanted, "right")
            counts = high - low
            hit = np.flatnonzero(counts)
            if not len(hit):
                continue
            counts = counts[hit]
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            at = np.repeat(low[hit], counts) + within
            files.append(file[at])
            rows.append(row[at])
            numbers.append(np.repeat(hit, counts))
        if not files:
            return np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int64)
        return np.concatenate(files), np.concatenate(rows), np.concatenate(numbers)


def _merged(one: tuple[Numbers, ...], other: tuple[Numbers, ...], alive: Any) -> tuple[Numbers, Numbers, Numbers]:
    import numpy as np

    kept = []
    for run in (one, other):
        there = alive(run[1], run[2])
        kept.append(run if there.all() else tuple(part[there] for part in run))
    hashed, file, row = (np.concatenate(parts) for parts in zip(*kept, strict=True))
    order = np.argsort(hashed, kind="stable")
    return hashed[order], file[order], row[order]
