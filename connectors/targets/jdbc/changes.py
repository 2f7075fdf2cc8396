"""What a batch of records does to tables: of each key the last change, in steps that are taken one behind the other."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from cdcworker.connectors.api.record_target import TargetRecord
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED
from cdcworker.connectors.targets.jdbc.naming import TableName, TableNames
from cdcworker.connectors.targets.jdbc.rules import WriteRules
from cdcworker.connectors.targets.jdbc.shapes import DELETED, Row, RowShape, ShapeMaker, is_envelope, row_schema
from cdcworker.connectors.targets.rows import Placeholder
from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.connectors.transforms.data import ConnectSchema
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.placeholders import UNAVAILABLE

_PLACEHOLDER: Final = Placeholder(UNAVAILABLE)
SHAPES_MAX: Final = 1_024
POSITION: Final = struct.Struct(">QII")
Places = frozenset[int]
"""Which columns of a shape a row lacks: the source did not send them."""
_WHOLE: Final[Places] = frozenset()


class TruncateStep(NamedTuple):
    """A table is emptied; `position` is that of the TRUNCATE in the source's log, where it is known."""

    table: TableName
    position: bytes | None


@dataclass(slots=True)
class RowsStep:
    """Rows of one shape that are written, and keys whose rows are deleted: none is both."""

    shape: RowShape
    written: dict[Places, list[Row]] = field(default_factory=dict)
    """By the columns that they lack."""
    deleted: list[Row] = field(default_factory=list)


Step = TruncateStep | RowsStep


class _Known(NamedTuple):
    """What is known of records of one pair of schemas, which are kept so that their identity is not that of others."""

    key_schema: ConnectSchema | None
    value_schema: ConnectSchema | None
    shape: RowShape
    key: Callable[[TargetRecord], Row]
    is_envelope: bool


class ChangeReader:
    """Reads what records do. One thread uses it."""

    def __init__(self, rules: WriteRules) -> None:
        self._rules = rules
        self._names = TableNames(rules.table_format, dotted=rules.dotted)
        self._maker = ShapeMaker(rules)
        self._known: BoundedCache[tuple[TableName, int, int], _Known] = BoundedCache(SHAPES_MAX)

    def shape_of(self, record: TargetRecord) -> RowShape | None:
        """Returns the shape of a record's row; None where records of its topic go to different tables."""
        if self._names.of_topic(record.topic) is None:
            return None
        table = self._names.of(record)
        return None if table is None else self._learned(record, table).shape

    def steps(self, records: Iterable[TargetRecord]) -> list[Step]:
        """Returns what the records do, in their order. CdcError of kind `data` for one that is no change of a row."""
        gathered = StepGatherer()
        for record in records:
            table = self._names.of(record)
            if table is not None:
                self._read(record, table, gathered)
        return gathered.finish()

    def _read(self, record: TargetRecord, table: TableName, gathered: StepGatherer) -> None:
        value = record.value
        known = None
        if value is None or not (is_envelope(record.value_schema) and value["op"] in ("t", "m")):
            if value is None and not (self._rules.deletes and record.key is not None):
                return
            known = self._learned(record, table)
        if value is None:
            assert known is not None
            gathered.delete(known.shape, self._key(known, record))
        elif known is None:
            if value["op"] == "t" and self._rules.truncates:
                gathered.truncate(TruncateStep(table, position_of(value) if self._rules.position else None))
        elif known.is_envelope:
            self._envelope(record, known, gathered)
        else:
            self._flat(record, known, gathered)

    def _envelope(self, record: TargetRecord, known: _Known, gathered: StepGatherer) -> None:
        value = record.value
        if value["op"] == "d":
            if self._rules.deletes:
                gathered.delete(known.shape, self._key(known, record))
            return
        row = value["after"]
        if row is None:
            raise CdcError(RECORD_REFUSED, "the envelope has no row behind the change")
        self._row(record, known, row, gathered)

    def _flat(self, record: TargetRecord, known: _Known, gathered: StepGatherer) -> None:
        if record.value.get(DELETED) == "true":
            if self._rules.deletes:
                gathered.delete(known.shape, self._key(known, record))
            return
        self._row(record, known, record.value, gathered)

    def _row(self, record: TargetRecord, known: _Known, row: Mapping[str, Any], gathered: StepGatherer) -> None:
        shape = known.shape
        values = [row[name] for name in shape.fields]
        key = self._key(known, record) if shape.key else ()
        if len(values) < len(shape.columns):
            own = dict(zip(shape.key, key, strict=True))
            values += [own[name] for name in shape.names[len(values) :] if name in own]
            if self._rules.position:
                values.append(position_of(record.value) if known.is_envelope else None)
        gathered.write(shape, key, tuple(values), _lacking(record, shape, values))

    def _key(self, known: _Known, record: TargetRecord) -> Row:
        try:
            return known.key(record)
        except (KeyError, TypeError):
            raise CdcError(RECORD_REFUSED, "the record does not have all fields of the key") from None

    def _learned(self, record: TargetRecord, table: TableName) -> _Known:
        place = (table, id(record.key_schema), id(record.value_schema))
        known = self._known.get(place)
        if known is None:
            shape = self._maker.shape(table, record)
            known = self._known[place] = _Known(
                record.key_schema, record.value_schema, shape, self._maker.key_values(record), is_envelope(record.value_schema)
            )  # fmt: skip
        return known


