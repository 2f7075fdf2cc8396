"""A source task's place in the cluster's own topics: its names, its keys, and whether an assignment is its own."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.api.source import NamesPartitions
from cdcworker.connectors.registry.names import lookup
from cdcworker.coordinator.log.config_fold import should_run
from cdcworker.coordinator.log.offset_records import offset_key, offsets_partition
from cdcworker.coordinator.model import AssignedTask, ClusterState
from cdcworker.schemas.untrusted.json_text import JsonRefused, parse_json
from cdcworker.worker.protocol.task_spec import TaskSpec

FETCH_WAIT_MS: Final = "10"


def client_id(spec: TaskSpec, part: str) -> str:
    return f"{spec.worker_id}-{spec.connector}-{spec.task}-{part}"


def position_key(spec: TaskSpec) -> str:
    """Returns the key of the task's position: the source's own partition of what the task reads, in Connect's form."""
    name = spec.config.get("connector.class", "")
    source = lookup(name).load()(spec.config) if name else None
    if isinstance(source, NamesPartitions):
        return offset_key(spec.connector, source.partition(spec.task))
    return offset_key(spec.connector, {"server": spec.config.get("topic.prefix", ""), "task": spec.task})


def position_partition(spec: TaskSpec) -> int:
    return offsets_partition(spec.connector, spec.task, spec.offsets_partitions)


def owns(state: ClusterState, spec: TaskSpec) -> bool:
    """Returns whether the config log, read to its end, names this very start as the owner. Only valid after the
    fence."""
    assignment = state.assignments.get(spec.worker_id)
    entry = AssignedTask(spec.connector, spec.incarnation, spec.task, spec.task_epoch)
    if assignment is None or assignment.boot_id != spec.boot_id or entry not in assignment.tasks:
        return False
    return should_run(state, entry)


def same_key(one: str, other: str) -> bool:
    """Keys are compared as JSON: other writers may order or space them differently."""
    if one == other:
        return True
    try:
        return bool(parse_json(one) == parse_json(other))
    except JsonRefused:
        return False


def quick(spec: TaskSpec) -> dict[str, str]:
    """Client properties for readers that live for moments: their end must not wait for a long poll."""
    return {"consumer.fetch.wait.max.ms": FETCH_WAIT_MS, **spec.kafka}
