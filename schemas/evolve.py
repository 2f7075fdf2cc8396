"""Schema evolution: classifies the difference of two schemas by what it means for the data."""

from __future__ import annotations

import re
from typing import Any, Final, Literal

from cdcworker.schemas.avro import canonical_tree
from cdcworker.schemas.change import Avro

ChangeClass = Literal["identical", "add", "widen", "drop", "rename", "narrow", "retype", "key"]
"""The class of a schema change, from the least to the most far-reaching."""
_SEVERITY: Final[tuple[ChangeClass, ...]] = (
    "identical",
    "add",
    "widen",
    "drop",
    "rename",
    "narrow",
    "retype",
    "key",
)
_WIDER: Final = {
    "int": frozenset(("long", "float", "double")),
    "float": frozenset(("double",)),
}
"""Avro promotions that keep every value of a database's type; a long in a double would lose digits."""

_ORDERED_TYPES: Final = (
    ("smallint", "integer", "bigint"),
    ("real", "double precision"),
    ("tinyint", "smallint", "mediumint", "int", "bigint"),
    ("tinytext", "text", "mediumtext", "longtext"),
)
_LENGTH = re.compile(r"(?P<base>[^(]*?)\s*(?:\((?P<length>[0-9]+)\))?")
_TEXT_TYPES: Final = frozenset(("text", "character varying", "varchar", "character", "char", "bpchar"))


def classify(old: Avro, new: Avro) -> ChangeClass:
    """Returns the most far-reaching of the column changes between two versions of a subject."""
    old, new = canonical_tree(old), canonical_tree(new)
    if _is_key(old) or _is_key(new):
        return _compare_keys(_key_shape(old), _key_shape(new))
    return max((kind for _, kind in column_changes(old, new)), key=_SEVERITY.index, default="identical")


def column_changes(old: Avro, new: Avro) -> list[tuple[str, ChangeClass]]:
    """Returns (column, class) of each column that differs, in the order of the newer schema, dropped columns last."""
    before, after = _columns(old), _columns(new)
    changes: list[tuple[str, ChangeClass]] = []
    for identity, field in after.items():
        previous = before.get(identity)
        if previous is None:
            changes.append((field["name"], "add"))
            continue
        if previous["name"] != field["name"]:
            changes.append((field["name"], "rename"))
        kind = _compare(previous, field)
        if kind != "identical":
            changes.append((field["name"], kind))
    changes += [(field["name"], "drop") for identity, field in before.items() if identity not in after]
    return changes


def row_record(schema: Avro) -> dict[str, Any] | None:
    """Returns the Value record inside an envelope, or the schema itself if it is a record without an envelope."""
    if not isinstance(schema, dict) or "fields" not in schema:
        return None
    for field in schema["fields"]:
        if field["name"] in ("before", "message"):
            branch = _branches(field["type"])[0]
            return next((kind for kind in branch if isinstance(kind, dict) and "fields" in kind), None)
    return schema


def _columns(schema: Avro) -> dict[Any, dict[str, Any]]:
    """Returns the fields by the database's column id, or by name without one."""
    record = row_record(schema)
    fields = record["fields"] if record else ()
    return {field.get("cdc.colid") or field["name"]: field for field in fields}


def _branches(kind: Any) -> tuple[list[Any], bool]:
    """Returns the branches other than null, and whether null is one of them."""
    branches = kind if isinstance(kind, list) else [kind]
    return [branch for branch in branches if branch != "null"], "null" in branches


def _compare(old: dict[str, Any], new: dict[str, Any]) -> ChangeClass:
    (old_types, old_null), (new_types, new_null) = _branches(old["type"]), _branches(new["type"])
    kinds: list[ChangeClass] = ["identical"]
    if old_null != new_null:
        kinds.append("widen" if new_null else "narrow")
    kinds.append(_compare_types(old_types, new_types))
    if kinds[-1] == "identical" and "cdc.type" in old and "cdc.type" in new:
        kinds.append(_compare_source_types(str(old["cdc.type"]), str(new["cdc.type"]), old_types))
    return max(kinds, key=_SEVERITY.index)


def _compare_types(old: list[Any], new: list[Any]) -> ChangeClass:
    if len(old) != 1 or len(new) != 1:
        return "identical" if old == new else "retype"
    a, b = _plain(old[0]), _plain(new[0])
    if a == b:
        return "identical"
    if a.get("logicalType") == b.get("logicalType") == "decimal" and a["type"] == b["type"]:
        return _compare_decimals(a, b)
    if isinstance(a["type"], str) and len(a) == len(b) == 1:
        if b["type"] in _WIDER.get(a["type"], ()):
            return "widen"
        if a["type"] in _WIDER.get(str(b["type"]), ()):
            return "narrow"
    return "retype"


def _compare_decimals(a: dict[str, Any], b: dict[str, Any]) -> ChangeClass:
    scales = a.get("scale", 0), b.get("scale", 0)
    whole = a.get("precision", 0) - scales[0], b.get("precision", 0) - scales[1]
    return "widen" if scales[1] >= scales[0] and whole[1] >= whole[0] else "narrow"


def _compare_source_types(old: str, new: str, types: list[Any]) -> ChangeClass:
    if old == new:
        return "identical"
    if any(_plain(kind).get("logicalType") == "decimal" for kind in types):
        return "identical"
    for order in _ORDERED_TYPES:
        if old in order and new in order:
            return "widen" if order.index(new) > order.index(old) else "narrow"
    a, b = _LENGTH.fullmatch(old), _LENGTH.fullmatch(new)
    if not a or not b:
        return "retype"
    same_base = a["base"] == b["base"] or (a["base"] in _TEXT_TYPES and b["base"] in _TEXT_TYPES)
    if not same_base:
        return "retype"
    return "widen" if _length(b["length"]) >= _length(a["length"]) else "narrow"


def _length(text: str | None) -> float:
    return float(text) if text else float("inf")


_MEANING: Final = ("type", "name", "logicalType", "precision", "scale", "items", "values", "symbols", "size")


def _plain(kind: Any) -> dict[str, Any]:
    """Returns a type with only the attributes that change what a value means, and `connect.name`."""
    if not isinstance(kind, dict):
        return {"type": kind}
    out = {name: kind[name] for name in _MEANING if name in kind}
    if "connect.name" in kind and "logicalType" not in kind and kind["type"] not in ("record", "enum", "fixed"):
        out["connect.name"] = kind["connect.name"]
    if "fields" in kind:
        out["fields"] = [(field["name"], repr(_key_type(field["type"]))) for field in kind["fields"]]
    return out


def _compare_keys(old: list[tuple[str, Any]], new: list[tuple[str, Any]]) -> ChangeClass:
    if old == new:
        return "identical"
    # The same types in the same order give the same bytes, so a key keeps its partition.
    return "rename" if [kind for _, kind in old] == [kind for _, kind in new] else "key"


def _is_key(schema: Avro) -> bool:
    name = str(schema.get("name", "")) if isinstance(schema, dict) else ""
    return name.rpartition(".")[2] in ("Key", "MessageKey")


def _key_shape(schema: Avro) -> list[tuple[str, Any]]:
    if not isinstance(schema, dict):
        return []
    return [(field["name"], _key_type(field["type"])) for field in schema.get("fields", ())]


def _key_type(kind: Any) -> Any:
    if isinstance(kind, list):
        return [_key_type(branch) for branch in kind]
    return (
        _plain(kind)
        if isinstance(kind, dict) and kind["type"] in ("record", "enum", "fixed", "array", "map")
        else (kind["type"] if isinstance(kind, dict) else kind)
    )
