"""What one herd core remembers, as frozen values, and the turn in which one event changes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from cdcworker.coordinator.api import Record, Term
from cdcworker.coordinator.claim import Identity
from cdcworker.coordinator.crew import Crew
from cdcworker.coordinator.events import AppendStatus, HerdCommand, Now, RequestArrived, TasksPlanned
from cdcworker.coordinator.model import AssignedTask, ClusterState, JsonObject, Presence, Reply, TaskId, TaskStatus
from cdcworker.coordinator.status import Lease, StatusState, live_workers

Role = Literal["follower", "claiming", "claimed", "leading"]
"""`claiming`: Claim is out. `claimed`: the leader record is written, not yet read back. Only `leading` decides."""

Phase = Literal["starting", "running", "paused", "stopping", "waiting", "failed"]
"""`waiting` and `failed` have no process; the other phases have one."""


@dataclass(frozen=True, slots=True)
class HerdSettings:
    """Times of the herd in seconds. All workers of a group use the same session time-out."""

    session_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    plan_timeout_s: float = 120.0
    """A PlanTasks without an answer is asked again after this; the driver's own limit is shorter."""
    fence_wait_s: float = 300.0
    """FenceIds that are not answered after this are taken for done: the driver's own limit is shorter."""
    fence_tries_max: int = 10
    """With back-off, while nobody is to have the task: whoever starts it fences it himself."""
    crash_delay_s: float = 0.0
    """How long the tasks of a worker that vanished wait for it to come back."""
    restart_delay_s: float = 60.0
    """The same for a worker that said that it will."""
    probe_every_s: float = 1.0
    probe_answer_s: float = 10.0
    """A ProbeWorker without an answer is asked again after this; the driver's own limit is shorter."""
    record_bytes_max: int = 900_000
    """Of one record of the config log: below Kafka's default limit for a message."""
    batch_bytes_max: int = 4_000_000
    """Of the requests that one write takes."""
    start_timeout_s: float = 600.0
    """Of a start without any sign of life; a source may wait for minutes until it may begin to read."""
    stop_timeout_s: float = 10.0
    kill_timeout_s: float = 30.0
    """A killed process that is not reaped after this is given up: whoever runs next fences it."""
    drain_timeout_s: float = 20.0
    """Exit stays below the 20 s that the platform's grace period allows for."""
    command_ttl_s: float = 60.0
    backoff_min_s: float = 1.0
    backoff_max_s: float = 60.0
    restarts_max: int = 10
    restart_window_s: float = 600.0
    fences_max: int = 5
    fence_window_s: float = 60.0
    resend_s: float = 3.0
    """A status record that was not seen in the log after this is appended again."""
    metrics_interval_s: float = 1.0
    status_records_per_s: float = 100.0
    """Of numbers, from all workers together: with many tasks each reports less often."""
    rest_s: float = 0.5
    """Pause between the leader's rounds while something waits for time to pass (back-off, expiry)."""
    idle_s: float = 5.0
    """The same while nothing does."""
    round_s_per_task: float = 0.00005
    """Rounds of a large cluster are taken together: each looks at every task."""
    small_cluster: int = 200
    """Connectors and tasks up to which every news gets a round at once."""
    rounds_ahead: int = 3
    """So many rounds more come at once after a calm: a change of one connector takes two."""
    level_delay_s: float = 30.0
    """After the loss of a worker held tasks stay where they are for so long: it is likely to come back."""
    round_late_s: float = 1.0
    """A round that has been due for so long does not wait for the end of the queue any more."""
    queue_max: int = 1000
    """Requests that wait for the leader's pen; more are refused (INV-10)."""
    identity: Identity | None = None
    """Whose log it must be; None: anybody's."""
    accepted_identity: str = ""
    """Fingerprint of the identity that an operator lets the log go over to."""

    @property
    def lease_interval_s(self) -> float:
        return self.session_timeout_s / 15

    @property
    def probe_after_s(self) -> float:
        """A lease that has not advanced for so long is worth a look whether its worker still listens."""
        return 3 * self.lease_interval_s

    @property
    def mute_after_s(self) -> float:
        return 0.6 * self.session_timeout_s

    @property
    def kill_after_s(self) -> float:
        return 0.9 * self.session_timeout_s


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request whose records are written but not yet read back."""

    write_id: str
    epoch: int
    reply: Reply
    due: float = float("inf")
    """When who asked is told that it takes too long."""


@dataclass(frozen=True, slots=True)
class Queued:
    """A request that has not been decided."""

    asked: RequestArrived
    due: float


@dataclass(frozen=True, slots=True)
class PlanJob:
    """A split that was asked for, or that is tried again at `due` after `failures`."""

    incarnation: str
    config_version: int
    due: float
    failures: int = 0
    asked: bool = True


@dataclass(frozen=True, slots=True)
class Fence:
    """One that was asked for. It failed and is tried again at `again`, or it is under way."""

    asked: float
    done: bool = False
    tries: int = 1
    again: float | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """A ProbeWorker that is out, or answered. `lease`: the one that did not advance."""

    lease: Lease
    due: float
    """When to ask again."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A deadline's identity and when this process first read it."""

    boot_id: str
    cause: str
    mono: float


