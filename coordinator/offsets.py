"""Pure key and value forms of the offsets log, and the partition of each task's positions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cdcworker.coordinator.errors import OFFSETS_FORMAT
from cdcworker.coordinator.model import JsonObject
from cdcworker.schemas.errors import CdcError

FORMAT = 1


class OffsetKey(NamedTuple):
    """Connect's form: the connector and the source partition, here `{"server": …, "task": n}`, as canonical JSON."""

    connector: str
    partition: tuple[tuple[str, str | int], ...]

    @property
    def task(self) -> int | None:
        value = dict(self.partition).get("task")
        return value if isinstance(value, int) else None


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """A position with the incarnation and epoch of the task that wrote it."""

    incarnation: str
    task_epoch: int
    position: JsonObject


def offset_key(connector: str, partition: Mapping[str, str | int]) -> str:
    """The record key. Equal partitions give equal bytes, else compaction would keep two positions of one task."""
    return json.dumps([connector, dict(partition)], sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def parse_offset_key(key: str) -> OffsetKey:
    """The parts of a key; also takes keys that Connect wrote."""
    try:
        connector, partition = json.loads(key)
        if isinstance(connector, str) and isinstance(partition, dict):
            return OffsetKey(connector, tuple(sorted(partition.items())))
    except (ValueError, TypeError):
        pass
    raise CdcError(OFFSETS_FORMAT, "an offsets key is not [connector, partition]")


def offset_value(stored: StoredPosition) -> JsonObject:
    return {
        "v": FORMAT,
        "incarnation": stored.incarnation,
        "task_epoch": stored.task_epoch,
        "position": stored.position,
    }


def parse_offset_value(value: Mapping[str, Any]) -> StoredPosition:
    """A stored position. A newer format is refused: half of a position is not one (INV-9)."""
    version = value.get("v")
    if version != FORMAT or not isinstance(value.get("position"), dict):
        raise CdcError(OFFSETS_FORMAT, "a stored position has a format that this version cannot read")
    return StoredPosition(str(value.get("incarnation", "")), int(value.get("task_epoch", 0)), dict(value["position"]))


def offsets_partition(connector: str, task: int, partitions: int) -> int:
    """The partition of all positions of one task: FNV-1a of `connector:task`, the same in every process and version."""
    if partitions < 1:
        raise ValueError("the offsets topic has no partitions")
    state = 0x811C9DC5
    for byte in f"{connector}:{task}".encode():
        state = ((state ^ byte) * 0x01000193) & 0xFFFFFFFF
    return state % partitions
