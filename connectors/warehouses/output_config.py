"""The config keys that say how rows come out, whatever the kind of warehouse, and the `OutputForm` that they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cdcworker.connectors.api.table_batch import POSITION, RESERVED
from cdcworker.connectors.config.definition import ConfigKey, one_of
from cdcworker.connectors.warehouses.schema_policy import followed
from cdcworker.connectors.warehouses.target_columns import OutputForm

SCD2: Final = "scd2"


def output_keys(group: str) -> Iterable[ConfigKey]:
    """Returns the keys `output.mode`, `delete.mode`, `position.column` and `synced.column`."""
    key = ConfigKey
    yield key(
        "output.mode",
        default="current",
        validator=one_of("current", "log", SCD2),
        recommended=("current", "log", SCD2),
        group=group,
        doc="current: one row per key as it is now. log: every change as a row of its own, in order of position.column."
        " scd2: every version of a row, with when it was valid (slowly changing dimension, type 2); of a table without a key as"
        " current.",
    )
    yield key(
        "delete.mode",
        default="hard",
        validator=one_of("hard", "soft"),
        recommended=("hard", "soft"),
        group=group,
        doc="hard: deleted rows go. soft: they stay, with _cdc_deleted set until the key comes back.",
    )
    yield key(
        "position.column",
        default=POSITION,
        group=group,
        doc="Name of the column with the position of a row's last change; a new one renames it. none: no such column; only with output.mode=log.",
    )
    yield key(
        "synced.column",
        default="",
        group=group,
        doc="Name of a column that says when a row was written, for example _synced_at; empty: none.",
    )


def position_column(config: Mapping[str, Any]) -> str:
    """Returns the name of the column of positions; empty: tables have none."""
    return "" if config["position.column"] == "none" else str(config["position.column"])


def keeps_versions(config: Mapping[str, Any]) -> bool:
    """Returns whether a parsed config asks for every version of a row."""
    return bool(config["output.mode"] == SCD2)


def output_of(config: Mapping[str, Any]) -> OutputForm:
    """Returns the form of the rows that a parsed config asks for."""
    return OutputForm(
        log=config["output.mode"] == "log",
        versions=keeps_versions(config),
        soft=config["delete.mode"] == "soft",
        synced=config["synced.column"],
        position=position_column(config),
        drop=config["schema.change.drop"] == "delete",
        follows=followed(config),
    )


def output_problems(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Returns keys whose column names are missing or taken, each with what is wrong."""
    if not position_column(config) and config["output.mode"] != "log":
        yield (
            "position.column",
            "is required unless output.mode=log: the sink tells older changes from newer ones by it",
        )
    if keeps_versions(config) and config["delete.mode"] == "soft":
        yield "delete.mode", "must be hard with output.mode=scd2: the versions of deleted rows stay anyhow"
    if keeps_versions(config) and config["schema.change.drop"] == "delete":
        yield "schema.change.drop", "must not be delete with output.mode=scd2: older versions have values in the column"
    for name in ("position.column", "synced.column"):
        if config[name].startswith(RESERVED) and config[name] != POSITION:
            yield name, "must not begin with _cdc_, as the sink's other columns do"
    if config["synced.column"] in (config["position.column"], POSITION):
        yield "synced.column", "is the name of another column of the sink"
