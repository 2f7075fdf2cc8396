"""Every version that the changes of a batch make of each row: what ends it, and where columns come from that a change left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_batch import (
    BASE,
    BEGAN,
    OP,
    POSITION,
    VALID_FROM,
    VALID_TO,
    VALID_TO_POSITION,
)
from cdcworker.connectors.arrow import array_ops
from cdcworker.connectors.arrow.reduce import NONE, PUT, RowSelection, TableChanges
from cdcworker.connectors.sink_errors import UNDECODABLE
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    from cdcworker.connectors.arrow.topic_records import DecodedTopic, TopicRecords

    Ints = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class RowVersions:
    """`puts` selects the rows that are versions; of each the arrays beside it name, as rows of the batch, the change that ends it
    (NONE: none here), the change before which the row whose columns it keeps was current, and the key's first change."""

    puts: RowSelection
    end: Ints
    base: Ints
    began: Ints
    fresh: Flags
    deletes: Ints
    delete_began: Ints


@dataclass(slots=True)
class _Sorted:
    """The changes by key and position, one of each position. `first` marks a key's first one, `seg` names for each the first one of
    those that stand on each other, `key` and `base` by that one: whose row in the target they stand on, and before which change."""

    order: Ints
    key_of: Ints
    is_put: Flags
    first: Flags
    seg: Ints
    take: dict[str, Ints]
    key: Ints
    base: Ints

    @property
    def is_partial(self) -> Flags:
        """Marks those that keep columns of the target's row."""
        import numpy as np

        found = np.zeros(len(self.order), np.bool_)
        for source in self.take.values():
            found |= source == NONE
        return found & self.is_put


def of_changes(changes: TableChanges, made: Flags, read: Flags) -> RowVersions:
    """`made` marks rows that a row's first change has (an insert, a row of a snapshot), `read` the latter. A change with missing
    columns of a row that was deleted before has nothing to stand on and is left out."""
    import numpy as np

    order = np.lexsort((changes.minor, changes.major, changes.key)).astype(np.int64)
    last = np.zeros(len(order), np.bool_)
    last[-1:] = True
    for at in (changes.key, changes.major, changes.minor):
        last[:-1] |= at[order[1:]] != at[order[:-1]]
    found = _resolved(changes, order[last])
    rowless = found.is_partial & (found.key[found.seg] == NONE)
    if rowless.any():
        found = _resolved(changes, found.order[~rowless])
    return _collected(found, made, read)


def _resolved(changes: TableChanges, order: Ints) -> _Sorted:
    import numpy as np

    n = len(order)
    key_of, is_put, index = changes.key[order], changes.op[order] == PUT, np.arange(n)
    first = np.ones(n, np.bool_)
    first[1:] = key_of[1:] != key_of[:-1]
    starts = first.copy()
    starts[1:] |= ~is_put[:-1]
    partial = np.zeros(n, np.bool_)
    for flags in changes.unchanged.values():
        partial |= flags[order]
    moved = np.zeros(n, np.bool_)
    if changes.old is not None:
        moved = (changes.old[order] != NONE) & partial & is_put
    starts |= moved
    seg = np.maximum.accumulate(np.where(starts, index, 0))
    take: dict[str, Ints] = {}
    for name, flags in changes.unchanged.items():
        brought = np.maximum.accumulate(np.where(is_put & ~flags[order], index, NONE))
        take[name] = np.where(brought >= seg, brought, NONE)
    found = _Sorted(order, key_of, is_put, first, seg, take, np.where(first, key_of, NONE), index.copy())
    _follow(changes, found, np.flatnonzero(moved))
    return found


def _follow(changes: TableChanges, found: _Sorted, moved: Ints) -> None:
    """Lets rows that came from another key stand on the row that was there, in the order in which they came."""
    import numpy as np

    order = found.order
    for at in moved[np.lexsort((changes.minor[order[moved]], changes.major[order[moved]]))].tolist():
        assert changes.old is not None
        old = int(changes.old[order[at]])
        begin, end = (int(np.searchsorted(found.key_of, old, side)) for side in ("left", "right"))
        place = _position(changes, order[at])
        before = [row for row in range(begin, end) if _position(changes, order[row]) < place]
        found.key[at], found.base[at] = old, at
        if not before:
            continue
        last = before[-1]
        if not found.is_put[last]:
            if found.first[last]:
                continue
            last -= 1
            if not found.is_put[last]:
                found.key[at] = NONE
                continue
        stop = at + int(np.argmax(found.seg[at:] != at)) if (found.seg[at:] != at).any() else len(order)
        for source in found.take.values():
            part = source[at:stop]
            part[part == NONE] = source[last]
        found.key[at], found.base[at] = found.key[found.seg[last]], found.base[found.seg[last]]


def _position(changes: TableChanges, row: int) -> tuple[int, int]:
    return int(changes.major[row]), int(changes.minor[row])


