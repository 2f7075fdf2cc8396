"""Which rows a batch writes. Most bring all that they are and go in as they come: the server keeps the newest version of each. What a
change leaves open is filled first from the row as it stands, by whole columns in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_batch import DELETED, KEY, POSITION, TableBatch
from cdcworker.connectors.warehouses import merge, staged_rows, target_columns
from cdcworker.connectors.warehouses.clickhouse import types
from cdcworker.connectors.warehouses.clickhouse.tables import GONE, VERSION

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from cdcworker.connectors.warehouses.target_columns import FileColumns, OutputForm

    Flags = np.ndarray[Any, Any]

Read = Callable[[Sequence[bytes], Sequence[str]], Iterable["pa.Table"]]
"""Returns the newest versions of the rows of some keys, with the named columns."""
MARKS: Final = (GONE, merge.ROW)


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """`rows` and `gone` are versions to be added, both with the columns of the table; `gone` has merge.ROW too."""

    rows: pa.Table
    gone: pa.Table
    orphans: int = 0
    written: int = 0


def written(
    shape: FileColumns, part: TableBatch, output: OutputForm, floor: bytes, read: Read, *, looks: bool = False
) -> WrittenRows:
    """Returns what a batch of a table with a key writes. `floor`: rows up to that position were truncated. `looks`: rows that bring all
    that they are are compared with those that are there too, so that what is counted is other afterwards."""
    staged = replace(staged_rows.staged(shape, part, output, floor), truncates=False)
    deletes = _deletes(shape, part, output)
    open_, out = _open_rows(staged) | looks, []
    needed = _open_deletes(deletes, staged, output.soft) | looks
    whole, lone = staged.upserts.filter(_mask(~open_)), deletes.filter(_mask(~needed))
    out.append(_plain(whole, lone, output.position, floor))
    if open_.any() or needed.any() or (staged.moved is not None and staged.moved.num_rows):
        some = replace(
            staged,
            upserts=staged.upserts.filter(_mask(open_)),
            deletes=deletes.filter(_mask(needed)),
            kept={name: flags[open_] for name, flags in staged.kept.items()},
            origins=None if staged.origins is None else merge.one(staged.origins).filter(_mask(open_)),
        )
        out.append(_filled(shape, some, output, read))
    return _together(out)


def _deletes(shape: FileColumns, part: TableBatch, output: OutputForm) -> pa.Table:
    """Returns deletes with the columns of the table; all but those of the key are null."""
    rows = part.deletes
    if not rows.num_rows:
        return (
            shape.schema.empty_table().append_column(POSITION, merge.one(rows[POSITION]))
            if (POSITION in rows.column_names and output.position != POSITION)
            else shape.schema.empty_table()
        )
    fixed = {KEY: merge.one(rows[KEY]), output.position: merge.one(rows[POSITION])}
    full = target_columns.conform(shape.typed(rows, fixed), shape.schema, False)
    return full if output.position == POSITION else full.append_column(POSITION, merge.one(rows[POSITION]))


def _open_rows(staged: merge.StagedBatch) -> Flags:
    """Returns which upserts keep columns of a row that is there."""
    import numpy as np

    out = np.zeros(staged.upserts.num_rows, np.bool_)
    for flags in staged.kept.values():
        out |= np.asarray(flags, np.bool_)
    return out


def _open_deletes(deletes: pa.Table, staged: merge.StagedBatch, soft: bool) -> Flags:
    """Returns which deletes need the row as it stands: to be marked, to be asked for its position, or to be kept for another key."""
    import numpy as np

    if soft or not deletes.num_rows:
        return np.ones(deletes.num_rows, np.bool_)
    out = merge.truths(merge.one(deletes[POSITION]).is_null())
    for keys in (staged.origins, staged.moved[KEY] if staged.moved is not None else None):
        if keys is not None and len(keys):
            out |= merge.truths(merge.place(deletes[KEY], keys).is_valid())
    return out


def _plain(rows: pa.Table, deletes: pa.Table, position: str, floor: bytes) -> WrittenRows:
    import pyarrow as pa
    import pyarrow.compute as pc

    if floor and rows.num_rows:
        rows = rows.filter(pc.greater(rows[position], pa.scalar(floor, pa.binary())))
    gone = merge.tombstones_of(deletes.select(rows.column_names), False)
    return WrittenRows(rows, gone, 0, rows.num_rows + gone.num_rows)


def _filled(shape: FileColumns, staged: merge.StagedBatch, output: OutputForm, read: Read) -> WrittenRows:
    names = [*shape.schema.names, *MARKS]
    keys = sorted(staged_rows.keys_of(staged))
    rows, tombstones = _there(shape, list(read(keys, names)))
    found = merge.merge(rows, tombstones, staged, DELETED if output.soft else "")
    changed = _changed(found.rows, rows, output)
    gone = _changed(found.tombstones, tombstones, output)
    if output.soft:
        # The row that stays says itself when it was deleted.
        gone = gone.filter(merge.place(gone[KEY], found.rows[KEY]).is_null())
    lost = rows.filter(_mask(_lost(rows, found, gone)))
    gone = _concat([gone, merge.tombstones_of(lost, False)])
    return WrittenRows(changed, gone, found.orphans, found.written)


def _lost(rows: pa.Table, found: merge.MergedRows, gone: pa.Table) -> Flags:
    """Returns which rows a delete without a position has taken: they go at their own."""
    out = merge.truths(merge.place(rows[KEY], found.rows[KEY]).is_null())
    if gone.num_rows:
        out &= merge.truths(merge.place(rows[KEY], gone[KEY]).is_null())
    return out


def _there(shape: FileColumns, read: Sequence[pa.Table]) -> tuple[pa.Table, pa.Table]:
    """Returns the rows that are there, and those that say that one was deleted."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = [
        types.from_stored(some, shape.schema)
        .append_column(GONE, some[GONE].cast(pa.uint8()))
        .append_column(merge.ROW, _bool(some[merge.ROW]))
        for some in read
    ]
    marked = shape.schema.append(pa.field(GONE, pa.uint8())).append(pa.field(merge.ROW, pa.bool_()))
    both = pa.concat_tables([marked.empty_table(), *parts], promote_options="permissive").combine_chunks()
    is_gone = pc.equal(both[GONE], 1)
    rows = both.filter(pc.invert(is_gone)).select(shape.schema.names).cast(shape.schema)
    return rows, both.filter(is_gone).select([*shape.schema.names, merge.ROW])


