"""`NaN` of decimals in keys. A source writes it as the first number beyond the type, which every reader takes, or as empty bytes.

Rows have the one form that is left after this: empty bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cdcworker.schemas.placeholders import DIGITS_MAX, beyond_precision

if TYPE_CHECKING:
    import pyarrow as pa

Avro = Any
Replace = Callable[[Any], Any]


def with_empty_nan(values: pa.Array, kinds: Sequence[Avro]) -> pa.Array:
    """Returns values of a key's column with empty bytes for each number beyond its type. `kinds`: its type in the key's schema,
    which may be bare, and in the row's."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for kind in kinds:
        beyond = _beyond(kind)
        if beyond and pa.types.is_binary(values.type):
            return pc.if_else(pc.equal(values, pa.scalar(beyond)), pa.scalar(b""), values)
        replace = None if beyond else _inner(kind)
        if replace is not None and pa.types.is_nested(values.type):
            return pa.array([None if value is None else replace(value) for value in values.to_pylist()], values.type)
    return values


def _beyond(kind: Avro) -> bytes | None:
    """What is beyond a decimal with a precision; None for any other type."""
    kind = _concrete(kind)
    if not isinstance(kind, dict) or kind.get("type") != "bytes":
        return None
    is_decimal = kind.get("connect.name") == "org.apache.kafka.connect.data.Decimal"
    precision = kind.get("precision")
    if not is_decimal or not isinstance(precision, int) or not 0 < precision <= DIGITS_MAX:
        return None
    return beyond_precision(precision)


def _concrete(kind: Avro) -> Avro:
    if not isinstance(kind, list):
        return kind
    rest = [branch for branch in kind if branch != "null"]
    return rest[0] if len(rest) == 1 else None


def _replace(kind: Avro) -> Replace | None:
    beyond = _beyond(kind)
    return (lambda value: b"" if value == beyond else value) if beyond else _inner(kind)


def _inner(kind: Avro) -> Replace | None:
    """What to make of a list or a record that holds decimals; None where nothing is to be done."""
    kind = _concrete(kind)
    if not isinstance(kind, dict):
        return None
    if kind.get("type") == "array":
        item = _replace(kind["items"])
        return None if item is None else lambda value: [None if one is None else item(one) for one in value]
    if kind.get("type") != "record":
        return None
    made = {field["name"]: _replace(field["type"]) for field in kind["fields"]}
    parts = {name: part for name, part in made.items() if part is not None}

    def fields(value: Any) -> Any:
        return {name: parts[name](one) if name in parts and one is not None else one for name, one in value.items()}

    return fields if parts else None