class StepGatherer:
    """Gathers changes into steps: of each key the last one counts, until a table is emptied or its rows have another shape."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._open: dict[TableName, _Gathered] = {}

    def write(self, shape: RowShape, key: Row, row: Row, lacking: Places = _WHOLE) -> None:
        """Writes a row."""
        self._of(shape).write(key, row, lacking)

    def delete(self, shape: RowShape, key: Row) -> None:
        """Deletes the row of a key."""
        self._of(shape, deletes=True).delete(key)

    def truncate(self, step: TruncateStep) -> None:
        self._end(step.table)
        self._steps.append(step)

    def finish(self) -> list[Step]:
        """Returns all steps."""
        for table in list(self._open):
            self._end(table)
        return self._steps

    def _of(self, shape: RowShape, *, deletes: bool = False) -> _Gathered:
        found = self._open.get(shape.table)
        if found is not None and found.shape is not shape:
            # A tombstone has no columns but those of its key, and goes with any rows of that key.
            if deletes and found.shape.key == shape.key:
                return found
            self._end(shape.table)
            found = None
        if found is None:
            found = self._open[shape.table] = _Gathered(shape)
        return found

    def _end(self, table: TableName) -> None:
        found = self._open.pop(table, None)
        if found is not None:
            self._steps.append(found.rows())


class _Gathered:
    def __init__(self, shape: RowShape) -> None:
        self.shape = shape
        self._last: dict[Any, tuple[Row, Places] | None] = {}
        self._keys: dict[Any, Row] = {}
        self._unkeyed: list[Row] = []

    def write(self, key: Row, row: Row, lacking: Places) -> None:
        if not key:
            self._unkeyed.append(row)
            return
        name = _hashable(key)
        if lacking and name in self._last and self._last[name] is None:
            # What the deleted row had there is none of this one's.
            row, lacking = tuple(None if at in lacking else value for at, value in enumerate(row)), _WHOLE
        elif lacking and (before := self._last.get(name)) is not None:
            row = tuple(before[0][at] if at in lacking else value for at, value in enumerate(row))
            lacking = lacking & before[1]
        self._last[name] = row, lacking

    def delete(self, key: Row) -> None:
        name = _hashable(key)
        self._last[name] = None
        self._keys[name] = key

    def rows(self) -> RowsStep:
        out = RowsStep(self.shape)
        if self._unkeyed:
            out.written[_WHOLE] = self._unkeyed
        for name, found in self._last.items():
            if found is None:
                out.deleted.append(self._keys[name])
            else:
                out.written.setdefault(found[1], []).append(found[0])
        return out


def _hashable(key: Row) -> Any:
    try:
        hash(key)
    except TypeError:
        return repr(key)
    return key


def _lacking(record: TargetRecord, shape: RowShape, values: Sequence[Any]) -> Places:
    """Returns which columns the source did not send: a value that is stored beside its row and did not change."""
    out = [at for at, value in enumerate(values) if _PLACEHOLDER.stands(value)]
    if record.unsent:
        out += [at for at, name in enumerate(shape.fields) if name in record.unsent]
    return frozenset(out) if out else _WHOLE


def position_of(envelope: Mapping[str, Any]) -> bytes | None:
    """Returns the place of a change in the source's log, as bytes that are in its order; None where the source does not tell."""
    source = envelope.get("source")
    if not isinstance(source, Mapping):
        return None
    numbers = [source.get(name) for name in ("commit_lsn", "tx_index", "tx_sub")]
    if any(not isinstance(number, int) or number < 0 for number in numbers):
        return None
    try:
        return POSITION.pack(*numbers)
    except struct.error:
        return None


def without_older(rows: RowsStep, position: int, floor: bytes) -> RowsStep:
    """Returns the rows without those that came before a TRUNCATE; `position` is the column's place."""
    kept = {
        lacking: [row for row in found if row[position] is None or row[position] > floor]
        for lacking, found in rows.written.items()
    }
    return RowsStep(rows.shape, kept, rows.deleted)


__all__ = [
    "SHAPES_MAX",
    "ChangeReader",
    "Places",
    "RowsStep",
    "Step",
    "StepGatherer",
    "TruncateStep",
    "position_of",
    "row_schema",
    "without_older",
]
