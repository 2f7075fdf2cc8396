"""What a native layout of a table is made from, beside the kinds of values that a database has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from cdcworker.schemas.change import Column
from cdcworker.schemas.placeholders import unavailable_value
from cdcworker.schemas.record_layout import RecordLayout

SKIP: Final = 0
"""The kind of a column that is not captured."""
CALL: Final = 1
"""The kind of a column whose values are encoded by a function in Python."""
SKIPPED: Final = (SKIP, 0, None, False, None, None, None, 0)
"""The arguments of a column that is not captured."""
_SIZE_MAX: Final = 1 << 62

Encode = Callable[[bytes], bytes]
"""From a value in the database's form to a whole field."""


class ColumnForm(NamedTuple):
    """How a core reads a column: `kind` and `argument` are the database's own, `call` is for values that the core does not know.
    `is_plain_key`: equal forms are equal values."""

    kind: int
    argument: int
    call: Encode
    is_plain_key: bool = True


def column_arguments(
    column: Column, index: int, form: ColumnForm, shape: RecordLayout, *, completes: bool = False
) -> tuple[Any, ...]:
    """Returns the arguments of a captured column; `index` is its place in the table. `completes`: rows with values that were not sent
    are the decoder's, which has them read again."""
    write, image = shape.plan.row_writes[index], shape.plan.image_writes[index]
    # A union with null has one byte that says which.
    some = None if not column.optional else 2 - write(None)[0]
    zero = None if column.optional else image(None)
    unsent = None if completes else _tried(lambda: write(unavailable_value(column, shape.unavailable)))
    return form.kind, form.argument, some, form.is_plain_key, form.call, zero, unsent, index


def place_arguments(shape: RecordLayout, names: bytes = b"") -> tuple[Any, ...]:
    """Returns where the records go and how they are framed. `names`: those of the table as its core writes them."""
    made = shape.plan
    return (
        made.topic,
        made.value_frame[:1] + made.key_id.to_bytes(4, "big"),
        made.value_frame,
        shape.partitions,
        min(shape.record_bytes_max, _SIZE_MAX),
        shape.tombstones,
        names,
    )


def _tried(make: Callable[[], bytes]) -> bytes | None:
    try:
        return make()
    except (TypeError, ValueError, AttributeError, LookupError):
        return None
