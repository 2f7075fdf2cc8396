"""Debezium's change envelope: the schemas that Confluent's AvroConverter would register for a table."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from operator import is_
from typing import Any, Final

from cdcworker.schemas.avro import PRIMITIVES
from cdcworker.schemas.change import NO_DEFAULT, Change, Column, JsonObject, Table
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.placeholders import fill_row
from cdcworker.schemas.topics import avro_name, namespace

NAME_CONFLICT = declare(
    "schema.name_conflict",
    "config",
    "Two columns or types of a table share a name after escaping",
    "Rename one of the columns or leave it out with column.exclude.list.",
)

ENVELOPE_VERSION = 2
"""The `connect.version` of Debezium's envelope."""
TRANSACTION_BLOCK: JsonObject = {
    "type": "record",
    "name": "block",
    "namespace": "event",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "total_order", "type": "long"},
        {"name": "data_collection_order", "type": "long"},
    ],
    "connect.version": 1,
    "connect.name": "event.block",
}
_OPTIONAL_LONG: JsonObject = {"type": ["null", "long"], "default": None}
_BOUNDED: Final = frozenset(("time-micros", "local-timestamp-micros"))
"""Logical types of which PostgreSQL has values that readers do not have."""
_CLOCK_FIELDS = ("ts_ms", "ts_us", "ts_ns")
MESSAGE_PATH = ("message",)
"""The `Table.path` of logical messages, whose columns are `prefix` (the key) and `content`."""


def is_message(table: Table) -> bool:
    """Tells whether a table stands for logical messages."""
    return table.path == MESSAGE_PATH


def key_schema(prefix: str, table: Table) -> JsonObject | None:
    """Returns the key's schema, None for a table without a key.

    It says what the values mean (logical types, scale, Connect's names), and nothing else of a column: a change that keeps
    the meaning must not change the schema and so the key's bytes. Raises CdcError `schema.name_conflict`, as
    `value_schema` does.
    """
    return _key_schema(prefix, table, _key_type)


def former_key_schemas(prefix: str, table: Table) -> tuple[JsonObject, ...]:
    """Returns the key's schemas as earlier versions wrote them: the bytes of a key are the same under each. A subject that
    has one keeps it."""
    found = (bare_key_schema(prefix, table), _key_schema(prefix, table, _meaning))
    return tuple(schema for schema in found if schema is not None)


def _key_schema(prefix: str, table: Table, key_type: Callable[[Any], Any]) -> JsonObject | None:
    bare = bare_key_schema(prefix, table)
    if bare is None:
        return None
    names: dict[str, str] = {}
    fields: list[JsonObject] = []
    for column in table.key_columns:
        kind = _define_once(key_type(column.type), "", names)
        field: JsonObject = {"name": avro_name(column.name), "type": kind}
        if column.optional and not is_message(table):
            field = {"name": field["name"], "type": ["null", kind], "default": None}
        fields.append(field)
    full = f"{bare['namespace']}.{bare['name']}" if bare["namespace"] else bare["name"]
    version = {"connect.version": 1} if table.plain is not None or is_message(table) else {}
    return {**bare, "fields": fields, **version, "connect.name": full}


def bare_key_schema(prefix: str, table: Table) -> JsonObject | None:
    """Returns the key's schema with names and types only."""
    if not table.key:
        return None
    if table.plain is not None:
        space, _, name = table.plain.key_name.rpartition(".")
    elif is_message(table):
        space, name = _source_namespace(table), "MessageKey"
    else:
        space, name = namespace(prefix, table.path), "Key"
    names: dict[str, str] = {}
    fields = []
    for column in table.key_columns:
        kind = _define_once(_bare(column.type), "", names)
        # An optional key column has no default: a default is not part of the encoding.
        optional = column.optional and not is_message(table)
        fields.append({"name": avro_name(column.name), "type": ["null", kind] if optional else kind})
    _check_distinct(table, fields)
    return {"type": "record", "name": name, "namespace": space, "fields": fields}


def value_schema(prefix: str, table: Table) -> JsonObject:
    """Returns the value's schema: the Envelope record, whose `before` defines the Value record that `after` refers
    to."""
    if table.plain is not None:
        space = table.plain.value_name.rpartition(".")[0]
        return {**_row_record(table, table.plain.value_name, space, {}), "connect.version": 1}
    if is_message(table):
        return _message_schema(table)
    space = namespace(prefix, table.path)
    names: dict[str, str] = {}
    row = _row_record(table, f"{space}.Value", space, names)
    fields = [
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": _define_once(dict(table.source_schema), "", names)},
        {"name": "transaction", "type": ["null", TRANSACTION_BLOCK], "default": None},
        {"name": "op", "type": "string"},
        *({"name": name, **_OPTIONAL_LONG} for name in _CLOCK_FIELDS),
    ]
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": space,
        "fields": fields,
        "connect.version": ENVELOPE_VERSION,
        "connect.name": f"{space}.Envelope",
    }


