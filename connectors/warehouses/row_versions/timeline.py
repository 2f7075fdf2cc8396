"""The changes of some keys in the order of their positions: which versions they make, and which change ends each.

A version begins with the change that made it and ends with the next change of its key, or with the next TRUNCATE. Nothing else
counts: neither the batch that a change comes in, nor how often it comes, nor what has come before it. So ends are made anew of all
that is known of a key: versions that the target holds, what has ended those, ends that were remembered, and the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_batch import KEY, POSITION, VALID_FROM, VALID_TO, VALID_TO_POSITION
from cdcworker.connectors.arrow.array_ops import one
from cdcworker.connectors.warehouses.row_versions.positions import NONE, PositionRanks

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.warehouses.row_versions.positions import Flags, Ints

ALL: Final = b""
"""The key of a TRUNCATE among ends, which is none of a row."""


@dataclass(frozen=True, slots=True)
class KnownVersions:
    """What is known of some keys before a batch. `versions` has KEY, POSITION, VALID_FROM, VALID_TO and VALID_TO_POSITION, `ends` the
    first three: each delete that is remembered, and each TRUNCATE under the key ALL."""

    versions: pa.Table
    ends: pa.Table


def empty_ends() -> pa.Table:

    return ends_schema().empty_table()


def ends_schema() -> pa.Schema:
    """Returns the columns of remembered ends."""
    import pyarrow as pa

    return pa.schema([(KEY, pa.binary()), (POSITION, pa.binary()), (VALID_FROM, pa.timestamp("us", "UTC"))])


def ends_of(rows: pa.Table, key: bytes | None = None) -> pa.Table:
    """Returns changes as ends. `key`: that of all of them."""
    import pyarrow as pa

    keys = one(rows[KEY]) if key is None else pa.array([key] * rows.num_rows, pa.binary())
    return pa.table([keys, one(rows[POSITION]), one(rows[VALID_FROM])], schema=ends_schema())


def with_ends(ends: pa.Table, *more: pa.Table) -> pa.Table:
    """Returns ends with others, each once."""
    import pyarrow as pa

    every = pa.concat_tables([ends, *more])
    if every.num_rows == ends.num_rows:
        return ends
    return (
        every.group_by([KEY, POSITION], use_threads=False)
        .aggregate([(VALID_FROM, "min")])
        .rename_columns(ends.column_names)
    )


@dataclass(frozen=True, slots=True)
class Timeline:
    """The versions of some keys: those that the target holds, numbered as they were given, and behind them those of the batch.

    `is_new` marks those of the batch that the target does not hold; one that it does stands here by that alone. `order` are the
    numbers of versions by key and position; `follows`, in that order, marks those that begin where the one before ends."""

    ranks: PositionRanks
    held: int
    is_new: Flags
    before: Ints
    end: Ints
    end_at: Ints
    order: Ints
    follows: Flags
    dropped: Flags
    remember: pa.Table
    """Ends that have to be remembered: what they end may come yet, or come again."""

    @property
    def changed(self) -> Flags:
        """Marks the target's versions that end otherwise than before, or are none any more."""
        found: Flags = (self.end[: self.held] != self.before) | self.dropped[: self.held]
        return found

    @property
    def made(self) -> Flags:
        """Marks the versions of the batch that are to be added."""
        return self.is_new & ~self.dropped[self.held :]

    def ends(self) -> tuple[pa.Array, pa.Array]:
        """Returns for each version the position and the time of its end; null: it is current."""
        import pyarrow as pa

        times = pa.array(self.end_at, pa.timestamp("us", "UTC"), mask=self.end == NONE)
        return self.ranks.positions(self.end), times

    def without(self, repeats: Flags) -> Timeline:
        """Returns the versions without rows of a snapshot that say what the version before them says: that one goes on. `repeats`
        marks them by number; one that does not follow another is none."""
        import numpy as np

        gone = repeats[self.order] & self.follows
        if not gone.any():
            return self
        index = np.arange(len(gone))
        head = np.maximum.accumulate(np.where(gone, 0, index))
        last = np.maximum.reduceat(np.where(gone, index, 0), np.flatnonzero(~gone))
        heads = np.flatnonzero(~gone)
        longer = last > heads
        assert (head[last[longer]] == heads[longer]).all()
        end, end_at, dropped = self.end.copy(), self.end_at.copy(), self.dropped.copy()
        to, of = self.order[heads[longer]], self.order[last[longer]]
        end[to], end_at[to] = end[of], end_at[of]
        dropped[self.order[gone]] = True
        return replace(self, end=end, end_at=end_at, dropped=dropped)


