"""The state of one worker's herder as frozen values, and the transition by which one event changes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from cdcworker.coordinator.api import LogRecord, Term
from cdcworker.coordinator.core.assign import StableMembers
from cdcworker.coordinator.core.events import AppendStatus, HerdCommand, Now, RequestArrived, TasksPlanned
from cdcworker.coordinator.log.leader_claim import ClusterIdentity
from cdcworker.coordinator.log.status_fold import StatusState, WorkerLease, live_workers
from cdcworker.coordinator.model import (
    AssignedTask,
    ClusterState,
    JsonObject,
    Leader,
    Presence,
    Reply,
    TaskId,
    TaskStatus,
)

Role = Literal["follower", "claiming", "claimed", "leading"]
"""`claiming`: a Claim command is being carried out. `claimed`: the leader record is written but not read back yet. Only
a `leading` worker decides anything."""

Phase = Literal["starting", "running", "paused", "stopping", "waiting", "failed"]
"""The phase of a task on its worker: `waiting` and `failed` have no process, all others have one."""

CLOCKS_APART_S_MAX: Final = 120.0
"""How far the wall clocks of two workers may be apart; requests between workers are signed within the same limit."""
COMMAND_TTL_S: Final = CLOCKS_APART_S_MAX + 60.0
"""How long a command may be executed, by the wall clock of the leader that writes it. The workers compare the expiry with
their own clocks, so it has to exceed the permitted difference: otherwise a worker whose clock is ahead finds every command
expired, and restarts that were answered with `ok` never happen there."""


@dataclass(frozen=True, slots=True)
class HerdSettings:
    """Time-outs, intervals and limits of the herder; times are in seconds. All workers use the same session
    time-out."""

    session_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    plan_timeout_s: float = 120.0
    """A PlanTasks that was not answered is issued again after this; the driver's own limit is shorter."""
    fence_wait_s: float = 300.0
    """A FenceIds that was not answered counts as done after this; the driver's own limit is shorter."""
    fence_tries_max: int = 10
    """Attempts to fence an id, with back-off; the next start of the task fences it in any case."""
    crash_delay_s: float = 0.0
    """The time for which the tasks of a crashed worker wait for it to come back."""
    restart_delay_s: float = 60.0
    """The time for which the tasks of a worker wait that announced its restart."""
    probe_every_s: float = 1.0
    """The interval between two probes of a silent worker."""
    probe_answer_s: float = 10.0
    """A ProbeWorker that was not answered is issued again after this; the driver's own limit is shorter."""
    record_bytes_max: int = 900_000
    """The largest record of the config log in bytes, below Kafka's default limit for a message."""
    batch_bytes_max: int = 4_000_000
    """The total size in bytes of the request records in one write."""
    start_timeout_s: float = 600.0
    """The time for a task to start without reporting anything; a source may wait for minutes before it can read."""
    stop_timeout_s: float = 10.0
    kill_timeout_s: float = 30.0
    """A killed process that was not reaped after this is abandoned: the task's next owner fences it."""
    drain_timeout_s: float = 20.0
    """The time for a drain, below the 20 s that are left of a platform's grace period."""
    command_ttl_s: float = COMMAND_TTL_S
    backoff_min_s: float = 1.0
    backoff_max_s: float = 60.0
    restarts_max: int = 10
    restart_window_s: float = 600.0
    fences_max: int = 5
    fence_window_s: float = 60.0
    resend_s: float = 3.0
    """A status record that was not read back from the log after this is appended again."""
    metrics_interval_s: float = 1.0
    status_records_per_s: float = 100.0
    """The rate of metric reports of all workers together: with many tasks each one reports less often."""
    round_pause_s: float = 0.5
    """The pause between two rounds of the leader while something is due soon (a retry, an expiry). A round checks all
    connectors and tasks, and decides what has to change."""
    idle_round_pause_s: float = 5.0
    """The pause between two rounds while nothing is due."""
    round_s_per_task: float = 0.00005
    """The pause between rounds in a large cluster, per connector and task: each round checks them all."""
    small_cluster: int = 200
    """The number of connectors and tasks up to which every change gets a round at once."""
    burst_rounds: int = 3
    """The number of rounds that may follow each other without a pause after a quiet time; one change of a connector
    takes two."""
    balance_delay_s: float = 30.0
    """The time after the loss of a worker in which running tasks do not move for balance: it is likely to come back."""
    round_overdue_s: float = 1.0
    """A round that has been due for so long no longer waits until the request queue is empty."""
    queue_max: int = 1000
    """The most requests that wait for the leader's next write; further ones are refused (INV-10)."""
    identity: ClusterIdentity | None = None
    """The identity that the config log must have; None accepts any."""
    accepted_identity: str = ""
    """The fingerprint of a new identity that the operator accepts for this log (`coordination.accept`)."""

    @property
    def lease_interval_s(self) -> float:
        """The interval at which a worker renews its lease."""
        return self.session_timeout_s / 15

    @property
    def probe_after_s(self) -> float:
        """A worker whose lease has not advanced for so long is probed over HTTP."""
        return 3 * self.lease_interval_s

    @property
    def stop_producing_after_s(self) -> float:
        """The age of the last acknowledged lease at which this worker's tasks stop producing."""
        return 0.6 * self.session_timeout_s

    @property
    def kill_after_s(self) -> float:
        """The age of the last acknowledged lease at which this worker kills its tasks."""
        return 0.9 * self.session_timeout_s


