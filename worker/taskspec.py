"""What a worker tells a task's process at its start: one JSON object, the first line on the pipe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal


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
