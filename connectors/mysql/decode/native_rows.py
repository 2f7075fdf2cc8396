"""The native path of a stream: rows of rows events become records at once, and the decoder reads the others."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any, Final

from cdcworker.connectors.capture.native.compiled import CLOCK_CACHE_NS, built
from cdcworker.connectors.mysql.binlog.rows import Operation, RowsHead, UnreadRows
from cdcworker.connectors.mysql.binlog.table_map import TableMap
from cdcworker.connectors.mysql.decode.native_layouts import layout_arguments, widths_of
from cdcworker.connectors.mysql.decode.table_plan import TablePlan
from cdcworker.schemas.avro_binary import Write, write_long
from cdcworker.schemas.change import EncodedRecords, JsonObject, Position
from cdcworker.schemas.record_layout import RecordLayouts, field_runs

LAYOUTS_MAX: Final = 4096
"""Tables whose layout is kept. # INV-10"""
_OPS: Final = {Operation.INSERT: "c", Operation.UPDATE: "u", Operation.DELETE: "d"}
_CUTS: Final = ("pos", "row", "tx_index", "tx_sub")
_NO_TRANSACTION: Final = b"\0\0"
"""The number of a row's first record, and a transaction block that is not there."""


@cache
def native() -> ModuleType | None:
    """The compiled core, where it was built."""
    return built(_load)


def _load() -> ModuleType:
    from cdcworker.connectors.mysql.decode import _core  # type: ignore[attr-defined]

    return _core  # type: ignore[no-any-return]


class _Source:
    """Encodes the `source` block of an event's rows: what is in front of the number of the row, and what is between that and the number
    in the transaction."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        head, between, middle, numbers, rest = field_runs(schema["fields"], cuts=_CUTS)
        if between or numbers or rest:
            raise ValueError("the source block has fields where none are expected")
        self._head, self._middle = _Run(head), _Run(middle)

    def encoded(self, source: JsonObject) -> tuple[bytes, bytes]:
        return self._head.encoded(source) + write_long(source["pos"]), self._middle.encoded(source)


class _Run:
    """Encodes some fields anew when one of them has changed."""

    def __init__(self, fields: list[tuple[str, Write]]) -> None:
        self._fields = fields
        self._values: list[Any] = []
        self._bytes = b""

    def encoded(self, source: JsonObject) -> bytes:
        values = [source.get(name) for name, _ in self._fields]
        if values != self._values:
            self._bytes = b"".join([write(value) for (_, write), value in zip(self._fields, values, strict=True)])
            self._values = values
        return self._bytes


class Tails:
    """What follows the number of a row in its transaction, by operation, with the time of now."""

    def __init__(self, layouts: RecordLayouts) -> None:
        self._layouts = layouts
        self._made: Mapping[str, bytes] = {}
        self._at = -CLOCK_CACHE_NS

    def now(self) -> Mapping[str, bytes]:
        """Returns the same object while the time is the same, within `CLOCK_CACHE_NS`."""
        now = self._layouts.clock_ns()
        if not 0 <= now - self._at < CLOCK_CACHE_NS:
            self._made = {op: _NO_TRANSACTION + tail for op, tail in self._layouts.tails().items()}
            self._at = now
        return self._made


def _has_all(head: RowsHead) -> bool:
    """Returns whether the images of an event have every column."""
    whole = (1 << head.columns) - 1
    images = (head.after,) if head.operation is Operation.INSERT else (head.before, head.after)
    return all(int.from_bytes(image, "little") & whole == whole for image in images)


class NativeRows:
    """The `RowWriter` of one decoder."""

    def __init__(self, layouts: RecordLayouts, module: ModuleType, schema: Mapping[str, Any]) -> None:
        """`schema`: that of the `source` block."""
        self._shaper = layouts
        self._module = module
        self._core = module.Core()
        self._source = _Source(schema)
        self._known: dict[int, tuple[TableMap, TablePlan | None, Any]] = {}
        """By the identity of a table map: it, its plan and its layout, None where there can be none."""
        self._version = -1
        self.tails = Tails(layouts)
        self._event: tuple[Any, ...] = ()
        self._ts_ms = 0

    def begin(self, plan: TablePlan | None, rows: UnreadRows, source: JsonObject | None) -> bool:
        head = rows.head
        if head.is_partial or head.columns != len(rows.table.columns):
            return False
        # Of other rows that lack values it is the decoder that knows which have to be read again.
        if head.operation is not Operation.DELETE and not _has_all(head):
            return False
        layout = self.layout(rows.table, plan, 0 if source is None else source["commit_lsn"])
        if layout is None:
            return False
        op = _OPS[head.operation]
        if source is not None:
            try:
                encoded = self._source.encoded(source)
            except OverflowError:
                # A commit's time whose nanoseconds have no 64 bits: who encodes the decoder's changes names the table.
                return False
            self._ts_ms = source["ts_ms"]
            self._core.set_event(*encoded, self.tails.now()[op])
        self._event = layout, ord(op), rows.data, (head.before, head.after)
        return True

    def write(self, at: int, row: int, index: int) -> tuple[int, int]:
        layout, op, data, present = self._event
        found: tuple[int, int] = self._core.rows(layout, op, data, at, present, row, index)
        return found

    def take(self) -> EncodedRecords | None:
        made = self._core.take()
        if made is None:
            return None
        records, size, largest, topic, counts = made
        return EncodedRecords(records, size, largest, topic, counts, self._ts_ms)

    @property
    def version(self) -> int:
        """A number that changes when layouts become invalid."""
        return self._shaper.version

    def layout(self, table: TableMap, plan: TablePlan | None, number: int) -> Any:
        """Returns the native layout of a table from the transaction of this number on, None where it can have none."""
        if self._version != self._shaper.version or len(self._known) >= LAYOUTS_MAX:
            self._known.clear()
        known = self._known.get(id(table))
        if known is not None and known[0] is table and known[1] is plan:
            return known[2]
        layout = self._made(table, plan, number)
        self._version = self._shaper.version
        self._known[id(table)] = table, plan, layout
        return layout

    def _made(self, table: TableMap, plan: TablePlan | None, number: int) -> Any:
        try:
            if plan is None:
                return self._module.RowLayout(widths_of(table))
            shape = self._shaper.layout(plan.out, Position(number, 0, 0))
            return self._module.RowLayout(*layout_arguments(table, plan, shape))
        except ValueError:
            # The decoder meets the same and names the column.
            return None
