"""Rows that were read become changes, each with the next position at one boundary of the stream."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from cdcworker.connectors.capture.snapshot.chunks import ReadView
from cdcworker.connectors.capture.snapshot.packed_rows import records_of
from cdcworker.connectors.capture.snapshot.progress import SnapshotProgress
from cdcworker.connectors.capture.snapshot.row_identity import KeyTexts
from cdcworker.connectors.capture.snapshot.row_positions import RowPositions
from cdcworker.connectors.mysql.binlog.rows import UNSENT, BinlogRow
from cdcworker.connectors.mysql.decode.commit_numbers import CommitNumbers
from cdcworker.connectors.mysql.decode.table_plan import TablePlan
from cdcworker.connectors.mysql.snapshot.chunk_reader import SelectedChunk, key_values, value_errors
from cdcworker.connectors.mysql.snapshot.read_view import GtidPlace, GtidVisibility
from cdcworker.connectors.mysql.snapshot.row_layouts import layout_arguments
from cdcworker.connectors.mysql.snapshot.selected_rows import SelectedRows
from cdcworker.connectors.mysql.snapshot.selected_values import key_text
from cdcworker.schemas.change import Change, EncodedRecords, JsonObject
from cdcworker.schemas.record_layout import RecordLayouts


class SelectedPositions(RowPositions):
    """Positions behind the transaction that was delivered last, for rows of one table that were read at this time of the server."""

    def __init__(
        self, progress: SnapshotProgress, template: JsonObject, plan: TablePlan, ts_us: int, number: int
    ) -> None:
        source = {
            **template,
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
        }
        super().__init__(progress, number, plan.out, source)
        self.plan = plan

    def rows(self, rows: SelectedRows) -> list[Change | EncodedRecords]:
        """Returns the rows that are left, in their order."""
        return [self.row(rows.row(at)) for at in rows.offsets()]

    def deleted(self, key: KeyTexts) -> Change:
        """Returns the deletion of a row of which only the key is known."""
        return self.deleted_row(self.plan.table.key, key_values(self.plan, key))


class SelectedRowWriter:
    """Writes rows as records by the native core; a row that the core leaves becomes a change."""

    def __init__(self, shaper: RecordLayouts, module: ModuleType) -> None:
        self._shaper = shaper
        self._module = module
        self._core = module.Selected()

    def layout(self, stamp: SelectedPositions) -> Any:
        """Returns how the rows are written from the next position on. Raises ValueError for rows that cannot be written natively."""
        return self._module.Layout(*layout_arguments(stamp.plan, self._shaper.layout(stamp.plan.out, stamp.next)))

    def records(self, rows: SelectedRows, stamp: SelectedPositions) -> list[Change | EncodedRecords]:
        """Returns the rows that are left, in their order."""
        try:
            layout = self.layout(stamp)
        except ValueError:
            # More columns than a layout has.
            return stamp.rows(rows)
        around = stamp.encoded_source(), self._shaper.tails()["r"]
        return records_of(self._core, rows, layout, around, stamp, lambda at: stamp.row(rows.row(at)))


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
        self._writer: SelectedRowWriter | None = None

    def use_layouts(self, shaper: RecordLayouts, module: ModuleType) -> None:
        """Rows become records natively from now on."""
        self._writer = SelectedRowWriter(shaper, module)

    def visibility(self, stored: str) -> GtidVisibility:
        return GtidVisibility(self.place(stored), exact=self._is_mariadb)

    def place(self, stored: str) -> GtidPlace:
        return GtidPlace.parse(stored, is_mariadb=self._is_mariadb)

    def stored_place(self, place: GtidPlace) -> str:
        return str(place)

    def new_key(self, plan: TablePlan, message: BinlogRow) -> list[str] | None:
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

    def emit(self, chunk: SelectedChunk, position: GtidPlace) -> list[Change | EncodedRecords]:
        """Returns the rows that are left of a chunk: behind the transaction that was delivered last."""
        del position
        self.check(chunk.plan)
        stamp = self._stamp(chunk.plan, chunk.view.ts_us)
        with value_errors(chunk.plan.table.path):
            out = self._rows(chunk.rows, stamp)
            out += [stamp.deleted(key) for key in chunk.absent.values()]
        return out

    def rows(self, view: ReadView, rows: SelectedRows) -> list[Change | EncodedRecords]:
        """Returns rows of a table that is read whole."""
        plan = rows.form.plan
        with value_errors(plan.table.path):
            return self._rows(rows, self._stamp(plan, view.ts_us))

    def truncate(self, plan: TablePlan, ts_us: int) -> Change | EncodedRecords:
        """Returns the change by which readers empty a table before its rows come again."""
        return self._stamp(plan, ts_us).truncate()

    def _stamp(self, plan: TablePlan, ts_us: int) -> SelectedPositions:
        return SelectedPositions(self._progress, self._template, plan, ts_us, self._numbers.last)

    def _rows(self, rows: SelectedRows, stamp: SelectedPositions) -> list[Change | EncodedRecords]:
        return stamp.rows(rows) if self._writer is None else self._writer.records(rows, stamp)