def _message_schema(table: Table) -> JsonObject:
    space = _source_namespace(table)
    names: dict[str, str] = {}
    block = _row_record(table, f"{space}.Message", space, names)
    block["connect.version"] = 1
    return {
        "type": "record",
        "name": "MessageValue",
        "namespace": space,
        "fields": [
            {"name": "op", "type": "string"},
            {"name": "ts_ms", **_OPTIONAL_LONG},
            {"name": "source", "type": _define_once(dict(table.source_schema), space, names)},
            {"name": "transaction", "type": ["null", TRANSACTION_BLOCK], "default": None},
            {"name": "message", "type": block},
        ],
        "connect.version": 1,
        "connect.name": f"{space}.MessageValue",
    }


def _source_namespace(table: Table) -> str:
    source = table.source_schema
    return str(source.get("namespace") or str(source["name"]).rpartition(".")[0])


def _row_record(table: Table, full_name: str, space: str, names: dict[str, str]) -> JsonObject:
    fields = [column_field(table.columns[i], names) for i in table.value_indexes]
    _check_distinct(table, fields)
    return {
        "type": "record",
        "name": full_name.rpartition(".")[2],
        "namespace": space,
        "fields": fields,
        "connect.name": full_name,
    }


def column_field(column: Column, names: dict[str, str]) -> JsonObject:
    """Returns a field of the Value record. The type of a default comes first in its union, as Avro requires. A default
    that Avro does not allow there is not written: strict parsers refuse the whole schema."""
    kind = _define_once(column.type, "", names)
    default = json_default(column.default)
    if not _allows_default(column.type, default):
        default = None
    field: JsonObject = {"name": avro_name(column.name), "type": kind}
    if default is not None:
        kind = {**(kind if isinstance(kind, dict) else {"type": kind}), "connect.default": default}
        field = {"name": field["name"], "type": [kind, "null"] if column.optional else kind, "default": default}
    elif column.optional:
        field = {"name": field["name"], "type": ["null", kind], "default": None}
    field["cdc.type"] = column.source_type
    field["cdc.colid"] = column.column_id
    return field


def row_fields(envelope: JsonObject) -> list[JsonObject]:
    """Returns the fields of the Value record, or of the message block, in a schema made by `value_schema`; without an
    envelope the schema's own fields."""
    fields = {field["name"]: field["type"] for field in envelope["fields"]}
    if "source" not in fields or not fields.keys() & {"message", "before"}:
        return list(envelope["fields"])
    row = fields["message"] if "message" in fields else fields["before"][1]
    return list(row["fields"])


def json_default(value: Any) -> Any:
    """Returns a default in Avro's JSON form, with one character per byte; None if JSON has no such value."""
    if value is NO_DEFAULT or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("latin-1")
    if isinstance(value, list | tuple):
        return [json_default(item) for item in value]
    if isinstance(value, Mapping):
        return {name: json_default(item) for name, item in value.items()}
    return value


def _allows_default(kind: Any, value: Any) -> bool:
    """Tells whether Avro allows this default, in its JSON form: inside of another default too, that of a union has to be
    of its first branch. Kafka Connect's Decimal has no form for what is no number."""
    if isinstance(kind, list):
        return _allows_default(kind[0], value)
    if not isinstance(kind, dict):
        return bool((value is None) == (kind == "null"))
    inner = kind["type"]
    if not isinstance(inner, str):
        return _allows_default(inner, value)
    if value is None or (value == "" and kind.get("logicalType") == "decimal"):
        return False
    if inner == "array":
        return all(_allows_default(kind["items"], item) for item in value)
    if inner == "map":
        return all(_allows_default(kind["values"], item) for item in value.values())
    if inner == "record":
        return all(_allows_default(field["type"], value.get(field["name"])) for field in kind["fields"])
    return True


def _check_distinct(table: Table, fields: list[JsonObject]) -> None:
    names = [field["name"] for field in fields]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise CdcError(NAME_CONFLICT, "two columns share a name", where={"table": ".".join(table.path), "name": twice})


_GROWING: Final = "allowed"
"""The parameter with the labels of an enum: one more of them must not change the bytes of keys."""


SOURCE_PARAMETERS: Final = "__debezium.source.column."
"""What the parameters begin with that name a column's type in the database; it may become longer."""


def _meaning(node: Any) -> Any:
    """Returns a type with what is needed to read its values."""
    if isinstance(node, list):
        return [_meaning(branch) for branch in node]
    if not isinstance(node, dict):
        return node
    out = {name: value for name, value in node.items() if name not in ("connect.default", "connect.parameters")}
    for name in ("items", "values"):
        if name in out:
            out[name] = _meaning(out[name])
    given = node.get("connect.parameters", {}).items()
    parameters = {name: text for name, text in given if name != _GROWING and not name.startswith(SOURCE_PARAMETERS)}
    return {**out, "connect.parameters": parameters} if parameters else out


