"""Changes of a database that a source's task hands on in this process, in the form in which people read those of a topic."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from cdcworker.connectors.api.source import SourceTask
from cdcworker.schemas.change import Change, Row, Table
from cdcworker.schemas.display import Read, compile_display
from cdcworker.schemas.encode import UNCHANGED_HEADER
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.diagnostics.change_view import READERS_MAX, Json, shaped

NOT_WATCHED: Final = declare(
    "dev.not_watched",
    "config",
    "Changes of this kind of database cannot be looked at without a connector",
    "Create a connector (`cdcworker connector create`) and follow it with `cdcworker tail`.",
)


def changes(task: SourceTask, seconds: float | None = None) -> Iterator[Json]:
    """Yields what an open task hands on, for so many seconds or without an end. What has been taken is acknowledged, so that the
    server need not keep it."""
    view = ChangeForm()
    deadline = float("inf") if seconds is None else time.monotonic() + seconds
    while time.monotonic() < deadline:
        batch = task.poll()
        for change in batch.changes:
            if not isinstance(change, Change):
                raise TypeError("records are handed on ready only to whom layouts were lent")
            if change.table.plain is None:
                yield view.change(change)
        if batch.position is not None:
            task.ack(batch.position)


class ChangeForm:
    """Makes changes readable; what a table's types need is compiled once."""

    def __init__(self) -> None:
        self._readers: dict[int, tuple[Table, tuple[Read, ...]]] = {}

    def change(self, change: Change) -> Json:
        """Returns the change as `ChangeReader` does, without a place in a topic."""
        table, readers = change.table, self._of(change.table)
        before, after = _row(table, readers, change.before), _row(table, readers, change.after)
        row = after or before or {}
        key = {column.name: row.get(column.name) for column in table.key_columns} or None
        value = {"op": change.op, "source": change.source, "before": before, "after": after, "message": after}
        unchanged = ",".join(map(str, change.unchanged)).encode()
        topic = ".".join((str(change.source.get("name", "")), *table.path))
        out = {"written_ms": time.time_ns() // 1_000_000}
        return out | shaped(topic, key, value, {UNCHANGED_HEADER: unchanged} if unchanged else {})

    def _of(self, table: Table) -> tuple[Read, ...]:
        known = self._readers.get(id(table))
        if known is None:
            if len(self._readers) >= READERS_MAX:
                self._readers.clear()
            # The table is kept with them: its identity would be another's after its end.
            known = self._readers[id(table)] = table, tuple(compile_display(column.type) for column in table.columns)
        return known[1]


def _row(table: Table, readers: tuple[Read, ...], row: Row | None) -> Json | None:
    if row is None:
        return None
    return {
        column.name: None if value is None else read(value)
        for column, read, value in zip(table.columns, readers, row, strict=True)
    }


def require_watched(is_able: bool, name: str) -> None:
    """CdcError `dev.not_watched` for a source that cannot be looked at."""
    if not is_able:
        raise CdcError(NOT_WATCHED, f"the source {name} cannot be looked at")
