"""Rows that were read become changes, or natively records at once, each with the next position at one boundary."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from cdcworker.connectors.capture.snapshot import row_positions as positions
from cdcworker.connectors.capture.snapshot.chunks import ReadView
from cdcworker.connectors.capture.snapshot.packed_rows import records_of
from cdcworker.connectors.capture.snapshot.progress import SnapshotProgress
from cdcworker.connectors.capture.snapshot.row_identity import KeyTexts
from cdcworker.connectors.postgres.decode.moved_key import new_key_texts
from cdcworker.connectors.postgres.decode.native_layouts import layout_arguments
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlan
from cdcworker.connectors.postgres.snapshot.chunk_reader import CopiedChunk, TableErrors, values_of
from cdcworker.connectors.postgres.snapshot.copy_frames import CopyFrames
from cdcworker.connectors.postgres.snapshot.copy_text import parse_row
from cdcworker.connectors.postgres.snapshot.tx_snapshot import TransactionSnapshot
from cdcworker.schemas.change import Change, EncodedRecords, JsonObject
from cdcworker.schemas.record_layout import RecordLayouts


class TableRowPositions(positions.RowPositions):
    """Positions at the boundary `safe_lsn` for the rows of one table."""

    def __init__(
        self, progress: SnapshotProgress, template: JsonObject, plan: TableDecodePlan, view: ReadView, safe_lsn: int
    ) -> None:
        source = {
            **template,
            "ts_ms": view.ts_us // 1000,
            "ts_us": view.ts_us,
            "ts_ns": view.ts_us * 1000,
            "snapshot": "true",
            "schema": plan.table.path[0],
            "table": plan.table.path[1],
            "lsn": safe_lsn - 1,
        }
        super().__init__(progress, safe_lsn - 1, plan.out, source)
        self.plan = plan

    def deleted(self, key: KeyTexts) -> Change:
        """The deletion of a row of which only the key is known, as the stream's own are without REPLICA IDENTITY FULL."""
        indexes = self.plan.table.key
        return self.deleted_row(indexes, values_of(key, [self.plan.taken[index] for index in indexes]))

    def lines(self, lines: Iterable[bytes]) -> list[Change]:
        parsers = self.plan.taken
        return [self.row(parse_row(line, parsers)) for line in lines]


class FrameRowEmitter:
    """Writes rows that are left in their frames as records; a row that the core leaves becomes a change."""

    def __init__(self, shaper: RecordLayouts, module: ModuleType) -> None:
        self._shaper = shaper
        self._module = module
        self._core = module.Copied()

    def layout(self, stamp: TableRowPositions) -> Any:
        """Returns how the rows are written from the next position on."""
        plan = stamp.plan
        return self._module.Layout(*layout_arguments(plan, self._shaper.layout(plan.table, stamp.next)))

    def records(self, frames: CopyFrames, stamp: TableRowPositions) -> list[Change | EncodedRecords]:
        layout, around = self.layout(stamp), (stamp.encoded_source(), self._shaper.tails()["r"])

        def change(at: int) -> Change:
            return stamp.row(parse_row(frames.line(at), stamp.plan.taken))

        return records_of(self._core, frames, layout, around, stamp, change)


def stamped(
    rows: CopyFrames | Iterable[bytes], stamp: TableRowPositions, writer: FrameRowEmitter | None
) -> list[Change | EncodedRecords]:
    """The rows in their order, in whichever form."""
    if not isinstance(rows, CopyFrames):
        return [*stamp.lines(rows)]
    if writer is None or stamp.plan.handed is not None:
        return [*stamp.lines(map(rows.line, rows.offsets()))]
    return writer.records(rows, stamp)


class RowEmitter:
    """Hands on the rows of one task's snapshots: the `SnapshotSource` of PostgreSQL. `check` raises CdcError when rows of a
    shape may not be handed on; `current` asks the server for its snapshot."""

    def __init__(
        self,
        progress: SnapshotProgress,
        template: JsonObject,
        current: Callable[[], TransactionSnapshot],
        check: Callable[[TableDecodePlan], None] = lambda plan: None,
    ) -> None:
        self.current = current
        self.check = check
        self._progress = progress
        self._template = template
        self._writer: FrameRowEmitter | None = None

    def use_layouts(self, shaper: RecordLayouts, module: ModuleType) -> None:
        """Rows become records natively from now on."""
        self._writer = FrameRowEmitter(shaper, module)

    def visibility(self, stored: str) -> TransactionSnapshot:
        return TransactionSnapshot.parse(stored)

    def place(self, stored: int) -> int:
        """Places are LSNs, which are stored as they are."""
        return stored

    def stored_place(self, place: int) -> int:
        return place

    def new_key(self, plan: TableDecodePlan, message: bytes) -> list[str] | None:
        return new_key_texts(plan, message)

    def emit(self, chunk: CopiedChunk, position: int) -> list[Change | EncodedRecords]:
        # At the boundary: the stream's own rows of the shape before have been handed on.
        self.check(chunk.plan)
        stamp = self.stamp(chunk.plan, chunk.view, position)
        with TableErrors(chunk.plan):
            out = self.rows(chunk.left(), stamp)
            out += [stamp.deleted(key) for key in chunk.absent.values()]
        return out

    def stamp(self, plan: TableDecodePlan, view: ReadView, safe_lsn: int) -> TableRowPositions:
        """Positions of rows of one table at the boundary `safe_lsn`."""
        return TableRowPositions(self._progress, self._template, plan, view, safe_lsn)

    def rows(self, rows: CopyFrames | Iterable[bytes], stamp: TableRowPositions) -> list[Change | EncodedRecords]:
        """The rows in their order, as changes or records."""
        return stamped(rows, stamp, self._writer)
