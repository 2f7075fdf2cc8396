"""A DuckDB warehouse as the target of a comparison: one snapshot is read, and the texts of its rows are made here. The file is open,
and the sink waits, while a table is compared."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from cdcworker.connectors.api.table_batch import DELETED, IS_CURRENT, POSITION
from cdcworker.connectors.verify.canonical_text import VerifiedColumn
from cdcworker.connectors.verify.databases import LedgerGoal, TableFailed, VerifyLimits, begin_at_goal
from cdcworker.connectors.verify.lake_texts import LAKE
from cdcworker.connectors.verify.plan import ComparisonPlan, SideTable
from cdcworker.connectors.warehouses.duckdb import found_tables, statements, types
from cdcworker.connectors.warehouses.duckdb.connection import Connection, opened
from cdcworker.connectors.warehouses.duckdb.errors import from_duckdb
from cdcworker.connectors.warehouses.duckdb.found_tables import FoundTable
from cdcworker.connectors.warehouses.duckdb.ledger import DuckDbLedger
from cdcworker.connectors.warehouses.duckdb.snapshot_read import batches
from cdcworker.connectors.warehouses.lake.statements import type_of
from cdcworker.connectors.warehouses.lake.verify_side import RowsHere
from cdcworker.connectors.warehouses.sql.catalog import POSITION_ID
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import pyarrow as pa


class DuckDbTarget(RowsHere):
    """`sink` is the name under which the ledger knows it; `position` the name of the column of positions."""

    def __init__(self, path: str, sink: str, position: str = POSITION) -> None:
        self._path = path
        self._ledger = DuckDbLedger(sink, 0)
        self._position = position
        self._connection: Connection | None = None
        self._found: dict[tuple[str, str], FoundTable] = {}

    def prepare(self, limits: VerifyLimits) -> None:
        """Nothing: what is read is read row by row, and a comparison ends when it is asked to."""

    def table(self, schema: str, name: str) -> SideTable | None:
        with self._opened() as connection:
            try:
                found = found_tables.find(connection, schema, name, self._ledger)
            except CdcError:
                # A view has its name: the sink says so.
                return None
            if found is None:
                return None
            place = f"{statements.quote(schema)}.{statements.quote(name)}"
            some = connection.one(f"select 1 from {place} limit 1")
            held = connection.ask(
                "select distinct name from _cdcworker.columns where sink = %s and colid = %s",
                (self._ledger.sink, POSITION_ID),
            )
        self._found[schema, name] = found
        columns = tuple(VerifiedColumn(name, _type(kind), LAKE, declared=kind) for name, kind in found.types.items())
        names = (self._position, *(str(name) for (name,) in held), POSITION)
        position = next((at for at in names if at in found.types), "")
        return SideTable(schema, name, columns, found.key, 1 if some else 0, position=position)

    def ledger(self) -> Mapping[tuple[str, int], int]:
        with self._opened() as connection:
            return self._ledger.read(connection) if self._ledger.is_there(connection) else {}

    def begin(self, goal: LedgerGoal, deadline: float) -> None:
        begin_at_goal(self, goal, deadline, self._ledger.sink)

    def begin_snapshot(self) -> None:
        """Opens the file and begins a transaction; one that runs already ends."""
        self.end()
        self._connection = opened(self._path)
        self._connection.do("begin transaction")

    def end(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    def close(self) -> None:
        self.end()

    # -- reading ------------------------------------------------------------------------------------------------------

    def _batches(self, plan: ComparisonPlan) -> Iterator[pa.RecordBatch]:
        """Yields the rows that are there; those that a soft delete left are not, nor are versions that have ended."""
        import duckdb

        assert plan.target is not None
        place = (plan.target.schema, plan.target.name)
        found = self._found[place]
        position = [plan.target.position] if plan.target.position else []
        names = [*dict.fromkeys([*(item.target.name for item in plan.columns), *position])]
        hides = DELETED if DELETED in found.types else ""
        query = statements.select(place, names, hides, IS_CURRENT if found.versions else "")
        with self._opened() as connection:
            try:
                yield from batches(connection, query)
            except (duckdb.BinderException, duckdb.CatalogException) as exc:
                # The kind of the error only: a message may hold a row's value.
                raise TableFailed(f"not readable in the warehouse ({type(exc).__name__})") from None

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Connection]:
        """The session of the snapshot, or one for this."""
        import duckdb

        connection = self._connection or opened(self._path)
        try:
            yield connection
        except duckdb.Error as exc:
            raise from_duckdb(exc) from exc
        finally:
            if connection is not self._connection:
                connection.close()


def _type(kind: str) -> str:
    """Returns the name that the texts of a lake have for a type; one that the sink does not make keeps its own."""
    found = types.parsed(kind)
    return kind if found is None else type_of(found)
