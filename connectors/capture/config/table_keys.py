"""Configuration keys of captured tables and of their records, under Debezium's names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cdcworker.connectors.capture.config.message_keys import message_keys
from cdcworker.connectors.config.definition import ConfigKey, one_of, regex_list

# Debezium skips truncates by default; our sinks apply them, so nothing is skipped unless asked for.
SKIPPED_DEFAULT: tuple[str, ...] = ()
_GROUP = "Tables"


def _skipped(value: Iterable[str]) -> str | None:
    wrong = [item for item in value if item.lower() not in ("c", "u", "d", "t", "none")]
    return "expects a list of c, u, d, t, or none" if wrong else None


def name_list_keys(names: Sequence[str] = ("schema", "table", "column")) -> Iterable[ConfigKey]:
    """The include and exclude list of each name; the first name is the database's word for what holds tables."""
    for name in names:
        for kind in ("include", "exclude"):
            yield ConfigKey(
                f"{name}.{kind}.list",
                "LIST",
                validator=regex_list,
                importance="HIGH" if name == "table" else "MEDIUM",
                group=_GROUP,
                connects=False,
                doc=f"Anchored regular expressions of full {name} names; only one of include and exclude.",
            )


def record_keys(*, whole_rows: str) -> Iterable[ConfigKey]:
    """The keys of which changes become records, under which keys. `whole_rows` is the setting of the database that makes
    it log whole old rows."""
    yield ConfigKey("tombstones.on.delete", "BOOLEAN", True, group=_GROUP, doc="A tombstone after each delete.")
    yield ConfigKey(
        "skipped.operations", "LIST", list(SKIPPED_DEFAULT), validator=_skipped, group=_GROUP,
        doc="Operations that are not handed on. Default none: sinks apply truncates (Debezium's default is t). A change of the key"
        " is a delete and a create, not an update.",
    )  # fmt: skip
    yield ConfigKey(
        "skip.messages.without.change", "BOOLEAN", False, group=_GROUP,
        doc=f"Leave out updates that change none of the captured columns; needs {whole_rows}.",
    )  # fmt: skip
    yield ConfigKey(
        "message.key.columns", default="", validator=message_keys, group=_GROUP,
        doc="Keys of records instead of the primary key: schema.table:column,…;… Tables are regular expressions.",
    )  # fmt: skip


def unavailable_value_key() -> ConfigKey:
    """Returns what a record holds in place of a value that the database did not log."""
    return ConfigKey(
        "unavailable.value.placeholder", default="__debezium_unavailable_value", group=_GROUP, importance="LOW"
    )


def failure_keys() -> Iterable[ConfigKey]:
    """The keys of what becomes of a table that has changed, or of which a change cannot be handed on."""
    group = "Error handling"
    yield ConfigKey(
        "schema.change.policy", default="evolve", validator=one_of("evolve", "pause-table", "halt"), group=group,
        recommended=("evolve", "pause-table", "halt"),
        doc="A table's columns or key change: follow, hold the table back until it is taken back, or halt the task.",
    )  # fmt: skip
    yield ConfigKey(
        "table.failure.policy", default="quarantine", validator=one_of("quarantine", "halt"), group=group,
        recommended=("quarantine", "halt"),
        doc="A change cannot be handed on: hold its table back while the others go on, or halt the task.",
    )  # fmt: skip
