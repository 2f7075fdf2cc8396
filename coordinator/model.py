"""The cluster's vocabulary as frozen values: the state in the logs, the requests of REST, the reports of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

JsonObject = dict[str, Any]
PROTOCOL = 5
"""The version of the log format and its rules that this worker follows. Protocol 2 added return deadlines, pending
fences and the rebalance journal; protocol 3 fences both data producers of a source task; protocol 4 signs requests
between workers for one receiver; protocol 5 knows connections."""
FLOOR = 1
"""The lowest protocol of other workers that this version can share a cluster with."""
TargetState = Literal["RUNNING", "PAUSED", "STOPPED"]
JobWish = Literal["RUNNING", "PAUSED", "CANCELLED"]
TaskState = Literal["UNASSIGNED", "RUNNING", "PAUSED", "FAILED", "RESTARTING", "STOPPED"]


class TaskId(NamedTuple):
    """A task of a connector; tasks are numbered from 0."""

    connector: str
    task: int

    def __str__(self) -> str:
        return f"{self.connector}-{self.task}"


class AssignedTask(NamedTuple):
    """One task of an assignment. `task_epoch` is `leader epoch << 20 | counter`: it increases strictly over all
    leaders."""

    connector: str
    incarnation: str
    task: int
    task_epoch: int

    @property
    def id(self) -> TaskId:
        return TaskId(self.connector, self.task)


@dataclass(frozen=True, slots=True)
class Leader:
    """The `leader` record: the newest leader that the config log knows."""

    epoch: int
    worker_id: str
    boot_id: str
    url: str
    hint: int = 0
    member: str = ""
    """What names the leader's place in the election: the member id of the consumer group, which only this membership
    ever has. Empty from a worker whose version or backend names none: nobody can take it out."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Unknown fields, written by a newer version. All records keep them when they are written again."""


@dataclass(frozen=True, slots=True)
class Connector:
    """The `connector/<name>` record: config and target state together. `version` counts all changes (the ETag of
    REST)."""

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
    """The value of `version` when the config last changed; pausing raises `version` alone."""
    topic_prefixes: tuple[str, ...] = ()
    """What the names of the connector's topics begin with, by the grant of who made it; empty: anything."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""
    """Why the connector's record cannot be read. Such a connector is STOPPED without a config, and shown as FAILED."""


