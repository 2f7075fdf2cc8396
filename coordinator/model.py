"""The cluster's words as frozen values: what the logs fold to, what is asked of the herd, what tasks report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

JsonObject = dict[str, Any]
PROTOCOL = 3
"""What this version reads and writes of the logs. 2: deadlines, fences to do and the journal are acted on. 3: both
data producers of a source task are fenced."""
FLOOR = 1
"""The lowest protocol that this version can share a cluster with."""
TargetState = Literal["RUNNING", "PAUSED", "STOPPED"]
JobWish = Literal["RUNNING", "PAUSED", "CANCELLED"]
TaskState = Literal["UNASSIGNED", "RUNNING", "PAUSED", "FAILED", "RESTARTING", "STOPPED"]


class TaskId(NamedTuple):
    connector: str
    task: int

    def __str__(self) -> str:
        return f"{self.connector}-{self.task}"


class AssignedTask(NamedTuple):
    """One entry of an assignment. `task_epoch` = leader epoch << 20 | counter: strictly increasing over all leaders."""

    connector: str
    incarnation: str
    task: int
    task_epoch: int

    @property
    def id(self) -> TaskId:
        return TaskId(self.connector, self.task)


@dataclass(frozen=True, slots=True)
class Leader:
    """The newest claim in the config log."""

    epoch: int
    worker_id: str
    boot_id: str
    url: str
    hint: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a newer version, here and below: kept when the record is written again."""