@dataclass(frozen=True, slots=True)
class AwaitingReadBack:
    """A request that was decided and waits until its write is read back from the log."""

    write_id: str
    epoch: int
    reply: Reply
    due: float = float("inf")
    """The monotonic time at which the request is answered with `timeout`."""


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A request that waits for the leader's next write, and the monotonic time at which it expires."""

    arrived: RequestArrived
    due: float


@dataclass(frozen=True, slots=True)
class PlanJob:
    """The split of a connector into tasks: in flight, or failed and due again at the monotonic time `due`."""

    incarnation: str
    config_version: int
    due: float
    failures: int = 0
    in_flight: bool = True
    connection: str = ""
    """The stamp of the connector's connection."""


@dataclass(frozen=True, slots=True)
class FenceAttempt:
    """The fencing of one task's transactional id: in flight since `started`, done, or failed and due at `retry_at`."""

    started: float
    done: bool = False
    tries: int = 1
    retry_at: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerProbe:
    """A probe of a silent worker, in flight or answered. `lease` is the one that did not advance."""

    lease: WorkerLease
    due: float
    """The monotonic time of the next probe."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A former or present leader that is held for gone, with its lease at that time: an advance of it is a sign of
    life."""

    worker_id: str
    boot_id: str
    epoch: int
    lease: WorkerLease


@dataclass(frozen=True, slots=True)
class LeaderLoss:
    """What this worker knows of a leader whose process it may hold for gone; see `leader_loss`. Times are monotonic."""

    leader: Leader | None = None
    """The leader at the last look."""
    watched: WorkerLease | None = None
    """The leader's lease as it stands since `watched_since`, seen by a worker that was not stopped meanwhile."""
    watched_since: float = 0.0
    watched_at: float = 0.0
    probed: str = ""
    """The boot id of a leader whose address was probed after another process had replaced it."""
    probe_due: float = 0.0
    replaced: str = ""
    """The boot id that this probe has found gone."""
    judged: tuple[str, int] | None = None
    """The boot id and the lease's count on which the last judgement rests."""
    asks: int = 0
    """How often the end of a place in the election was asked for by this judgement."""
    due: float = 0.0
    suspect: Suspect | None = None
    mistakes: int = 0
    held_until: float = 0.0
    """Before this time nothing is asked for, because of the mistakes."""


@dataclass(frozen=True, slots=True)
class SeenDeadline:
    """A return deadline and the monotonic time at which this process first read it."""

    boot_id: str
    cause: str
    read_at: float


@dataclass(frozen=True, slots=True)
class LeaderState:
    """The state of the leader's part of a worker."""

    term: Term | None = None
    role: Role = "follower"
    epoch: int = 0
    counter: int = 0
    """The number of task epochs given under this leader epoch."""
    deadlines_seen: Mapping[str, SeenDeadline] = field(default_factory=dict)
    """Return deadlines by `worker/<id>`. Every worker keeps them, so that a new leader continues their delays."""
    writes: int = 0
    """The number of writes of this process, which names each write."""
    inflight: str | None = None
    """The id of the write that was not read back yet; until it is, the leader decides nothing else."""
    queue: tuple[QueuedRequest, ...] = ()
    """Requests that wait for a decision, in the order of arrival."""
    waiting: Mapping[str, AwaitingReadBack] = field(default_factory=dict)
    """Decided requests by id, in the order of arrival, which is that of their expiry."""
    claim_due: float = 0.0
    claim_failures: int = 0
    plan_jobs: Mapping[str, PlanJob] = field(default_factory=dict)
    planned: tuple[TasksPlanned, ...] = ()
    """Splits that no round has applied yet; the last one of a connector counts."""
    fences: Mapping[TaskId, FenceAttempt] = field(default_factory=dict)
    tombstones_sent: Mapping[str, float] = field(default_factory=dict)
    """Keys of the status log whose tombstone was appended, with the monotonic time."""
    quiet_until: float = 0.0
    """The monotonic time until which ticks start no round, provided that the same workers are alive as at the last
    one."""
    round_due: float = 0.0
    """The monotonic time of the next round in a large cluster, whatever has changed."""
    quiet_workers: Mapping[str, Presence] = field(default_factory=dict)
    """The live workers at the last round."""
    members: StableMembers = field(default_factory=StableMembers)


