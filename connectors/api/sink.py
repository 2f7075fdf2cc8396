"""A sink: a connector that splits topics into tasks and runs them in processes of their own; what it may do besides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, runtime_checkable

from cdcworker.connectors.api.context import CheckFinding, Config, TaskContext

if TYPE_CHECKING:
    from cdcworker.connectors.config.definition import ConfigDef

VERIFY_INTERVAL_MS_MIN: Final = 60_000
"""A comparison reads whole tables of a database that is somebody else's. Metrics of its result are seldom read more often."""


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """All that a sink task needs to run: the topics to read, the config of the target, and the epoch that fences older tasks."""

    connector: str
    task: int
    incarnation: str
    epoch: tuple[int, int]
    """(task epoch, attempt): compared in order; a higher one in the target's fence row means stop."""
    topics: tuple[str, ...]
    kafka: Mapping[str, str]
    """librdkafka-style client properties; the driver translates them for the JVM."""
    schema_topic: str
    config: Config
    state_dir: str
    java_home: str = ""
    """The Java runtime that the worker found; empty: the sink looks for one itself."""
    jars: tuple[str, ...] = ()
    """Files for the driver's class path, fetched and verified by the worker."""
    cache_dir: str = ""
    """Folder where files made from the jars may be kept; empty: nowhere."""
    consumer: Mapping[str, Any] = field(default_factory=dict)
    """The same as `kafka`, ready for a confluent-kafka consumer of committed records without a group."""
    producer: Mapping[str, Any] = field(default_factory=dict)
    """The same for a transactional producer, without its id."""
    transactional_id: str = ""
    """Every owner of the task has the same: who takes it over fences the others."""


SinkOffsets = Mapping[tuple[str, int], int | None]
"""The next offset per (topic, partition); in a change None forgets the partition."""


@dataclass(frozen=True, slots=True)
class LedgerAccess:
    """The sink whose ledger is read or altered, and the epoch under which that is done."""

    connector: str
    epoch: tuple[int, int] = (0, 0)
    """Higher than that of any task that may still run, lower than that of any task to come: a task with a lower one
    stops before its next batch; where a higher one is found, the connector runs again and nothing is altered."""
    file_roots: tuple[str, ...] = ()
    machine: Callable[[], tuple[str, Sequence[str]]] = field(default=lambda: ("", ()))
    """Returns, for a ledger that only a JVM can reach, the home of Java and the jars that the connector names."""
    kafka: Mapping[str, str] = field(default_factory=dict)
    """Client properties, where something of the sink may be kept there too."""


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Which dead letters are meant (all of them by default), how long the request may take, and what decoding them needs."""

    topic: str = ""
    after: tuple[str, int, int] = ("", -1, -1)
    """Topic, partition and offset of the last one that is not meant."""
    limit: int = 100
    seconds: float = 20.0
    dry_run: bool = False
    kafka: Mapping[str, str] = field(default_factory=dict)
    schema_topic: str = ""


class SinkConnector(Protocol):
    """One configured sink. Construction validates nothing beyond types and opens nothing.

    A sink may have the abilities below and in `abilities`: `NeedsJvm`, `Prepares`, `KeepsOffsets`, `Traces`,
    `KeepsDeadLetters`, `ChecksFiles`, `ScriptsRoles`.
    """

    config_def: ClassVar[ConfigDef]

    def split(self, tasks_max: int, topics: Sequence[str]) -> Sequence[Config]:
        """Returns the tasks' configs, each naming its `topics`. Pure: `topics` are those that exist (for `topics.regex`)."""

    def run(self, spec: SinkSpec, context: TaskContext) -> None:
        """Runs until `context.stopping()`; raises CdcError. Called in the task's own process, in its main thread."""

    def check(self) -> Sequence[CheckFinding]:
        """Checks the target (reachable, grants, settings). Runs in a child process with a time limit."""


@runtime_checkable
class NeedsJvm(Protocol):
    """A sink that runs in a JVM: the worker finds Java and fetches the jars before `run`."""

    @property
    def jars(self) -> str:
        """The names of the sets of locked jars, joined by a plus; empty: this config needs none."""


class PreparedSession(Protocol):
    """What `prepare` has started in this process, for a `run` that may follow with the rest of the config."""

    def answers(self) -> bool:
        """Returns whether it can still be used; waits as long as that takes. Called from a thread of its own."""

    def close(self) -> None:
        """There will be no `run`."""


@runtime_checkable
class Prepares(Protocol):
    """A sink whose start is so long that a process in readiness is worth its memory."""

    def prepare(self, spec: SinkSpec) -> PreparedSession:
        """Starts what every task of such a config needs; a later `run` in this process takes it over. Called once, in the
        main thread of a process that has no task yet; raises CdcError."""


@runtime_checkable
class KeepsOffsets(Protocol):
    """A sink with a ledger in its target: what it has applied. Both methods run in a child process with a time limit."""

    def offsets(self, place: LedgerAccess) -> SinkOffsets:
        """Returns what the ledger holds; raises CdcError."""

    def alter_offsets(self, place: LedgerAccess, changes: SinkOffsets | None) -> None:
        """Changes the ledger in one step (None: all of it is forgotten), or raises CdcError and changes nothing."""


@runtime_checkable
class Traces(Protocol):
    """A sink that can say what its target knows of one change. Runs in a child process with a time limit."""

    def trace(self, place: LedgerAccess, change: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns `next_offset` of the change's partition, and where that is known `batch`, `at_ms`, `dead` (a code) and
        `row` (this, newer, older, absent). Raises CdcError."""


@runtime_checkable
class KeepsDeadLetters(Protocol):
    """A sink that keeps records which it could not handle, in its target or in a topic. Both methods run in a child process with a time
    limit."""

    def dead_letters(self, place: LedgerAccess, asked: DeadLetterFilter) -> Mapping[str, Any]:
        """Returns `total`, and `letters` without what is in them: of each where its record was, its code, cause, time and sizes."""

    def redrive(self, place: LedgerAccess, asked: DeadLetterFilter) -> Mapping[str, Any]:
        """Applies them again. Returns `redriven`, `rows`, `failed`, `left`, `causes`, and in `next` where it stopped when its
        time was over."""


@runtime_checkable
class WritesTopics(Protocol):
    """A sink that writes to topics besides its target. The worker looks before `run` whether it may."""

    def written_topics(self) -> Sequence[str]:
        """Returns their names, as far as the config tells them. Opens nothing."""


@runtime_checkable
class IsCompared(Protocol):
    """A sink whose target can be compared with a source. Runs in a child process with a time limit."""

    def verify_side(self, access: LedgerAccess) -> AbstractContextManager[Any]:
        """Opens the target, as the target side of a comparison, as long as the context lasts; raises CdcError."""
