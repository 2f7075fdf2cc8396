"""Changes as rows of their own: of tables without a key, and of every table where the warehouse keeps a log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_batch import OP, POSITION, UNCHANGED, TableBatch
from cdcworker.connectors.arrow import array_ops, headers
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchema
from cdcworker.connectors.sink_errors import UNDECODABLE
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.topics import unescape

if TYPE_CHECKING:
    from cdcworker.connectors.arrow.topic_records import DecodedTopic, TopicRecords


def append(
    topic: TopicRecords,
    decoded: DecodedTopic,
    rows: Any,
    shape: EnvelopeSchema,
    log: bool,
    exact: Mapping[str, tuple[Any, Any]] | None = None,
) -> TableBatch:
    """Each change with its new image, or the old one of a delete; in a log also what it did not bring. `exact`: see
    `exact_keys.read`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found, index = decoded.arrays[shape.id], decoded.local[rows]
    found = found if array_ops.is_whole(index, len(found)) else found.take(pa.array(index))
    before, after = found.field("before"), found.field("after")
    gone = pa.array(decoded.op[rows] == "d")
    some = pc.any(gone).as_py()
    columns = {
        name: pc.if_else(gone, before.field(name), after.field(name)) if some else after.field(name)
        for name in shape.fields
    }
    for name, (mask, values) in (exact or {}).items():
        columns[name] = pc.if_else(mask, values, columns[name])
    if log:
        flags = unchanged(headers.read(topic.headers, rows), shape, len(rows), topic, rows)
        for name, missing in flags.items():
            columns[name] = pc.if_else(pa.array(missing), pa.scalar(None, columns[name].type), columns[name])
        columns[UNCHANGED] = _named(flags, len(rows))
    columns[OP] = found.field("op")
    columns[POSITION] = array_ops.position(decoded.major[rows], decoded.minor[rows])
    return TableBatch(topic.name, (), pa.table(columns), pa.table({}), shape.row, shape.path, changes=len(rows))


def _named(flags: Mapping[str, Any], rows: int) -> Any:
    """The names of the columns that a change left out; null where it left none."""
    import numpy as np
    import pyarrow as pa

    out = np.full(rows, None, object)
    for name, missing in flags.items():
        for row in np.flatnonzero(missing).tolist():
            out[row] = unescape(name) if out[row] is None else f"{out[row]},{unescape(name)}"
    return pa.array(out, pa.string())


def unchanged(
    marks: headers.HeaderMarks, shape: EnvelopeSchema, n: int, topic: TopicRecords, rows: Any
) -> dict[str, Any]:
    """Per column which rows did not bring it."""
    import numpy as np

    out: dict[str, Any] = {}
    for text, found in marks.unchanged.items():
        for part in text.split(","):
            if not part.isdigit() or int(part) >= len(shape.fields):
                where = topic.where(int(rows[found[0]]))
                raise CdcError(UNDECODABLE, "the header of unchanged columns names no column", where=where)
            out.setdefault(shape.fields[int(part)], np.zeros(n, np.bool_))[found] = True
    return out
