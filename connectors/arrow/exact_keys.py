"""Columns of the key as the key has them: in the row a source may have brought them into the range of readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.arrow import array_ops, key_numbers
from cdcworker.connectors.arrow.decode import UndecodableRow, decode
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchema, EnvelopeSchemas, KeySchema
from cdcworker.connectors.sink_errors import UNDECODABLE
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.arrow.topic_records import TopicRecords


def columns_of(kind: KeySchema, shape: EnvelopeSchema, bodies: Any, names: Sequence[str]) -> dict[str, Any]:
    """Returns these columns of keys without their frames; UndecodableRow where one does not fit its schema."""
    found = decode(kind.plan, *array_ops.slices(bodies), 0)
    return {
        name: key_numbers.with_empty_nan(found.field(name), (kind.kinds[name], shape.kinds.get(name))) for name in names
    }


def read(topic: TopicRecords, rows: Any, shape: EnvelopeSchema, schemas: EnvelopeSchemas) -> dict[str, tuple[Any, Any]]:
    """Returns for each such column a mask of the rows whose key has it, and its values there."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if not shape.bounded or topic.key.null_count == len(topic.key):
        return {}
    keys = topic.key.take(pa.array(rows))
    framed = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
    ids = np.zeros(len(rows), np.int64)
    ids[framed] = array_ops.frame_ids(keys.take(pa.array(framed)))
    out: dict[str, tuple[Any, Any]] = {}
    for id in np.unique(ids[ids > 0]).tolist():
        found = np.flatnonzero(ids == id)
        where = topic.where(int(rows[found[0]]))
        kind = schemas.key(id, where)
        chosen = [name for name in kind.fields if name in shape.bounded]
        if not chosen:
            continue
        try:
            decoded = columns_of(kind, shape, array_ops.bodies(keys.take(pa.array(found))), chosen)
        except UndecodableRow as exc:
            raise CdcError(UNDECODABLE, "a key does not fit its schema", where=where) from exc
        places = np.full(len(rows), -1, np.int64)
        places[found] = np.arange(len(found))
        mask = pa.array(places >= 0)
        index = pa.array(places, mask=places < 0)
        for name in chosen:
            values = decoded[name].take(index)
            has, other = out.get(name, (None, None))
            out[name] = (mask, values) if has is None else (pc.or_(mask, has), pc.if_else(mask, values, other))
    return out
