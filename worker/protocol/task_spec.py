"""The spec of a task: one JSON object, the first line that the worker writes to the task process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal
from urllib.parse import quote


def transactional_id(group_id: str, connector: str, task: int) -> str:
    """Returns the fixed transactional id that fences a source task (INV-5); every owner of the task uses the same."""
    return ":".join(quote(part, safe="") for part in (group_id, connector, str(task)))


def other_transactional_id(group_id: str, connector: str, task: int) -> str:
    """Returns the id of the task's second data producer, which alternates with the first and is fenced together with
    it."""
    return transactional_id(group_id, connector, task) + ":other"


def schema_transactional_id(group_id: str, connector: str, task: int) -> str:
    """Returns the id of the task's producer that registers schemas; it is fenced together with the data producers."""
    return transactional_id(group_id, connector, task) + ":schema"


def sink_transactional_id(group_id: str, connector: str, task: int) -> str:
    """Returns the id under which a sink task commits the offsets of a target that keeps none."""
    return transactional_id(group_id, connector, task) + ":sink"


DATA_IDS: Final = (transactional_id, other_transactional_id)
TRANSACTIONAL_IDS: Final = (*DATA_IDS, schema_transactional_id)
"""Every transactional id under which a source task may write."""


@dataclass(frozen=True, slots=True)
class ClusterTopics:
    """The names of the cluster's internal topics."""

    configs: str
    offsets: str
    status: str
    schemas: str


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """Everything that a task process needs to run its task.

    `config` is the connector's config with the task's own keys merged in; references of config providers are not
    resolved yet. `kafka` holds librdkafka client properties, among them `bootstrap.servers`. `attempt` counts the
    starts of this task under one task epoch on this worker.
    """

    kind: Literal["source", "sink"]
    connector: str
    task: int
    incarnation: str
    task_epoch: int
    attempt: int
    worker_id: str
    boot_id: str
    paused: bool
    config: Mapping[str, str] = field(repr=False)
    kafka: Mapping[str, str] = field(repr=False)
    group_id: str
    topics: ClusterTopics
    offsets_partitions: int
    session_timeout_s: float
    state_dir: str
    providers: Mapping[str, str] = field(default_factory=dict)
    """The `config.providers.*` properties of the worker: what references in the config may read."""
    standby: bool = False
    """True if the process is a standby: it prepares the session that a task will need and waits for the task."""
    topic_prefixes: tuple[str, ...] = ()
    """What the names of the connector's topics begin with; empty: anything."""
    memory_limit_mb: int = 0
    """Memory that the task with its child processes may use, in MB; 0: no limit."""

    def to_json(self) -> dict[str, Any]:
        return {"type": "spec", **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TaskSpec:
        """Reads a spec. Unknown members are ignored, so that a newer worker can start an older task module."""
        known = {item.name: data[item.name] for item in fields(cls) if item.name in data}
        topics = {item.name: known["topics"][item.name] for item in fields(ClusterTopics)}
        prefixes = tuple(known.get("topic_prefixes", ()))
        return cls(**{**known, "topics": ClusterTopics(**topics), "topic_prefixes": prefixes})

    def to_line(self) -> bytes:
        return json.dumps(self.to_json(), separators=(",", ":")).encode() + b"\n"
