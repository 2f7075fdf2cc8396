"""What a sink's configuration says of how its batches are built and applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cdcworker.connectors.sink_engine.config import RECORDS_MAX, records_max
from cdcworker.connectors.sink_engine.warehouse_kinds import kind_of
from cdcworker.connectors.warehouses.output_config import keeps_versions
from cdcworker.connectors.warehouses.schema_policy import pausing


@dataclass(frozen=True, slots=True)
class SinkPolicy:
    """The part of a configuration that the pump follows, whatever reads and whatever writes."""

    records_max: int = RECORDS_MAX
    """Bound of a batch."""
    is_log: bool = False
    """Every change is a row of its own."""
    keeps_versions: bool = False
    """Every change of a table with a key is a version of its row."""
    is_tolerant: bool = False
    """Records that cannot be decoded are set aside as dead letters."""
    pauses_tables: bool = False
    """A change of schema that is not followed pauses its table alone."""
    shows_transactions: bool = False
    """Readers of the target see whole transactions only."""
    location: str = ""
    """Where the ledger lies, if that place may vanish without an error; else empty."""


def policy_of(given: Mapping[str, str], config: Mapping[str, Any]) -> SinkPolicy:
    """Returns the policy of a parsed config; `given` is the config as it was submitted."""
    return SinkPolicy(
        records_max=records_max(given, config),
        is_log=config["output.mode"] == "log",
        keeps_versions=keeps_versions(config),
        is_tolerant=config["errors.tolerance"] == "all",
        pauses_tables=pausing(config),
        shows_transactions=config["consistency"] == "source",
        location=kind_of(config).location(config),
    )
