"""A ClickHouse warehouse as the target of a comparison: its rows are read and compared in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cdcworker.connectors.api.table_batch import DELETED
from cdcworker.connectors.verify.databases import TableFailed
from cdcworker.connectors.warehouses.clickhouse.client import Client
from cdcworker.connectors.warehouses.clickhouse.ledger import ClickHouseLedger
from cdcworker.connectors.warehouses.clickhouse.tables import ClickHouseTables, TablePlace
from cdcworker.connectors.warehouses.lake import statements
from cdcworker.connectors.warehouses.lake.tables import LakeName, TableVersion, Work
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import pyarrow as pa


class ClickHouseTablesOfSink:
    """The tables of one sink as a `LakeTarget` reads them."""

    def __init__(self, client: Client, sink: str) -> None:
        self._client = client
        self._ledger = ClickHouseLedger(client, sink)
        self._tables = ClickHouseTables(client)

    def place(self, schema: str, table: str) -> LakeName:
        return LakeName(statements.stored_name(schema), statements.stored_name(table))

    def found(self) -> Iterator[tuple[LakeName, TableVersion]]:
        if not self._ledger.is_there():
            return
        for place, state in self._ledger.states().values():
            if state.arrow is not None:
                columns = {field.name: statements.type_of(field.type) for field in state.arrow}
                yield self.place(*place), TableVersion(state, columns, state.version, empty=not state.applied)

    def read(self, place: LakeName, found: TableVersion, names: Sequence[str], work: Work, columns: str) -> pa.Table:
        import pyarrow as pa

        own = TablePlace(*(statements.plain_name(name) for name in place))
        try:
            made = list(work(self._rows(own, found, names)))
        except CdcError as exc:
            raise TableFailed("its rows could not be read") from exc
        return pa.Table.from_batches(made) if made else pa.table({})

    def _rows(self, place: TablePlace, found: TableVersion, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Rows that are there; those that a soft delete left are not."""
        import pyarrow as pa
        import pyarrow.compute as pc

        assert found.state is not None
        schema = found.state.arrow
        assert schema is not None
        for batch in self._tables.read(place, schema):
            rows = pa.Table.from_batches([batch])
            if DELETED in rows.column_names:
                rows = rows.filter(pc.invert(pc.fill_null(rows[DELETED], False)))
            yield from rows.select(names).to_batches()

    def close(self) -> None:
        self._client.close()
