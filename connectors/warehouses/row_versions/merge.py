"""A batch of versions applied to the versions of its keys in memory, for targets whose rows are Arrow tables."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_batch import (
    BASE,
    IS_CURRENT,
    KEY,
    OP,
    POSITION,
    VALID_TO,
    VALID_TO_POSITION,
)
from cdcworker.connectors.arrow.array_ops import one
from cdcworker.connectors.warehouses.merge import called, place, put_column, truths
from cdcworker.connectors.warehouses.row_versions.positions import NONE, PositionRanks, VersionsNeeded
from cdcworker.connectors.warehouses.row_versions.timeline import (
    ALL,
    KnownVersions,
    Timeline,
    empty_ends,
    ends_of,
    timeline,
)
from cdcworker.connectors.warehouses.target_columns import position_of

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.warehouses.row_versions.positions import Flags, Ints

READ: Final = "r"
"""The operation of rows of a snapshot."""
PLACE_BYTES: Final = 12
"""Of a position: those that a change of a key has in common in the version that it ends and in the one that it makes."""


@dataclass(frozen=True, slots=True)
class StagedVersions:
    """The parts of a TableBatch of versions with values of the target's types. `versions` has BASE besides the target's columns,
    `deletes` and `truncates` have KEY (not the latter), POSITION and VALID_FROM. `kept` marks what a version takes from that of its key
    in `origins`; `compared` are the columns in which a row of a snapshot may differ from the version before it."""

    versions: pa.Table
    deletes: pa.Table
    truncates: pa.Table
    kept: Mapping[str, Flags]
    origins: pa.Array | None = None
    compared: tuple[str, ...] = ()

    def keys(self) -> set[bytes]:
        """Returns the keys of all versions that the batch may have to do with."""
        parts = [self.versions[KEY], self.deletes[KEY], self.origins]
        found = {key for part in parts if part is not None for key in part.to_pylist()}
        return {key for key in found if key is not None}

    def needed(self) -> VersionsNeeded:
        import pyarrow as pa

        name = position_of(self.versions.schema)
        parts = [(self.versions[KEY], self.versions[name]), (self.deletes[KEY], self.deletes[POSITION])]
        if self.origins is not None:
            some = self.origins.is_valid()
            parts.append((self.origins.filter(some), self.versions[BASE].filter(some)))
        keys, since = ([one(column).cast(pa.binary()) for column in columns] for columns in zip(*parts, strict=True))
        return VersionsNeeded(pa.concat_arrays(keys), pa.concat_arrays(since))


@dataclass(frozen=True, slots=True)
class MergedVersions:
    """`rows` after a batch, `remember`: ends to be kept with those that were known."""

    rows: pa.Table
    remember: pa.Table
    orphans: int
    written: int
    """Versions that are new, ended, or none any more."""


def merge(rows: pa.Table, ends: pa.Table, staged: StagedVersions) -> MergedVersions:
    """`rows` are versions with the target's columns, all that the batch needs of its keys at least; `ends` those that are remembered
    of its keys, and each TRUNCATE. The column of positions may have any name."""
    import pyarrow as pa

    name = position_of(rows.schema)
    rows, versions = called(rows, name, POSITION), called(staged.versions, name, POSITION)
    versions, orphans = _completed(versions, staged, rows)
    cuts = ends_of(staged.truncates, ALL) if staged.truncates.num_rows else empty_ends()
    known = _concerned(rows, staged, versions)
    have = rows.filter(pa.array(known))
    found = timeline(KnownVersions(have, pa.concat_tables([ends, cuts])), versions, staged.deletes, _now_us())
    found = found.without(_repeats(found, have, versions, staged.compared))
    after = _after(found, have, versions)
    written = int(found.changed.sum() + found.made.sum())
    rest = rows.filter(pa.array(~known))
    whole = called(pa.concat_tables([rest, after]), POSITION, name)
    return MergedVersions(whole, pa.concat_tables([found.remember, cuts]), orphans, written)


def _now_us() -> int:
    return time.time_ns() // 1000


def _concerned(rows: pa.Table, staged: StagedVersions, versions: pa.Table) -> Flags:
    """Marks the versions of keys that the batch changes."""
    import numpy as np
    import pyarrow as pa

    if staged.truncates.num_rows:
        return np.ones(rows.num_rows, np.bool_)
    keys = pa.concat_arrays([one(part[KEY]).cast(pa.binary()) for part in (versions, staged.deletes)])
    return truths(place(rows[KEY], keys.unique()).is_valid())


# -- columns that a change left out -------------------------------------------------------------------------------------


def _completed(versions: pa.Table, staged: StagedVersions, rows: pa.Table) -> tuple[pa.Table, int]:
    """Returns the versions with the columns that their changes left out, and how many were left out themselves: there is no version
    to take them from."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    partial = np.zeros(versions.num_rows, np.bool_)
    for flags in staged.kept.values():
        partial |= flags
    if not partial.any():
        return versions, 0
    assert staged.origins is not None
    found = _version_before(rows, staged.origins, versions[BASE], partial)
    for name, flags in staged.kept.items():
        taken = one(rows[name]).take(pa.array(found, mask=found == NONE))
        versions = put_column(versions, name, pc.if_else(pa.array(flags), taken, one(versions[name])))
    whole = ~partial | (found != NONE)
    return versions.filter(pa.array(whole)), int((~whole).sum())


