"""The identity of schemas (Avro's canonical form, fingerprint, id, GUID), Confluent's framing, and Kafka's key hash."""

from __future__ import annotations

import hashlib
import json
import struct
import uuid
from dataclasses import dataclass
from typing import Any, Final, Literal

from cdcworker.schemas.change import Avro
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.untrusted.json_text import JsonLimits, JsonRefused, parse_json

INVALID = declare(
    "schema.invalid",
    "data",
    "An Avro schema cannot be used",
    "Look at the schema's record in the schema log; a schema written by this product never looks like this.",
)
FRAME = declare(
    "schema.frame",
    "data",
    "A record does not begin with a Confluent frame",
    "Whoever writes this topic has to write Confluent's frame (AvroConverter).",
)

PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_NAMED = frozenset(("record", "error", "enum", "fixed"))
_ORDER = ("name", "type", "fields", "symbols", "items", "values", "size")
_KEPT = ("logicalType", "precision", "scale", "default", "aliases")
_KEPT_PREFIXES = ("connect.", "cdc.")
# Bounds that keep a schema from another writer harmless (INV-10).
SCHEMA_CHARS_MAX = 1 << 20
DEPTH_MAX = 32
FIELDS_MAX = 2000
_TEXT = JsonLimits(bytes_max=SCHEMA_CHARS_MAX, depth_max=8 * DEPTH_MAX)
"""A level of a schema takes up to three of JSON, and attributes have levels of their own."""


def _kept(node: dict[str, Any]) -> list[str]:
    own = sorted(name for name in node if name.startswith(_KEPT_PREFIXES))
    return [name for name in _KEPT if name in node] + own


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _namespace_of(full_name: str) -> str:
    return full_name.rpartition(".")[0]


class _Walk:
    """One pass over a schema, which rewrites it canonically and enforces the bounds on depth and fields."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.fields = 0

    def type(self, node: Any, namespace: str, depth: int) -> Avro:
        if depth > DEPTH_MAX:
            raise CdcError(INVALID, f"the schema is nested deeper than {DEPTH_MAX} levels")
        if isinstance(node, str):
            return self._reference(node, namespace)
        if isinstance(node, list):
            return [self.type(branch, namespace, depth + 1) for branch in node]
        if not isinstance(node, dict) or "type" not in node:
            raise CdcError(INVALID, "a type is neither a name nor an object with a type")
        kind = node["type"]
        if not isinstance(kind, str):
            return self.type(kind, namespace, depth + 1)
        if kind in _NAMED:
            return self._named(node, kind, namespace, depth)
        out: dict[str, Any] = {"type": kind}
        if kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            if inner not in node:
                raise CdcError(INVALID, f"a type of kind {kind} has no {inner}")
            out[inner] = self.type(node[inner], namespace, depth + 1)
        elif kind not in PRIMITIVES:
            return self._reference(kind, namespace)
        out.update((name, node[name]) for name in _kept(node) if name != "aliases")
        return kind if len(out) == 1 and kind in PRIMITIVES else out

    def _reference(self, name: str, namespace: str) -> str:
        if name in PRIMITIVES:
            return name
        full = _full_name(name, namespace)
        if full not in self.names:
            raise CdcError(INVALID, "a type is used before it is defined", where={"type": full})
        return full

    def _named(self, node: dict[str, Any], kind: str, namespace: str, depth: int) -> Avro:
        if not isinstance(node.get("name"), str):
            raise CdcError(INVALID, f"a type of kind {kind} has no name")
        own = node.get("namespace", namespace) or ""
        if not isinstance(own, str):
            raise CdcError(INVALID, f"a namespace of a type of kind {kind} is no text")
        name = _full_name(node["name"], own)
        if name in self.names:
            raise CdcError(INVALID, "a type is defined twice", where={"type": name})
        self.names.add(name)
        inner = _namespace_of(name)
        out: dict[str, Any] = {"name": name, "type": kind}
        if kind in ("record", "error"):
            out["fields"] = [self._field(field, inner, depth) for field in node.get("fields", ())]
        elif kind == "enum":
            out["symbols"] = list(node.get("symbols", ()))
        else:
            out["size"] = int(node["size"])
        out.update((key, node[key]) for key in _kept(node))
        if "aliases" in out:
            out["aliases"] = [_full_name(alias, inner) for alias in out["aliases"]]
        return out

    def _field(self, field: Any, namespace: str, depth: int) -> dict[str, Any]:
        self.fields += 1
        if self.fields > FIELDS_MAX:
            raise CdcError(INVALID, f"the schema has more than {FIELDS_MAX} fields")
        if not isinstance(field, dict) or not isinstance(field.get("name"), str) or "type" not in field:
            raise CdcError(INVALID, "a field has no name or no type")
        out: dict[str, Any] = {"name": field["name"], "type": self.type(field["type"], namespace, depth + 1)}
        out.update((name, field[name]) for name in _kept(field))
        return out


def parse(text: str) -> Avro:
    """Parses the JSON text of a schema. Raises CdcError `schema.invalid` if it is no JSON or too long."""
    if len(text) > SCHEMA_CHARS_MAX:
        raise CdcError(INVALID, f"the schema has {len(text)} characters")
    try:
        parsed = parse_json(text, _TEXT)
    except JsonRefused as exc:
        if text in PRIMITIVES:
            return text
        raise CdcError(INVALID, "the schema is not JSON") from exc
    if not isinstance(parsed, str | dict | list):
        raise CdcError(INVALID, "the schema is not a JSON string, object or array")
    return parsed


def check(schema: Avro) -> None:
    """Raises CdcError `schema.invalid` for a schema that is malformed or exceeds a bound."""
    canonical_tree(schema)


def canonical_tree(schema: Avro) -> Avro:
    """Returns the canonical form as parsed JSON. Raises CdcError `schema.invalid`."""
    try:
        return _Walk().type(schema, "", 1)
    except (TypeError, ValueError, KeyError, ArithmeticError, AttributeError, RecursionError) as exc:
        raise CdcError(INVALID, "the schema is not well-formed") from exc


def canonical(schema: Avro) -> str:
    """Returns Avro's parsing canonical form, extended by all that changes meaning: logical types, defaults, `connect.*`
    and `cdc.*` attributes. Raises CdcError `schema.invalid`."""
    tree = canonical_tree(schema)
    try:
        return _text(tree)
    except (TypeError, ValueError, RecursionError) as exc:
        raise CdcError(INVALID, "an attribute of the schema is not JSON") from exc


def _text(tree: Any) -> str:
    """Returns JSON text: a schema's attributes in a fixed order, JSON inside attributes with sorted keys."""
    if isinstance(tree, str):
        return _json(tree)
    if isinstance(tree, list):
        return f"[{','.join(map(_text, tree))}]"
    parts = []
    for name in (*_ORDER, *_KEPT, *sorted(key for key in tree if key.startswith(_KEPT_PREFIXES))):
        if name not in tree:
            continue
        value = tree[name]
        nested = name in ("fields", "items", "values") or (name == "type" and not isinstance(value, str))
        text = _text(value) if nested else _json(value)
        parts.append(f"{_json(name)}:{text}")
    return f"{{{','.join(parts)}}}"


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False, allow_nan=False)