@dataclass(frozen=True, slots=True)
class LocalTask:
    """A task that runs on this worker, waits to be restarted here, or failed here."""

    task: AssignedTask
    phase: Phase
    attempt: int = 0
    """The number of restarts on this worker."""
    paused: bool = False
    """Tells whether the process was last told to pause."""
    jobs_sent: tuple[JsonObject, ...] = ()
    """The jobs that the process was last told."""
    due: float = 0.0
    """The monotonic time at which a `waiting` task starts, a `starting` one is killed for being late, a `stopping` one
    is killed, and a killed one is abandoned."""
    killed: bool = False
    error: JsonObject | None = None
    metrics: JsonObject = field(default_factory=dict)
    has_new_metrics: bool = False
    """Tells whether there are metrics that were not reported yet."""
    restarts: tuple[float, ...] = ()
    """The monotonic times of the restarts that count against the budget; earlier than this process for those of former
    owners."""
    fences: tuple[float, ...] = ()
    """The monotonic times at which the task was fenced."""

    @property
    def has_process(self) -> bool:
        """Tells whether the task has a process, running or stopping."""
        return self.phase not in ("waiting", "failed")


@dataclass(frozen=True, slots=True)
class TaskStateReport:
    """A status record of a task and the monotonic time at which it was last appended."""

    status: TaskStatus
    sent: float


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The state of a worker's own part: its tasks, its lease and its reports."""

    local: Mapping[TaskId, LocalTask] = field(default_factory=dict)
    reports: Mapping[TaskId, TaskStateReport] = field(default_factory=dict)
    """Status records that were appended and not read back from the log yet."""
    topics: Mapping[TaskId, frozenset[str]] = field(default_factory=dict)
    """The topics that own tasks have named."""
    seq: int = 0
    executed: frozenset[str] = frozenset()
    """The ids of the commands that this boot has executed."""
    metrics_due: float = 0.0
    """The monotonic time of the next metric reports."""
    lease_count: int = 0
    lease_due: float = 0.0
    lease_acked: float | None = None
    """The monotonic time at which the newest acknowledged lease was sent."""
    producing_stopped: bool = False
    """Tells whether the tasks were told to stop producing for lack of a lease."""
    announced_at: float | None = None
    """The monotonic time at which the presence was last appended."""
    presence_seen: bool = False
    """Tells whether this boot's presence was read back from the log. Another boot's presence after that means that this
    process was replaced."""
    drain_until: float | None = None
    """The monotonic time at which a drain ends; None when the worker does not drain."""
    probes: Mapping[str, WorkerProbe] = field(default_factory=dict)
    leader_loss: LeaderLoss = LeaderLoss()


@dataclass(frozen=True, slots=True)
class HerdState:
    """All that one worker's herder knows. The driver passes it from step to step and reads it through `view`."""

    me: Presence
    settings: HerdSettings
    cluster: ClusterState = field(default_factory=ClusterState)
    status: StatusState = field(default_factory=StatusState)
    lead: LeaderState = field(default_factory=LeaderState)
    work: WorkerState = field(default_factory=WorkerState)
    started: bool = False
    left: bool = False


class StateTransition:
    """The change of the state by one event: the parts replaced so far, and the commands so far."""

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
        self._appends: list[LogRecord] = []
        self._local: dict[TaskId, LocalTask] | None = None
        self._reports: dict[TaskId, TaskStateReport] | None = None

    @property
    def mono(self) -> float:
        """The monotonic clock of this event, in seconds."""
        return self.now.mono

    def emit(self, command: HerdCommand) -> None:
        """Adds a command for the driver."""
        self.commands.append(command)

    def append(self, record: LogRecord) -> None:
        """Adds a record for the status log. All records of a transition are appended together, before other commands
        run."""
        self._appends.append(replace(record, headers={**self.record_headers(), **record.headers}))

    def record_headers(self) -> dict[str, str]:
        """Returns the headers that every record of this worker carries."""
        return {"w": self.me.worker_id, "ts": str(self.now.wall_ms), "v": "1"}

    def set_local(self, task_id: TaskId, local: LocalTask | None) -> None:
        """Replaces or removes a task. The table is copied once in a transition, which may touch hundreds of tasks."""
        if self._local is None or self._local is not self.work.local:
            self._local = dict(self.work.local)
            self.work = replace(self.work, local=self._local)
        if local is None:
            self._local.pop(task_id, None)
        else:
            self._local[task_id] = local

    def set_report(self, task_id: TaskId, report: TaskStateReport) -> None:
        """Replaces the report of a task; the table is copied once in a transition."""
        if self._reports is None or self._reports is not self.work.reports:
            self._reports = dict(self.work.reports)
            self.work = replace(self.work, reports=self._reports)
        self._reports[task_id] = report

    def live_workers(self) -> dict[str, Presence]:
        """Returns the workers whose lease has not lapsed by this worker's clock, by id."""
        return live_workers(self.status, self.settings.session_timeout_s)

    def finish(self) -> tuple[HerdState, tuple[HerdCommand, ...]]:
        """Returns the new state and the commands in the order in which the driver carries them out."""
        commands = tuple(self.commands)
        if self._appends:
            commands = (AppendStatus(tuple(self._appends)), *commands)
        state = HerdState(
            self.me, self.settings, self.cluster, self.status, self.lead, self.work, self.started, self.left
        )
        return state, commands
