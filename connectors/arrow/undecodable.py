"""Records that cannot be decoded, taken out of a batch one topic at a time: which they are and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from cdcworker.connectors.api.table_batch import DeadLetter
from cdcworker.connectors.arrow import array_ops
from cdcworker.connectors.arrow.decode import DecodePlan, UndecodableRow, decode
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchemas, unframed
from cdcworker.connectors.sink_errors import UNDECODABLE, WIRE_FORMAT
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.arrow.topic_records import TopicRecords

T = TypeVar("T")
CODES = (UNDECODABLE, WIRE_FORMAT)
"""Not an unknown schema: its record may still come, or the whole log of schemas is another one."""
ROUNDS_MAX = 100
"""Records that only the whole finds, one at a time."""


def rescue(
    topic: TopicRecords, shapes: EnvelopeSchemas, first: CdcError, work: Callable[[TopicRecords], T]
) -> tuple[T | None, list[DeadLetter]]:
    """Repeats `work` without the records that cannot be decoded; returns its result (None when no record is left) and those
    records."""
    letters: list[DeadLetter] = []
    bad = screen(topic, shapes)
    error = first
    for _ in range(ROUNDS_MAX):
        bad = bad or _named(topic, error)
        if not bad:
            raise error
        letters += [_letter(topic, row, cause) for row, cause in sorted(bad.items())]
        topic = _without(topic, list(bad))
        if not len(topic.schema):
            return None, letters
        try:
            return work(topic), letters
        except CdcError as exc:
            if exc.code not in CODES:
                raise
            error, bad = exc, {}
    raise error


def screen(topic: TopicRecords, shapes: EnvelopeSchemas) -> dict[int, CdcError]:
    """Every row whose value or key is not what its frame says, each column looked through once."""
    import numpy as np

    bad: dict[int, CdcError] = {}
    for row in np.flatnonzero(topic.schema < 0).tolist():
        bad[row] = unframed("value", topic.value[row].as_py(), topic.where(row))
    for id in np.unique(topic.schema[topic.schema > 0]).tolist():
        rows = np.flatnonzero(topic.schema == id)
        try:
            shape = shapes.value(id, topic.where(int(rows[0])))
            _ = shape.row
        except CdcError as exc:
            if exc.code not in CODES:
                raise
            bad.update(dict.fromkeys(rows.tolist(), exc))
            continue
        _decode_all(shape.plan, topic, topic.value, rows, bad)
    _keys(topic, shapes, bad)
    return bad


def _keys(topic: TopicRecords, shapes: EnvelopeSchemas, bad: dict[int, CdcError]) -> None:
    import numpy as np

    ids = array_ops.frame_ids(topic.key)
    for row in np.flatnonzero(ids < 0).tolist():
        bad.setdefault(row, unframed("key", topic.key[row].as_py(), topic.where(row)))
    for id in np.unique(ids[ids > 0]).tolist():
        rows = np.flatnonzero(ids == id)
        _decode_all(shapes.key(id, topic.where(int(rows[0]))).plan, topic, topic.key, rows, bad)


def _decode_all(plan: DecodePlan, topic: TopicRecords, column: Any, rows: Any, bad: dict[int, CdcError]) -> None:
    import pyarrow as pa

    start = 0
    while start < len(rows):
        data, offsets = array_ops.slices(column.take(pa.array(rows[start:])))
        try:
            decode(plan, data, offsets)
            return
        except UndecodableRow as exc:
            row = int(rows[start + exc.row])
            bad.setdefault(row, CdcError(UNDECODABLE, "the record does not fit its schema", where=topic.where(row)))
            start += exc.row + 1


def _named(topic: TopicRecords, error: CdcError) -> dict[int, CdcError]:
    """The row that an error is about."""
    import numpy as np

    where = error.where or {}
    if not {"partition", "offset"} <= where.keys():
        return {}
    rows = np.flatnonzero((topic.partition == where["partition"]) & (topic.offset == where["offset"]))
    return {int(row): error for row in rows}


def _letter(topic: TopicRecords, row: int, cause: CdcError) -> DeadLetter:
    return DeadLetter(
        topic.name,
        int(topic.partition[row]),
        int(topic.offset[row]),
        cause.code,
        cause.message,
        topic.key[row].as_py(),
        topic.value[row].as_py(),
        tuple((item["key"], item["value"]) for item in topic.headers[row].as_py() or ()),
    )


def _without(topic: TopicRecords, rows: list[int]) -> TopicRecords:
    import numpy as np
    import pyarrow as pa

    keep = np.ones(len(topic.schema), np.bool_)
    keep[rows] = False
    mask = pa.array(keep)
    return replace(
        topic,
        partition=topic.partition[keep],
        offset=topic.offset[keep],
        key=topic.key.filter(mask),
        value=topic.value.filter(mask),
        headers=topic.headers.filter(mask),
        schema=topic.schema[keep],
    )
