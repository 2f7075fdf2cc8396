"""Configuration keys of snapshots: how the rows of tables are read beside the stream of changes."""

from __future__ import annotations

from collections.abc import Iterable

from cdcworker.connectors.config.definition import ConfigKey, between, matches, regex_list

SNAPSHOT_MODES = ("initial", "no_data", "initial_only", "always", "when_needed")
SNAPSHOT_ALIASES = {"never": "no_data", "schema_only": "no_data"}
"""Former names of modes."""
SNAPSHOT_MODES_UNAVAILABLE = ("configuration_based", "custom", "schema_only_recovery", "recovery", "exported")
_TWO_NAMES = matches(r"([^.]+\.[^.]+)?", "schema.table")


def _snapshot_mode(value: str) -> str | None:
    if value in SNAPSHOT_MODES or value in SNAPSHOT_ALIASES:
        return None
    if value in SNAPSHOT_MODES_UNAVAILABLE:
        return f"is not available; expects one of {', '.join(SNAPSHOT_MODES)}"
    return f"expects one of {', '.join(SNAPSHOT_MODES)}"


def snapshot_keys(load_key: ConfigKey) -> Iterable[ConfigKey]:
    """`load_key` is the database's own key of how busy it may be while rows are read."""
    group = "Snapshot"
    yield ConfigKey(
        "snapshot.mode", default="initial", validator=_snapshot_mode, recommended=SNAPSHOT_MODES, group=group,
        spellings=(*SNAPSHOT_ALIASES, *SNAPSHOT_MODES_UNAVAILABLE),
        importance="HIGH", doc="initial: rows first, then changes; no_data (never, schema_only): changes only; initial_only: rows only; "
        "always: rows again at every start; when_needed: rows again where the log does not reach back to the position.",
    )  # fmt: skip
    yield ConfigKey(
        "snapshot.chunk.max.bytes", "INT", 2 * 1024 * 1024, validator=between(4096, 256 * 1024 * 1024), group=group,
        importance="LOW", doc="Size of one chunk of rows, read in one short transaction.",
    )  # fmt: skip
    yield ConfigKey(
        "snapshot.max.threads", "INT", 2, validator=between(1, 64), group=group,
        doc="Connections that read rows at the same time; a large table is divided among them.",
    )  # fmt: skip
    yield ConfigKey(
        "snapshot.inflight.max.bytes", "INT", 8 * 1024 * 1024, validator=between(4096, 1024 * 1024 * 1024),
        group=group, importance="LOW", doc="Rows that were read and wait to be handed on; beyond it no more are read.",
    )  # fmt: skip
    yield ConfigKey(
        "snapshot.keyless.max.bytes", "LONG", 64 * 1024**3, validator=between(0), group=group, importance="LOW",
        doc="A table without a key is read in one transaction and not resumed: a larger one is held back. 0: whatever its size.",
    )  # fmt: skip
    yield load_key
    yield ConfigKey(
        "table.discovery.interval.ms", "INT", 10_000, validator=between(0, 86_400_000), group=group, importance="LOW",
        doc="How often to look for new tables that the filters choose; they are loaded beside the stream. 0: at starts only.",
    )  # fmt: skip
    yield ConfigKey(
        "signal.data.collection", group=group, importance="LOW", validator=_TWO_NAMES,
        doc="Debezium's signal table, schema.table: rows in it ask for snapshots.",
    )  # fmt: skip
    yield ConfigKey("snapshot.lock.timeout.ms", "LONG", 2_000, validator=between(10), group=group, importance="LOW")
    yield ConfigKey("snapshot.include.collection.list", "LIST", validator=regex_list, group=group, importance="LOW")
