"""A table batch of versions with values of its table's types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cdcworker.connectors.api.table_batch import (
    BASE,
    KEY,
    OP,
    POSITION,
    VALID_FROM,
    VALID_TO,
    VALID_TO_POSITION,
    TableBatch,
)
from cdcworker.connectors.warehouses import staged_rows, target_columns
from cdcworker.connectors.warehouses.row_versions.merge import StagedVersions
from cdcworker.connectors.warehouses.row_versions.timeline import ends_schema

if TYPE_CHECKING:
    import pyarrow as pa


def staged_versions(
    shape: target_columns.FileColumns, part: TableBatch, output: target_columns.OutputForm
) -> StagedVersions:
    """Returns the parts of a batch of versions with values of the table's types."""
    import pyarrow as pa

    own = (KEY, OP, VALID_FROM, VALID_TO, VALID_TO_POSITION)
    rows, base = shape.schema.empty_table(), pa.nulls(0, pa.binary())
    if part.upserts.num_rows:
        fixed = {name: part.upserts[name].combine_chunks() for name in own}
        fixed |= {
            output.position: part.upserts[POSITION].combine_chunks(),
            **staged_rows.stamp(output, part.upserts.num_rows),
        }
        rows = target_columns.conform(shape.typed(part.upserts, fixed), shape.schema, False)
        base = part.upserts[BASE]
    ends = ends_schema()
    return StagedVersions(
        rows.append_column(BASE, base),
        _ends(part.deletes, ends.names),
        _ends(part.truncates, ends.names[1:]),
        staged_rows.named_flags(shape, part.unchanged) if part.upserts.num_rows else {},
        None if part.origins is None or not part.upserts.num_rows else part.origins[KEY].combine_chunks(),
        tuple(column.name for column in shape.columns),
    )


def _ends(rows: pa.Table | None, names: Sequence[str]) -> pa.Table:
    found = rows.select(names) if rows is not None and rows.num_rows else None
    return ends_schema().empty_table().select(names) if found is None else found
