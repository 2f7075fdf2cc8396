"""The records of the offsets topic: keys, values, and the partition that holds the positions of a task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cdcworker.coordinator.errors import OFFSETS_FORMAT
from cdcworker.coordinator.model import JsonObject
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.untrusted.json_text import parse_json

FORMAT = 1
TASKS_MAX = 1 << 20
"""No connector has so many tasks."""


class OffsetKey(NamedTuple):
    """A key in Kafka Connect's form: the connector and the source partition, here `{"server": …, "task": n}`."""

    connector: str
    partition: tuple[tuple[str, str | int], ...]

    @property
    def task(self) -> int | None:
        """The number of the task; None if the partition does not name one."""
        value = dict(self.partition).get("task")
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < TASKS_MAX else None


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """A source position, with the connector's incarnation and the task epoch of its writer."""

    incarnation: str
    task_epoch: int
    position: JsonObject


def offset_key(connector: str, partition: Mapping[str, str | int]) -> str:
    """Returns the key as canonical JSON: equal partitions give equal bytes, so that compaction keeps one position of
    each."""
    return json.dumps([connector, dict(partition)], sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def parse_offset_key(key: str) -> OffsetKey:
    """Parses a key, also one written by Kafka Connect. Raises CdcError `coordinator.offsets_format`."""
    try:
        connector, partition = parse_json(key)
        if isinstance(connector, str) and isinstance(partition, dict):
            return OffsetKey(connector, tuple(sorted(partition.items())))
    except (ValueError, TypeError):
        pass
    raise CdcError(OFFSETS_FORMAT, "an offsets key is not [connector, partition]")


def offset_value(stored: OffsetRecord) -> JsonObject:
    """Returns the value of a position's record."""
    return {
        "v": FORMAT,
        "incarnation": stored.incarnation,
        "task_epoch": stored.task_epoch,
        "position": stored.position,
    }


def parse_offset_value(value: Mapping[str, Any]) -> OffsetRecord:
    """Parses a stored position. Raises CdcError `coordinator.offsets_format` for an unknown format (INV-9)."""
    version = value.get("v")
    if version != FORMAT or not isinstance(value.get("position"), dict):
        raise CdcError(OFFSETS_FORMAT, "a stored position has a format that this version cannot read")
    incarnation, task_epoch = value.get("incarnation", ""), value.get("task_epoch", 0)
    if not isinstance(incarnation, str) or isinstance(task_epoch, bool) or not isinstance(task_epoch, int):
        raise CdcError(OFFSETS_FORMAT, "a stored position holds a field of a wrong type")
    return OffsetRecord(incarnation, task_epoch, dict(value["position"]))


def offsets_partition(connector: str, task: int, partitions: int) -> int:
    """Returns the partition of a task's positions: FNV-1a of `connector:task`, the same in all processes and
    versions."""
    if partitions < 1:
        raise ValueError("the offsets topic has no partitions")
    state = 0x811C9DC5
    for byte in f"{connector}:{task}".encode():
        state = ((state ^ byte) * 0x01000193) & 0xFFFFFFFF
    return state % partitions
