"""Tables of a lake as its writer sees them, whatever kind of lake it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cdcworker.connectors.spark.manifests import Manifest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Work = Callable[[Iterable["pa.RecordBatch"]], Iterable["pa.RecordBatch"]]
STATE = "cdcworker.state"


class Place(NamedTuple):
    """Schema and table as the lake has them."""

    schema: str
    table: str


@dataclass(slots=True)
class Found:
    """A table as it was read. A commit succeeds only while this is what it is; `state` None: no sink made it."""

    state: Manifest | None
    columns: Mapping[str, str]
    version: Any = None
    empty: bool = True
    note: str = ""
    """The state as it is written there."""


class Tables(Protocol):
    """One kind of lake."""

    def open(self, session: SparkSession) -> None:
        """Use this session, which nobody else does, from now on."""

    def places(self) -> Iterable[Place]: ...

    def load(self, place: Place) -> Found | None: ...

    def create(self, place: Place, columns: str, state: Manifest | None) -> None:
        """Unless it is there. Without a state it is one of the sink's own, whose commits depend on nothing."""

    def adopt(self, place: Place) -> None:
        """Give an empty table that somebody made in advance what it needs."""

    def name(self, place: Place) -> str:
        """In SQL."""

    def at(self, place: Place, found: Found) -> str:
        """In SQL, as it was found."""

    def commit(self, place: Place, found: Found, statement: str, state: Manifest) -> Any:
        """Rows (no statement: none) and state in one step; the version that came to be. CdcError LEDGER_MOVED when the
        table is not as found."""

    def tend(self, place: Place) -> None:
        """Now and then: give back what no reader needs."""

    def another(self) -> Tables:
        """Of the same lake, for another session."""
