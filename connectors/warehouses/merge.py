"""A table batch applied to rows in memory, whole columns at once: what MERGE does, for targets that have none.

Rows are Arrow tables with the columns of the target, `KEY` and `POSITION`. Graves remember deletes: key, position and,
where the row went to another key, its values as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_batch import KEY, POSITION
from cdcworker.connectors.warehouses.target_columns import position_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Flags = np.ndarray[Any, Any]

ROW = "_cdc_row"
"""Column of tombstones: whether it holds the values of the row too."""


_N = "_cdc_n"


@dataclass(slots=True)
class StagedBatch:
    """The parts of a TableBatch with values of the target's types. Origins are keys, null where there is none."""

    upserts: pa.Table
    deletes: pa.Table
    kept: Mapping[str, Flags]
    origins: pa.Array | None = None
    moved: pa.Table | None = None
    moved_kept: Mapping[str, Flags] | None = None
    moved_origins: pa.Array | None = None
    floor: bytes | None = None
    """Of the table, with that of this batch."""
    truncates: bool = False


@dataclass(slots=True)
class MergedRows:
    rows: pa.Table
    tombstones: pa.Table
    orphans: int = 0
    written: int = 0
    """Rows that are other now, or gone."""


def tombstones_of(rows: pa.Table, whole: bool) -> pa.Table:
    import pyarrow as pa

    return rows.append_column(ROW, pa.array([whole] * rows.num_rows, pa.bool_()))


def merge(rows: pa.Table, tombstones: pa.Table, staged: StagedBatch, soft: str = "") -> MergedRows:
    """`tombstones` has the columns of `rows` and ROW. With `soft`, the name of a boolean column, deleted rows stay, marked. The
    column of positions may have any name in the rows of tables; in deletes it has its own."""
    name = position_of(rows.schema)
    moved = None if staged.moved is None else called(staged.moved, name, POSITION)
    staged = replace(staged, upserts=called(staged.upserts, name, POSITION), moved=moved)
    found = _merged(called(rows, name, POSITION), called(tombstones, name, POSITION), staged, soft)
    found.rows, found.tombstones = (called(part, POSITION, name) for part in (found.rows, found.tombstones))
    return found


def called(table: pa.Table, old: str, new: str) -> pa.Table:
    """Returns the table with another name for a column."""
    if old == new:
        return table
    return table.rename_columns([new if name == old else name for name in table.column_names])


def _merged(rows: pa.Table, tombstones: pa.Table, staged: StagedBatch, soft: str) -> MergedRows:
    if staged.truncates and staged.floor is not None:
        rows = _without(rows, truths(_less(rows[POSITION], staged.floor)), soft)
    upserts, open_ = _from_origins(staged.upserts, staged.kept, staged.origins, rows, tombstones)
    fresh, gone = [], 0
    if staged.moved is not None and staged.moved.num_rows:
        fresh.append(_leaving(staged, rows, tombstones))
    if staged.deletes.num_rows:
        rows, gone = _delete(rows, staged.deletes, soft)
        positioned = staged.deletes.filter(staged.deletes[POSITION].is_valid())
        fresh.append(tombstones_of(shaped(positioned, rows.schema), False))
    for part in fresh:
        tombstones = newest(tombstones, part)
    upserts, open_ = _alive(upserts, open_, tombstones, staged.floor)
    rows, orphans, put = _upsert(rows, upserts, open_)
    return MergedRows(rows, tombstones, orphans, gone + put)


def newest(tombstones: pa.Table, more: pa.Table) -> pa.Table:
    """Per key the tombstone with the highest position; of equal ones the one that holds a row."""
    import numpy as np
    import pyarrow as pa

    both = pa.concat_tables(
        [tombstones, more.select(tombstones.column_names)], promote_options="permissive"
    ).combine_chunks()
    if not both.num_rows:
        return both
    order = both.append_column(_N, pa.array(np.arange(both.num_rows))).sort_by(
        [(position_of(both.schema), "ascending"), (ROW, "ascending"), (_N, "ascending")]
    )
    last = order.group_by(KEY, use_threads=False).aggregate([(_N, "last")])
    return both.take(last[_N + "_last"])


def place(keys: Any, among: Any) -> Any:
    """Returns where each key stands among others, null where it does not."""
    import pyarrow.compute as pc

    return pc.index_in(one(keys), value_set=one(among), skip_nulls=True)


def one(column: Any) -> Any:
    import pyarrow as pa

    if not isinstance(column, pa.ChunkedArray):
        return column
    found = column.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


def truths(values: Any) -> Flags:
    import numpy as np
    import pyarrow.compute as pc

    return np.asarray(pc.fill_null(one(values), False).to_numpy(zero_copy_only=False), np.bool_)


