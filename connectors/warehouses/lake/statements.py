"""Statements over tables of a lake, in Spark's SQL: names, types, changes of columns, and the MERGE of a batch."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_batch import IS_CURRENT, OP, VALID_TO, VALID_TO_POSITION
from cdcworker.connectors.sink_errors import SCHEMA_REFUSED
from cdcworker.connectors.warehouses import target_columns
from cdcworker.connectors.warehouses.column_changes import Where, steps
from cdcworker.connectors.warehouses.target_columns import DEFAULT
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import pyarrow as pa

GONE = "_cdc_gone"
"""Column of staged rows: the row of this key goes."""
_PLAIN = {
    "bool": "boolean",
    "int32": "int",
    "int64": "bigint",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date32[day]": "date",
    "timestamp[us]": "timestamp_ntz",
    "timestamp[us, tz=UTC]": "timestamp",
    "null": "string",
}


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Raw strings know no escapes; what they cannot hold is escaped."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def stored_name(name: str) -> str:
    """A name that any catalog and any file system takes; no two names give one."""
    return re.sub(r"[^A-Za-z0-9_ $-]", lambda found: "".join(f"~{byte:02x}" for byte in found[0].encode()), name)


def plain_name(stored: str) -> str:
    text = re.sub(rb"~([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), stored.encode())
    return text.decode()


def type_of(kind: pa.DataType) -> str:
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{type_of(kind.value_type)}>"
    return _PLAIN[str(kind)]


def arrow_of(kind: str) -> pa.DataType | None:
    """The other way round; None: the sink makes no such column."""
    import pyarrow as pa

    digits = re.fullmatch(r"decimal\((\d+),(\d+)\)", kind)
    if digits is not None:
        return pa.decimal128(int(digits[1]), int(digits[2]))
    element = re.fullmatch(r"array<(.+)>", kind)
    if element is not None:
        inner = arrow_of(element[1])
        return None if inner is None else pa.list_(inner)
    plain = {"date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}
    names = {"boolean": "bool", "int": "int32", "bigint": "int64", "float": "float", "double": "double"}
    named = {**names, "string": "string", "binary": "binary"}
    return plain.get(kind) or (pa.type_for_alias(named[kind]) if kind in named else None)


def types_of(fields: Mapping[str, Any]) -> dict[str, str]:
    """Returns the types of the columns of a schema that is given as Spark's JSON."""
    from pyspark.sql.types import StructType

    return {field.name: field.dataType.simpleString() for field in StructType.fromJson(dict(fields)).fields}


def listed(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())


def definition(schema: pa.Schema) -> str:
    return ", ".join(f"{quoted(field.name)} {type_of(field.type)}" for field in schema)


def first(output: target_columns.OutputForm) -> str:
    """A column that every table of such an output has: none can be made without one."""
    return f"{quoted(output.position)} binary" if output.position else f"{quoted(OP)} string"


def room(have: pa.Schema | None, want: pa.Schema) -> dict[str, str]:
    """New names of columns from before that leave room for those wanted; empty: there is room."""
    if have is None:
        return {}
    names = target_columns.renamed(have, want)
    return dict(steps(names, set(want.names).difference(names.values()))[0])


def drops(table: str, there: Collection[str], names: Sequence[str]) -> list[str]:
    """Returns the statements that drop those of the columns that exist."""
    found = [quoted(name) for name in names if name in there]
    return [f"ALTER TABLE {table} DROP COLUMN {name}" for name in found]


def renames(table: str, there: Mapping[str, str], names: Mapping[str, str], where: Where) -> list[str]:
    """`names`, old and new, of which nobody had the new ones. `there` are the table's columns, which may be ahead: a
    statement that was run before is not run again."""
    out = []
    for old, new in names.items():
        if old == new or old not in there:
            continue
        if new in there:
            text = "a column was renamed to the name of one that is not the source's"
            raise CdcError(SCHEMA_REFUSED, text, where={**where, "column": new})
        out.append(f"ALTER TABLE {table} RENAME COLUMN {quoted(old)} TO {quoted(new)}")
    return out


def changes(table: str, there: Mapping[str, str], have: pa.Schema | None, want: pa.Schema, where: Where) -> list[str]:
    """Returns what brings a table to the columns wanted, for whose names there is room. `there` are those that it has
    now, which may be ahead of `have`, the sink's own notes."""
    names = {} if have is None else target_columns.renamed(have, want)
    out = renames(table, there, names, where)
    columns = {names.get(name, name): kind for name, kind in there.items()}
    for field in want:
        kind = type_of(field.type)
        if columns.get(field.name, kind) != kind:
            if not widens(columns[field.name], kind):
                text = f"a column of type {columns[field.name]} cannot become {kind} in a lake"
                raise CdcError(SCHEMA_REFUSED, text, where={**where, "column": field.name})
            out.append(f"ALTER TABLE {table} ALTER COLUMN {quoted(field.name)} TYPE {kind}")
    new = [f"{quoted(field.name)} {type_of(field.type)}" for field in want if field.name not in columns]
    if new:
        # One commit for all: each is one more that a reader of the table's log reads.
        out.append(f"ALTER TABLE {table} ADD COLUMNS ({', '.join(new)})")
    return out


