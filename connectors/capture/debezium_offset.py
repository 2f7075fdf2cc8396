"""Offsets in Debezium's form, as Kafka Connect keeps them: what those of all its relational connectors have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError, declare

OFFSET_UNFIT: Final = declare(
    "debezium.offset_unfit",
    "config",
    "Debezium's offset lacks a member or holds a wrong one",
    "Take it whole, as Kafka Connect's GET /connectors/{connector}/offsets shows it.",
)
SNAPSHOT_UNFINISHED: Final = declare(
    "debezium.snapshot_unfinished",
    "config",
    "Rows are still being read, and the other connector cannot go on with that",
    "Let the snapshot end first. Or begin without the offset, so that all rows are read.",
)
TRANSACTION_MISSING: Final = declare(
    "debezium.transaction_missing",
    "environment",
    "The log does not hold the transaction in which the position lies",
    "Let the connector that has the position run for a moment, stop it, and ask again.",
)
_ORDER: Final = "transaction_data_collection_order_"
_INCREMENTAL: Final = "incremental_snapshot_collections"


def number(offset: Mapping[str, Any], name: str) -> int | None:
    """Returns a number of an offset; None where it is missing. Raises CdcError for what is none."""
    value = offset.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CdcError(OFFSET_UNFIT, f"{name} of the offset is not a number", where={"member": name})
    return value


def require_streaming(offset: Mapping[str, Any]) -> None:
    """Raises CdcError for an offset of a snapshot that has not ended."""
    is_done = any(_is_true(offset.get(name)) for name in ("snapshot_completed", "last_snapshot_record"))
    if offset.get("snapshot") not in (None, False, "false") and not is_done:
        raise CdcError(SNAPSHOT_UNFINISHED, "Debezium has not ended its snapshot")


def notes_of(offset: Mapping[str, Any]) -> list[str]:
    """Returns what of an offset has no counterpart, as sentences for people."""
    if not offset.get(_INCREMENTAL):
        return []
    return ["Debezium's incremental snapshot has not ended; ask for a snapshot of its tables"]


def order_counts(offset: Mapping[str, Any]) -> dict[str, int] | None:
    """Returns how many events of the transaction were handed on, by data collection; None where they are not numbered."""
    found = {name.removeprefix(_ORDER): number(offset, name) for name in offset if name.startswith(_ORDER)}
    return {name: count for name, count in found.items() if count} or None


def with_orders(offset: JsonObject, identity: str, counts: Mapping[str, int] | None) -> JsonObject:
    """Returns an offset with the numbers of the events of the transaction under way."""
    if not counts:
        return offset
    return {**offset, "transaction_id": identity, **{f"{_ORDER}{name}": count for name, count in counts.items()}}


def _is_true(value: Any) -> bool:
    return value in (True, "true")