def _bool(column: Any) -> Any:
    import pyarrow as pa

    return column if pa.types.is_boolean(column.type) else column.cast(pa.bool_())


def _changed(rows: pa.Table, before: pa.Table, output: OutputForm) -> pa.Table:
    """Returns the rows that were not there as they are."""
    names = [output.position, *(name for name in (DELETED, merge.ROW) if name in before.column_names)]
    known = dict(zip(before[KEY].to_pylist(), _tuples(before, names), strict=True))
    mine = zip(rows[KEY].to_pylist(), _tuples(rows, names), strict=True)
    import numpy as np

    return rows.filter(_mask(np.array([known.get(key) != values for key, values in mine], np.bool_)))


def _tuples(rows: pa.Table, names: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[name].to_pylist() for name in names), strict=True))


def _together(parts: Sequence[WrittenRows]) -> WrittenRows:
    return WrittenRows(
        _concat([part.rows for part in parts]),
        _concat([part.gone for part in parts]),
        sum(part.orphans for part in parts),
        sum(part.written for part in parts),
    )


def _concat(parts: Sequence[pa.Table]) -> pa.Table:
    import pyarrow as pa

    first = parts[0]
    return pa.concat_tables([first, *(part.select(first.column_names).cast(first.schema) for part in parts[1:])])


def _mask(flags: Flags) -> Any:
    import pyarrow as pa

    return pa.array(flags, pa.bool_())


def versions_of(rows: pa.Table, position: str) -> Any:
    """Returns the versions of rows, as ClickHouse reads numbers of 16 bytes. Rows have a position each."""
    import numpy as np
    import pyarrow as pa

    column = merge.one(rows[position]).cast(pa.binary(16))
    content = np.frombuffer(column.buffers()[1], np.uint8)[16 * column.offset : 16 * (column.offset + len(column))]
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(column), [None, pa.py_buffer(np.ascontiguousarray(content.reshape(-1, 16)[:, ::-1]))]
    )


def together(done: WrittenRows) -> tuple[pa.Table, Sequence[int]]:
    """Returns all that is written as one table, which is inserted in one step, and for each row whether it says that one was deleted."""
    rows = _concat([merge.tombstones_of(done.rows, False), done.gone])
    return rows, [0] * done.rows.num_rows + [1] * done.gone.num_rows


def numbers_of(rows: pa.Table, position: str, gone: Sequence[int] | None) -> dict[str, Any]:
    """Returns the columns that say which version rows are; `gone` None: of a table without a key."""
    import pyarrow as pa

    out = {VERSION: versions_of(rows, position)} if rows.num_rows else {}
    if gone is not None:
        out[GONE] = pa.array(gone, pa.uint8())
    return out