def widens(have: str, want: str) -> bool:
    """Returns whether both formats can widen a column without rewriting its rows."""
    if (have, want) in (("int", "bigint"), ("float", "double")):
        return True
    digits = [re.fullmatch(r"decimal\((\d+),(\d+)\)", kind) for kind in (have, want)]
    if digits[0] is None or digits[1] is None:
        return False
    return digits[0][2] == digits[1][2] and int(digits[0][1]) <= int(digits[1][1])


def added(have: pa.Schema | None, want: pa.Schema) -> dict[str, str]:
    """Columns that are new and the value that rows which stand already get, as SQL."""
    if have is None:
        return {}
    known = set(target_columns.renamed(have, want).values())
    out = {}
    for field in want:
        notes = field.metadata or {}
        if field.name not in known and DEFAULT in notes:
            out[field.name] = f"CAST({literal(notes[DEFAULT].decode())} AS {type_of(field.type)})"
    return out


def merge(target: str, source: str, names: Sequence[str], on: Sequence[str], unmatched: Sequence[str] = ()) -> str:
    """One row per value of the columns `on` replaces, adds or takes away. `unmatched`: what becomes of rows that none of them
    names."""
    sets = ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in names)
    listed = ", ".join(map(quoted, names))
    values = ", ".join(f"s.{quoted(name)}" for name in names)
    same = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in on)
    lines = [
        f"MERGE INTO {target} t USING {source} s ON {same}",
        f"WHEN MATCHED AND s.{quoted(GONE)} THEN DELETE",
        f"WHEN MATCHED THEN UPDATE SET {sets}",
        f"WHEN NOT MATCHED AND NOT s.{quoted(GONE)} THEN INSERT ({listed}) VALUES ({values})",
    ]
    return "\n".join([*lines, *unmatched])


def of_others(fill: Mapping[str, str], below: str, soft: str) -> list[str]:
    """Returns what becomes of rows that no key names. `fill` are their values for columns that are new, `below` says which are
    from before a TRUNCATE: they go, or are marked in the column `soft`."""
    lines, filled = [], _sets(fill)
    if below:
        marked = ", ".join([*filled, f"t.{quoted(soft)} = true"])
        lines.append(f"WHEN NOT MATCHED BY SOURCE AND {below} THEN " + (f"UPDATE SET {marked}" if soft else "DELETE"))
    if filled:
        lines.append(f"WHEN NOT MATCHED BY SOURCE THEN UPDATE SET {', '.join(filled)}")
    return lines


def of_other_versions(fill: Mapping[str, str], position: str, cuts: Sequence[tuple[bytes, int]]) -> list[str]:
    """Returns the same of versions: those that were current at a TRUNCATE end there. `cuts` are the positions and times (microseconds)
    of each, in rising order; `position` is the column of positions."""
    lines, filled = [], _sets(fill)
    end = f"t.{quoted(VALID_TO_POSITION)}"
    for at, moment in cuts:
        hexed = f"X'{at.hex()}'"
        ended = [
            f"t.{quoted(VALID_TO)} = timestamp_micros({moment})",
            f"{end} = {hexed}",
            f"t.{quoted(IS_CURRENT)} = false",
        ]
        where = f"t.{quoted(position)} < {hexed} AND ({end} IS NULL OR {end} > {hexed})"
        lines.append(f"WHEN NOT MATCHED BY SOURCE AND {where} THEN UPDATE SET {', '.join([*filled, *ended])}")
    if filled:
        lines.append(f"WHEN NOT MATCHED BY SOURCE THEN UPDATE SET {', '.join(filled)}")
    return lines


def _sets(values: Mapping[str, str]) -> list[str]:
    return [f"t.{quoted(name)} = {value}" for name, value in values.items()]


def below(position: str, floor: bytes | None) -> str:
    """Rows from before a TRUNCATE by their column of positions; empty: there was none."""
    return "" if floor is None else f"t.{quoted(position)} < X'{floor.hex()}'"


def append(target: str, source: str, names: Sequence[str], fill: Mapping[str, str], below: str) -> str:
    """Rows are added; where rows from before change too, in the same step."""
    listed = ", ".join(map(quoted, names))
    values = ", ".join(f"s.{quoted(name)}" for name in names)
    if not fill and not below:
        return f"INSERT INTO {target} ({listed}) SELECT {values} FROM {source} s"
    lines = [
        f"MERGE INTO {target} t USING {source} s ON false",
        f"WHEN NOT MATCHED THEN INSERT ({listed}) VALUES ({values})",
    ]
    if below:
        lines.append(f"WHEN NOT MATCHED BY SOURCE AND {below} THEN DELETE")
    if fill:
        lines.append(f"WHEN NOT MATCHED BY SOURCE THEN UPDATE SET {', '.join(_sets(fill))}")
    return "\n".join(lines)
