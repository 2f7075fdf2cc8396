"""Debezium's change envelope as Confluent's AvroConverter writes it, from the shape of a table."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from cdcworker.schemas.absent import fill_row
from cdcworker.schemas.avro import PRIMITIVES
from cdcworker.schemas.change import NO_DEFAULT, Change, Column, JsonObject, Table
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.topics import avro_name, namespace

NAME_CONFLICT = declare(
    "schema.name_conflict",
    "config",
    "Two columns or types of a table share a name after escaping",
    "Rename one of the columns or leave it out with column.exclude.list.",
)

ENVELOPE_VERSION = 2
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
_CLOCK_FIELDS = ("ts_ms", "ts_us", "ts_ns")
MESSAGE_PATH = ("message",)
"""The `Table.path` of logical messages: columns `prefix` and `content`, key `prefix`."""


def is_message(table: Table) -> bool:
    return table.path == MESSAGE_PATH


def key_schema(prefix: str, table: Table) -> JsonObject | None:
    """Names and Avro types of the key columns only: nothing that can change without changing the encoding."""
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
        fields.append({"name": avro_name(column.name), "type": ["null", kind] if column.optional else kind})
    _check_distinct(table, fields)
    return {"type": "record", "name": name, "namespace": space, "fields": fields}


def value_schema(prefix: str, table: Table) -> JsonObject:
    """The Envelope record; `before` defines the Value record and `after` refers to it."""
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
    """One field of the Value record: a default that is not null comes first in its union, as Avro wants it."""
    kind = _define_once(column.type, "", names)
    default = json_default(column.default)
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
    """The fields of the Value record (of the message block) inside an envelope made by `value_schema`; where there is
    no envelope, its own."""
    fields = {field["name"]: field["type"] for field in envelope["fields"]}
    if "source" not in fields:
        return list(envelope["fields"])
    row = fields["message"] if "message" in fields else fields["before"][1]
    return list(row["fields"])


def json_default(value: Any) -> Any:
    """A default as Avro's JSON: bytes as one character per byte; None where JSON has no such value."""
    if value is NO_DEFAULT or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("latin-1")
    if isinstance(value, list | tuple):
        return [json_default(item) for item in value]
    if isinstance(value, Mapping):
        return {name: json_default(item) for name, item in value.items()}
    return value


def _check_distinct(table: Table, fields: list[JsonObject]) -> None:
    names = [field["name"] for field in fields]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise CdcError(NAME_CONFLICT, "two columns share a name", where={"table": ".".join(table.path), "name": twice})


def _bare(node: Any) -> Any:
    """The type without attributes: names, structure and sizes only."""
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
    """Give named types their full name; the second use of one becomes a reference to the first."""
    if isinstance(node, list):
        return [_define_once(branch, space, names) for branch in node]
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
        out["fields"] = [{**field, "type": _define_once(field["type"], space, names)} for field in out["fields"]]
    return out


def change_value(change: Change, clock_ns: int = 0, unavailable: str | None = None) -> JsonObject:
    """The envelope as a plain object: what the record's value decodes to. The oracle of the encoder."""
    table = change.table

    def row(values: tuple[Any, ...] | None, unchanged: tuple[int, ...]) -> JsonObject | None:
        if values is None:
            return None
        filled = fill_row(table, values, unchanged, unavailable)
        return {avro_name(column.name): value for column, value in zip(table.columns, filled, strict=True)}

    clocks = {"ts_ms": clock_ns // 1_000_000, "ts_us": clock_ns // 1000, "ts_ns": clock_ns}
    common: JsonObject = {"source": change.source, "transaction": change.transaction, "op": change.op}
    if table.plain is not None:
        held = {avro_name(table.columns[i].name) for i in table.value_indexes}
        return {name: value for name, value in (row(change.after, ()) or {}).items() if name in held}
    if change.op == "m":
        return {**common, "ts_ms": clocks["ts_ms"], "message": row(change.after, ())}
    return {**common, "before": row(change.before, ()), "after": row(change.after, change.unchanged), **clocks}