@dataclass(frozen=True, slots=True)
class _Places:
    """Key and position of changes as one number each, by where they are known from."""

    width: int
    held: Ints
    put: Ints
    end: Ints
    delete: Ints
    ended_by: Ints
    """What has ended versions of the target, NONE where nothing has, or a tombstone without a position."""
    alone: Flags
    """Marks versions of the target that such a tombstone has ended."""

    @property
    def versions(self) -> Ints:
        import numpy as np

        return np.concatenate([self.held, self.put])


@dataclass(frozen=True, slots=True)
class _Changes:
    """Changes by key and position, one of each place. `next`: the rank of what comes behind it, NONE: nothing."""

    places: Ints
    at: Ints
    source: Ints
    next: Ints
    next_at: Ints
    next_is_put: Flags


_PUTS: Final = (0, 1)
_DELETE: Final = 3
_SOURCES: Final = (*_PUTS, 2, _DELETE, 4)
"""Where a change is known from: a version of the target, one of the batch, an end that is remembered, a delete of the batch, and what
has ended a version of the target. Of several at one place the first counts."""


def timeline(known: KnownVersions, puts: pa.Table, deletes: pa.Table, now_us: int) -> Timeline:
    """Returns the versions after a batch, of which `puts` are versions and `deletes` ends, with KEY, POSITION and VALID_FROM. A delete
    without a position, which a lone tombstone asks for, ends what is current, at `now_us`."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    have, ends = known.versions, known.ends
    lone = deletes.filter(deletes[POSITION].is_null())
    deletes = deletes.filter(deletes[POSITION].is_valid())
    all_keys = pc.equal(ends[KEY], ALL)
    truncates, ends = ends.filter(all_keys), ends.filter(pc.invert(all_keys))
    parts = (have, puts, ends, deletes)
    ranks = PositionRanks([*(part[POSITION] for part in (*parts, truncates)), have[VALID_TO_POSITION]])
    keys, codes = _codes([part[KEY] for part in (*parts, lone)])
    places = _places(ranks, codes)
    moments = [_times(part[VALID_FROM]) for part in parts] + [_times(have[VALID_TO])]
    cut = ranks.columns[4]
    order = np.argsort(cut, kind="stable")
    changes = _changes(places, moments, (cut[order], _times(truncates[VALID_FROM])[order]))
    end, end_at = _ends(changes, places, moments[-1])
    begin, code = places.versions % places.width, np.concatenate(codes[:2])
    now = np.isin(code, codes[4]) & (end == NONE)
    end, end_at = np.where(now, begin, end), np.where(now, now_us, end_at)
    is_new = ~np.isin(places.put, places.held)
    by_place = np.argsort(places.versions, kind="stable")
    by_place = by_place[np.append(np.ones(have.num_rows, np.bool_), is_new)[by_place]]
    follows = _follows(by_place, code, begin, end)
    remember = _to_remember(changes, np.where(end == NONE, NONE, code * places.width + end))
    place = changes.places[remember]
    columns = [
        keys.take(pa.array(place // places.width)),
        ranks.positions(place % places.width),
        pa.array(changes.at[remember], pa.timestamp("us", "UTC")),
    ]
    return Timeline(
        ranks, have.num_rows, is_new, ranks.columns[5], end, end_at, by_place, follows,
        np.zeros(len(end), np.bool_), pa.table(columns, schema=ends_schema()),
    )  # fmt: skip


def _codes(keys: Sequence[Any]) -> tuple[pa.Array, list[Ints]]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.dictionary_encode(pa.concat_arrays([one(column).cast(pa.binary()) for column in keys]))
    numbers = found.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return found.dictionary, np.split(numbers, np.cumsum([len(column) for column in keys])[:-1])


def _times(column: Any) -> Ints:
    import pyarrow as pa
    import pyarrow.compute as pc

    found: Ints = pc.fill_null(one(column).cast(pa.timestamp("us", "UTC")).cast(pa.int64()), 0).to_numpy()
    return found


def _places(ranks: PositionRanks, codes: Sequence[Ints]) -> _Places:
    import numpy as np

    had, put, end, delete, _, before = ranks.columns
    width = ranks.count + 1
    alone = (before == had) & (before != NONE)
    ended_by = np.where((before == NONE) | alone, NONE, codes[0] * width + before)
    first, second, third, fourth = (
        code * width + rank for code, rank in zip(codes[:4], (had, put, end, delete), strict=True)
    )
    return _Places(width, first, second, third, fourth, ended_by, alone)


def _changes(places: _Places, moments: Sequence[Ints], truncates: tuple[Ints, Ints]) -> _Changes:
    import numpy as np

    parts = (places.held, places.put, places.end, places.delete, places.ended_by)
    place, at = np.concatenate(parts), np.concatenate(moments)
    source = np.repeat(_SOURCES, [len(part) for part in parts])
    order = np.lexsort((source, place))
    order = order[place[order] != NONE]
    first = np.ones(len(order), np.bool_)
    first[1:] = place[order[1:]] != place[order[:-1]]
    place, at, source = (part[order[first]] for part in (place, at, source))
    key, rank = place // places.width, place % places.width
    after, after_at, is_put = np.full(len(place), NONE), np.zeros(len(place), np.int64), np.zeros(len(place), np.bool_)
    same = np.flatnonzero(key[1:] == key[:-1])
    after[same], after_at[same], is_put[same] = rank[same + 1], at[same + 1], np.isin(source[same + 1], _PUTS)
    cuts, cuts_at = truncates
    if len(cuts):
        slot = np.minimum(np.searchsorted(cuts, rank, "right"), len(cuts) - 1)
        sooner = (cuts[slot] > rank) & ((after == NONE) | (cuts[slot] < after))
        after[sooner], after_at[sooner], is_put[sooner] = cuts[slot[sooner]], cuts_at[slot[sooner]], False
    return _Changes(place, at, source, after, after_at, is_put)


def _ends(changes: _Changes, places: _Places, ended_at: Ints) -> tuple[Ints, Ints]:
    """Returns where each version ends, and when. One that a tombstone without a position has ended goes on when it comes again: so
    will that tombstone, if it was not one of an older delete. It ends with a next version that is not there yet, which the tombstone
    has passed; one that is there came behind the tombstone."""
    import numpy as np

    at = np.searchsorted(changes.places, places.versions)
    end, end_at = changes.next[at], changes.next_at[at]
    if places.alone.any():
        after, by_put = end[: len(places.held)], changes.next_is_put[at][: len(places.held)]
        own = places.held // places.width * places.width
        goes_on = (after == NONE) & np.isin(places.held, places.put)
        ends_anew = (after != NONE) & (~by_put | ~np.isin(own + after, places.held))
        stays = np.flatnonzero(places.alone & ~goes_on & ~ends_anew)
        end[stays], end_at[stays] = (places.held - own)[stays], ended_at[stays]
    return end, end_at


def _follows(order: Ints, code: Ints, begin: Ints, end: Ints) -> Flags:
    import numpy as np

    out = np.zeros(len(order), np.bool_)
    this, last = order[1:], order[:-1]
    out[1:] = (code[this] == code[last]) & (end[last] == begin[this]) & (end[last] != begin[last])
    return out


def _to_remember(changes: _Changes, ends: Ints) -> Flags:
    """Marks deletes of the batch, and what has ended a version until now and ends none any more."""
    import numpy as np

    found: Flags = (changes.source == _DELETE) | ((changes.source > _DELETE) & ~np.isin(changes.places, ends))
    return found