def fingerprint(schema: Avro) -> str:
    """Returns the identity of a schema: the SHA-256 of its canonical form in hex."""
    return fingerprint_of_text(canonical(schema))


def fingerprint_of_text(canonical_text: str) -> str:
    """Returns the identity of a schema by its canonical form."""
    try:
        return hashlib.sha256(canonical_text.encode()).hexdigest()
    except UnicodeEncodeError as exc:
        raise CdcError(INVALID, "the schema holds text that is not Unicode") from exc


def schema_id(fp: str) -> int:
    """Returns the schema id: the first 31 bits of the fingerprint, so it is positive and the same in every cluster."""
    return int(fp[:8], 16) >> 1 or 1


def guid(fp: str) -> str:
    """Returns the schema GUID of Confluent's registry: the first 128 bits of the fingerprint as a UUID."""
    return str(uuid.UUID(hex=fp[:32]))


_FRAME = struct.Struct(">bI")


def frame(id: int, body: bytes) -> bytes:
    """Returns Confluent's wire format: a zero byte, the id as big-endian int32, the Avro body."""
    return _FRAME.pack(0, id) + body


def unframe(data: bytes) -> tuple[int, int]:
    """Returns the schema id and the offset of the body. Raises CdcError `schema.frame` for unframed data."""
    if len(data) < 5 or data[0] != 0:
        raise CdcError(FRAME, "the record does not begin with a zero byte and a schema id")
    return int.from_bytes(data[1:5], "big"), 5


_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Returns Kafka's hash of a key, 32-bit murmur2 as an unsigned number; partition = (hash & 0x7fffffff) % count."""
    size = len(data)
    h = 0x9747B28C ^ size
    tail = size & 3
    whole = size - tail
    for k in struct.unpack_from(f"<{whole >> 2}I", data):
        k = k * _M & _MASK
        h = (h * _M ^ (k ^ k >> 24) * _M) & _MASK
    if tail:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def without_logical_types(schema: Avro) -> Avro:
    """Returns the schema without logical types, so that readers return raw Avro values; the encoding is the same."""
    if isinstance(schema, list):
        return [without_logical_types(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    out = {name: value for name, value in schema.items() if name not in ("logicalType", "precision", "scale")}
    for name in ("type", "items", "values"):
        if isinstance(out.get(name), dict | list):
            out[name] = without_logical_types(out[name])
    if isinstance(out.get("fields"), list):
        out["fields"] = [{**field, "type": without_logical_types(field["type"])} for field in out["fields"]]
    return out


# Schemas that are no Avro

SchemaType = Literal["AVRO", "JSON", "PROTOBUF"]
SCHEMA_TYPES: Final[tuple[SchemaType, ...]] = ("AVRO", "JSON", "PROTOBUF")
_JSON_SCHEMA: Final = JsonLimits(bytes_max=4 * SCHEMA_CHARS_MAX)


@dataclass(frozen=True, slots=True)
class TypedSchema:
    """A schema of another type than Avro. `name` is that of the record that it describes, for the names of subjects."""

    type: SchemaType
    text: str
    name: str = ""

    @property
    def fingerprint(self) -> str:
        """The identity of the schema: its type is part of it, so that no text stands for schemas of two types."""
        return fingerprint_of(self.type, self.text)


def fingerprint_of(type: str, text: str) -> str:
    """Returns the identity of a schema of this type with this text, which is no Avro's."""
    try:
        return hashlib.sha256(f"{type}\0{text}".encode()).hexdigest()
    except UnicodeEncodeError as exc:
        raise CdcError(INVALID, "the schema holds text that is not Unicode") from exc


def check_text(type: str, text: str) -> None:
    """Raises CdcError `schema.invalid` for a text that is too long, or that is no JSON where it has to be."""
    if len(text) > SCHEMA_CHARS_MAX:
        raise CdcError(INVALID, f"the schema has {len(text)} characters")
    if type != "JSON":
        return
    try:
        parsed = parse_json(text, _JSON_SCHEMA)
    except JsonRefused as exc:
        raise CdcError(INVALID, "the schema is not JSON") from exc
    if not isinstance(parsed, dict | bool):
        raise CdcError(INVALID, "a JSON Schema is an object, or true or false")
