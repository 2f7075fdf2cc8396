"""Rows that were read get the next positions at one boundary of the stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cdcworker.connectors.capture.snapshot.progress import SNAPSHOT_INDEX, SnapshotProgress
from cdcworker.schemas.change import Change, JsonObject, Position, Row, Table
from cdcworker.schemas.record_layout import field_runs


class RowPositions:
    """Positions behind the commit of this number for rows of one table. `source`: the `source` block but for the position."""

    def __init__(self, progress: SnapshotProgress, number: int, table: Table, source: JsonObject) -> None:
        if progress.e != number:
            progress.e, progress.n = number, 0
        self.progress = progress
        self._table = table
        self._source: JsonObject = {**source, "commit_lsn": number, "tx_index": SNAPSHOT_INDEX}

    @property
    def next(self) -> Position:
        return Position(self.progress.e, SNAPSHOT_INDEX, self.progress.n)

    def row(self, row: Row) -> Change:
        """Returns the change of a row."""
        change = Change("r", self._table, self.next, self._numbered(), None, row)
        self.passed(self.progress.n + 1)
        return change

    def deleted_row(self, key: Sequence[int], values: Sequence[Any]) -> Change:
        """Returns the deletion of a row of which only the key is known: the values of these columns."""
        before: list[Any] = [None] * len(self._table.columns)
        for index, value in zip(key, values, strict=True):
            before[index] = value
        change = Change("d", self._table, self.next, self._numbered(), before=tuple(before), after=None)
        self.passed(self.progress.n + 1)
        return change

    def truncate(self) -> Change:
        """Returns the change by which readers empty the table before its rows come again."""
        change = Change("t", self._table, self.next, self._numbered())
        self.progress.n += 1
        return change

    def passed(self, number: int) -> None:
        """Rows have taken the numbers before this one."""
        self.progress.rows += number - self.progress.n
        self.progress.n = number

    def encoded_source(self) -> bytes:
        """Returns the source block up to the number that differs from row to row. Raises ValueError where it goes on behind it."""
        run, behind = field_runs(self._table.source_schema["fields"], cuts=("tx_sub",))
        if behind:
            raise ValueError("the source block goes on behind the position")
        return b"".join([write(self._source[name]) for name, write in run])

    def _numbered(self) -> JsonObject:
        return {**self._source, "tx_sub": self.progress.n}
