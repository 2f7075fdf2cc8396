"""Pieces of statements that servers spell alike but for how names and texts are quoted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cdcworker.connectors.warehouses.sql.target_table import OwnColumn, TombstonePlace


@dataclass(frozen=True, slots=True)
class StatementText:
    """`quote` writes a name, `literal` a text."""

    quote: Callable[[str], str]
    literal: Callable[[str], str]

    def listed(self, names: Sequence[str], prefix: str = "") -> str:
        """Returns names, separated by commas."""
        return ", ".join(prefix + self.quote(name) for name in names)

    def clause(self, own: OwnColumn) -> str:
        """Returns the declaration of a column of the sink's."""
        return f"{self.quote(own.name)} {own.type}" + (f" default {own.value}" if own.value else "")

    def tombstones_of(self, place: TombstonePlace) -> str:
        """Returns a condition on tombstones `b`."""
        return f"b.sink = {self.literal(place.sink)} and b.topic = {self.literal(place.topic)}"
