"""A source: a connector that splits its work into tasks, and the tasks that read changes; what either may do besides."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, runtime_checkable

from cdcworker.connectors.api.context import CheckFinding, Config, TaskContext
from cdcworker.schemas.change import JsonObject, PollBatch

if TYPE_CHECKING:
    from cdcworker.connectors.config.definition import ConfigDef
    from cdcworker.schemas.errors import CdcError
    from cdcworker.schemas.record_layout import RecordLayouts


class SourceTask(Protocol):
    """Reads one share of a source.

    All methods are called from one thread, in this order: `open`, then `poll` and `ack` in turns, then `close`. A task must
    look at `context.stopping` in every wait of more than a second. A task may have the abilities below: `WritesRecords`,
    `HoldsTables`.
    """

    def open(self, position: JsonObject | None) -> None:
        """Connects and stands at `position`, a position that an earlier `poll` returned (None: the task never ran).
        Raises CdcError, also for a position that cannot be resumed from: a task halts rather than skips."""

    def poll(self) -> PollBatch:
        """Returns the next changes, waiting at most about 100 ms; an empty idle batch when there are none."""

    def ack(self, position: JsonObject) -> None:
        """`position` has been committed to Kafka: only now may the source be told (INV-1). May come late, or for the last of
        several positions only."""

    def close(self) -> None:
        """Lets go of everything, also after an error and when called twice; never raises."""


class SourceConnector(Protocol):
    """One configured source. Construction validates nothing beyond types and opens nothing.

    A source may have the abilities below and in `abilities`: `ChecksPositions`, `HidesKeys`, `VerifiesPositions`,
    `MovesPositions`, `TranslatesDebezium`, `LeavesBehind`, `WatchesChanges`, `NamesPartitions`, `ShowsPositions`, `ShowsPlaces`, `Examined`,
    `ScriptsRoles`, `ReadsConnectionStrings`, `ChecksFiles`.
    """

    config_def: ClassVar[ConfigDef]

    def split(self, tasks_max: int) -> Sequence[Config]:
        """Returns the tasks' configs, at most `tasks_max`. Pure and quick: no I/O."""

    def task(self, share: Config, context: TaskContext) -> SourceTask:
        """Returns the task of one of the configs that `split` made; opens nothing yet."""

    def check(self) -> Sequence[CheckFinding]:
        """Checks the outside (reachable, grants, settings). Runs in a child process with a time limit."""


# -- what a task may be able to do ---------------------------------------------------------------------------------------


@runtime_checkable
class WritesRecords(Protocol):
    """A task that can encode records of the default form by itself and hand them on as `EncodedRecords` among its changes."""

    def use_layouts(self, layouts: RecordLayouts) -> None:
        """Called after `open` from the task's thread, where the connector's converters allow it; not called otherwise."""


@runtime_checkable
class CompletesRows(Protocol):
    """A task whose rows may come without large values, which it reads again where that is wanted."""

    @property
    def completes_rows(self) -> bool:
        """Tells whether the last record of each key holds the whole row."""


@runtime_checkable
class HoldsTables(Protocol):
    """A task that can leave out single tables while the others go on (a table quarantine)."""

    def holds(self, error: CdcError) -> bool:
        """Returns whether the table that this error names (`where["table"]`) may be left out. Called from the task's
        thread."""

    def hold(self, tables: Mapping[str, CdcError]) -> None:
        """Called before `open`: these tables are left out from now on, and are part of the next position."""


@dataclass(frozen=True, slots=True)
class WatchedTask:
    """An open task that hands on what changes from now on. `left_out`: by table why its changes are not handed on."""

    task: SourceTask
    left_out: Mapping[str, str] = field(default_factory=dict)


# -- what a connector may be able to do ----------------------------------------------------------------------------------


@runtime_checkable
class ChecksPositions(Protocol):
    """A source that can tell whether a stored position is one of its own, so that users may write positions by REST."""

    def check_position(self, position: JsonObject) -> None:
        """Raises CdcError for a position that `open` would refuse by its form alone. Called in the worker; no I/O."""


@runtime_checkable
class HidesKeys(Protocol):
    """A source whose stored positions may hold keys of rows."""

    def without_keys(self, position: JsonObject) -> JsonObject:
        """Returns the position for whoever may not see rows, in a form that `check_position` refuses where something was taken out.
        Called in the worker; no I/O."""


@runtime_checkable
class VerifiesPositions(Protocol):
    """A source that can ask its database whether a task could go on from a position. Runs in a child process with a time
    limit, while no task of the connector runs."""

    def verify_position(self, task: int, position: JsonObject) -> str:
        """Raises CdcError for a position from which the task would halt. Returns why the database does not tell; empty: it
        did."""


@runtime_checkable
class VerifiesRows(Protocol):
    """A source whose tables can be compared with those of a target. Runs in a child process with a time limit."""

    def verify_source(self) -> Any:
        """Returns the source side of a comparison (`connectors.capture.tables.compared_source.ComparedSource`); nothing is connected to
        before it is used."""