def _less(positions: Any, than: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.less(positions, pa.scalar(than, pa.binary()) if isinstance(than, bytes) else than)


def shaped(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns the table with the columns of a schema; those that it lacks are null."""
    import pyarrow as pa

    columns = {
        field.name: table[field.name].cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    }
    return pa.table(columns, schema=schema)


def _without(rows: pa.Table, gone: Flags, soft: str, at: Any = None) -> pa.Table:
    """Rows that are gone are left out, or marked, with the position of their delete."""
    import pyarrow as pa
    import pyarrow.compute as pc

    mask = pa.array(gone)
    if not soft:
        return rows.filter(pc.invert(mask))
    rows = put_column(rows, soft, pc.if_else(mask, True, one(rows[soft])))
    return rows if at is None else put_column(rows, POSITION, pc.if_else(mask, at, one(rows[POSITION])))


def put_column(rows: pa.Table, name: str, values: Any) -> pa.Table:
    """Returns the rows with other values in a column."""
    index = rows.column_names.index(name)
    return rows.set_column(index, rows.schema.field(index), values)


def _delete(rows: pa.Table, deletes: pa.Table, soft: str) -> tuple[pa.Table, int]:
    """Returns the rows without the deleted ones, and how many were deleted. A delete without a position (a lone
    tombstone) takes whatever is there."""
    import pyarrow.compute as pc

    found = place(rows[KEY], deletes[KEY])
    at = one(deletes[POSITION]).take(found)
    older = pc.or_(pc.fill_null(_less(one(rows[POSITION]), at), False), pc.and_(found.is_valid(), at.is_null()))
    gone = truths(older)
    return _without(rows, gone, soft, pc.coalesce(at, one(rows[POSITION]))), int(gone.sum())


def _from_origins(
    upserts: pa.Table, kept: Mapping[str, Flags], origins: Any, rows: pa.Table, tombstones: pa.Table
) -> tuple[pa.Table, dict[str, Flags]]:
    """Rows that came from another key take what they did not bring from the row there, or from its tombstone; what stays open
    is kept from the row under the own key."""
    import numpy as np

    open_ = {name: np.array(flags, np.bool_) for name, flags in kept.items()}
    if origins is None or not open_:
        return upserts, open_
    whole = tombstones.filter(tombstones[ROW])
    done = np.zeros(upserts.num_rows, np.bool_)
    for base in (rows, whole):
        found = place(origins, base[KEY])
        older = truths(_less(one(base[POSITION]).take(found), one(upserts[POSITION]))) & ~done
        for name, flags in open_.items():
            upserts = _fill(upserts, name, flags & older, base, found)
        done |= older
    for flags in open_.values():
        flags &= ~done
    return upserts, open_


def _fill(upserts: pa.Table, name: str, flags: Flags, base: pa.Table, found: Any) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not flags.any():
        return upserts
    return put_column(upserts, name, pc.if_else(pa.array(flags), one(base[name]).take(found), one(upserts[name])))


def _leaving(staged: StagedBatch, rows: pa.Table, tombstones: pa.Table) -> pa.Table:
    """Rows under their old keys as they were; without the row where what they keep is not there."""
    import numpy as np
    import pyarrow as pa

    assert staged.moved is not None
    moved, open_ = _from_origins(staged.moved, staged.moved_kept or {}, staged.moved_origins, rows, tombstones)
    found = place(moved[KEY], rows[KEY])
    there = truths(found.is_valid())
    missing = np.zeros(moved.num_rows, np.bool_)
    for name, flags in open_.items():
        moved = _fill(moved, name, flags & there, rows, found)
        missing |= flags & ~there
    return tombstones_of(shaped(moved.filter(pa.array(~missing)), rows.schema), True)


def _alive(
    upserts: pa.Table, open_: dict[str, Flags], tombstones: pa.Table, floor: bytes | None
) -> tuple[pa.Table, dict[str, Flags]]:
    """Returns the rows without those behind a tombstone, and without those at or below the floor."""
    import numpy as np
    import pyarrow as pa

    keep = np.ones(upserts.num_rows, np.bool_)
    if tombstones.num_rows:
        at = one(tombstones[POSITION]).take(place(upserts[KEY], tombstones[KEY]))
        keep &= ~(truths(at.is_valid()) & ~truths(_less(at, one(upserts[POSITION]))))
    if floor is not None:
        import pyarrow.compute as pc

        keep &= truths(pc.greater(upserts[POSITION], pa.scalar(floor, pa.binary())))
    if keep.all():
        return upserts, open_
    return upserts.filter(pa.array(keep)), {name: flags[keep] for name, flags in open_.items()}


def _upsert(rows: pa.Table, upserts: pa.Table, open_: Mapping[str, Flags]) -> tuple[pa.Table, int, int]:
    """Newer positions replace; a row that keeps columns of one that is not there waits for its whole image. How many
    wait, and how many were put."""
    import numpy as np
    import pyarrow as pa

    if not upserts.num_rows:
        return rows, 0, 0
    found = place(upserts[KEY], rows[KEY])
    there = truths(found.is_valid())
    partial = np.logical_or.reduce([*open_.values(), np.zeros(len(there), np.bool_)])
    newer = there & truths(_less(one(rows[POSITION]).take(found), one(upserts[POSITION])))
    for name, flags in open_.items():
        upserts = _fill(upserts, name, flags & newer, rows, found)
    taken = newer | (~there & ~partial)
    replaced = np.zeros(rows.num_rows, np.bool_)
    replaced[found.filter(pa.array(newer)).to_numpy(zero_copy_only=False)] = True
    stay = rows.filter(pa.array(~replaced))
    out = pa.concat_tables([stay, upserts.filter(pa.array(taken)).select(rows.column_names).cast(rows.schema)])
    return out, int((partial & ~there).sum()), int(taken.sum())
