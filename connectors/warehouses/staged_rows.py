"""A table batch as rows of a lake's table: the columns it evolves to, values of their types, and what is added to each row."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from cdcworker.connectors.api.table_batch import (
    DELETED,
    KEY,
    POSITION,
    SinkBatch,
    TableBatch,
)
from cdcworker.connectors.sink_errors import SCHEMA_REFUSED
from cdcworker.connectors.warehouses import dropped_columns, merge, target_columns
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import thread_pool

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.warehouses.table_state import Manifest

Where = Mapping[str, str | int]
Result = TypeVar("Result")
ROWS_AT_ONCE = 5_000
TABLES_AT_ONCE = 8


def parts_of(batch: SinkBatch) -> dict[str, list[TableBatch]]:
    """Returns the parts of a batch by topic. A topic whose records are all tombstones or dead letters has none; its offsets
    advance all the same."""
    topics: dict[str, list[TableBatch]] = {topic: [] for topic, _ in batch.offsets}
    for part in batch.tables:
        topics.setdefault(part.table, []).append(part)
    return topics


def each_table(batch: SinkBatch, work: Callable[[str], Result], topics: Iterable[str]) -> list[Result]:
    """A table waits for the disk most of the time: where there is much to be written, several do that at once."""
    rows = sum(part.upserts.num_rows + part.deletes.num_rows for part in batch.tables)
    if rows < ROWS_AT_ONCE:
        return [work(topic) for topic in topics]
    with thread_pool(TABLES_AT_ONCE, "table") as pool:
        return list(pool.map(work, topics))


def no_counts() -> dict[str, Any]:
    """Returns the counts of an empty batch, as `apply` returns them."""
    return {"rows": 0, "changes": 0, "orphans": 0, "tables": {}, "replayed": False}


def add(total: dict[str, Any], counts: Mapping[str, Any]) -> None:
    """Adds the counts of a step to a total."""
    for name in ("rows", "changes", "orphans"):
        total[name] += counts[name]
    for name, changes in counts["tables"].items():
        total["tables"][name] = total["tables"].get(name, 0) + changes


def count(counts: dict[str, Any], name: str, parts: Iterable[TableBatch]) -> None:
    """Add what went into one table."""
    for part in parts:
        counts["rows"] += part.upserts.num_rows + part.deletes.num_rows
        counts["changes"] += part.changes
        counts["tables"][name] = counts["tables"].get(name, 0) + part.changes


def keyed(parts: Iterable[TableBatch], key: tuple[str, ...], schema: pa.Schema | None) -> list[TableBatch]:
    """Returns parts with the table's key where they do not name it. A table that has no columns yet gets none from a lone
    TRUNCATE."""
    named = [replace(part, key=key) if part.bare else part for part in parts]
    return [part for part in named if not part.bare or schema is not None]


def floor_of(parts: Iterable[TableBatch], floor: str) -> str:
    """The table's with those of its batch, as hexadecimal text."""
    return max([floor, *(part.floor.hex() for part in parts if part.floor is not None)])


def evolve(
    schema: pa.Schema | None,
    key: tuple[str, ...],
    part: TableBatch,
    output: target_columns.OutputForm,
    where: Where,
    at: bytes = b"",
) -> target_columns.FileColumns:
    """The batch's columns by the evolved types, which may be wider than its own. Changes up to `at` have been applied."""
    if schema is not None and part.key and key and part.key != key:
        raise CdcError(SCHEMA_REFUSED, "the key of the table changed", where=where)
    if schema is not None and part.key and target_columns.keeps_versions(schema) != output.versions:
        raise CdcError(SCHEMA_REFUSED, "the table was made with another output.mode", where=where)
    shape = target_columns.shape_of(part, output)
    how = replace(output, drop=output.deletes(part.key))
    found = target_columns.evolved(schema, shape.schema, key, where, how)
    # What later changes than these have is not what the source has dropped.
    is_older = len(found) > len(shape.schema) and dropped_columns.position(part) <= at
    return target_columns.FileColumns(shape.columns, found, is_older)


def evolve_all(
    state: Manifest, parts: Iterable[TableBatch], output: target_columns.OutputForm, where: Where
) -> tuple[list[TableBatch], list[target_columns.FileColumns]]:
    """The parts of a batch one after the other: what of each goes into the table, and the columns that it then has."""
    have = schema = state.arrow
    key, at, out, shapes = state.key, state.at, [], []
    for part in parts:
        if have is not None and bool(part.key) != bool(state.key):
            raise CdcError(SCHEMA_REFUSED, "the key of the table came or went", where=where)
        left, how = dropped_columns.judged(part, schema, state.at, output, where)
        out.append(left)
        shapes.append(evolve(schema, key, left, how, where, at))
        at = max(at, dropped_columns.position(part))
        schema, key = shapes[-1].schema, key or left.key
    return out, shapes


def appended(shape: target_columns.FileColumns, part: TableBatch, output: target_columns.OutputForm) -> pa.Table:
    fixed = {
        name: part.upserts[name].combine_chunks() for name in shape.schema.names if name in part.upserts.column_names
    }
    fixed = {name: column for name, column in fixed.items() if name.startswith("_cdc_")}
    if output.position:
        fixed[output.position] = part.upserts[POSITION].combine_chunks()
    rows = shape.typed(part.upserts, {**fixed, **stamp(output, part.upserts.num_rows)})
    return target_columns.conform(rows, shape.schema, defaults=shape.is_older)


def staged(
    shape: target_columns.FileColumns, part: TableBatch, output: target_columns.OutputForm, floor: bytes
) -> merge.StagedBatch:
    """`floor` is the table's from before; empty: none."""

    def full(rows: pa.Table) -> pa.Table:
        fixed = {KEY: rows[KEY].combine_chunks(), output.position: rows[POSITION].combine_chunks()}
        found = shape.typed(rows, {**fixed, **stamp(output, rows.num_rows)})
        return target_columns.conform(found, shape.schema, defaults=shape.is_older)

    return merge.StagedBatch(
        full(part.upserts) if part.upserts.num_rows else shape.schema.empty_table(),
        part.deletes.select([KEY, POSITION]) if part.deletes.num_rows else part.deletes,
        named_flags(shape, part.unchanged) if part.upserts.num_rows else {},
        None if part.origins is None else part.origins[KEY],
        full(part.moved) if part.moved is not None else None,
        named_flags(shape, part.moved_unchanged),
        None if part.moved_origins is None else part.moved_origins[KEY],
        max(part.floor or b"", floor) or None,
        part.floor is not None,
    )


def named_flags(shape: target_columns.FileColumns, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Returns flags of columns by the names that those have in the table."""
    names = {column.field: column.name for column in shape.columns}
    return {names[field]: found for field, found in flags.items() if field in names}


def stamp(output: target_columns.OutputForm, rows: int) -> dict[str, Any]:
    import pyarrow as pa

    out: dict[str, Any] = {}
    if output.soft and not output.log:
        out[DELETED] = pa.array([False] * rows)
    if output.synced:
        out[output.synced] = pa.array([time.time_ns() // 1000] * rows, pa.timestamp("us", "UTC"))
    return out


def keys_of(staged: merge.StagedBatch) -> set[bytes]:
    """Returns all keys that a batch names, with those that its rows had before."""
    named = [staged.upserts[KEY], staged.origins, staged.moved_origins]
    named += [part[KEY] for part in (staged.deletes, staged.moved) if part is not None and part.num_rows]
    keys = {key for column in named if column is not None for key in column.to_pylist()}
    return {key for key in keys if key is not None}
