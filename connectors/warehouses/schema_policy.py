"""What a sink does when a source's table has other columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from cdcworker.connectors.config.definition import ConfigKey, one_of
from cdcworker.connectors.sink_errors import SCHEMA_REFUSED
from cdcworker.connectors.warehouses.column_changes import ColumnNaming, Where
from cdcworker.schemas.errors import CdcError

EVERYTHING: Final = ("add", "rename", "widen")
"""Classes of changes that lose nothing; one that drops a column changes nothing in the target by itself."""
_FOLLOWED: Final[Mapping[str, tuple[str, ...]]] = {
    "evolve": EVERYTHING,
    "evolve-additive": ("add",),
    "pause-table": (),
    "halt": EVERYTHING,
    "fail": (),
}
_HALTING: Final = ("halt", "fail")


def followed(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Classes of changes."""
    return _FOLLOWED[config["schema.change.policy"]]


def pausing(config: Mapping[str, Any]) -> bool:
    """Returns whether a change of schema that is not followed pauses its table alone, instead of stopping the task."""
    return config["schema.change.policy"] not in _HALTING


def check(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if config["schema.change.drop"] == "delete" and followed(config) != EVERYTHING:
        yield "schema.change.drop", "expects keep with this schema.change.policy"


def judge(allowed: Collection[str], planned: ColumnNaming, own: Collection[str], where: Where) -> None:
    """CdcError SCHEMA_REFUSED where columns, but for the sink's `own`, would be named anew or added and may not."""
    for old, new in planned.names.items():
        if old != new and new not in own:
            refuse(allowed, "rename", old, where)
    for name in planned.added:
        if name not in own:
            refuse(allowed, "add", name, where)


def refuse(allowed: Collection[str], change: str, column: str, where: Where) -> None:
    if change not in allowed:
        text = f"schema.change.policy does not let the sink {change} a column"
        raise CdcError(SCHEMA_REFUSED, text, where={**where, "column": column})


def keys(group: str) -> Iterable[ConfigKey]:
    key = ConfigKey
    yield key(
        "schema.change.policy",
        default="evolve",
        validator=one_of(*_FOLLOWED),
        recommended=tuple(_FOLLOWED),
        group=group,
        doc="Followed by itself: added, renamed and wider columns (evolve, halt), added ones (evolve-additive), nothing"
        " (pause-table, fail). Any other change, or broken files of a lake's table, stops that table alone, which is tried"
        " again, from where it stopped, until its target fits; with halt and fail it halts the task.",
    )
    yield key(
        "schema.change.drop",
        default="keep",
        validator=one_of("keep", "delete"),
        recommended=("keep", "delete"),
        group=group,
        doc="A column that the source drops: keep leaves it in the warehouse, without values of new rows; delete takes it from"
        " tables of current state, which forgets its values there. Histories keep theirs.",
    )
