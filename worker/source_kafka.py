"""A source task's place in the cluster's own topics: its names, its keys, and whether an assignment is its own."""

from __future__ import annotations

import json
from typing import Final

from cdcworker.connectors.registry import lookup
from cdcworker.coordinator.model import AssignedTask, ClusterState
from cdcworker.coordinator.offsets import offset_key, offsets_partition
from cdcworker.coordinator.state import is_wanted
from cdcworker.worker.taskspec import TaskSpec

FETCH_WAIT_MS: Final = "10"


def client_id(spec: TaskSpec, part: str) -> str:
    return f"{spec.worker_id}-{spec.connector}-{spec.task}-{part}"


def position_key(spec: TaskSpec) -> str:
    """Under the source's own name for what the task reads, as Connect stores it."""
    name = spec.config.get("connector.class", "")
    partition = getattr(lookup(name).load()(spec.config), "partition", None) if name else None
    if partition is not None:
        return offset_key(spec.connector, partition(spec.task))
    return offset_key(spec.connector, {"server": spec.config.get("topic.prefix", ""), "task": spec.task})


def position_partition(spec: TaskSpec) -> int:
    return offsets_partition(spec.connector, spec.task, spec.offsets_partitions)


def owns(state: ClusterState, spec: TaskSpec) -> bool:
    """Whether the config log, read to its end, names this very start as the owner. Only valid after the fence."""
    assignment = state.assignments.get(spec.worker_id)
    entry = AssignedTask(spec.connector, spec.incarnation, spec.task, spec.task_epoch)
    if assignment is None or assignment.boot_id != spec.boot_id or entry not in assignment.tasks:
        return False
    return is_wanted(state, entry)


def same_key(one: str, other: str) -> bool:
    """Keys are compared as JSON: other writers may order or space them differently."""
    if one == other:
        return True
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def quick(spec: TaskSpec) -> dict[str, str]:
    """Client properties for readers that live for moments: their end must not wait for a long poll."""
    return {"consumer.fetch.wait.max.ms": FETCH_WAIT_MS, **spec.kafka}
