"""Rows that were read become changes, each with the next position at one boundary of the stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from cdcworker.connectors.capture.snapshot.progress import SnapshotProgress
from cdcworker.connectors.capture.snapshot.row_identity import KeyTexts
from cdcworker.connectors.mysql.binlog.rows import UNSENT
from cdcworker.connectors.mysql.binlog.rows import Row as LoggedRow
from cdcworker.connectors.mysql.decode.commit_numbers import CommitNumbers
from cdcworker.connectors.mysql.decode.table_plan import TablePlan
from cdcworker.connectors.mysql.snapshot.chunk_reader import SelectedChunk, key_values
from cdcworker.connectors.mysql.snapshot.read_view import GtidVisibility, LogPlace
from cdcworker.connectors.mysql.snapshot.selected_values import key_text
from cdcworker.schemas.change import Change, EncodedRecords, JsonObject, Op, Position, Row

SNAPSHOT_INDEX: Final = 2**31 - 1
"""`tx_index` of snapshot rows: behind every row of the transaction before the boundary."""


class RowEmitter:
    """Hands on the rows of one task's snapshots: the `SnapshotSource` of MySQL and MariaDB. `numbers` are those of the stream."""

    def __init__(
        self,
        progress: SnapshotProgress,
        template: JsonObject,
        numbers: CommitNumbers,
        current: Callable[[], GtidVisibility],
        *,
        is_mariadb: bool,
    ) -> None:
        self.current = current
        self._progress = progress
        self._template = template
        self._numbers = numbers
        self._is_mariadb = is_mariadb

    def visibility(self, stored: str) -> GtidVisibility:
        return GtidVisibility(self.place(stored), exact=self._is_mariadb)

    def place(self, stored: str) -> LogPlace:
        return LogPlace.parse(stored, is_mariadb=self._is_mariadb)

    def stored_place(self, place: LogPlace) -> str:
        return str(place)

    def new_key(self, plan: TablePlan, message: LoggedRow) -> list[str] | None:
        """Returns the texts of the key of an updated row; None where the log does not hold all of it."""
        out = []
        for i in plan.table.key:
            place = plan.taken[i]
            value = UNSENT if message.after is None else message.after[place]
            if value is UNSENT and message.before is not None:
                value = message.before[place]
            if value is UNSENT or value is None:
                return None
            out.append(key_text(value))
        return out

    def emit(self, chunk: SelectedChunk, position: LogPlace) -> list[Change | EncodedRecords]:
        """Returns the rows that are left of a chunk: behind the transaction that was delivered last."""
        del position
        progress = self._progress
        if progress.e != self._numbers.last:
            progress.e, progress.n = self._numbers.last, 0
        base = {
            **self._template,
            "ts_ms": chunk.view.ts_us // 1000,
            "ts_us": chunk.view.ts_us,
            "ts_ns": chunk.view.ts_us * 1000,
            "snapshot": "true",
            "db": chunk.plan.table.path[0],
            "table": chunk.plan.table.path[1],
            "server_id": 0,
            "gtid": None,
            "file": "",
            "pos": 0,
            "row": 0,
            "thread": None,
            "query": None,
            "commit_lsn": progress.e,
            "tx_index": SNAPSHOT_INDEX,
        }
        read: list[tuple[Op, Row | None, Row | None]] = [("r", None, row) for row, _ in chunk.rows.values()]
        read += [("d", _key_alone(chunk.plan, key), None) for key in chunk.absent.values()]
        out: list[Change | EncodedRecords] = []
        for op, before, after in read:
            at = Position(progress.e, SNAPSHOT_INDEX, progress.n)
            out.append(Change(op, chunk.plan.out, at, {**base, "tx_sub": progress.n}, before, after))
            progress.n += 1
            progress.rows += 1
        return out


def _key_alone(plan: TablePlan, texts: KeyTexts) -> Row:
    """Returns the old row of a deletion of which only the key is known."""
    row: list[Any] = [None] * len(plan.table.columns)
    for index, value in zip(plan.table.key, key_values(plan, texts), strict=True):
        row[index] = value
    return tuple(row)
