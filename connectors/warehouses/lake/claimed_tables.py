"""What the writer of a lake's tables lends to their maintenance."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from cdcworker.connectors.sink_errors import FENCED
from cdcworker.connectors.warehouses.lake.parallel_tables import TableLocks
from cdcworker.connectors.warehouses.lake.side_tables import SideTables
from cdcworker.connectors.warehouses.lake.tables import LakeName, LakeTables, TableVersion
from cdcworker.connectors.warehouses.table_state import Manifest
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ThreadView:
    """Tables for one thread, over a session of its own."""

    tables: LakeTables
    side: SideTables
    session: SparkSession
    origin: Any
    """What the session came from."""


class ClaimedTables:
    """A part of the writer: the tables that it has claimed."""

    _tables: LakeTables
    _side: SideTables
    _sink: str
    _epoch: tuple[int, int]
    _claimed: bool
    _places: dict[str, LakeName]
    _states: dict[str, Manifest]
    _versions: dict[str, Any]
    _locks: TableLocks
    _new_session: Any

    def thread_copy(self) -> Self:
        raise NotImplementedError

    def _spark(self) -> SparkSession:
        raise NotImplementedError

    def thread_view(self, known: ThreadView | None) -> ThreadView:
        """Returns the tables for the calling thread: those of `known`, its view before, while Spark is the same process."""
        if known is not None and known.origin == self._new_session:
            return known
        own = self.thread_copy()
        return ThreadView(own._tables, own._side, own._spark(), self._new_session)

    def maintained(self) -> Mapping[str, LakeName]:
        """Returns the tables that the writer has claimed, by topic; none before it has claimed any."""
        return {topic: self._places[topic] for topic in list(self._states)} if self._claimed else {}

    def owned(self, tables: LakeTables, topic: str, place: LakeName) -> TableVersion | None:
        """Returns a table as it is now; None: it is not there, or is not the sink's. CdcError FENCED when a newer task writes
        it."""
        found = tables.load(place)
        state = None if found is None else found.state
        if state is None or (state.sink, state.topic) != (self._sink, topic):
            return None
        if state.epoch > self._epoch:
            raise CdcError(FENCED, "a newer task writes this table", where={"topic": topic})
        return found

    def alone(self, place: LakeName) -> contextlib.AbstractContextManager[None]:
        """Keeps batches away from a table meanwhile."""
        return self._locks.exclusive(place)

    def kept_versions(self, _place: LakeName) -> Collection[Any]:
        """Returns the versions of a table that readers find by something else than the table."""
        return ()

    def moved_on(self, topic: str, version: Any) -> None:
        """Takes the version that a commit has made which changes no row."""
        self._versions[topic] = version

    def shared_places(self) -> Sequence[LakeName]:
        """Returns tables of the sink's own that belong to no topic and grow with its batches."""
        return ()
