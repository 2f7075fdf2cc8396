"""What a worker tells a task's process at its start: one JSON object, the first line on the pipe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal
from urllib.parse import quote


def transactional_id(group_id: str, connector: str, task: int) -> str:
    """The fixed id that fences a source task (INV-5); the same for every owner the task ever has."""
    return ":".join(quote(part, safe="") for part in (group_id, connector, str(task)))


def other_transactional_id(group_id: str, connector: str, task: int) -> str:
    """The id of the producer that takes turns with the first one; fenced together with it."""
    return transactional_id(group_id, connector, task) + ":other"


def schema_transactional_id(group_id: str, connector: str, task: int) -> str:
    """The id of the task's producer that registers schemas; fenced together with the first."""
    return transactional_id(group_id, connector, task) + ":schema"


DATA_IDS: Final = (transactional_id, other_transactional_id)
TRANSACTIONAL_IDS: Final = (*DATA_IDS, schema_transactional_id)
"""All that a source task may write under."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Names of the cluster's own topics."""

    configs: str
    offsets: str
    status: str
    schemas: str


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """`config` is the connector's config with the task's share laid over it, references unresolved.

    `kafka` holds librdkafka client properties, `bootstrap.servers` among them. `attempt` counts the starts of this
    task under one task epoch on this worker.
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
    topics: Topics
    offsets_partitions: int
    session_timeout_s: float
    state_dir: str
    providers: Mapping[str, str] = field(default_factory=dict)
    """The worker's `config.providers.*` properties: what references in the config may read."""
    standby: bool = False
    """Not a task yet: the process gets everything ready that one will need, and waits for it."""
    memory_limit_mb: int = 0
    """What the worker lets the task use, its children included; 0: no limit."""

    def to_json(self) -> dict[str, Any]:
        return {"type": "spec", **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TaskSpec:
        """Unknown members are ignored, so that a newer worker can start an older task module."""
        known = {item.name: data[item.name] for item in fields(cls) if item.name in data}
        topics = {item.name: known["topics"][item.name] for item in fields(Topics)}
        return cls(**{**known, "topics": Topics(**topics)})

    def to_line(self) -> bytes:
        return json.dumps(self.to_json(), separators=(",", ":")).encode() + b"\n"