def _version_before(rows: pa.Table, keys: pa.Array, bases: Any, wanted: Flags) -> Ints:
    """Returns the row of the version that was current under each key before a position, NONE where there was none. It ends there, or
    later."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    out = np.full(len(wanted), NONE, np.int64)
    asked = np.flatnonzero(wanted & truths(one(keys).is_valid()))
    if not rows.num_rows or not len(asked):
        return out
    keys, bases = one(keys).take(pa.array(asked)), one(bases).take(pa.array(asked))
    ranks = PositionRanks([rows[POSITION], bases])
    both = pc.dictionary_encode(pa.concat_arrays([one(rows[KEY]).cast(pa.binary()), keys.cast(pa.binary())])).indices
    codes = both.to_numpy(zero_copy_only=False).astype(np.int64)
    mine = codes[: rows.num_rows] * (ranks.count + 1) + ranks.columns[0]
    order = np.argsort(mine, kind="stable")
    code = codes[rows.num_rows :]
    slot = np.searchsorted(mine[order], code * (ranks.count + 1) + ranks.columns[1]) - 1
    row = order[np.maximum(slot, 0)]
    same = (slot >= 0) & (codes[row] == code)
    ended = one(rows[VALID_TO_POSITION]).take(pa.array(row))
    cut = [pc.binary_slice(column.cast(pa.binary()), 0, PLACE_BYTES) for column in (ended, bases)]
    lasts = ~truths(ended.is_valid()) | truths(pc.greater_equal(*cut))
    out[asked] = np.where(same & lasts, row, NONE)
    return out


# -- rows of a snapshot -------------------------------------------------------------------------------------------------


def _repeats(found: Timeline, have: pa.Table, versions: pa.Table, compared: tuple[str, ...]) -> Flags:
    """Marks rows of a snapshot in the batch that say what the version before them says."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    out = np.zeros(have.num_rows + versions.num_rows, np.bool_)
    read = truths(pc.equal(versions[OP], READ))
    if not read.any():
        return out
    out[have.num_rows :] = read
    if have.num_rows:
        again = identities(versions.filter(pa.array(read)))
        out[: have.num_rows] = truths(pc.equal(have[OP], READ)) & truths(place(identities(have), again).is_valid())
    asked = np.flatnonzero(out[found.order] & found.follows)
    pair = found.order[asked], found.order[asked - 1]
    same = np.ones(len(asked), np.bool_)
    for name in compared:
        column = pa.concat_arrays([one(have[name]), one(versions[name])])
        this, last = (column.take(pa.array(numbers)) for numbers in pair)
        same &= equal(this, last)
    out[:] = False
    out[pair[0][same]] = True
    return out


def identities(rows: pa.Table, position: str = POSITION) -> pa.Array:
    """Returns what tells versions apart: keys with the positions behind them, which all are as long."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = [one(rows[name]).cast(pa.binary()) for name in (KEY, position)]
    return one(pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary())))


def equal(this: pa.Array, other: pa.Array) -> Flags:
    """Returns where two columns hold the same, a null or a number that is none included."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_nested(this.type):
        return np.array([one == two for one, two in zip(this.to_pylist(), other.to_pylist(), strict=True)], np.bool_)
    same = truths(pc.or_(pc.and_(this.is_null(), other.is_null()), pc.fill_null(pc.equal(this, other), False)))
    if pa.types.is_floating(this.type):
        same |= truths(pc.and_(pc.is_nan(this), pc.is_nan(other)))
    return same


# -- rows ---------------------------------------------------------------------------------------------------------------


def _after(found: Timeline, have: pa.Table, versions: pa.Table) -> pa.Table:
    import pyarrow as pa

    ends, times = found.ends()
    parts = []
    for rows, start, kept in (
        (have, 0, ~found.dropped[: found.held]),
        (versions.select(have.column_names).cast(have.schema), found.held, found.made),
    ):
        end, at = (column.slice(start, rows.num_rows) for column in (ends, times))
        for name, column in ((VALID_TO, at), (VALID_TO_POSITION, end), (IS_CURRENT, end.is_null())):
            rows = put_column(rows, name, column)
        parts.append(rows.filter(pa.array(kept)))
    return pa.concat_tables(parts)
