"""Tables of a lake as its writer sees them, whatever kind of lake it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from cdcworker.connectors.sink_errors import LEDGER_MOVED
from cdcworker.connectors.warehouses.lake.maintenance.rewrite import DataFileView, FileRewrite
from cdcworker.connectors.warehouses.lake.maintenance.snapshots import BY_PROPERTIES, ExpiryGoal, TableSize
from cdcworker.connectors.warehouses.table_state import Manifest
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.warehouses.row_versions.positions import Flags
    from pyspark.sql import SparkSession

Work = Callable[[Iterable["pa.RecordBatch"]], Iterable["pa.RecordBatch"]]
STATE = "cdcworker.state"
NeededRows = Callable[["pa.Array", "pa.Array"], "Flags"]
"""Returns which of some rows have to be known, by their keys and positions."""


class LakeName(NamedTuple):
    """Schema and table as the lake has them."""

    schema: str
    table: str


def moved(place: LakeName) -> CdcError:
    """Returns the error of a commit to a table that is not any more as it was found."""
    return CdcError(LEDGER_MOVED, "somebody else has written the table meanwhile", where={"table": ".".join(place)})


@dataclass(slots=True)
class TableVersion:
    """A table as it was read. A commit succeeds only while this is what it is; `state` None: no sink made it."""

    state: Manifest | None
    columns: Mapping[str, str]
    version: Any = None
    empty: bool = True
    note: str = ""
    """The state as it is written there."""


class LakeTables(Protocol):
    """The tables of one lake, in one table format."""

    def open(self, session: SparkSession) -> None:
        """Use this session, which nobody else does, from now on."""

    def places(self) -> Iterable[LakeName]: ...

    def load(self, place: LakeName) -> TableVersion | None: ...

    def create(self, place: LakeName, columns: str, state: Manifest | None) -> None:
        """Unless it is there. Without a state it is one of the sink's own, whose commits depend on nothing."""

    def take_over(self, place: LakeName) -> None:
        """Give an empty table that somebody made in advance what it needs."""

    def name(self, place: LakeName) -> str:
        """Returns the table's name in SQL."""

    def at(self, place: LakeName, found: TableVersion) -> str:
        """Returns the SQL that reads the table in the version that was found."""

    def commit(self, place: LakeName, found: TableVersion, statement: str, state: Manifest) -> Any:
        """Rows (no statement: none) and state in one step; the version that came to be. CdcError LEDGER_MOVED when the
        table is not as found."""

    def tend(self, place: LakeName, goal: ExpiryGoal = BY_PROPERTIES, kept: Collection[Any] = ()) -> int:
        """Gives back what no reader needs, but for what the versions `kept` need, and returns how many snapshots that were."""

    def another(self) -> LakeTables:
        """Returns the tables of the same lake for another session."""


@runtime_checkable
class IdentifiesRows(Protocol):
    """Tables whose format knows which columns tell one row from all others."""

    def identify(self, place: LakeName, found: TableVersion, names: tuple[str, ...]) -> None:
        """Says that these columns, in which no row has a NULL, are the rows' key; none: that nothing is known of one."""


@runtime_checkable
class CommitsToStore(Protocol):
    """Tables whose commits are puts into a store, whose answers may be lost."""

    def begin(self) -> None:
        """Called before a task writes. CdcError where the store cannot keep two writers apart."""

    def late(self, place: LakeName, found: TableVersion) -> CdcError | None:
        """Returns the error where the version that was found is a commit of this process that its store had not answered;
        None: it is none."""


@runtime_checkable
class DeclaresTypes(Protocol):
    """Tables that have to say that they have columns of some types before the first of them comes."""

    def declare(self, place: LakeName, found: TableVersion, kinds: Collection[str]) -> None:
        """Says that columns of these types (Spark's words) may come."""


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows that a table holds under some keys. `places` is a numpy array that says where each of them lies; what its numbers
    mean, the tables know."""

    rows: pa.Table
    places: Any


@dataclass(frozen=True, slots=True)
class RowChange:
    """Rows to add to a table, and the places of rows to take away, as `current` returned them; None: none."""

    put: pa.Table
    gone: Any = None


@runtime_checkable
class WritesRowFiles(Protocol):
    """Tables whose rows can be looked up and written without a job of Spark's."""

    def writes_rows(self, place: LakeName, found: TableVersion, schema: pa.Schema) -> bool:
        """Returns whether this table, as it was found, can be written so: it has these columns and no others, and no form that
        SQL alone keeps to. Columns may have been changed since it was found; its rows may not."""

    def current(
        self,
        place: LakeName,
        found: TableVersion,
        schema: pa.Schema,
        keys: pa.Array,
        names: Collection[str],
        needed: NeededRows | None = None,
    ) -> FoundRows:
        """Returns the rows under these keys, with the columns of `schema`. Those that are not among `names` may be null,
        except the keys and the positions. Rows that are not `needed` may be left out. CdcError LEDGER_MOVED when the table is not as found."""

    def commit_rows(self, place: LakeName, found: TableVersion, change: RowChange, state: Manifest | None) -> Any:
        """Changes rows and state in one step and returns the version that came to be. CdcError LEDGER_MOVED when the table is
        not as found. Without a state rows are only added, to a table of the sink's own, whatever others do to it."""


@runtime_checkable
class CompactsFiles(Protocol):
    """Tables whose files can be written again as fewer ones without a job of Spark's, while others write to them."""

    def size(self, place: LakeName) -> TableSize | None:
        """Returns how many files the table has now; None: nobody can tell."""

    def file_views(self, place: LakeName, found: TableVersion, schema: pa.Schema) -> Sequence[DataFileView] | None:
        """Returns the files of the table, as it was found, with these columns; None: SQL alone writes it."""

    def rewrite(self, place: LakeName, files: Sequence[DataFileView], schema: pa.Schema) -> FileRewrite | None:
        """Writes the rows of some files, the first ones, as one file which nobody sees yet. Others may write to the table
        meanwhile. None: they do not fit into memory."""

    def commit_rewrite(self, place: LakeName, found: TableVersion, schema: pa.Schema, done: FileRewrite) -> Any:
        """Puts the new file in the place of the others, without the rows that were deleted meanwhile, and returns the version
        that came to be. The sink's state stays. CdcError LEDGER_MOVED, with the new file gone, when that is not possible."""


@runtime_checkable
class RemovesOrphans(Protocol):
    """Tables that can tell files that no version names."""

    def remove_orphans(self, place: LakeName, older_s: float, goal: ExpiryGoal, kept: Collection[Any]) -> int:
        """Deletes files that no version which readers need names, and that are older, and returns how many those were."""
