"""Positions as numbers that can be compared, and the versions of some keys that a batch has to know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.arrow.array_ops import one

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Ints = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

NONE: Final = -1
"""The rank of no position."""
POSITION_BYTES: Final = 16


class PositionRanks:
    """Columns of positions as ranks: equal positions have one, later ones a higher one, and a null has NONE."""

    def __init__(self, columns: Sequence[Any]) -> None:
        import numpy as np
        import pyarrow as pa

        self._all = pa.concat_arrays([one(column).cast(pa.binary()) for column in columns])
        numbers = _numbers(self._all)
        high, low = numbers[:, 0], numbers[:, 1]
        order = np.lexsort((low, high))
        new = np.ones(len(order), np.int64)
        new[1:] = (high[order[1:]] != high[order[:-1]]) | (low[order[1:]] != low[order[:-1]])
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.cumsum(new) - 1
        self._place = order[np.flatnonzero(new)]
        ranks[~self._all.is_valid().to_numpy(zero_copy_only=False)] = NONE
        self.columns = np.split(ranks, np.cumsum([len(column) for column in columns])[:-1])
        self.count = len(self._place)

    def positions(self, ranks: Ints) -> pa.Array:
        """Returns the positions that have these ranks."""
        import numpy as np
        import pyarrow as pa

        none = ranks == NONE
        if not self.count:
            return pa.nulls(len(ranks), pa.binary())
        return self._all.take(pa.array(self._place[np.where(none, 0, ranks)], mask=none))


def _numbers(positions: pa.Array) -> Any:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    fixed = pc.fill_null(positions, bytes(POSITION_BYTES)).cast(pa.binary(POSITION_BYTES))
    start = fixed.offset * POSITION_BYTES
    return np.frombuffer(fixed.buffers()[1] or b"", ">u8", 2 * len(fixed), start).astype(np.uint64).reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class VersionsNeeded:
    """Which versions of a key a batch has to know: those from its first change there on, and the last one before that. `since` is null
    where the change tells no position: then it is the last one of all."""

    keys: pa.Array
    since: pa.Array

    def __call__(self, keys: pa.Array, positions: pa.Array) -> Flags:
        """Returns which of the versions of a table, given by their keys and positions, are among them."""
        import numpy as np
        import pyarrow.compute as pc

        ranks = PositionRanks([positions, self.since])
        at, since = ranks.columns
        wanted = pc.dictionary_encode(one(self.keys))
        first = np.full(len(wanted.dictionary), ranks.count, np.int64)
        np.minimum.at(first, wanted.indices.to_numpy(), np.where(since == NONE, ranks.count, since))
        found = pc.index_in(one(keys), value_set=wanted.dictionary)
        known = found.is_valid().to_numpy(zero_copy_only=False)
        code = pc.fill_null(found, 0).to_numpy().astype(np.int64)
        before = known & (at < first[code]) if len(first) else known
        last = np.full(len(first), NONE, np.int64)
        np.maximum.at(last, code[before], at[before])
        out: Flags = known & (~before | (at == last[code])) if len(first) else known
        return out
