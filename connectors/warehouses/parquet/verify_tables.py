"""A Parquet warehouse as the target of a comparison: its files are read here, as the newest manifests name them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from cdcworker.connectors.api.table_batch import DELETED, IS_CURRENT
from cdcworker.connectors.verify.databases import TableFailed
from cdcworker.connectors.warehouses import target_columns
from cdcworker.connectors.warehouses.lake import statements
from cdcworker.connectors.warehouses.lake.tables import LakeName, TableVersion, Work
from cdcworker.connectors.warehouses.parquet.consistent_sets import ParquetSets
from cdcworker.connectors.warehouses.storage.files import Storage
from cdcworker.connectors.warehouses.table_state import Manifest, Manifests, tables

if TYPE_CHECKING:
    import pyarrow as pa


class ParquetTables:
    """The tables of one sink as a `LakeTarget` reads them."""

    def __init__(self, files: Storage, sink: str, whole: bool = False) -> None:
        """`whole`: as the valid set has them."""
        self._storage = files
        self._sink = sink
        self._sets = ParquetSets(files, sink) if whole else None

    def place(self, schema: str, table: str) -> LakeName:
        return LakeName(statements.stored_name(schema), statements.stored_name(table))

    def found(self) -> Iterator[tuple[LakeName, TableVersion]]:
        for parts, state in self._states():
            if state.sink == self._sink and state.arrow is not None:
                columns = {field.name: statements.type_of(field.type) for field in state.arrow}
                yield self.place(*map(unquote, parts)), TableVersion(state, columns, state.version, not state.files)

    def _states(self) -> Iterator[tuple[Sequence[str], Manifest]]:
        if self._sets is not None:
            for shown in self._sets.read().values():
                yield from ((member.place, member.state) for member in shown.members.values())
            return
        for folder in tables(self._storage):
            state = Manifests(self._storage, folder).newest()
            if state is not None:
                yield folder.split("/"), state

    def read(self, place: LakeName, found: TableVersion, names: Sequence[str], work: Work, columns: str) -> pa.Table:
        import pyarrow as pa

        schema, table = (quote(statements.plain_name(name), safe=" ") for name in place)
        try:
            made = list(work(_batches(self._storage, f"{schema}/{table}", found, names)))
        except FileNotFoundError as exc:
            raise TableFailed("its files were replaced while they were read") from exc
        return pa.Table.from_batches(made) if made else pa.table({})

    def close(self) -> None:
        """Nothing is open."""


def _batches(files: Storage, folder: str, found: TableVersion, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Rows that are there; those that a soft delete left are not, nor are versions that have ended."""
    import pyarrow.compute as pc
    from pyarrow import parquet

    assert found.state is not None
    schema = found.state.arrow
    assert schema is not None
    for file in found.state.files:
        with parquet.ParquetFile(files.source(f"{folder}/{file.path}")) as source:
            for group in range(source.num_row_groups):
                rows = target_columns.conform(source.read_row_group(group), schema)
                if DELETED in rows.column_names:
                    rows = rows.filter(pc.invert(pc.fill_null(rows[DELETED], False)))
                if IS_CURRENT in rows.column_names:
                    rows = rows.filter(rows[IS_CURRENT])
                yield from rows.select(names).to_batches()
