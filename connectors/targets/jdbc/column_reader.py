"""Reads many records of one schema at once, column by column: what PostgreSQL and MySQL then get is made of columns too.

Only what is most frequent is read so: Debezium's envelopes in Avro, of columns that Avro has types for. All else is read record by
record, with the same result.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, Literal, NamedTuple

from cdcworker.connectors.arrow.decode import KINDS, DecodedColumn, DecodePlan, native
from cdcworker.connectors.targets.jdbc.shapes import ENVELOPE, Row, RowShape
from cdcworker.schemas.placeholders import UNAVAILABLE

_LEAD: Final = 5
"""Bytes of the frame before each body."""
_NUMBERS: Final[Mapping[str, Literal["i", "q", "f", "d"]]] = {"int": "i", "long": "q", "float": "f", "double": "d"}
_PLACEHOLDER: Final = UNAVAILABLE.encode()
_BITS: Final = [[bool(byte >> bit & 1) for bit in range(8)] for byte in range(256)]
_DELETED: Final = "d"
_ROWS: Final = frozenset(("c", "r", "u", _DELETED))


class Unsuited(Exception):
    """The records are to be read one by one."""


class Columns(NamedTuple):
    """Records as columns. Of a tombstone, and of a deletion, there is no row."""

    keys: list[Row]
    rows: list[Row]
    ops: list[str]
    moments: Counter[int]
    """When the changes were committed in the source, in ms, and how many at each time."""


class ColumnReader:
    """Reads records of one pair of schemas."""

    def __init__(self, key: Any, value: Any, shape: RowShape) -> None:
        """`key` and `value` are Avro schemas. Raises Unsuited."""
        if native() is None or not isinstance(key, dict) or key.get("type") != "record":
            raise Unsuited
        if not isinstance(value, dict) or not {f["name"] for f in value.get("fields", ())} >= ENVELOPE:
            raise Unsuited
        self._key = DecodePlan(key)
        self._value = DecodePlan(value, [("after",), ("op",), ("source", "ts_ms"), ("source", "snapshot")])
        self._keys = [_leaf(child) for child in self._key.root.children]
        parts = {child.name: child for child in self._value.root.children}
        numbers = shape.numbers or {}
        fields = parts["after"].children
        if len(numbers) != len(shape.columns) or len(self._keys) != len(shape.key):
            raise Unsuited
        self._fields = [_leaf(fields[number]) for number in numbers]
        self._op = _leaf(parts["op"])
        source = {child.name: _leaf(child) for child in parts["source"].children} if "source" in parts else {}
        self._moment, self._snapshot = source.get("ts_ms"), source.get("snapshot")

    def read(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> Columns:
        """Returns framed records as columns. Raises Unsuited for what is no row or no deletion of one, or cannot be read."""
        read_keys = _decoded(self._key, keys)
        there = [value for value in values if value is not None]
        read = _decoded(self._value, there)
        if any(_PLACEHOLDER in read[leaf.column][2] for leaf in self._fields if leaf.kind in ("string", "bytes")):
            raise Unsuited
        count = len(there)
        ops = _values(read[self._op.column], self._op, count)
        if not _ROWS.issuperset(ops):
            raise Unsuited
        rows = list(zip(*[_values(read[leaf.column], leaf, count) for leaf in self._fields], strict=True))
        moments = self._moments(read, count)
        if count < len(values):
            ops, rows = _spread(values, ops, _DELETED), _spread(values, rows, ())
        found = zip(*[_values(read_keys[leaf.column], leaf, len(keys)) for leaf in self._keys], strict=True)
        return Columns(list(found), rows, ops, moments)

    def _moments(self, read: Sequence[Any], count: int) -> Counter[int]:
        if self._moment is None:
            return Counter()
        times = _values(read[self._moment.column], self._moment, count)
        if self._snapshot is not None:
            loads = _values(read[self._snapshot.column], self._snapshot, count)
            times = [time for time, load in zip(times, loads, strict=True) if load in (None, "false")]
        return Counter(time for time in times if time is not None)


class _Leaf(NamedTuple):
    column: int
    kind: str


def _leaf(found: DecodedColumn) -> _Leaf:
    node = found.type
    while isinstance(node, dict):
        node = node["type"]
    if found.by_fastavro or found.children or node not in (*_NUMBERS, "boolean", "string", "bytes"):
        raise Unsuited
    assert node in KINDS
    return _Leaf(found.column, node)


def _decoded(plan: DecodePlan, bodies: Sequence[bytes]) -> Sequence[Any]:
    ends = array("q", accumulate(map(len, bodies), initial=0))
    _, status, columns = native().decode(plan.nodes, plan.children, plan.widths, b"".join(bodies), ends, _LEAD)
    if status:
        raise Unsuited
    return columns  # type: ignore[no-any-return]  # the extension has no types


def _values(column: tuple[bytes | None, bytes | None, bytes], leaf: _Leaf, count: int) -> list[Any]:
    valid, ends, data = column
    out: list[Any]
    if leaf.kind in _NUMBERS:
        out = memoryview(data).cast(_NUMBERS[leaf.kind]).tolist() if data else []
    elif leaf.kind == "boolean":
        out = _truths(data, count)
    else:
        out = _pieces(memoryview(ends or b"").cast("i").tolist(), data, is_text=leaf.kind == "string")
    if valid is None:
        return out
    return [value if is_there else None for value, is_there in zip(out, _truths(valid, count), strict=True)]


def _truths(packed: bytes, count: int) -> list[Any]:
    return [truth for byte in packed for truth in _BITS[byte]][:count]


def _pieces(ends: Sequence[int], data: bytes, *, is_text: bool) -> list[Any]:
    pairs = pairwise(ends)
    if not is_text:
        return [data[begin:end] for begin, end in pairs]
    try:
        if data.isascii():
            text = data.decode("ascii")
            return [text[begin:end] for begin, end in pairs]
        return [data[begin:end].decode() for begin, end in pairs]
    except UnicodeDecodeError:
        raise Unsuited from None


def _spread(values: Sequence[bytes | None], found: Sequence[Any], missing: Any) -> list[Any]:
    """Puts what was found where there is a value, and what is `missing` elsewhere."""
    each = iter(found)
    return [missing if value is None else next(each) for value in values]
