"""Kafka headers of change records: which columns were not sent, which key a row came from or goes to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cdcworker.connectors.arrow.array_ops import frame_ids

UNCHANGED = "cdc.unchanged"
NEW_KEY = "__debezium.newkey"
OLD_KEY = "__debezium.oldkey"


@dataclass(frozen=True, slots=True)
class HeaderMarks:
    """`unchanged`: header text → rows. `old` and `new`: (rows, framed keys), None where no row has the header."""

    unchanged: dict[str, Any]
    old: tuple[Any, list[bytes]] | None = None
    new: tuple[Any, list[bytes]] | None = None


def read(headers: Any, rows: Any) -> HeaderMarks:
    """The headers of the chosen `rows`, numbered within them. Most batches have none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if headers.null_count == len(headers):
        return HeaderMarks({})
    chosen = headers.take(pa.array(rows))
    flat = chosen.flatten()
    names, values = flat.field(0), flat.field(1)
    parents = pc.list_parent_indices(chosen).to_numpy()
    unchanged: dict[str, Any] = {}
    at = _named(names, UNCHANGED)
    if len(at):
        texts = pc.dictionary_encode(values.take(pa.array(at)))
        codes = texts.indices.to_numpy()
        for code, text in enumerate(texts.dictionary.to_pylist()):
            unchanged[text.decode("ascii", "replace")] = parents[at[codes == code]]
    return HeaderMarks(unchanged, _keys(names, values, parents, OLD_KEY), _keys(names, values, parents, NEW_KEY))


def without_frame(marks: HeaderMarks) -> list[int]:
    """Rows whose header names a key that has no frame."""
    import numpy as np
    import pyarrow as pa

    out: list[int] = []
    for other in (marks.old, marks.new):
        if other is not None:
            bad = np.flatnonzero(frame_ids(pa.array(other[1], pa.binary())) <= 0)
            out += np.asarray(other[0])[bad].tolist()
    return out


def _named(names: Any, name: str) -> Any:
    import numpy as np
    import pyarrow.compute as pc

    return np.flatnonzero(pc.fill_null(pc.equal(names, name), False).to_numpy(zero_copy_only=False))


def _keys(names: Any, values: Any, parents: Any, name: str) -> tuple[Any, list[bytes]] | None:
    import pyarrow as pa

    at = _named(names, name)
    return (parents[at], values.take(pa.array(at)).to_pylist()) if len(at) else None
