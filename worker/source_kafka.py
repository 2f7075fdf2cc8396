"""What a source task reads from the cluster's own topics at its start: the assignment and its position."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from cdcworker.coordinator.api import Record
from cdcworker.coordinator.kafka_log import CompactedLog
from cdcworker.coordinator.model import AssignedTask, ClusterState
from cdcworker.coordinator.offsets import StoredPosition, offset_key, offsets_partition, parse_offset_value
from cdcworker.coordinator.state import fold_all, is_wanted
from cdcworker.worker.taskspec import TaskSpec

log = logging.getLogger(__name__)

READ_TIMEOUT_S: Final = 60.0
"""Somebody else's open transaction in the same partition may have to time out first."""
FETCH_WAIT_MS: Final = "20"


def client_id(spec: TaskSpec, part: str) -> str:
    return f"{spec.worker_id}-{spec.connector}-{spec.task}-{part}"


def position_key(spec: TaskSpec) -> str:
    return offset_key(spec.connector, {"server": spec.config.get("topic.prefix", ""), "task": spec.task})


def position_partition(spec: TaskSpec) -> int:
    return offsets_partition(spec.connector, spec.task, spec.offsets_partitions)


def still_assigned(spec: TaskSpec) -> bool:
    """Whether the config log, read to its end, names this very start as the owner. Only valid after the fence."""
    records = _read(spec, spec.topics.configs, "assignment")
    return owns(fold_all(ClusterState(), records), spec)


def owns(state: ClusterState, spec: TaskSpec) -> bool:
    assignment = state.assignments.get(spec.worker_id)
    entry = AssignedTask(spec.connector, spec.incarnation, spec.task, spec.task_epoch)
    if assignment is None or assignment.boot_id != spec.boot_id or entry not in assignment.tasks:
        return False
    return is_wanted(state, entry)


def read_position(spec: TaskSpec) -> StoredPosition | None:
    """The committed position; None: the task never ran, or its offsets were reset."""
    number = position_partition(spec)
    return last_position(_read(spec, spec.topics.offsets, "position", [number]), position_key(spec))


def last_position(records: Sequence[Record], key: str) -> StoredPosition | None:
    found: Mapping[str, object] | None = None
    for record in records:
        if same_key(record.key, key):
            found = record.value
    return parse_offset_value(found) if found is not None else None


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


def _read(spec: TaskSpec, topic: str, part: str, partitions: Sequence[int] | None = None) -> Sequence[Record]:
    # A position that cannot be read must not be taken for one that is not there (INV-9).
    source = CompactedLog(
        quick(spec), topic, client_id=client_id(spec, part), partitions=partitions, strict=partitions is not None
    )
    with contextlib.closing(source):
        return source.read_to_end(READ_TIMEOUT_S)