def _key_type(node: Any) -> Any:
    """Returns the type of a key's column, whose values are exact: times and timestamps are numbers under Debezium's name, as
    Debezium writes them, since readers have no time for some of them."""
    if isinstance(node, list):
        return [_key_type(branch) for branch in node]
    if not isinstance(node, dict):
        return node
    out = _meaning(node)
    for name in ("items", "values"):
        if name in out:
            out[name] = _key_type(node[name])
    if "fields" in out:
        out["fields"] = [{**field, "type": _key_type(field["type"])} for field in node["fields"]]
    if out.get("logicalType") in _BOUNDED:
        del out["logicalType"]
    return out


def differing_columns(table: Table, other: Table) -> list[str]:
    """Returns the names of the columns that two tables do not have alike: by name, place, type, null and key. Defaults and
    labels of enums do not count."""
    ours, theirs = _columns_alike(table), _columns_alike(other)
    if list(ours) == list(theirs) and table.key == other.key:
        return [name for name in ours if ours[name] != theirs[name]]
    names = [name for name in (*ours, *theirs) if ours.get(name) != theirs.get(name)]
    return list(dict.fromkeys(names)) or [column.name for column in table.key_columns] or list(ours)


def _columns_alike(table: Table) -> dict[str, tuple[Any, ...]]:
    return {
        column.name: (column.optional, column.column_id, _meaning(column.type), column in table.key_columns)
        for column in table.columns
    }


def _bare(node: Any) -> Any:
    """Returns a type without attributes: names, structure and sizes only."""
    if isinstance(node, list):
        return [_bare(branch) for branch in node]
    if not isinstance(node, dict):
        return node
    kind = node["type"]
    if kind in PRIMITIVES:
        return kind
    out = {name: node[name] for name in ("type", "name", "namespace", "symbols", "size") if name in node}
    for name in ("items", "values"):
        if name in node:
            out[name] = _bare(node[name])
    if "fields" in node:
        out["fields"] = [{"name": field["name"], "type": _bare(field["type"])} for field in node["fields"]]
    return out


def _define_once(node: Any, space: str, names: dict[str, str]) -> Any:
    """Gives named types their full name; the second use of a type becomes a reference to the first.

    Fields that stay as they are are shared with `node`: those of `source` are the same in thousands of tables.
    """
    if isinstance(node, list):
        branches = [_define_once(branch, space, names) for branch in node]
        return node if all(map(is_, branches, node)) else branches
    if not isinstance(node, dict):
        return node if node in PRIMITIVES or "." in node or not space else f"{space}.{node}"
    out = dict(node)
    if "name" in node:
        name = str(node["name"])
        space = name.rpartition(".")[0] if "." in name else str(node.get("namespace", space) or "")
        full = name if "." in name or not space else f"{space}.{name}"
        text = json.dumps(node, sort_keys=True)
        if full in names:
            if names[full] != text:
                raise CdcError(NAME_CONFLICT, "two types share a name and differ", where={"type": full})
            return full
        names[full] = text
        out["name"], out["namespace"] = full.rpartition(".")[2], space
        if not space:
            del out["namespace"]
    for name in ("items", "values"):
        if name in out:
            out[name] = _define_once(out[name], space, names)
    if "fields" in out:
        out["fields"] = [_with_type(field, _define_once(field["type"], space, names)) for field in out["fields"]]
    return out


def _with_type(field: JsonObject, kind: Any) -> JsonObject:
    return field if kind is field["type"] else {**field, "type": kind}


def change_value(change: Change, clock_ns: int = 0, unavailable: str | None = None) -> JsonObject:
    """Returns the envelope of a change as a plain object, to which its record's value has to decode; for tests."""
    table = change.table

    def row(values: tuple[Any, ...] | None, unchanged: tuple[int, ...]) -> JsonObject | None:
        if values is None:
            return None
        filled = fill_row(table, values, unchanged, unavailable)
        return {avro_name(column.name): value for column, value in zip(table.columns, filled, strict=True)}

    clocks = {"ts_ms": clock_ns // 1_000_000, "ts_us": clock_ns // 1000, "ts_ns": clock_ns}
    common: JsonObject = {"source": change.source, "transaction": change.transaction, "op": change.op}
    if table.plain is not None:
        names = {avro_name(table.columns[i].name) for i in table.value_indexes}
        return {name: value for name, value in (row(change.after, ()) or {}).items() if name in names}
    if change.op == "m":
        return {**common, "ts_ms": clocks["ts_ms"], "message": row(change.after, ())}
    return {**common, "before": row(change.before, ()), "after": row(change.after, change.unchanged), **clocks}
