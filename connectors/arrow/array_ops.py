"""Array steps that know nothing of topics: frames, key codes, positions and runs, each over whole columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from cdcworker.connectors.arrow.decode import CONFLUENT_FRAME_BYTES
from cdcworker.connectors.arrow.reduce import NONE


def one(column: Any) -> Any:
    """A chunked column as one array."""
    import pyarrow as pa

    found = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(found, pa.ChunkedArray):
        found = found.chunk(0) if found.num_chunks == 1 else pa.concat_arrays(found.chunks)
    return found


def by_topic(raw: Any) -> dict[str, Any]:
    """The records of each topic, as they stand. Where a piece of the table is of one topic no byte of it is copied."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    found: dict[str, list[Any]] = {}
    for piece in raw.to_batches():
        names = piece.column("topic")
        names = names if pa.types.is_dictionary(names.type) else pc.dictionary_encode(names)
        codes = names.indices.to_numpy()
        for code in np.unique(codes).tolist():
            rows = np.flatnonzero(codes == code)
            part = piece if len(rows) == len(codes) else piece.take(pa.array(rows))
            found.setdefault(names.dictionary[code].as_py(), []).append(part.drop_columns(["topic"]))
    return {name: pa.Table.from_batches(parts) for name, parts in found.items()}


def chosen(values: Any, rows: Any) -> tuple[Any, Any]:
    """`slices` of some rows, which stand in their order; rows of no bytes between them cost nothing."""
    import pyarrow as pa

    data, offsets = slices(values)
    if len(rows) == len(values):
        return data, offsets
    if bool((offsets[rows[1:]] == offsets[rows[:-1] + 1]).all()):
        return data, append(offsets[rows], offsets[rows[-1:] + 1])
    return slices(values.take(pa.array(rows)))


def append(one: Any, other: Any) -> Any:
    import numpy as np

    return np.concatenate([one, other])


def is_whole(index: Any, length: int) -> bool:
    """Returns whether an index takes every row in its order."""
    import numpy as np

    return len(index) == length and bool((index == np.arange(length)).all())


def lone(value: int) -> Any:
    import numpy as np

    return np.array([value], np.int64)


def ints(values: Any) -> Any:
    """A column of numbers; null (no field of the kind in this record) as 0."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.fill_null(values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False).astype(np.int64)


def slices(values: Any) -> tuple[Any, Any]:
    """(data, int64 offsets) of a binary array."""
    import numpy as np
    import pyarrow as pa

    wide = pa.types.is_large_binary(values.type)
    _, ends, data = values.buffers()
    width = np.int64 if wide else np.int32
    offsets = np.frombuffer(ends, width, len(values) + 1, values.offset * np.dtype(width).itemsize)
    return (data if data is not None else b""), offsets.astype(np.int64)


def frame_ids(values: Any) -> Any:
    """Schema id of each framed value; 0: null, -1: not framed."""
    import numpy as np

    data, offsets = slices(values)
    view = np.frombuffer(data, np.uint8)
    starts, sizes = offsets[:-1], np.diff(offsets)
    ids = np.full(len(starts), -1, np.int64)
    framed = sizes >= CONFLUENT_FRAME_BYTES
    at = starts[framed]
    found = np.zeros(len(at), np.int64)
    for step in range(1, CONFLUENT_FRAME_BYTES):
        found = found << 8 | view[at + step]
    found[(view[at] != 0) | (found <= 0) if len(at) else []] = -1
    ids[framed] = found
    ids[np.asarray(values.is_null().to_numpy(zero_copy_only=False))] = 0
    return ids


def position(major: Any, minor: Any) -> Any:
    """16 bytes each; null for what has no position."""
    import numpy as np
    import pyarrow as pa

    out = np.empty((len(major), 16), np.uint8)
    out[:, :8] = major.astype(">u8").view(np.uint8).reshape(-1, 8)
    out[:, 8:] = minor.astype(">u8").view(np.uint8).reshape(-1, 8)
    ends = np.arange(len(major) + 1, dtype=np.int32) * 16
    mask = pa.array(major >= 0).buffers()[1] if (major < 0).any() else None
    return pa.Array.from_buffers(pa.binary(), len(major), [mask, pa.py_buffer(ends), pa.py_buffer(out)])


def runs(ids: Any) -> list[tuple[int, int, int]]:
    """(id, start, end) of equal neighbours; tombstones join the run they stand in."""
    import numpy as np

    if not len(ids):
        return []
    filled = ids.copy()
    known = np.flatnonzero(ids > 0)
    if len(known):
        at = np.maximum.accumulate(np.where(ids > 0, np.arange(len(ids)), known[0]))
        filled = ids[at]
    edges = [0, *(np.flatnonzero(filled[1:] != filled[:-1]) + 1).tolist(), len(ids)]
    return [(int(filled[start]), start, end) for start, end in pairwise(edges)]


def take(after: Any, name: str, index: Any) -> Any:
    import pyarrow as pa

    return pa.nulls(len(index)) if after is None else after.field(name).take(index)


def bodies(framed: Any) -> Any:
    """Framed values, none of them null, without their frames."""
    import numpy as np
    import pyarrow as pa

    data, offsets = slices(framed)
    kept = np.ones(offsets[-1], np.bool_)
    kept[: offsets[0]] = False
    for step in range(CONFLUENT_FRAME_BYTES):
        kept[offsets[:-1] + step] = False
    bodies = np.frombuffer(data, np.uint8, offsets[-1])[kept]
    ends = (offsets - offsets[0] - CONFLUENT_FRAME_BYTES * np.arange(len(offsets))).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(framed), [None, pa.py_buffer(ends), pa.py_buffer(bodies)])


def key_codes(keys: Any, others: Sequence[tuple[Any, Any] | None]) -> tuple[list[Any], Any]:
    """Dense numbers of the key bodies of rows and of keys named in headers; NONE where a row names none."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    named = [pa.array(other[1], pa.binary()) for other in others if other]
    parts = [bodies(keys), *map(bodies, named)]
    encoded = pc.dictionary_encode(pa.concat_arrays(parts))
    numbers = encoded.indices.to_numpy().astype(np.int64)
    out, start = [numbers[: len(keys)]], len(keys)
    for other in others:
        spread = np.full(len(keys), NONE, np.int64)
        if other is not None:
            spread[other[0]] = numbers[start : start + len(other[0])]
            start += len(other[0])
        out.append(spread)
    return out, encoded.dictionary