@dataclass(frozen=True, slots=True)
class TranslatedOffset:
    """A position or an offset that was made of the other one, and what people should know of it, as sentences."""

    content: JsonObject
    notes: Sequence[str] = ()


EARLIEST: Final = "earliest"
NOW: Final = "now"
SKIP: Final = "skip"
MEANINGS: Final = (EARLIEST, NOW, SKIP)
"""Places in the stream of a source that have a name: the first that the server still has, its end at this moment, and behind the
transaction that comes next."""


@runtime_checkable
class MovesPositions(Protocol):
    """A source whose positions can be altered by what they mean. Runs in a child process with a time limit, while no task of the
    connector runs."""

    def moved_position(self, task: int, position: JsonObject, to: str) -> TranslatedOffset:
        """Returns the stored position of a task at another place: one of `MEANINGS`, a time in ISO 8601 with its zone, or a place as
        `ShowsPositions` or `ShowsPlaces` writes it. Its notes say what is missed and what comes again, without row values. Raises CdcError where the server cannot
        go on from there."""


@runtime_checkable
class TranslatesDebezium(Protocol):
    """A source that can go on where Debezium's connector for the same database has stopped, and the other way round. What is not
    pure runs in a child process with a time limit, while no task of the connector runs."""

    def is_debezium_offset(self, offset: Mapping[str, Any]) -> bool:
        """Returns whether an offset has Debezium's form. Pure: called in the worker."""

    def from_debezium(self, task: int, offset: Mapping[str, Any]) -> TranslatedOffset:
        """Returns the position from which the task goes on, so that no change is missed and none comes twice. Raises CdcError for an
        offset that is none, or from which nobody can go on."""

    def to_debezium(self, task: int, position: JsonObject) -> TranslatedOffset:
        """Returns the offset from which Debezium goes on. Raises CdcError where it cannot."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that a connector has made outside of the cluster and that outlives it. `place` is equal for things of one
    database, as far as configs tell."""

    kind: str
    name: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class DropRequest:
    """Which kinds of leftovers are dropped, for which connector of which cluster, and those that others still use."""

    connector: str
    group: str
    kinds: Collection[str]
    spared: Collection[tuple[str, str]] = ()


@runtime_checkable
class LeavesBehind(Protocol):
    """A source that makes things in its database which stay when the connector is deleted."""

    def leftovers(self) -> Sequence[Leftover]:
        """Returns what may be left. Pure: called in the worker; nothing says that it exists."""

    def drop_leftovers(self, asked: DropRequest) -> Iterator[tuple[Leftover, CdcError | None]]:
        """Drops each, and yields it with the error that kept it there; what does not exist is dropped. Runs in a child process
        with a time limit, while no task of the connector runs."""


@runtime_checkable
class WatchesChanges(Protocol):
    """A source whose changes can be looked at for a while. What that takes in its database is gone afterwards, also where this
    process is killed."""

    def watched(self, context: TaskContext, *, rows: bool = False) -> AbstractContextManager[WatchedTask]:
        """Opens a task at the present, of which no position is stored; its position is to be acknowledged all the same. `rows`: the rows
        that the tables have now are handed on too, as reads. Raises CdcError."""


@runtime_checkable
class NamesPartitions(Protocol):
    """A source with a source partition of its own, as Kafka Connect's; without this it is
    `{"server": topic.prefix, "task": n}`."""

    def partition(self, task: int) -> Mapping[str, str | int]:
        """Returns the source partition under which this task's position is stored. Pure: called in the worker."""


@runtime_checkable
class ShowsPositions(Protocol):
    """A source whose position in its log (`Position.commit`) people write in a form of its own, such as an LSN. Without this
    it is a decimal number. Asked of the class as well as of its instances; pure."""

    @staticmethod
    def position_name() -> str:
        """Returns the word for such a position, as LSN."""

    @staticmethod
    def position_text(commit: int) -> str:
        """Returns the form that the database's own tools show."""

    @staticmethod
    def parse_position(text: str) -> int:
        """Raises ValueError, with a text for people, for what is no position of this source's log."""


@runtime_checkable
class ShowsPlaces(Protocol):
    """A source whose records tell besides their position where they stand in its log, such as a GTID, or a file and an offset.
    Asked of the class as well as of its instances; pure."""

    @staticmethod
    def place_text(source: Mapping[str, Any]) -> str:
        """Returns the place that a record's source block tells, for people; empty: it tells none."""

    @staticmethod
    def parse_place(text: str) -> str:
        """Returns a place that somebody has written, in one form. Raises ValueError, with a text for people."""

    @staticmethod
    def has_place(source: Mapping[str, Any], text: str) -> bool:
        """Returns whether a record's source block tells the place that `parse_place` returned."""

    @staticmethod
    def stored_place(position: Mapping[str, Any]) -> tuple[int, str]:
        """Returns the commit (`Position.commit`) up to which a stored position has everything, and its place for people.
        Raises ValueError for a position that cannot be read."""