def _collected(found: _Sorted, made: Flags, read: Flags) -> RowVersions:
    import numpy as np

    order, is_put, first, n = found.order, found.is_put, found.first, len(found.order)
    none = np.full(n, NONE, np.int64)
    end = none.copy()
    end[:-1] = np.where(first[1:], NONE, order[1:])
    starts = np.flatnonzero(first)
    key_at = np.cumsum(first) - 1
    partial = found.is_partial
    merged = partial | (first & ~(is_put & made[order])) | (~first & read[order] & is_put)
    fresh = ~np.logical_or.reduceat(merged, starts)[key_at] if n else merged
    began = order[starts][key_at] if n else none
    puts, deletes = np.flatnonzero(is_put), np.flatnonzero(~is_put)
    take = {name: np.where(source == NONE, NONE, order[source]) for name, source in found.take.items()}
    origin = np.where(partial, found.key[found.seg], NONE)
    return RowVersions(
        RowSelection(order[puts], {name: source[puts] for name, source in take.items()}, origin[puts]),
        end[puts],
        order[found.base[found.seg[puts]]],
        began[puts],
        fresh[puts],
        order[deletes],
        began[deletes],
    )


# -- columns ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChangePlaces:
    """Positions, times and operations of the rows of a run."""

    major: Ints
    minor: Ints
    ts_us: Ints
    op: np.ndarray[Any, Any]

    def positions(self, rows: Ints) -> pa.Array:
        import numpy as np

        return array_ops.position(np.where(rows == NONE, NONE, self.major[rows]), self.minor[rows])

    def times(self, rows: Ints) -> pa.Array:
        import pyarrow as pa

        return pa.array(self.ts_us[rows], pa.timestamp("us", "UTC"), mask=rows == NONE)


def places_of(decoded: DecodedTopic, rows: Ints) -> ChangePlaces:
    assert decoded.ts_us is not None
    return ChangePlaces(decoded.major[rows], decoded.minor[rows], decoded.ts_us[rows], decoded.op[rows])


def with_versions(upserts: pa.Table, found: RowVersions, places: ChangePlaces) -> pa.Table:
    """Returns the rows of versions with the columns that versions have besides."""
    import pyarrow as pa

    last = found.puts.last
    columns = {
        OP: pa.array(places.op[last], pa.string()),
        VALID_FROM: places.times(last),
        VALID_TO: places.times(found.end),
        VALID_TO_POSITION: places.positions(found.end),
        BASE: places.positions(found.base),
        BEGAN: places.positions(found.began),
    }
    for name, column in columns.items():
        upserts = upserts.append_column(name, column)
    return upserts


def with_times(deletes: pa.Table, found: RowVersions, places: ChangePlaces) -> pa.Table:
    """Returns the deletes with when they were committed."""
    deletes = deletes.append_column(VALID_FROM, places.times(found.deletes))
    return deletes.append_column(BEGAN, places.positions(found.delete_began))


def truncates(decoded: DecodedTopic, rows: Ints) -> pa.Table:
    """Returns each TRUNCATE with its position and time, in the order of positions."""
    import numpy as np
    import pyarrow as pa

    places = places_of(decoded, rows[np.lexsort((decoded.minor[rows], decoded.major[rows]))])
    index = np.arange(len(rows))
    return pa.table({POSITION: places.positions(index), VALID_FROM: places.times(index)})


def times_us(source: pa.Array, ts_ms: Ints, where: dict[str, str | int]) -> Ints:
    """Returns when rows were committed in the source, as exactly as it says."""
    if source.type.get_field_index("ts_us") >= 0:
        found: Ints = array_ops.ints(source.field("ts_us"))
        return found
    if source.type.get_field_index("ts_ms") < 0:
        text = "the source block has no time of the commit, which a history with versions needs"
        raise CdcError(UNDECODABLE, text, where=where)
    return ts_ms * 1000


def place_tombstones(topic: TopicRecords, decoded: DecodedTopic) -> None:
    """Ignores a tombstone behind its delete, and one of a key that comes again in the batch: what comes ends the version. Any other
    is a delete that tells no position."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    lone = np.flatnonzero((topic.schema == 0) & topic.key.is_valid().to_numpy(zero_copy_only=False))
    if not len(lone):
        return
    codes = pc.dictionary_encode(pa.array(topic.key)).indices.fill_null(NONE).to_numpy()
    last = np.full(int(codes.max()) + 1, NONE, np.int64)
    changes = np.flatnonzero((topic.schema > 0) & (codes >= 0))
    last[codes[changes]] = changes
    final = np.full(len(last), NONE, np.int64)
    final[codes[lone]] = lone
    for row in lone.tolist():
        before = int(last[codes[row]])
        if final[codes[row]] == row and before < row and not (before >= 0 and decoded.op[before] == "d"):
            decoded.op[row] = "d"
