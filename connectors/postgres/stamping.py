"""Rows that were read become changes, or natively records at once, each with the next position at one boundary."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.postgres.copying import parse_row
from cdcworker.connectors.postgres.frames import Frames
from cdcworker.connectors.postgres.kinds import layout_arguments
from cdcworker.connectors.postgres.progress import Progress
from cdcworker.connectors.postgres.relations import Plan
from cdcworker.connectors.postgres.source_block import SOURCE_SCHEMA
from cdcworker.schemas.change import Change, JsonObject, Position, Ready, Row
from cdcworker.schemas.shape import Shaper, field_runs

if TYPE_CHECKING:
    from cdcworker.connectors.postgres.chunks import View

SNAPSHOT_INDEX: Final = 2**31 - 1
"""`tx_index` of snapshot rows: behind every message of a transaction."""
_ALL_BUT_SUB, _BEHIND = field_runs(SOURCE_SCHEMA["fields"], cuts=("tx_sub",))
if _BEHIND:
    raise ValueError("the source block goes on behind the position")


class Stamp:
    """Positions at the boundary `safe_lsn` for the rows of one table."""

    def __init__(self, progress: Progress, template: JsonObject, plan: Plan, view: View, safe_lsn: int) -> None:
        if progress.e != safe_lsn - 1:
            progress.e, progress.n = safe_lsn - 1, 0
        self.progress = progress
        self.plan = plan
        self._base: dict[str, Any] = {
            **template,
            "ts_ms": view.ts_us // 1000,
            "ts_us": view.ts_us,
            "ts_ns": view.ts_us * 1000,
            "snapshot": "true",
            "schema": plan.table.path[0],
            "table": plan.table.path[1],
            "lsn": progress.e,
            "commit_lsn": progress.e,
            "tx_index": SNAPSHOT_INDEX,
        }

    @property
    def next(self) -> Position:
        return Position(self.progress.e, SNAPSHOT_INDEX, self.progress.n)

    def row(self, row: Row) -> Change:
        source = {**self._base, "tx_sub": self.progress.n}
        change = Change("r", self.plan.out, self.next, source, None, row)
        self.progress.n += 1
        self.progress.rows += 1
        return change

    def truncate(self) -> Change:
        change = Change("t", self.plan.out, self.next, {**self._base, "tx_sub": self.progress.n})
        self.progress.n += 1
        return change

    def encoded_source(self) -> bytes:
        """The source block up to the number that differs from row to row."""
        return b"".join([write(self._base[name]) for name, write in _ALL_BUT_SUB])

    def lines(self, lines: Iterable[bytes]) -> list[Change]:
        parsers = self.plan.taken
        return [self.row(parse_row(line, parsers)) for line in lines]


class RowWriter:
    """Writes rows that are left in their frames as records; a row that the core leaves becomes a change."""

    def __init__(self, shaper: Shaper, module: ModuleType) -> None:
        self._shaper = shaper
        self._module = module
        self._core = module.Copied()

    def layout(self, stamp: Stamp) -> Any:
        """How the rows are written from the next position on."""
        plan = stamp.plan
        return self._module.Layout(*layout_arguments(plan, self._shaper.shape(plan.table, stamp.next)))

    def records(self, frames: Frames, stamp: Stamp) -> list[Change | Ready]:
        progress, core, layout = stamp.progress, self._core, self.layout(stamp)
        around = stamp.encoded_source(), self._shaper.tails()["r"]
        out: list[Change | Ready] = []
        at = 0
        while at < frames.end:
            at, n = core.write(frames.data, at, frames.end, layout, around, progress.n)
            progress.rows += n - progress.n
            progress.n = n
            if at < frames.end:
                if (made := core.take()) is not None:
                    out.append(Ready(*made))
                out += stamp.lines((frames.line(at),))
                at = frames.next_at(at)
        if (made := core.take()) is not None:
            out.append(Ready(*made))
        return out


def stamped(rows: Frames | Iterable[bytes], stamp: Stamp, writer: RowWriter | None) -> list[Change | Ready]:
    """The rows in their order, in whichever form."""
    if not isinstance(rows, Frames):
        return [*stamp.lines(rows)]
    if writer is None or stamp.plan.handed is not None:
        return [*stamp.lines(map(rows.line, rows.offsets()))]
    return writer.records(rows, stamp)
