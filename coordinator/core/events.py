"""The events and commands of the herder's core, and the clock that each event carries.

The core does no I/O, reads no clock and draws no random number. A driver (the herder thread, or a simulator) passes
events to `state_machine.step` and carries out the returned commands in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from cdcworker.coordinator.api import LogRecord, Term
from cdcworker.coordinator.model import (
    AssignedTask,
    Connector,
    JsonObject,
    Leader,
    Reply,
    Request,
    TaskId,
    TaskState,
)


class Now(NamedTuple):
    """The driver's clocks at an event: monotonic seconds for all intervals, wall clock ms for time stamps and expiry
    only."""

    mono: float
    wall_ms: int


# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfigRecords:
    """Records of the config log, in offset order. `replay`: read before `Started`, so commands are not executed.

    `reset`: the log is read again from its first offset, as the reader was away too long; the old state is dropped.
    """

    records: tuple[LogRecord, ...]
    replay: bool = False
    reset: bool = False


@dataclass(frozen=True, slots=True)
class StatusRecords:
    """Records of the status log, in offset order per partition.

    `reset`: the log is read again from its first offset; statuses are dropped, lease ages are kept.
    """

    records: tuple[LogRecord, ...]
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """Both logs were read to their ends once, and all their records were delivered as events."""


@dataclass(frozen=True, slots=True)
class TermChanged:
    """`Leadership.term()` has changed. With a term of None the driver has dropped its writer."""

    term: Term | None


@dataclass(frozen=True, slots=True)
class Claimed:
    """The answer to `Claim`: a new writer was opened, and after that the config log was read to its end and
    delivered."""


@dataclass(frozen=True, slots=True)
class ClaimFailed:
    """The answer to `Claim` when no writer could be opened. The core retries with back-off while it has a term."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class WriteDone:
    """The answer to `WriteLog` after the commit. The core goes on once it has read the records back."""

    write_id: str


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """The answer to a `WriteLog` that failed. The driver has dropped the writer; while it has a term, a `Claim`
    follows."""

    write_id: str
    reason: Literal["stale", "fenced", "unknown"]


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A request of REST. `id` is a UUID: the records of the request carry it, and incarnations derive from it."""

    id: str
    request: Request


@dataclass(frozen=True, slots=True)
class TasksPlanned:
    """The answer to `PlanTasks`: the task configs of the connector, or the error of the split (a CdcError as JSON)."""

    connector: str
    incarnation: str
    config_version: int
    tasks: tuple[Mapping[str, str], ...] = ()
    error: JsonObject | None = None
    connection: str = ""
    """The stamp of the connection, as `PlanTasks` has it."""


@dataclass(frozen=True, slots=True)
class TaskReport:
    """A task process reported a state, or metrics alone (`state` None)."""

    task: AssignedTask
    state: TaskState | None = None
    error: JsonObject | None = None
    metrics: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskMeasured:
    """The worker has measured from outside how far a task that reads nothing is behind."""

    task: AssignedTask
    metrics: JsonObject


@dataclass(frozen=True, slots=True)
class TaskTopics:
    """A task process named the topics that it writes or reads."""

    task: AssignedTask
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TaskExited:
    """A task process has ended. Exit code 0: stopped, 1: FAILED, 3: fenced; all others are crashes.

    It arrives exactly once for each `StartTask`; when the process could not be started, it carries the `error`.
    """

    task: AssignedTask
    code: int
    error: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class LeaseAcked:
    """A `RenewLease` record was acknowledged. `sent_mono` is the monotonic time of sending, not of the answer."""

    sent_mono: float


@dataclass(frozen=True, slots=True)
class FencesDone:
    """The answer to `FenceIds`: no attempt to fence these tasks is running any more.

    The `failed` ones could not be fenced; the leader retries them.
    """

    tasks: tuple[TaskId, ...]
    failed: tuple[TaskId, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerProbed:
    """The answer to `ProbeWorker`. `gone`: nothing listens there, or another boot answers; `unknown`: anything else."""

    worker_id: str
    boot_id: str
    verdict: Literal["gone", "unknown"]


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """The worker was asked to hand over its tasks and leave. `returns`: it comes back soon, so its tasks wait for
    it."""

    returns: bool = False


@dataclass(frozen=True, slots=True)
class StandbyChanged:
    """The warm standby process for sink tasks became ready, or is not ready any more."""

    ready: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. Ticks arrive at least every 200 ms."""