@dataclass(frozen=True, slots=True)
class LeadState:
    """The leader's side."""

    term: Term | None = None
    role: Role = "follower"
    epoch: int = 0
    counter: int = 0
    """Of task epochs given under this leader epoch."""
    seen: Mapping[str, Seen] = field(default_factory=dict)
    """Deadlines by what they are about. Every worker keeps them: ages survive a change of leader."""
    writes: int = 0
    inflight: str | None = None
    """The write whose records have not been read back: until then nothing else is decided."""
    queue: tuple[Queued, ...] = ()
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    """By request. Both in the order of arrival, so of falling due."""
    claim_due: float = 0.0
    claim_failures: int = 0
    jobs: Mapping[str, PlanJob] = field(default_factory=dict)
    planned: tuple[TasksPlanned, ...] = ()
    """Answers that no round has taken; of two about one connector the later one counts."""
    fences: Mapping[TaskId, Fence] = field(default_factory=dict)
    sweeps: Mapping[str, float] = field(default_factory=dict)
    """Status keys whose tombstone was appended, and when."""
    rest_until: float = 0.0
    """A round found nothing to do: until then ticks start none while the same workers are alive."""
    round_due: float = 0.0
    """Not much before this, whatever the news."""
    rest_live: Mapping[str, Presence] = field(default_factory=dict)
    crew: Crew = field(default_factory=Crew)


@dataclass(frozen=True, slots=True)
class LocalTask:
    """A task that this worker has taken up."""

    task: AssignedTask
    phase: Phase
    attempt: int = 0
    paused: bool = False
    """What the process was last told."""
    told: tuple[JsonObject, ...] = ()
    """Jobs that it was told of."""
    due: float = 0.0
    """`waiting`: when to start; `starting`: until when; `stopping`: when to kill; `killed`: when to give it up."""
    killed: bool = False
    error: JsonObject | None = None
    metrics: JsonObject = field(default_factory=dict)
    fresh: bool = False
    """There are numbers that were not reported."""
    restarts: tuple[float, ...] = ()
    """When the budget was charged, by the own clock; before that of this process for those of former owners."""
    fences: tuple[float, ...] = ()

    @property
    def has_process(self) -> bool:
        return self.phase not in ("waiting", "failed")


@dataclass(frozen=True, slots=True)
class Report:
    status: TaskStatus
    sent: float


@dataclass(frozen=True, slots=True)
class WorkState:
    """The worker's side."""

    local: Mapping[TaskId, LocalTask] = field(default_factory=dict)
    reports: Mapping[TaskId, Report] = field(default_factory=dict)
    """Status records that were sent and not yet seen in the log."""
    topics: Mapping[TaskId, frozenset[str]] = field(default_factory=dict)
    seq: int = 0
    executed: frozenset[str] = frozenset()
    """Commands that this boot has executed."""
    numbers_due: float = 0.0
    leases: int = 0
    lease_due: float = 0.0
    acked: float | None = None
    """When the newest acknowledged lease was sent."""
    muted: bool = False
    announced: float | None = None
    seen: bool = False
    """The own presence has been read from the log; another boot's there means that this process was replaced."""
    drain_until: float | None = None
    probes: Mapping[str, Probe] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HerdState:
    """Everything one worker knows. Opaque to the driver: it hands it back, and reads it through `herd.view`."""

    me: Presence
    settings: HerdSettings
    cluster: ClusterState = field(default_factory=ClusterState)
    status: StatusState = field(default_factory=StatusState)
    lead: LeadState = field(default_factory=LeadState)
    work: WorkState = field(default_factory=WorkState)
    started: bool = False
    left: bool = False


class Turn:
    """One step in the making: parts of the state that are replaced, and the commands so far."""

    def __init__(self, state: HerdState, now: Now) -> None:
        self.me = state.me
        self.settings = state.settings
        self.cluster = state.cluster
        self.status = state.status
        self.lead = state.lead
        self.work = state.work
        self.started = state.started
        self.left = state.left
        self.now = now
        self.commands: list[HerdCommand] = []
        self._appends: list[Record] = []
        self._local: dict[TaskId, LocalTask] | None = None
        self._reports: dict[TaskId, Report] | None = None

    @property
    def mono(self) -> float:
        return self.now.mono

    def emit(self, command: HerdCommand) -> None:
        self.commands.append(command)

    def append(self, record: Record) -> None:
        """One status record; all of a turn go out together, before the other commands."""
        self._appends.append(replace(record, headers={**self.stamp(), **record.headers}))

    def stamp(self) -> dict[str, str]:
        return {"w": self.me.worker_id, "ts": str(self.now.wall_ms), "v": "1"}

    def set_local(self, task_id: TaskId, local: LocalTask | None) -> None:
        """The table is copied once in a turn: a turn may touch hundreds of tasks."""
        if self._local is None or self._local is not self.work.local:
            self._local = dict(self.work.local)
            self.work = replace(self.work, local=self._local)
        if local is None:
            self._local.pop(task_id, None)
        else:
            self._local[task_id] = local

    def set_report(self, task_id: TaskId, report: Report) -> None:
        """As `set_local`."""
        if self._reports is None or self._reports is not self.work.reports:
            self._reports = dict(self.work.reports)
            self.work = replace(self.work, reports=self._reports)
        self._reports[task_id] = report

    def live(self) -> dict[str, Presence]:
        return live_workers(self.status, self.settings.session_timeout_s)

    def finish(self) -> tuple[HerdState, tuple[HerdCommand, ...]]:
        commands = tuple(self.commands)
        if self._appends:
            commands = (AppendStatus(tuple(self._appends)), *commands)
        state = HerdState(
            self.me, self.settings, self.cluster, self.status, self.lead, self.work, self.started, self.left
        )
        return state, commands
