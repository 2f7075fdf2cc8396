"""One event of the stream as a snapshot that is under way sees it."""

from __future__ import annotations

from typing import Any, Protocol

from cdcworker.connectors.capture.snapshot.visibility import TransactionId
from cdcworker.schemas.change import Op, Row, Table


class PlansTable(Protocol):
    """How a source reads the rows of one table; a snapshot looks at the table's shape only."""

    @property
    def table(self) -> Table: ...


class RowObserver(Protocol):
    """Sees every event of a captured table while a snapshot is under way; may say that one is to be left out."""

    def began(self, transaction: TransactionId, /) -> None:
        """The events that follow are of this transaction."""

    def event(self, plan: PlansTable, event: RowEvent) -> bool:
        """Returns whether the event is handed on."""

    def undone(self) -> None:
        """Events of the transaction that is being read do not count after all."""

    def reshaped(self, plan: PlansTable) -> None:
        """The events that follow have this shape of the table."""


class RowEvent:
    """One event of one table. `data` is the message as the source has it, of which only the source reads anything;
    `same`: the update changes none of the captured columns; `is_partial`: values were not sent that no reader has from before;
    `emitted`: the event is handed on."""

    __slots__ = ("after", "before", "data", "emitted", "is_partial", "key_changed", "op", "same", "unchanged")

    def __init__(self, op: Op, data: Any) -> None:
        self.op = op
        self.data = data
        self.before: Row | None = None
        self.after: Row | None = None
        self.unchanged: tuple[int, ...] = ()
        self.key_changed = False
        self.same = False
        self.is_partial = False
        self.emitted = True
