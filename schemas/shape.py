"""For sources that write records themselves: how a table's records are framed, where they go, and the records made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cdcworker.schemas.binary import Write, compile_type
from cdcworker.schemas.change import Position, Table
from cdcworker.schemas.encode import Plan


@dataclass(frozen=True, slots=True)
class Shape:
    """`plan` has its ids. A record of more bytes than `record_bytes_max` is handed on as a change."""

    plan: Plan
    partitions: int
    record_bytes_max: int
    tombstones: bool
    unavailable: str


class Shaper(Protocol):
    """What a runner lends to a source that can write records of the default form."""

    @property
    def turns(self) -> int:
        """Shapes are valid as long as it stays the same."""

    def shape(self, table: Table, position: Position) -> Shape:
        """Registers the table's schemas if need be (INV-4); may take as long as that takes."""

    def tails(self) -> dict[str, bytes]:
        """What follows the transaction block, by operation."""


def field_runs(fields: Sequence[Mapping[str, Any]], *, cuts: Sequence[str]) -> list[list[tuple[str, Write]]]:
    """The fields' writers in runs between the fields named in `cuts`, which belong to no run. ValueError if they are
    not all there, in this order."""
    named: dict[str, Write] = {}
    runs: list[list[tuple[str, Write]]] = [[]]
    met = []
    for field in fields:
        write = compile_type(field["type"], named)
        if field["name"] in cuts:
            met.append(field["name"])
            runs.append([])
        else:
            runs[-1].append((field["name"], write))
    if met != list(cuts):
        raise ValueError("the record has other fields")
    return runs
