"""The rows of a table as a SELECT returns them: their values as the log's reader returns them, and their keys."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.capture.snapshot.packed_rows import PackedRows
from cdcworker.connectors.capture.snapshot.row_identity import Identity, KeyTexts, identity
from cdcworker.connectors.mysql.decode.table_plan import TablePlan
from cdcworker.connectors.mysql.snapshot.row_packets import RowPackets, payload_at, row_end, values_of, walk_rows
from cdcworker.connectors.mysql.snapshot.selected_values import TEXTS, Convert, converter, is_octets, key_text
from cdcworker.connectors.mysql.transport.packets import HEAD_BYTES
from cdcworker.connectors.mysql.types.column import TypeCode
from cdcworker.schemas.change import Row

if TYPE_CHECKING:
    from types import ModuleType

    from cdcworker.connectors.mysql_client.client import MySqlConnection

GONE: Final = 1
KeyColumns = tuple[tuple[int, int, int], ...]
"""Columns of a key in the order of their places, each with its form and its place in the key."""
Keyed = Callable[[bytearray, int, int, KeyColumns], dict[Identity, int] | None]
"""Where the rows between two offsets begin by their keys; None where one has another value."""
_NUMBER, _TEXT, _BYTES = range(3)
"""As `_selected.pxi` numbers them."""
_INTEGERS: Final = frozenset({TypeCode.TINY, TypeCode.SHORT, TypeCode.INT24, TypeCode.LONG, TypeCode.LONGLONG})


@dataclass(frozen=True, slots=True)
class RowForm:
    """How the rows of a plan are read."""

    plan: TablePlan
    converters: tuple[Convert, ...]
    keyed: Keyed | None = None
    key_columns: KeyColumns = ()

    def image(self, at: int, data: bytearray) -> list[Any]:
        """Returns the values of a row by their places in the log. Raises ValueError for what is no row."""
        out: list[Any] = [None] * (max(self.plan.taken) + 1)
        for place, convert, value in zip(self.plan.taken, self.converters, self.values(at, data), strict=True):
            out[place] = None if value is None else convert(value)
        return out

    def values(self, at: int, data: bytearray) -> list[bytes | None]:
        return values_of(payload_at(data, at))

    def key(self, values: Sequence[bytes | None]) -> tuple[Identity, KeyTexts]:
        """Returns the key of a row, as it is looked up and as texts. Raises ValueError for one that is none."""
        found, texts = [], []
        for i in self.plan.table.key:
            value = values[i]
            if value is None:
                raise ValueError("a key without a value")
            converted = self.converters[i](value)
            found.append(self.plan.parsers[i](converted))
            texts.append(key_text(converted))
        return identity(tuple(found)), tuple(texts)


def form_of(plan: TablePlan, module: ModuleType | None) -> RowForm:
    """Returns how rows of a plan are read. `module`: the native core; None reads all in Python."""
    forms = [_form_of_key(plan, i) for i in plan.table.key]
    columns = tuple(sorted((i, form, place) for place, (i, form) in enumerate(zip(plan.table.key, forms, strict=True))))
    keyed = module.keyed if module is not None and -1 not in forms else None
    return RowForm(plan, tuple(map(converter, plan.types)), keyed, columns)


def _form_of_key(plan: TablePlan, index: int) -> int:
    """Returns the form in which the core reads a column of a key; -1 where it does not."""
    kind, parse = plan.types[index], plan.parsers[index]
    if kind.code in _INTEGERS:
        return _NUMBER if parse is int else -1
    if kind.code not in TEXTS:
        return -1
    if is_octets(kind):
        return _BYTES if parse is bytes else -1
    return _TEXT if parse is str else -1


@dataclass(slots=True)
class SelectedRows(PackedRows):
    """Rows of one SELECT."""

    mark = 3
    gone = GONE

    form: RowForm

    @property
    def size(self) -> int:
        """Bytes of the rows."""
        return self.end - HEAD_BYTES * self.count

    def next_at(self, at: int) -> int:
        return row_end(self.data, at)

    def row(self, at: int) -> Row:
        return self.form.plan.row(tuple(self.form.image(at, self.data)))

    def key_texts(self, at: int) -> KeyTexts:
        return self.form.key(self.form.values(at, self.data))[1]

    def taken(self, at: int) -> tuple[Row, KeyTexts]:
        return self.row(at), self.key_texts(at)

    def indexed(self) -> dict[Identity, int]:
        form = self.form
        if form.keyed is not None:
            found = form.keyed(self.data, 0, self.end, form.key_columns)
            if found is not None:
                return found
        return {form.key(form.values(at, self.data))[0]: at for at in self.offsets()}


def selected_rows(
    connection: MySqlConnection,
    statement: str,
    form: RowForm,
    module: ModuleType | None,
    bytes_max: int,
    *,
    reads_all: bool = False,
) -> Generator[SelectedRows]:
    """Yields pieces of more than `bytes_max` of rows, but for the last one. Who stops early has a long rest broken off with the
    connection, unless it `reads_all`. Raises PyMySQL's errors."""
    packets = RowPackets(connection, statement, walk_rows if module is None else module.walk_rows)
    buffer = packets.buffer
    try:
        while not packets.ended:
            packets.gulp()
            if packets.ended or packets.size > bytes_max:
                piece = SelectedRows(buffer.data, buffer.at, buffer.count, buffer.last, packets.ended, form)
                buffer.cut()
                yield piece
    finally:
        packets.finish(all_of_it=reads_all)
