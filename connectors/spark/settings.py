"""What a task's Spark takes from its connector's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cdcworker.connectors.spark.runtime.cluster import SparkCluster, cluster_of
from cdcworker.connectors.spark.spark_host import spark_settings


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The session and the query of one task."""

    trigger_ms: int = 250
    memory: str = "1g"
    """Heap of the Java process."""
    cores: int = 2
    spark: tuple[tuple[str, str], ...] = ()
    """Settings of Spark besides the usual ones."""
    cluster: SparkCluster | None = None
    """Where Spark's tasks run; None: in the driver."""


def settings_of(config: Mapping[str, Any]) -> SparkSettings:
    """Returns the settings that a parsed config asks for."""
    return SparkSettings(
        config["trigger.interval.ms"],
        config["spark.driver.memory"],
        config["spark.cores"],
        spark_settings(config),
        cluster_of(config),
    )
