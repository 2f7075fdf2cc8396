"""A warehouse: writes batches of tables with its ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from cdcworker.connectors.api.table_batch import SinkBatch

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TargetRows:
    """A table of the target as one reader sees it at one moment: `applied` is the highest position per partition of its
    topic that these rows hold, `batches` are Arrow record batches of all rows, each of which may be read once."""

    name: str
    key: tuple[str, ...]
    applied: Mapping[int, bytes]
    batches: Iterator[pa.RecordBatch]
    close: Callable[[], None] = field(default=lambda: None)
    """To be called when the rows are read, or no longer wanted."""


class TableWriter(Protocol):
    """A warehouse. Takes Arrow; one thread at a time calls it, but for `cancel`. Every method raises CdcError.

    What a writer may be able to do besides are the Protocols of `warehouses.abilities`.
    """

    def fence(self, epoch: tuple[int, int]) -> None:
        """Raises the fence in a committed step; CdcError of kind `fenced` if a higher one is there."""

    def claim(self, topics: Sequence[str]) -> None:
        """Fences off whoever applied these topics before under another task number."""

    def ledger(self) -> Mapping[tuple[str, int], int]:
        """Returns the next offset per (topic, partition), read after `fence` and `claim`."""

    def apply(self, batch: SinkBatch) -> Mapping[str, Any]:
        """Writes rows and ledger in one step of the target, or one per table where it knows no larger ones (INV-8). Returns
        counts: rows, changes, orphans, tables (changes by name), replayed (all of it had been applied before)."""

    def rows(self, topic: str) -> TargetRows | None:
        """Returns what a reader sees of a topic's table; None: there is no such table yet."""

    def cancel(self) -> None:
        """Breaks off what `apply` does in another thread, if that can be."""

    def close(self) -> None:
        """Lets go of every connection, also after an error."""
