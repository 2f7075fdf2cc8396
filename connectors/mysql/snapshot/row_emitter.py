"""Rows that were read become changes, each with the next position at one boundary of the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cdcworker.connectors.capture.snapshot.chunks import ReadView
from cdcworker.connectors.capture.snapshot.progress import SNAPSHOT_INDEX, SnapshotProgress
from cdcworker.connectors.capture.snapshot.row_identity import KeyTexts
from cdcworker.connectors.mysql.binlog.rows import UNSENT
from cdcworker.connectors.mysql.binlog.rows import Row as LoggedRow
from cdcworker.connectors.mysql.decode.commit_numbers import CommitNumbers
from cdcworker.connectors.mysql.decode.table_plan import TablePlan
from cdcworker.connectors.mysql.snapshot.chunk_reader import SelectedChunk, key_values
from cdcworker.connectors.mysql.snapshot.read_view import GtidVisibility, LogPlace
from cdcworker.connectors.mysql.snapshot.selected_values import key_text
from cdcworker.schemas.change import Change, EncodedRecords, JsonObject, Op, Position, Row


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
        check: Callable[[TablePlan], None] = lambda plan: None,
    ) -> None:
        """`check` raises CdcError for a table whose rows may not be handed on in its shape."""
        self.current = current
        self.check = check
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
        self.check(chunk.plan)
        read: list[tuple[Op, Row | None, Row | None]] = [("r", None, row) for row, _ in chunk.rows.values()]
        read += [("d", _key_alone(chunk.plan, key), None) for key in chunk.absent.values()]
        return self._stamped(chunk.plan, chunk.view.ts_us, read)

    def rows(self, plan: TablePlan, view: ReadView, rows: Sequence[Row]) -> list[Change | EncodedRecords]:
        """Returns rows of a table that is read whole."""
        return self._stamped(plan, view.ts_us, [("r", None, row) for row in rows])

    def truncate(self, plan: TablePlan, ts_us: int) -> Change | EncodedRecords:
        """Returns the change by which readers empty a table before its rows come again."""
        (change,) = self._stamped(plan, ts_us, [("t", None, None)])
        return change

    def _stamped(
        self, plan: TablePlan, ts_us: int, read: Iterable[tuple[Op, Row | None, Row | None]]
    ) -> list[Change | EncodedRecords]:
        progress = self._progress
        if progress.e != self._numbers.last:
            progress.e, progress.n = self._numbers.last, 0
        base = {
            **self._template,
            "ts_ms": ts_us // 1000,
            "ts_us": ts_us,
            "ts_ns": ts_us * 1000,
            "snapshot": "true",
            "db": plan.table.path[0],
            "table": plan.table.path[1],
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
        out: list[Change | EncodedRecords] = []
        for op, before, after in read:
            at = Position(progress.e, SNAPSHOT_INDEX, progress.n)
            out.append(Change(op, plan.out, at, {**base, "tx_sub": progress.n}, before, after))
            progress.n += 1
            progress.rows += op != "t"
        return out


def _key_alone(plan: TablePlan, texts: KeyTexts) -> Row:
    """Returns the old row of a deletion of which only the key is known."""
    row: list[Any] = [None] * len(plan.table.columns)
    for index, value in zip(plan.table.key, key_values(plan, texts), strict=True):
        row[index] = value
    return tuple(row)
