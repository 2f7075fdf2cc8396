"""Which selected values the native core knows, and the layout of a table's rows for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cdcworker.connectors.capture.native.row_layouts import CALL, ColumnForm, Encode, column_arguments, place_arguments
from cdcworker.connectors.mysql.decode import native_layouts as native
from cdcworker.connectors.mysql.decode.table_plan import TablePlan
from cdcworker.connectors.mysql.snapshot.selected_values import TEXTS, Convert, converter, is_octets
from cdcworker.connectors.mysql.types.column import ColumnType
from cdcworker.schemas.avro_binary import Write
from cdcworker.schemas.change import Avro
from cdcworker.schemas.record_layout import RecordLayout


def kind_of(kind: ColumnType, avro: Avro) -> tuple[int, int]:
    """Returns how selected values of a column become values of this Avro type without a mask, and the argument of that. The kinds are
    those of row images, in the forms of texts."""
    base = avro["type"] if isinstance(avro, dict) else avro
    if kind.code in TEXTS:
        # Texts come in UTF-8, and without what a row image has around them, whichever character set the column has.
        if is_octets(kind):
            return (native.BYTES, 0) if base == "bytes" else (CALL, 0)
        return (native.TEXT, 0) if base == "string" else (CALL, 0)
    return native.kind_of(kind, avro)


def layout_arguments(
    plan: TablePlan, shape: RecordLayout
) -> tuple[list[tuple[Any, ...]], tuple[int, ...], tuple[Any, ...]]:
    """Returns what a native layout is made from."""
    out = []
    for index, column in enumerate(plan.out.columns):
        kind = plan.types[index]
        known, argument = (CALL, 0) if index in plan.masked else kind_of(kind, column.type)
        call = _encoded(converter(kind), plan.parsers[index], shape.plan.row_writes[index])
        out.append(column_arguments(column, index, ColumnForm(known, argument, call), shape))
    return out, plan.out.key, place_arguments(shape)


def _encoded(convert: Convert, parse: Callable[[Any], Any], write: Write) -> Encode:
    """A whole field from a selected value."""

    def encode(data: bytes) -> bytes:
        return write(parse(convert(data)))

    return encode
