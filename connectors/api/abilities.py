"""What a connector of either side may be able to do besides: be examined and repaired, be measured while it stands still,
check files, write scripts of roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from cdcworker.schemas.topic_access import TopicAccess

if TYPE_CHECKING:
    from cdcworker.connectors.checks import DoctorCheck, ExaminedTarget, Repair
    from cdcworker.connectors.sql_script import ScriptStep


@runtime_checkable
class ChecksFiles(Protocol):
    """A connector whose config names files or folders."""

    def check_files(self, roots: Sequence[str]) -> None:
        """Raises CdcError when the config names a place outside of these folders. Called before `check`, in its process."""


@runtime_checkable
class StandsAlone(Protocol):
    """A connector that needs nothing outside of its process: no live check could find anything. Asked of the class."""

    stands_alone: ClassVar[Literal[True]]


@runtime_checkable
class Examined(Protocol):
    """A connector with a table of checks for the doctor, in place of `check`'s findings. Runs in a child of the worker or in
    the command line's process; each check has its own time limit."""

    def examine(self, positions: Mapping[int, Mapping[str, Any]], *, deep: bool) -> Iterator[ExaminedTarget]:
        """Yields each check's result as soon as it is there. `positions`: what each task has stored, as far as that is known;
        `deep`: also the checks that read more than catalogs. Each result that is not ok names its config key. Changes nothing."""

    def repair(self, fix: Repair, administrator: str | None) -> None:
        """Runs the statements of a result's fix, as `administrator` (a connection string) or the connector's own user. Raises
        CdcError; called only after a person agreed."""

    @classmethod
    def checks(cls) -> Sequence[DoctorCheck]:
        """Returns all checks, for lists of them. Opens nothing."""


@dataclass(frozen=True, slots=True)
class StandingTask:
    """A task that reads nothing now: it is paused, stopped, FAILED, or waits to be tried again. `numbers`: what it reported
    last, with what was measured since; `memory`: what the measurement before this one has left."""

    connector: str
    task: int
    numbers: Mapping[str, Any] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    now_s: float = 0.0
    """Of the wall clock."""
    access: TopicAccess = field(default_factory=TopicAccess)
    """The topics that the connector may read: the ledger of a sink, which its owner can write to, may name others."""
    file_roots: tuple[str, ...] = ()
    """The folders in which connectors may name files."""


@runtime_checkable
class MeasuresLag(Protocol):
    """A connector that can tell from outside how far a task of it is behind. Runs in a child of the worker with a time limit,
    made of the task's share."""

    def measure_lag(self, task: StandingTask) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Returns numbers by the names under which the task reports them (null where there is none now), and what the next
        measurement is to remember: a few plain values. Changes nothing, and raises CdcError where nobody can tell."""


@runtime_checkable
class ReadsConnectionStrings(Protocol):
    """A connector that can be configured from one connection string, for the doctor of a database without a connector."""

    @classmethod
    def config_of(cls, text: str) -> Mapping[str, str]:
        """Returns a config that covers the whole database. Raises CdcError `config.invalid` without repeating the text."""


@dataclass(frozen=True, slots=True)
class RoleOption:
    """One thing that a connector's role script takes besides the role, the database and the tables."""

    name: str
    """Its name in `RoleRequest.options`."""
    flag: str
    """Its option on the command line, as `--schema`."""
    doc: str
    default: str | int | bool | None = None
    """None: a value has to be given. A truth value makes the option one that takes no value; a number is at least one."""
    choices: Sequence[str] = ()
    """The values that may be given; empty: any."""
    repeated: bool = False
    """Whether the option may be given several times; then the value is a tuple."""
    placeholder: str | None = None
    """What stands for the value in the help."""


@dataclass(frozen=True, slots=True)
class RoleRequest:
    """The role for which a script is wanted: its name, the database (empty: none was named), and the tables as paths
    (schema, table).

    `options` are what this connector's script takes besides, by the names of its `RoleOption`s.
    """

    role: str
    database: str
    tables: Sequence[tuple[str, str]] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class ScriptsRoles(Protocol):
    """A connector that can write the script of the role that it needs in its database. Asked of the class; pure."""

    @classmethod
    def role_options(cls) -> Sequence[RoleOption]:
        """Returns what the script takes besides the role, the database and the tables; `cdcworker roles` shows it as options."""

    @classmethod
    def role_script(cls, wanted: RoleRequest) -> list[ScriptStep]:
        """Returns statements that may be run again with more tables too; they contain no password."""


@runtime_checkable
class RolesOfServers(Protocol):
    """A connector whose roles belong to the server and to no single database of it. Asked of the class."""

    roles_of_server: ClassVar[Literal[True]]
