"""Which rows of a batch are fresh, and which may be older than what a warehouse remembers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cdcworker.connectors.api.table_batch import POSITION, TableBatch

if TYPE_CHECKING:
    import pyarrow as pa


def split(batch: TableBatch) -> tuple[pa.Table, TableBatch]:
    """The rows that are fresh, and the batch without them."""
    import numpy as np
    import pyarrow as pa

    fresh = np.asarray(batch.fresh, np.bool_)
    rest = pa.array(~fresh)
    unchanged = {name: np.asarray(flags)[~fresh] for name, flags in batch.unchanged.items()}
    origins = None if batch.origins is None else batch.origins.filter(rest)
    left = replace(batch, upserts=batch.upserts.filter(rest), unchanged=unchanged, origins=origins, fresh=None)
    return batch.upserts.filter(pa.array(fresh)), left


def min_position(rows: pa.Table) -> bytes:
    import pyarrow.compute as pc

    found = pc.min(rows[POSITION]).as_py() if rows.num_rows else None
    return found or b""


def max_position(rows: pa.Table) -> bytes | None:
    """Returns the highest position of the rows; None when none of them has one."""
    import pyarrow.compute as pc

    found: bytes | None = pc.max(rows[POSITION]).as_py()
    return found