@dataclass(frozen=True, slots=True)
class Connector:
    """`connector/<name>`: config and target state in one record; `version` counts changes (ETag)."""

    name: str
    incarnation: str
    version: int
    config: Mapping[str, str]
    target_state: TargetState
    kind: Literal["source", "sink"]
    labels: Mapping[str, str] = field(default_factory=dict)
    created_ms: int = 0
    updated_ms: int = 0
    config_version: int = 0
    """The version at which the config last changed: pausing makes a new version, not a new config."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskSet:
    """`tasks/<name>`: the whole task set in one record; void when its incarnation is not the connector's."""

    incarnation: str
    config_version: int
    tasks: tuple[Mapping[str, str], ...]
    error: JsonObject | None = None
    """Why no task set could be made (a CdcError as JSON). With an older `config_version` the tasks of that one run on
    and the split is tried again; otherwise `tasks` is empty and a person has to change something."""
    task_epoch: int = 0
    """Tasks that were assigned under a lower epoch belong to an older set."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Assignment:
    """`assignment/<worker_id>`: what this boot of the worker runs and what it must let go first."""

    boot_id: str
    tasks: tuple[AssignedTask, ...] = ()
    revoke: tuple[AssignedTask, ...] = ()
    reason: str = ""
    causes: Mapping[str, str] = field(default_factory=dict)
    """Why each entry of `revoke` has to go, by task: its next owner's line in the journal says it."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Command:
    """`command/<id>`: executed at most once per boot id, ignored on replay and after `expires_ms` (wall clock)."""

    id: str
    kind: str
    scope: JsonObject
    expires_ms: int
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Deadline:
    """`deadline/worker/<id>`: tasks that wait for this worker. Each reader ages it by its own clock since it read it."""

    boot_id: str
    """The process that is gone or goes: another one of the same id is the return that is waited for."""
    cause: str
    delay_ms: int
    tasks: tuple[AssignedTask, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fenced:
    """`fenced/<name>`: tasks below `count` may have owners; `pending` are let go and their ids are to be fenced."""

    count: int
    pending: tuple[int, ...] = ()
    incarnation: str = ""
    task_epoch: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


class Move(NamedTuple):
    """One task changes hands. `source` or `target` empty: nobody."""

    connector: str
    task: int
    source: str
    target: str
    why: str


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """`journal/<seq % 256>`: one decision of the leader about who runs what."""

    seq: int
    ts_ms: int
    cause: str
    moves: tuple[Move, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    """`job/<connector>/<id>`: what a connector's tasks are asked to do beside their usual work."""

    connector: str
    id: str
    incarnation: str
    kind: str
    spec: Mapping[str, Any]
    """What the connector makes of it is the connector's."""
    wanted: JobWish = "RUNNING"
    outcome: JsonObject | None = None
    """How it ended; None: it has not."""
    created_ms: int = 0
    updated_ms: int = 0
    own: bool = True
    """False: the tasks began it by themselves, the record only says what is wanted of it."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What the config log folds to. `version` is the offset after the last record taken."""

    leader: Leader | None = None
    connectors: Mapping[str, Connector] = field(default_factory=dict)
    task_sets: Mapping[str, TaskSet] = field(default_factory=dict)
    assignments: Mapping[str, Assignment] = field(default_factory=dict)
    deadlines: Mapping[str, Deadline] = field(default_factory=dict)
    """By what it is about: `worker/<id>`."""
    fenced: Mapping[str, Fenced] = field(default_factory=dict)
    journal: Mapping[str, JournalEntry] = field(default_factory=dict)
    """A ring, by slot; `seq` gives the order."""
    commands: Mapping[str, Command] = field(default_factory=dict)
    jobs: Mapping[str, Job] = field(default_factory=dict)
    """By `<connector>/<id>`."""
    settings: Mapping[str, JsonObject] = field(default_factory=dict)
    """Records of kinds without a type of their own (`session-key`, `logger/…`, `setting/…`), by full key."""
    epoch: int = 0
    version: int = 0
    stale_keys: frozenset[str] = frozenset()
    """Keys at which a record of an older epoch was seen: the leader rewrites them."""


@dataclass(frozen=True, slots=True)
class Presence:
    """`worker/<id>` in the status log."""

    worker_id: str
    boot_id: str
    url: str
    version: str
    plugins_hash: str
    capacity: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)
    draining: bool = False
    returns: bool = False
    """It drains for a restart: its tasks wait for the next process of this worker id."""
    prepared: bool = False
    """A process of it waits for a sink's task with everything brought up."""
    plugins: Mapping[str, str] = field(default_factory=dict)
    """Versions by every name that a `connector.class` may have. Empty: unknown, tasks of all plugins may come."""
    protocol: int = PROTOCOL
    """What this worker can read and write of the logs; 1 in records without it."""
    floor: int = FLOOR
    """The lowest protocol of others that it can live with."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """`task/<connector>/<task>` in the status log; readers keep the largest (task_epoch, seq)."""

    connector: str
    task: int
    state: TaskState
    worker_id: str
    task_epoch: int
    seq: int = 0
    error: JsonObject | None = None
    metrics: JsonObject = field(default_factory=dict)
    """Last reported numbers: records, events_per_s, lag_s, position, tables …"""
    restarts: tuple[float, ...] = ()
    """Ages in seconds, at the time of the report, of the restarts that its budget was charged with: the next owner
    goes on with what is left of it."""


@dataclass(frozen=True, slots=True)
class View:
    """An immutable picture of the cluster as this worker knows it; what REST reads."""

    worker_id: str
    boot_id: str
    url: str
    kafka_cluster_id: str
    ready: bool
    is_leader: bool
    state: ClusterState
    workers: Mapping[str, Presence]
    """Workers whose lease is alive by this worker's own clock."""
    statuses: Mapping[TaskId, TaskStatus]
    topics: Mapping[str, frozenset[str]]
    """Topics in use per connector."""
    draining: bool = False
    last_tick_age_s: float = 0.0
    waiting_s: Mapping[TaskId, float] = field(default_factory=dict)
    """Tasks that wait for their worker's return, and for how long at most."""

    @property
    def journal(self) -> tuple[JournalEntry, ...]:
        """The leader's last decisions about tasks, newest first."""
        return tuple(sorted(self.state.journal.values(), key=lambda entry: -entry.seq))


# What REST asks of the herd. Each is answered with a Reply through a Future.


@dataclass(frozen=True, slots=True)
class PutConnector:
    """Create or change a connector. `config` None keeps the config (target state only)."""

    name: str
    config: Mapping[str, str] | None
    kind: Literal["source", "sink"] | None = None
    target_state: TargetState | None = None
    create_only: bool = False
    must_exist: bool = False
    if_version: int | None = None
    labels: Mapping[str, str] | None = None
    mark: str = ""
    """Of the request that creates it: kept with the connector, so that the same request is known when it comes again."""


@dataclass(frozen=True, slots=True)
class DeleteConnector:
    name: str
    if_version: int | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart tasks: `tasks` None with include_tasks False is the connector alone (nothing runs for it: a no-op)."""

    connector: str
    include_tasks: bool = False
    only_failed: bool = False
    task: int | None = None


@dataclass(frozen=True, slots=True)
class PutSetting:
    """Write a record without a type of its own, such as `session-key`, as a whole."""

    name: str
    value: JsonObject = field(repr=False)


@dataclass(frozen=True, slots=True)
class PutJob:
    """Ask a connector's tasks for something; one that is under way already and the same is answered with that one."""

    connector: str
    kind: str
    spec: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True, slots=True)
class ChangeJob:
    connector: str
    job: str
    wanted: JobWish
    known_kind: str = ""
    """The tasks report a job of this kind under this id, whether or not there is a record of it."""


Request = PutConnector | DeleteConnector | Restart | PutSetting | PutJob | ChangeJob


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a Request, given after the worker has read its own record back.

    `outcome` other than ok: `not_leader` (forward to `leader_url`), `no_leader` (409 with Retry-After), `exists`,
    `not_found`, `version_mismatch`, `conflict` (e.g. restart of a stopped connector's task), `too_large` (for one
    record of the config log), `timeout`.
    """

    outcome: Literal[
        "ok", "not_leader", "no_leader", "exists", "not_found", "version_mismatch", "conflict", "too_large", "timeout"
    ]
    created: bool = False
    leader_url: str = ""
    leader_epoch: int = 0
    version: int = 0
    detail: str = ""
    job: str = ""
