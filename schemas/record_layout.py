"""Record layouts, for sources that encode records themselves: how a table's records are framed and partitioned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cdcworker.schemas.avro_binary import Write, compile_type
from cdcworker.schemas.change import Position, Table
from cdcworker.schemas.encode import TablePlan


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """How records of a table are written. The schemas of `plan` are registered.

    A record above `record_bytes_max` bytes is not written but delivered as a change. `unavailable` is the placeholder
    of unchanged TOAST values.
    """

    plan: TablePlan
    partitions: int
    record_bytes_max: int
    tombstones: bool
    unavailable: str


class RecordLayouts(Protocol):
    """The record layouts that the runner gives to a source that encodes records of the default format itself."""

    @property
    def version(self) -> int:
        """A number that changes when layouts become invalid."""

    def layout(self, table: Table, position: Position) -> RecordLayout:
        """Returns the layout of a table from `position` on. It may block to register the schemas first (INV-4)."""

    def tails(self) -> dict[str, bytes]:
        """Returns the bytes after the transaction block, by operation."""

    @property
    def clock_ns(self) -> Callable[[], int]:
        """The clock whose time these bytes hold, in nanoseconds."""


def field_runs(fields: Sequence[Mapping[str, Any]], *, cuts: Sequence[str]) -> list[list[tuple[str, Write]]]:
    """Returns the writers of the fields in runs between the fields named in `cuts`, which belong to no run.

    Raises ValueError if these fields are not all present in this order.
    """
    named: dict[str, Write] = {}
    runs: list[list[tuple[str, Write]]] = [[]]
    cuts_found = []
    for field in fields:
        write = compile_type(field["type"], named)
        if field["name"] in cuts:
            cuts_found.append(field["name"])
            runs.append([])
        else:
            runs[-1].append((field["name"], write))
    if cuts_found != list(cuts):
        raise ValueError("the record has other fields")
    return runs
