"""Which type of DuckDB a column of a change has, by the one that it would have in a file of a lake; and which type takes both of two."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from cdcworker.connectors.arrow.decode import DecodePlan, arrow_type
from cdcworker.connectors.warehouses import arrow_types
from cdcworker.connectors.warehouses.source_types import TargetColumn

if TYPE_CHECKING:
    import pyarrow as pa

TEXT: Final = "VARCHAR"
BYTES: Final = "BLOB"
BOOLEAN: Final = "BOOLEAN"
MOMENT: Final = "TIMESTAMP WITH TIME ZONE"
_NAMES: Final[Mapping[str, str]] = {
    # By Arrow's names.
    "bool": BOOLEAN,
    "int32": "INTEGER",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": TEXT,
    "binary": BYTES,
    "date32[day]": "DATE",
    "timestamp[us]": "TIMESTAMP",
    "timestamp[us, tz=UTC]": MOMENT,
}
_PLAIN: Final = DecodePlan({"type": "record", "name": "r", "fields": []})


def arrow_of(column: TargetColumn) -> pa.DataType:
    """Returns the type that a column's values are given to DuckDB with."""
    return arrow_types.arrow_of(column, arrow_type(column.avro, _PLAIN))


def name_of(kind: pa.DataType) -> str:
    """Returns DuckDB's name of an Arrow type that a column of the source has."""
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"{name_of(kind.value_type)}[]"
    return _NAMES.get(str(kind), TEXT)


def parsed(name: str) -> pa.DataType | None:
    """Returns the Arrow type of a type that the sink makes; None: it makes none such."""
    import pyarrow as pa

    digits = re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", name)
    if digits:
        return pa.decimal128(int(digits[1]), int(digits[2]))
    if name.endswith("[]"):
        inner = parsed(name[:-2])
        return None if inner is None else pa.list_(inner)
    moments = {"DATE": pa.date32(), "TIMESTAMP": pa.timestamp("us"), MOMENT: pa.timestamp("us", "UTC")}
    plain = {found: arrow for arrow, found in _NAMES.items() if found not in moments}
    return moments.get(name) or (pa.type_for_alias(plain[name]) if name in plain else None)


def widened(have: str, want: str) -> str | None:
    """Returns the type that an existing column needs to hold values of another type besides its own. None: none holds both."""
    if have == want:
        return have
    pair = parsed(have), parsed(want)
    if pair[0] is None or pair[1] is None:
        return None
    found = arrow_types.wider(pair[0], pair[1])
    return None if found is None else name_of(found)