Event = (
    ConfigRecords
    | StatusRecords
    | Started
    | TermChanged
    | Claimed
    | ClaimFailed
    | WriteDone
    | WriteFailed
    | RequestArrived
    | TasksPlanned
    | TaskReport
    | TaskMeasured
    | TaskTopics
    | TaskExited
    | LeaseAcked
    | FencesDone
    | WorkerProbed
    | DrainRequested
    | StandbyChanged
    | Tick
)


# --- commands -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """Polls the election once more. If this worker is still elected: opens a new writer, reads the config log to its
    end (ConfigRecords), then answers Claimed."""


@dataclass(frozen=True, slots=True)
class WriteLog:
    """Writes all records in one transaction with the present term's proof. At most one is outstanding."""

    write_id: str
    records: tuple[LogRecord, ...]


@dataclass(frozen=True, slots=True)
class AppendStatus:
    """Appends to the status log without fencing. Keys `worker/…` and `lease/…` go to partition 0, others by their hash.

    A lost append is no failure: the core sends important records again until it has read them back.
    """

    records: tuple[LogRecord, ...]


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Appends this lease record to partition 0 of the status log, then answers LeaseAcked with the time of sending.

    It must not wait behind other appends. While one is outstanding, a newer one replaces the one that waits.
    """

    record: LogRecord


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Completes the future of a request."""

    request_id: str
    reply: Reply


@dataclass(frozen=True, slots=True)
class PlanTasks:
    """Splits a connector into task configs, outside the herder's thread and with a time limit; answered by
    TasksPlanned."""

    connector: Connector
    """With the config that its tasks run with."""
    config_version: int
    """The config version that TasksPlanned repeats."""
    connection: str = ""
    """The stamp of the connector's connection, which TasksPlanned repeats."""


@dataclass(frozen=True, slots=True)
class StartTask:
    """Starts the task's process. `config` is the connector's config, overlaid with the task's own."""

    task: AssignedTask
    kind: Literal["source", "sink"]
    config: Mapping[str, str]
    paused: bool
    attempt: int
    topic_prefixes: tuple[str, ...]
    """The bound of the connector's topics; empty: none."""


@dataclass(frozen=True, slots=True)
class StopTask:
    """Asks the process to end; KillTask follows when it does not.

    This and the commands below do nothing for a process that has already ended: its TaskExited is on its way.
    """

    task: AssignedTask


@dataclass(frozen=True, slots=True)
class KillTask:
    """Kills the process group at once; answered by TaskExited."""

    task: AssignedTask


@dataclass(frozen=True, slots=True)
class PauseTask:
    """Pauses the task in its process."""

    task: AssignedTask


@dataclass(frozen=True, slots=True)
class RepeatTopics:
    """The topics that the task has named are forgotten: it is to name those that it goes on using."""

    task: AssignedTask


@dataclass(frozen=True, slots=True)
class ResumeTask:
    """Resumes a paused task."""

    task: AssignedTask


@dataclass(frozen=True, slots=True)
class TellTask:
    """Tells the task all jobs that are open for it; a task that was never told has none."""

    task: AssignedTask
    jobs: tuple[JsonObject, ...]


@dataclass(frozen=True, slots=True)
class FenceIds:
    """Runs `init_transactions` for the ids of these source tasks, in parallel and outside the herder's thread; answered
    by FencesDone."""

    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class ProbeWorker:
    """Checks within a few seconds, outside the herder's thread, whether this boot still listens; answered by
    WorkerProbed."""

    worker_id: str
    boot_id: str
    url: str


@dataclass(frozen=True, slots=True)
class RemoveLeader:
    """Ends this leader's place in the election, outside the herder's thread. There is no answer: if it was done, another
    worker's claim follows, and otherwise the command comes again."""

    leader: Leader


@dataclass(frozen=True, slots=True)
class StopProducing:
    """Forbids all tasks to produce until the next LeaseAcked: no lease was acknowledged for 0.6 × session time-out."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The last command: leaves the election and ends the worker. `error` says why this worker must not run."""

    reason: str = "drained"
    error: JsonObject | None = None


HerdCommand = (
    Claim
    | WriteLog
    | AppendStatus
    | RenewLease
    | AnswerRequest
    | PlanTasks
    | StartTask
    | StopTask
    | KillTask
    | PauseTask
    | RepeatTopics
    | ResumeTask
    | TellTask
    | FenceIds
    | ProbeWorker
    | RemoveLeader
    | StopProducing
    | Leave
)
