"""The Spark sink's configuration: the keys of every sink into a warehouse, and those of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cdcworker.connectors.config.common_keys import TASK_KEYS, topic_checks
from cdcworker.connectors.config.definition import ConfigDef, ConfigKey, between
from cdcworker.connectors.sink_engine.config import (
    ACCEPTED,
    batch_keys,
    problems,
    registry_keys,
    target_keys,
    verify_keys,
)
from cdcworker.connectors.spark.runtime import cluster

MEMORY: Final = "1g"
CORES: Final = 2
MEMORY_MB_MIN: Final = 512
"""Of an executor. Spark refuses less than 450 MB: one and a half times what it reserves for itself."""
SYSTEM_BYTES_MIN: Final = 471_859_200
DRIVER_MB_MIN: Final = 520
"""Spark compares what Java counts as memory, which is the heap without one of its survivor spaces: an eighth of the driver's
heap, as its Java process is started."""


def _megabytes(value: str) -> int | None:
    number, unit = value[:-1], value[-1:]
    if not (number.isascii() and number.isdigit()) or unit not in ("m", "g"):
        return None
    return int(number) * (1024 if unit == "g" else 1)


def _memory(value: str) -> str | None:
    size = _megabytes(value)
    if size is None:
        return "expects a size such as 1g or 768m"
    return None if size >= MEMORY_MB_MIN else f"must be at least {MEMORY_MB_MIN}m"


def _driver_memory(value: str) -> str | None:
    size = _megabytes(value)
    if size is None or size >= DRIVER_MB_MIN:
        return None if size is not None else "expects a size such as 1g or 768m"
    seen = size * (1 << 20) // 8 * 7
    return (
        f"must be at least {DRIVER_MB_MIN}m: Spark refuses to start (System memory {seen} must be at least"
        f" {SYSTEM_BYTES_MIN}), since an eighth of the heap is kept free by Java's collector"
    )


def _driver_keys() -> Iterable[ConfigKey]:
    yield ConfigKey(
        "spark.driver.memory",
        default=MEMORY,
        validator=_driver_memory,
        importance="LOW",
        group="Spark",
        doc="Heap of Spark's Java process.",
    )
    yield ConfigKey(
        "spark.cores",
        "INT",
        CORES,
        validator=between(1, 256),
        importance="LOW",
        group="Spark",
        doc="Cores of Spark: in the task's own process, of all executors of a standalone cluster, or of one executor of any other.",
    )


def _problems(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    yield from problems(config)
    yield from cluster.check(config)


CONFIG_DEF: Final = ConfigDef(
    [
        *target_keys(),
        *batch_keys(),
        *_driver_keys(),
        *cluster.cluster_keys(_memory),
        *verify_keys(),
        *registry_keys(),
        *TASK_KEYS,
    ],
    ACCEPTED,
    _problems,
    always=topic_checks,
)
