"""What a driver takes from its connector's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from cdcworker.connectors.spark.cluster import Cluster


@dataclass(slots=True)
class Settings:
    trigger_ms: int = 250
    records_max: int = 100_000
    memory: str = "1g"
    cores: int = 2
    log: bool = False
    tolerant: bool = False
    pausing: bool = False
    whole: bool = False
    """Readers of the target see whole transactions only."""
    spark: tuple[tuple[str, str], ...] = ()
    """Settings of Spark besides the usual ones."""
    cluster: Cluster | None = None
    """Where tasks run; None: in the driver."""
    target: str = ""
    """Where a ledger lies that may be away together with what it tells of; empty: it cannot be."""
