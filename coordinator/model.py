"""The cluster's words as frozen values: what the logs fold to, what is asked of the herd, what tasks report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

JsonObject = dict[str, Any]
TargetState = Literal["RUNNING", "PAUSED", "STOPPED"]
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


@dataclass(frozen=True, slots=True)
class Assignment:
    """`assignment/<worker_id>`: what this boot of the worker runs and what it must let go first."""

    boot_id: str
    tasks: tuple[AssignedTask, ...] = ()
    revoke: tuple[AssignedTask, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """`command/<id>`: executed at most once per boot id, ignored on replay and after `expires_ms` (wall clock)."""

    id: str
    kind: str
    scope: JsonObject
    expires_ms: int


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What the config log folds to. `version` is the offset after the last record taken."""

    leader: Leader | None = None
    connectors: Mapping[str, Connector] = field(default_factory=dict)
    task_sets: Mapping[str, TaskSet] = field(default_factory=dict)
    assignments: Mapping[str, Assignment] = field(default_factory=dict)
    deadlines: Mapping[str, JsonObject] = field(default_factory=dict)
    commands: Mapping[str, Command] = field(default_factory=dict)
    settings: Mapping[str, JsonObject] = field(default_factory=dict)
    """Records of kinds without a type of their own (`fenced/…`, `session-key`, `logger/…`, `setting/…`), by full key."""
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


Request = PutConnector | DeleteConnector | Restart


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a Request, given after the worker has read its own record back.

    `outcome` other than ok: `not_leader` (forward to `leader_url`), `no_leader` (409 with Retry-After), `exists`,
    `not_found`, `version_mismatch`, `conflict` (e.g. restart of a stopped connector's task), `timeout`.
    """

    outcome: Literal["ok", "not_leader", "no_leader", "exists", "not_found", "version_mismatch", "conflict", "timeout"]
    created: bool = False
    leader_url: str = ""
    version: int = 0
    detail: str = ""