@dataclass(frozen=True, slots=True)
class Connection:
    """The `connection/<name>` record: addresses and logins that connectors name instead of having them in their
    configs."""

    name: str
    incarnation: str
    version: int
    """It counts all changes (the ETag of REST)."""
    config: Mapping[str, str] = field(repr=False)
    """Keys of connectors with their values, and the `connector.class` by whose definition they are read."""
    created_ms: int = 0
    updated_ms: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskSet:
    """The `tasks/<name>` record: the configs of all tasks of a connector. Void unless its incarnation is the
    connector's."""

    incarnation: str
    config_version: int
    tasks: tuple[Mapping[str, str], ...]
    error: JsonObject | None = None
    """The reason why the connector could not be split into tasks (a CdcError as JSON). With an older `config_version`
    the previous tasks keep running and the split is retried; otherwise `tasks` is empty and an operator has to act."""
    task_epoch: int = 0
    """The task epoch of this set: tasks assigned under a lower epoch belong to an older set."""
    connection: str = ""
    """The incarnation and version of the connection under which the connector was split; empty: it names none."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Assignment:
    """The `assignment/<worker_id>` record: the tasks that one boot of a worker runs, and those that it has to stop."""

    boot_id: str
    tasks: tuple[AssignedTask, ...] = ()
    revoke: tuple[AssignedTask, ...] = ()
    reason: str = ""
    causes: Mapping[str, str] = field(default_factory=dict)
    """The cause of each revocation, by task id; the journal repeats it when the task gets its next owner."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Command:
    """The `command/<id>` record: executed at most once per boot, never on replay nor after `expires_ms` (wall
    clock)."""

    id: str
    kind: str
    scope: JsonObject
    expires_ms: int
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReturnDeadline:
    """The `deadline/worker/<id>` record: tasks that wait for their worker to return.

    Every worker measures the delay by its own monotonic clock, from when it read the record.
    """

    boot_id: str
    """The boot of the worker that left. Another boot with the same worker id is the awaited return."""
    cause: str
    delay_ms: int
    tasks: tuple[AssignedTask, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FencedTasks:
    """The `fenced/<name>` record: tasks below `count` may have owners; the `pending` ones have none and are to be
    fenced."""

    count: int
    pending: tuple[int, ...] = ()
    incarnation: str = ""
    task_epoch: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


class TaskMove(NamedTuple):
    """One task changes its owner. An empty `source` or `target` stands for no worker."""

    connector: str
    task: int
    source: str
    target: str
    why: str


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """The `journal/<seq % 256>` record: one rebalance decision of the leader."""

    seq: int
    ts_ms: int
    cause: str
    moves: tuple[TaskMove, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    """The `job/<connector>/<id>` record: additional work for a connector's tasks, such as an on-demand snapshot."""

    connector: str
    id: str
    incarnation: str
    kind: str
    spec: Mapping[str, Any]
    """The parameters of the job; only the connector interprets them."""
    wanted: JobWish = "RUNNING"
    outcome: JsonObject | None = None
    """The final state and totals of the job; None while it has not ended."""
    created_ms: int = 0
    updated_ms: int = 0
    own: bool = True
    """Tells whether the job was created by this record. False for a job that the tasks started by themselves: its
    record only holds the requested state."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The state that the config log folds to. `version` is the offset after the last record that was read."""

    leader: Leader | None = None
    connectors: Mapping[str, Connector] = field(default_factory=dict)
    connections: Mapping[str, Connection] = field(default_factory=dict)
    task_sets: Mapping[str, TaskSet] = field(default_factory=dict)
    assignments: Mapping[str, Assignment] = field(default_factory=dict)
    deadlines: Mapping[str, ReturnDeadline] = field(default_factory=dict)
    """Return deadlines by `worker/<id>`."""
    fenced: Mapping[str, FencedTasks] = field(default_factory=dict)
    journal: Mapping[str, JournalEntry] = field(default_factory=dict)
    """The rebalance journal by slot, a ring of 256; `seq` gives the order."""
    commands: Mapping[str, Command] = field(default_factory=dict)
    jobs: Mapping[str, Job] = field(default_factory=dict)
    """Jobs by `<connector>/<id>`."""
    settings: Mapping[str, JsonObject] = field(default_factory=dict)
    """Records of kinds without a type of their own (`session-key`, `logger/…`, `setting/…`), by full key."""
    epoch: int = 0
    version: int = 0
    stale_keys: frozenset[str] = frozenset()
    """Keys whose latest record in the log is of an older leader epoch and does not count; the leader rewrites them."""


@dataclass(frozen=True, slots=True)
class Presence:
    """The `worker/<id>` record of the status log: a worker announces itself and what it can do."""

    worker_id: str
    boot_id: str
    url: str
    version: str
    plugins_hash: str
    capacity: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)
    draining: bool = False
    returns: bool = False
    """Tells that the worker drains for a restart: its tasks wait for the next boot of this worker id."""
    prepared: bool = False
    """Tells that the worker has a warm standby process (with its Spark session) for the next sink task."""
    plugins: Mapping[str, str] = field(default_factory=dict)
    """Plugin versions by every name that a `connector.class` may have, and of transforms that do not ship with the worker. Of what does
    not ship the version begins with the distribution. Empty: unknown, so tasks of any plugin that ships may come."""
    protocol: int = PROTOCOL
    """The protocol that this worker follows; 1 in records without the field."""
    floor: int = FLOOR
    """The lowest protocol of other workers that this worker accepts."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """The `task/<connector>/<task>` record of the status log; readers keep the one with the largest (task_epoch,
    seq)."""

    connector: str
    task: int
    state: TaskState
    worker_id: str
    task_epoch: int
    seq: int = 0
    error: JsonObject | None = None
    metrics: JsonObject = field(default_factory=dict)
    """The last reported metrics: records, events_per_s, lag_s, position, tables …"""
    restarts: tuple[float, ...] = ()
    """The restarts that count against the restart budget, as ages in seconds at the time of the report. The next owner
    continues with the rest of the budget."""


@dataclass(frozen=True, slots=True)
class View:
    """The cluster as this worker knows it at one moment; REST answers from it."""

    worker_id: str
    boot_id: str
    url: str
    kafka_cluster_id: str
    ready: bool
    is_leader: bool
    state: ClusterState
    workers: Mapping[str, Presence]
    """The live workers: those whose lease has not lapsed by this worker's clock."""
    statuses: Mapping[TaskId, TaskStatus]
    topics: Mapping[str, frozenset[str]]
    """The topics that each connector uses, by connector."""
    former_topics: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The topics of each connector that an operator has had forgotten."""
    draining: bool = False
    last_tick_age_s: float = 0.0
    waiting_s: Mapping[TaskId, float] = field(default_factory=dict)
    """Tasks that wait for their worker to return, with the remaining time in seconds."""
    has_read_logs: bool = True
    """False while the worker still reads the cluster's logs: until then it cannot tell what exists."""

    @property
    def journal(self) -> tuple[JournalEntry, ...]:
        """The leader's last rebalance decisions, newest first."""
        return tuple(sorted(self.state.journal.values(), key=lambda entry: -entry.seq))


# Requests of REST to the leader. Each is answered with a Reply through a Future.


@dataclass(frozen=True, slots=True)
class PutConnector:
    """Creates or changes a connector. With `config` None the config stays and only the other fields change."""

    name: str
    config: Mapping[str, str] | None
    kind: Literal["source", "sink"] | None = None
    target_state: TargetState | None = None
    create_only: bool = False
    must_exist: bool = False
    if_version: int | None = None
    labels: Mapping[str, str] | None = None
    mark: str = ""
    """The idempotency key of the creating request. It is kept with the connector, so that a repeated request is
    recognized."""
    topic_prefixes: tuple[str, ...] | None = None
    """The bound of the connector's topics from now on; None: it stays as it is."""


@dataclass(frozen=True, slots=True)
class DeleteConnector:
    """Deletes a connector, its task set and its jobs. `if_version`: only if the connector still has this version."""

    name: str
    if_version: int | None = None


@dataclass(frozen=True, slots=True)
class PutConnection:
    """Creates or changes a connection. The tasks of the connectors that name it start again if its config changes.
    `if_version`: only if it still has this version; 0: only if there is none."""

    name: str
    config: Mapping[str, str] = field(repr=False)
    if_version: int | None = None
    must_exist: bool = False


@dataclass(frozen=True, slots=True)
class DeleteConnection:
    """Deletes a connection that no connector names. `if_version`: only if it still has this version."""

    name: str
    if_version: int | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """Restarts one task, or with `include_tasks` all of them; without either the connector alone, for which nothing
    runs."""

    connector: str
    include_tasks: bool = False
    only_failed: bool = False
    task: int | None = None


@dataclass(frozen=True, slots=True)
class PutSetting:
    """Writes a record without a type of its own, such as `session-key`. Its value may be a secret and is never printed
    (INV-11)."""

    name: str
    value: JsonObject = field(repr=False)


@dataclass(frozen=True, slots=True)
class PutJob:
    """Creates a job for a connector's tasks. If an equal job has not ended yet, the reply names that one."""

    connector: str
    kind: str
    spec: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True, slots=True)
class ChangeJob:
    """Pauses, resumes or cancels a job."""

    connector: str
    job: str
    wanted: JobWish
    known_kind: str = ""
    """The kind of the job according to the tasks' reports, for a job that the tasks started without a record."""


Request = PutConnector | DeleteConnector | PutConnection | DeleteConnection | Restart | PutSetting | PutJob | ChangeJob


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request. A reply about a change is given after the leader has read its own records back.

    Outcomes other than ok: `not_leader` (forward to `leader_url`), `no_leader` (409 with Retry-After), `exists`,
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
