"""The schema that a JSON document has by its own structure, and the document as a value of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final

from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.connectors.transforms.data import ConnectSchema, Field
from cdcworker.connectors.transforms.transform import SCHEMAS_MAX

_BYTES: Final = ConnectSchema("bytes", optional=True)
_STRING: Final = ConnectSchema("string", optional=True)
_BOOLEAN: Final = ConnectSchema("boolean", optional=True)
_INT32: Final = ConnectSchema("int32", optional=True)
_INT64: Final = ConnectSchema("int64", optional=True)
_FLOAT64: Final = ConnectSchema("float64", optional=True)


LEVELS_MAX: Final = 12
"""The most objects and arrays inside of each other: the schema of deeper ones could not be registered."""


class NoShapeError(ValueError):
    """A text is no JSON document that a schema could be made for. Holds nothing of the document."""


@dataclass(frozen=True, slots=True)
class ShapeOptions:
    """What becomes of nulls and of empty arrays, whose type is not known: they are left out, unless these say otherwise."""

    null_as_bytes: bool = False
    empty_array_of_strings: bool = False


class JsonShapes:
    """Reads JSON objects as structs. Documents of the same structure have the same schema object."""

    def __init__(self, options: ShapeOptions) -> None:
        self._options = options
        self._known: BoundedCache[ConnectSchema, ConnectSchema] = BoundedCache(SCHEMAS_MAX)

    def read(self, text: str | bytes, name: str | None) -> tuple[ConnectSchema, Any]:
        """Returns the schema of an object and the object as a struct. `name` is the schema's. Raises NoShapeError."""
        try:
            document = json.loads(text, parse_constant=_refuse)
            if not isinstance(document, dict):
                raise NoShapeError("it is no object")
            schema = self._object(document, name)
            return self._shared(schema), _value(document, schema)
        except NoShapeError:
            raise
        except (ValueError, RecursionError):  # json's own error quotes the document
            raise NoShapeError("it is no JSON") from None

    def _shared(self, schema: ConnectSchema) -> ConnectSchema:
        found = self._known.get(schema)
        if found is None:
            _check(schema, {})
            found = self._known[schema] = schema
        return found

    def _schema(self, node: Any, name: str | None) -> ConnectSchema | None:
        """Returns the schema of a node; None where its type cannot be known."""
        if isinstance(node, Mapping):
            return self._object(node, name)
        if isinstance(node, list):
            return self._array(node, name)
        if node is None:
            return _BYTES if self._options.null_as_bytes else None
        return _primitive(node)

    def _object(self, node: Mapping[str, Any], name: str | None) -> ConnectSchema:
        fields = [(_text(key), self._schema(each, f"{name}.{key}" if name else key)) for key, each in node.items()]
        known = tuple(Field(key, of) for key, of in fields if of is not None)
        return ConnectSchema("struct", optional=True, name=name, fields=known)

    def _array(self, items: Sequence[Any], name: str | None) -> ConnectSchema | None:
        if not items:
            return _array_of(_STRING) if self._options.empty_array_of_strings else None
        known = [item for item in items if item is not None]
        if len({_kind(item) for item in known}) > 1:
            raise NoShapeError("an array has items of several types")
        item: ConnectSchema | None
        if known and isinstance(known[0], Mapping):
            item = reduce(_merged, (self._object(each, name) for each in known))
        elif known and isinstance(known[0], list) and self._schema(known[0], None) is not None:
            lists = (self._schema(each, None) for each in known)
            item = reduce(_merged, (each for each in lists if each is not None))
        else:
            item = self._schema(known[0] if known else None, None)
        if item is None:
            raise NoShapeError("an array has items of no known type")
        return _array_of(item)


def _refuse(_: str) -> Any:
    raise NoShapeError("it is no JSON")


def _text(text: str) -> str:
    """Returns a text that can be written. Raises ValueError for half of a surrogate pair, which JSON can escape."""
    if not text.isascii():
        text.encode()
    return text


def _array_of(item: ConnectSchema) -> ConnectSchema:
    return ConnectSchema("array", optional=True, value_schema=item)


def _primitive(node: Any) -> ConnectSchema:
    if isinstance(node, bool):
        return _BOOLEAN
    if isinstance(node, str):
        return _STRING
    if isinstance(node, int) and -(1 << 63) <= node < 1 << 63:
        return _INT32 if -(1 << 31) <= node < 1 << 31 else _INT64
    return _FLOAT64


def _kind(node: Any) -> str:
    """Returns the type of an array's item, in which numbers of different types differ."""
    return "struct" if isinstance(node, Mapping) else "array" if isinstance(node, list) else _primitive(node).type


def _merged(left: ConnectSchema, right: ConnectSchema) -> ConnectSchema:
    """Returns a schema for values of both: structs have the fields of both, also inside of each other and in arrays. A field that
    was null in one has the type of the other."""
    if left.type == "bytes":
        return right
    if left.type == right.type == "array" and left.value_schema is not None and right.value_schema is not None:
        return _array_of(_merged(left.value_schema, right.value_schema))
    if not left.type == right.type == "struct":
        return left
    fields = dict(left.fields)
    for name, of in right.fields:
        fields[name] = _merged(fields[name], of) if name in fields else of
    return replace(left, fields=tuple(Field(*item) for item in fields.items()))


def _check(schema: ConnectSchema, names: dict[str, ConnectSchema], level: int = 1) -> None:
    """Raises NoShapeError for a schema that Avro cannot have: one that is too deep, or has a name for two structs."""
    if level > LEVELS_MAX and schema.type in ("struct", "array"):
        raise NoShapeError(f"it has more than {LEVELS_MAX} levels")
    if schema.type == "struct" and schema.name is not None and names.setdefault(schema.name, schema) != schema:
        raise NoShapeError("two different objects in it have one name")
    for inner in (*(of for _, of in schema.fields), schema.value_schema):
        if inner is not None:
            _check(inner, names, level + 1)


def _value(node: Any, schema: ConnectSchema) -> Any:
    """Returns a node as a value of a schema that was made for it, or for another item of its array."""
    if node is None:
        return None
    if schema.type == "struct" and isinstance(node, Mapping):
        return {name: _value(node.get(name), of) for name, of in schema.fields}
    if schema.type == "array" and schema.value_schema is not None and isinstance(node, list):
        return [_value(item, schema.value_schema) for item in node]
    if isinstance(node, Mapping | list) or _primitive(node).type != schema.type:
        raise NoShapeError("an array has items of several types")
    if schema.type == "string":
        return _text(node)
    return float(node) if schema.type == "float64" else node
