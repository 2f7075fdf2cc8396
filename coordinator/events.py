"""What the herd core is told (events), what it asks of its driver (commands), and the clock it is given.

The core does no I/O, reads no clock and draws no random number. A driver (the herder thread, a simulator) feeds
events to `herd.step` and carries out the commands in the order in which they are returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from cdcworker.coordinator.api import Record, Term
from cdcworker.coordinator.model import AssignedTask, Connector, JsonObject, Reply, Request, TaskId, TaskState


class Now(NamedTuple):
    """The driver's clocks at an event: `mono` seconds for every interval, `wall_ms` only for stamps and expiry."""

    mono: float
    wall_ms: int


# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfigRecords:
    """Records of the config log, in offset order. `replay`: read before `Started` (commands in it are not executed).

    `reset`: the log is read again from its first offset (the reader was away too long); the old fold is dropped.
    """

    records: tuple[Record, ...]
    replay: bool = False
    reset: bool = False


@dataclass(frozen=True, slots=True)
class StatusRecords:
    """Records of the status log, in offset order per partition.

    `reset`: the log is read again from its first offset; what was known of tasks is dropped, lease ages are not.
    """

    records: tuple[Record, ...]
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """Both logs have been read to their ends once, and what was read has been delivered."""


@dataclass(frozen=True, slots=True)
class TermChanged:
    """`Leadership.term()` is another value than at the last event. The driver drops its writer when it is None."""

    term: Term | None


@dataclass(frozen=True, slots=True)
class Claimed:
    """Answer to `Claim`: a new writer is open and, after that, the config log was read to its end and delivered."""


@dataclass(frozen=True, slots=True)
class ClaimFailed:
    """Answer to `Claim`: no writer. The core claims again with back-off while it holds a term."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class WriteDone:
    """Answer to `WriteLog`: committed. The core goes on when it has read the records back."""

    write_id: str


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """Answer to `WriteLog`. The driver has dropped the writer; a new `Claim` follows while the term is held."""

    write_id: str
    reason: Literal["stale", "fenced", "unknown"]


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A request of the REST side. `id` is unique (a UUID): records that it causes carry it, incarnations derive from it."""

    id: str
    request: Request


@dataclass(frozen=True, slots=True)
class TasksPlanned:
    """Answer to `PlanTasks`: the shares that the connector split into, or why it could not (a CdcError as JSON)."""

    connector: str
    incarnation: str
    config_version: int
    tasks: tuple[Mapping[str, str], ...] = ()
    error: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class TaskReport:
    """A task process spoke: a state, or numbers only (`state` None)."""

    task: AssignedTask
    state: TaskState | None = None
    error: JsonObject | None = None
    metrics: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskTopics:
    """A task process named the topics it writes or reads."""

    task: AssignedTask
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TaskExited:
    """A task process is gone and reaped. `code` 0 after a stop, 1 after FAILED, 3 fenced; others are crashes.

    Comes exactly once for every `StartTask`, also when the process could not be started (then with `error`).
    """

    task: AssignedTask
    code: int
    error: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class LeaseAcked:
    """A `RenewLease` record was acknowledged; `sent_mono` is the clock when it was sent, not when it was answered."""

    sent_mono: float


@dataclass(frozen=True, slots=True)
class FencesDone:
    """Answer to `FenceIds`: these ids have been tried, and none of them is still being tried for another FenceIds.

    `failed`: those of them that could not be fenced; the leader asks again.
    """

    tasks: tuple[TaskId, ...]
    failed: tuple[TaskId, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerProbed:
    """Answer to `ProbeWorker`. `gone`: nothing listens there any more, or another boot answers; `unknown`: anything else."""

    worker_id: str
    boot_id: str
    verdict: Literal["gone", "unknown"]


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Hand over all tasks, then leave. `returns`: this worker id comes back soon, its tasks wait for it."""

    returns: bool = False


@dataclass(frozen=True, slots=True)
class StandbyChanged:
    """A process that waits for a sink's task is `ready`, or is not any more."""

    ready: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; at least every 200 ms."""


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
    """Poll the group once more; still the owner: new writer, config log to its end → ConfigRecords, then Claimed."""


@dataclass(frozen=True, slots=True)
class WriteLog:
    """Write all records in one transaction with the current term's proof. At most one is outstanding."""

    write_id: str
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class AppendStatus:
    """Append to the status log without fencing. Keys `worker/…` and `lease/…` go to partition 0, the rest by key.

    Best effort: what matters is sent again until it is seen in the log.
    """

    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Append this lease record to partition 0 of the status log, then LeaseAcked with the time of sending.

    Must not wait behind other appends. While one is outstanding, a newer one replaces the one that waits.
    """

    record: Record


@dataclass(frozen=True, slots=True)
class Answer:
    """Complete the request's future."""

    request_id: str
    reply: Reply


@dataclass(frozen=True, slots=True)
class PlanTasks:
    """Split this connector into task shares outside the herder's thread, with a time limit → TasksPlanned."""

    connector: Connector
    config_version: int
    """What TasksPlanned gives back."""


@dataclass(frozen=True, slots=True)
class StartTask:
    """Start the task's process. `config` is the connector's config with the task's share laid over it."""

    task: AssignedTask
    kind: Literal["source", "sink"]
    config: Mapping[str, str]
    paused: bool
    attempt: int


@dataclass(frozen=True, slots=True)
class StopTask:
    """Ask the process to end; KillTask follows when it does not.

    This and the commands below are no-ops for a process that is already gone: its TaskExited is on the way.
    """

    task: AssignedTask


@dataclass(frozen=True, slots=True)
class KillTask:
    """Kill the process group now → TaskExited."""

    task: AssignedTask


@dataclass(frozen=True, slots=True)
class PauseTask:
    task: AssignedTask


@dataclass(frozen=True, slots=True)
class ResumeTask:
    task: AssignedTask


@dataclass(frozen=True, slots=True)
class TellTask:
    """Tell the task which jobs there are for it; one that is not told yet has none."""

    task: AssignedTask
    jobs: tuple[JsonObject, ...]


@dataclass(frozen=True, slots=True)
class FenceIds:
    """Run `init_transactions` for these source tasks' ids, in parallel, outside the herder's thread → FencesDone."""

    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class ProbeWorker:
    """Look, outside the herder's thread and within a few seconds, whether this boot still listens → WorkerProbed."""

    worker_id: str
    boot_id: str
    url: str


@dataclass(frozen=True, slots=True)
class StopProducing:
    """No lease was acknowledged for 0.6 × session: no task may produce until LeaseAcked."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The last command: close leadership (leave the group) and end the worker. `error`: why it must not run."""

    reason: str = "drained"
    error: JsonObject | None = None


HerdCommand = (
    Claim
    | WriteLog
    | AppendStatus
    | RenewLease
    | Answer
    | PlanTasks
    | StartTask
    | StopTask
    | KillTask
    | PauseTask
    | ResumeTask
    | TellTask
    | FenceIds
    | ProbeWorker
    | StopProducing
    | Leave
)
