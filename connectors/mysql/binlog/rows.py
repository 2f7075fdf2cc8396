"""Rows events: the images of rows before and after a change, read in one pass over the event's bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, Final, NamedTuple

from cdcworker.connectors.mysql.binlog.header import EventType
from cdcworker.connectors.mysql.binlog.table_map import TableMap
from cdcworker.connectors.mysql.errors import MalformedError, MissingMetadataError, UndecodableError, UnknownTypeError
from cdcworker.connectors.mysql.types.column import TypeCode
from cdcworker.connectors.mysql.types.lengths import packed_length
from cdcworker.connectors.mysql.types.numbers import ValueReader
from cdcworker.connectors.mysql.types.readers import diff_reader, reader_of

END_OF_STATEMENT: Final = 0x0001
"""Flag: table maps up to here are not needed any more."""
DUMMY_TABLE_ID: Final = 0x00FF_FFFF
"""Stands in an event without rows, which ends a statement."""
_PARTIAL_JSON: Final = 0x01
_EXTRA_BYTES_MIN: Final = 2


class Operation(Enum):
    """What happened to rows."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


class Unsent:
    """The mark of a column that the log leaves out of an image (binlog_row_image)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNSENT"


UNSENT: Final = Unsent()
Image = tuple[Any, ...]
"""The values of a row in the order of the columns: None for NULL, UNSENT for what was left out, JsonDiff for what of a JSON value
was changed."""


class BinlogRow(NamedTuple):
    """A changed row. `before` is None for an insert, `after` for a delete."""

    before: Image | None
    after: Image | None


class RowsEvent(NamedTuple):
    """Rows of one table that one statement changed. `table` is None for the event without rows that ends a statement."""

    operation: Operation
    table: TableMap | None
    rows: tuple[BinlogRow, ...]
    ends_statement: bool


class RowsHead(NamedTuple):
    """The fixed part of a rows event, and where its rows begin. `before` and `after` have the columns that images hold, as bitmaps."""

    operation: Operation
    table_id: int
    flags: int
    columns: int
    before: bytes
    after: bytes
    rows_at: int
    is_partial: bool

    @property
    def ends_statement(self) -> bool:
        return bool(self.flags & END_OF_STATEMENT)


class FieldError(ValueError):
    """A value that cannot be read, with the place of its column."""

    def __init__(self, cause: ValueError, column: int) -> None:
        super().__init__(str(cause))
        self.cause, self.column = cause, column


_V1: Final = {
    EventType.WRITE_ROWS_V1: Operation.INSERT,
    EventType.WRITE_ROWS_COMPRESSED_V1: Operation.INSERT,
    EventType.UPDATE_ROWS_V1: Operation.UPDATE,
    EventType.UPDATE_ROWS_COMPRESSED_V1: Operation.UPDATE,
    EventType.DELETE_ROWS_V1: Operation.DELETE,
    EventType.DELETE_ROWS_COMPRESSED_V1: Operation.DELETE,
}
_V2: Final = {
    EventType.WRITE_ROWS: Operation.INSERT,
    EventType.WRITE_ROWS_COMPRESSED: Operation.INSERT,
    EventType.UPDATE_ROWS: Operation.UPDATE,
    EventType.UPDATE_ROWS_COMPRESSED: Operation.UPDATE,
    EventType.DELETE_ROWS: Operation.DELETE,
    EventType.DELETE_ROWS_COMPRESSED: Operation.DELETE,
    EventType.PARTIAL_UPDATE_ROWS: Operation.UPDATE,
}
OPERATIONS: Final = {**_V1, **_V2}
"""By type of a rows event what it says."""


def read_rows_head(event_type: EventType, data: bytes, at: int, table_id_bytes: int) -> RowsHead:
    """Reads the part of an event before its rows. Raises MalformedError."""
    operation = OPERATIONS[event_type]
    if at + table_id_bytes + 2 > len(data):
        raise MalformedError("a rows event that is cut short")
    table_id = int.from_bytes(data[at : at + table_id_bytes], "little")
    at += table_id_bytes
    flags, at = int.from_bytes(data[at : at + 2], "little"), at + 2
    if event_type in _V2:
        extra = int.from_bytes(data[at : at + 2], "little")
        if extra < _EXTRA_BYTES_MIN:
            raise MalformedError("a rows event with an impossible length of what is extra")
        at += extra
    count, at = packed_length(data, at)
    size = (count + 7) // 8
    first, at = data[at : at + size], at + size
    second = first
    if operation is Operation.UPDATE:
        second, at = data[at : at + size], at + size
    if at > len(data):
        raise MalformedError("a rows event that is cut short")
    before = b"" if operation is Operation.INSERT else first
    after = b"" if operation is Operation.DELETE else second
    return RowsHead(operation, table_id, flags, count, before, after, at, event_type is EventType.PARTIAL_UPDATE_ROWS)


class UnreadRows:
    """A rows event whose rows are read by whoever wants them: all at once, or one by one. `named` makes a context that says where what
    it raises has happened."""

    __slots__ = ("_named", "_reader", "data", "head", "table")

    def __init__(
        self, head: RowsHead, data: bytes, reader: RowsEventReader, named: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self.head, self.data, self.table = head, data, reader.table
        self._reader, self._named = reader, named

    def read(self) -> RowsEvent:
        """Reads all rows. Raises CdcError."""
        with self._named():
            return self._reader.read(self.head, self.data)

    def row(self, at: int) -> tuple[BinlogRow, int]:
        """Reads the row at an offset; returns it and the offset behind it. Raises CdcError."""
        with self._named():
            return self._reader.row(self.head, self.data, at)


class RowsEventReader:
    """Reads the rows of one table map; what its columns need is looked up once."""

    def __init__(self, table: TableMap) -> None:
        self.table = table
        self._readers: list[ValueReader | None] = [None] * len(table.columns)
        self._json = [i for i, column in enumerate(table.columns) if column.type.code is TypeCode.JSON]
        self._plans: dict[bytes, _Plan] = {}

    def read(self, head: RowsHead, data: bytes) -> RowsEvent:
        """Reads all rows of an event whose bytes end with its last row. Raises MalformedError, and FieldError for what one column
        is the cause of."""
        if head.columns != len(self.table.columns):
            raise MalformedError("a rows event with other columns than its table map")
        before = self._plan(head.before) if head.before else None
        after = self._plan(head.after) if head.after else None
        rows, at, end = [], head.rows_at, len(data)
        if at == end and not (before and before.columns) and not (after and after.columns):
            # A row of which nothing is logged has no bytes.
            rows.append(BinlogRow(before.nothing if before else None, after.nothing if after else None))
        while at < end:
            row, at = self._row((before, after), head, data, at)
            rows.append(row)
        if at != end:
            raise MalformedError("a row that is cut short")
        return RowsEvent(head.operation, self.table, tuple(rows), head.ends_statement)

    def row(self, head: RowsHead, data: bytes, at: int) -> tuple[BinlogRow, int]:
        """Reads the row at `at`, and returns the offset behind it. Raises as `read` does."""
        if head.columns != len(self.table.columns):
            raise MalformedError("a rows event with other columns than its table map")
        before = self._plan(head.before) if head.before else None
        after = self._plan(head.after) if head.after else None
        row, end = self._row((before, after), head, data, at)
        if end > len(data):
            raise MalformedError("a row that is cut short")
        return row, end

    def _row(
        self, plans: tuple[_Plan | None, _Plan | None], head: RowsHead, data: bytes, at: int
    ) -> tuple[BinlogRow, int]:
        start, old, new = at, None, None
        before, after = plans
        if before:
            old, at = self._image(before, data, at)
        if after:
            new, at = self._partial(after, data, at) if head.is_partial else self._image(after, data, at)
        if at == start:
            raise MalformedError("a rows event whose rows have no bytes")
        return BinlogRow(old, new), at

    def _plan(self, present: bytes) -> _Plan:
        plan = self._plans.get(present)
        if plan is None:
            columns = [i for i in range(len(self._readers)) if present[i >> 3] >> (i & 7) & 1]
            plan = self._plans[present] = _Plan(columns, [self._reader(i) for i in columns], len(self._readers))
        return plan

    def _reader(self, column: int) -> ValueReader:
        reader = self._readers[column]
        if reader is None:
            try:
                reader = self._readers[column] = reader_of(self.table.columns[column].type)
            except (MissingMetadataError, UnknownTypeError, MalformedError) as exc:
                raise FieldError(exc, column) from None
        return reader

    def _image(self, plan: _Plan, data: bytes, at: int) -> tuple[Image, int]:
        return plan.read(data, at, plan.readers)

    def _partial(self, plan: _Plan, data: bytes, at: int) -> tuple[Image, int]:
        """Reads an image before which the log says which of its JSON values are differences. There is a bit for every JSON column,
        also for one that is left out."""
        options, at = packed_length(data, at)
        if not options & _PARTIAL_JSON:
            return plan.read(data, at, plan.readers)
        bits, size = data[at:], (len(self._json) + 7) // 8
        if size > len(bits):
            raise MalformedError("a row that is cut short")
        partial = {column for n, column in enumerate(self._json) if bits[n >> 3] >> (n & 7) & 1}
        readers = [
            diff_reader(self.table.columns[column].type.length) if column in partial else reader
            for column, reader in zip(plan.columns, plan.readers, strict=True)
        ]
        return plan.read(data, at + size, readers)


class _Plan:
    """How an image with certain columns is read."""

    __slots__ = ("_is_whole", "_template", "columns", "nulls", "readers")

    def __init__(self, columns: list[int], readers: list[ValueReader], count: int) -> None:
        self.columns, self.readers = columns, readers
        self.nulls = (len(columns) + 7) // 8
        self._is_whole = len(columns) == count
        self._template: list[Any] = [UNSENT] * count

    @property
    def nothing(self) -> Image:
        """The image of which nothing was sent."""
        return tuple(self._template)

    def read(self, data: bytes, at: int, readers: Sequence[ValueReader]) -> tuple[Image, int]:
        """Reads the bits of NULL, then the value of each column that has one."""
        start = at + self.nulls
        nulls = int.from_bytes(data[at:start], "little")
        at = start
        values: list[Any] = []
        try:
            if nulls:
                for reader in readers:
                    if nulls >> len(values) & 1:
                        values.append(None)
                    else:
                        value, at = reader(data, at)
                        values.append(value)
            else:
                for reader in readers:
                    value, at = reader(data, at)
                    values.append(value)
        except (MalformedError, UndecodableError) as exc:
            raise FieldError(exc, self.columns[len(values)]) from None
        except (IndexError, struct.error):
            raise FieldError(MalformedError("a value that is cut short"), self.columns[len(values)]) from None
        if at > len(data):
            raise MalformedError("a row that is cut short")
        if self._is_whole:
            return tuple(values), at
        image = self._template.copy()
        for column, value in zip(self.columns, values, strict=True):
            image[column] = value
        return tuple(image), at
