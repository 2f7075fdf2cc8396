"""Columns that the source drops, where the warehouse is told to drop them too (`schema.change.drop=delete`).

Partitions are read at their own pace: changes in a table's shape from before a column was added, or dropped, may come after
others in the shape from after that. Which shape is the newest the positions of the changes say.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_batch import POSITION, TableBatch
from cdcworker.connectors.warehouses import target_columns
from cdcworker.connectors.warehouses.column_changes import TargetTableColumn, Where, plan
from cdcworker.schemas.topics import unescape

if TYPE_CHECKING:
    import pyarrow as pa


def position(batch: TableBatch) -> bytes:
    """The highest one of its changes; empty: none has one."""
    import pyarrow.compute as pc

    parts = (batch.upserts, batch.deletes, batch.moved)
    found = [pc.max(part[POSITION]).as_py() for part in parts if part is not None and part.num_rows]
    return max([batch.floor or b"", *(at or b"" for at in found)])


def wanted(batch: TableBatch) -> list[TargetTableColumn]:
    """The source's columns, by the names that they have in the target."""
    return [
        TargetTableColumn(unescape(str(m["name"])), int(m.get("cdc.colid") or 0) or None)
        for m in batch.schema["fields"]
    ]


def without(batch: TableBatch, names: Collection[str]) -> TableBatch:
    """Returns the batch without these columns, named as in the target; those of the key stay."""
    fields = {str(member["name"]) for member in batch.schema["fields"]}
    left = {name for name in fields if unescape(name) in names and name not in batch.key}
    if not left:
        return batch

    def kept(flags: Any) -> dict[str, Any]:
        return {name: found for name, found in flags.items() if name not in left}

    schema = {**batch.schema, "fields": [member for member in batch.schema["fields"] if member["name"] not in left]}
    upserts, moved = (_less(rows, left) for rows in (batch.upserts, batch.moved))
    assert upserts is not None
    unchanged, moved_unchanged = kept(batch.unchanged), kept(batch.moved_unchanged)
    return replace(
        batch, schema=schema, upserts=upserts, moved=moved, unchanged=unchanged, moved_unchanged=moved_unchanged
    )


def judged(
    part: TableBatch, schema: pa.Schema | None, at: bytes, output: target_columns.OutputForm, where: Where
) -> tuple[TableBatch, target_columns.OutputForm]:
    """Returns what of a batch goes into a table with such columns, to which changes up to `at` have been applied, and
    how. In a shape that is newer than all of theirs a column that is not there is one that the source dropped. In an
    older one a column that the table lacks has been dropped meanwhile, and nothing else is."""
    if schema is None or not output.deletes(part.key) or position(part) > at:
        return part, output
    planned = plan(target_columns.identities(schema), wanted(part), part.key, where)
    return without(part, planned.added), replace(output, drop=False)


def _less(rows: pa.Table | None, names: Collection[str]) -> pa.Table | None:
    there: Sequence[str] = () if rows is None else [name for name in rows.column_names if name in names]
    return rows.drop_columns(list(there)) if rows is not None and there else rows
