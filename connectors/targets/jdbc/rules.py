"""What a config says about rows and tables; a name of another product's class stands for that one's defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from cdcworker.connectors.record_sink.errors import TARGET_REFUSES
from cdcworker.connectors.targets.jdbc.config import CONFLUENT, DEBEZIUM
from cdcworker.schemas.errors import CdcError

BATCH_DEFAULT: Final = 1_000
KAFKA_COLUMNS: Final = ("__connect_topic", "__connect_partition", "__connect_offset")
InsertMode = Literal["insert", "upsert", "update"]
KeyMode = Literal["none", "kafka", "record_key", "record_value"]


@dataclass(frozen=True, slots=True)
class WriteRules:
    """How records become rows."""

    insert_mode: InsertMode = "upsert"
    key_mode: KeyMode = "record_key"
    key_fields: tuple[str, ...] = ()
    deletes: bool = True
    truncates: bool = False
    creates: bool = True
    evolves: bool = True
    table_format: str = "${topic}"
    dotted: bool = False
    """Whether a topic keeps its dots in ${topic}."""
    folds: bool = False
    """Whether names are lower case, as PostgreSQL makes them of names without quotes."""
    included: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    position: str = ""

    def takes(self, topic: str, field: str) -> bool:
        """Returns whether a field of the row becomes a column."""
        if self.included:
            return _listed(self.included, topic, field)
        return not _listed(self.excluded, topic, field)


def _listed(names: Sequence[str], topic: str, field: str) -> bool:
    return field in names or f"{topic}:{field}" in names


def rules_of(config: Mapping[str, Any], connector_class: str) -> WriteRules:
    """Returns the rules of a parsed config. CdcError where they contradict each other with the defaults of the class."""
    other = connector_class in (*DEBEZIUM, *CONFLUENT)
    mode: KeyMode = config["primary.key.mode"] or ("none" if other else "record_key")
    evolution = config["schema.evolution"] or ("none" if other else "basic")
    quotes = config["quote.identifiers"]
    if config["quote.sql.identifiers"]:
        quotes = config["quote.sql.identifiers"].lower() == "always"
    deletes = config["delete.enabled"]
    rules = WriteRules(
        config["insert.mode"] or ("insert" if other else "upsert" if mode != "none" else "insert"),
        mode,
        tuple(config["primary.key.fields"]) or (KAFKA_COLUMNS if mode == "kafka" else ()),
        (not other and mode == "record_key") if deletes is None else deletes,
        config["truncate.enabled"],
        _said(config["auto.create"], evolution == "basic"),
        _said(config["auto.evolve"], evolution == "basic"),
        config["collection.name.format"],
        connector_class in CONFLUENT,
        not _said(quotes, connector_class not in DEBEZIUM),
        tuple(config["field.include.list"]),
        tuple(config["field.exclude.list"]),
        config["position.column"],
    )
    if rules.deletes and rules.key_mode != "record_key":
        raise CdcError(
            TARGET_REFUSES, "delete.enabled needs primary.key.mode=record_key", where={"key": "delete.enabled"}
        )
    if rules.insert_mode != "insert" and rules.key_mode == "none":
        text = f"insert.mode={rules.insert_mode} needs a primary.key.mode other than none"
        raise CdcError(TARGET_REFUSES, text, where={"key": "insert.mode"})
    return rules


def _said(value: bool | None, default: bool) -> bool:
    return default if value is None else value
