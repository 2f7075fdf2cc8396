"""Avro's specification of schemas (1.11), as the strictest of its parsers hold it: names, unions, defaults, logical types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
LOGICAL = {
    "uuid": "string", "decimal": "bytes", "date": "int", "time-millis": "int", "time-micros": "long",
    "timestamp-millis": "long", "timestamp-micros": "long", "local-timestamp-micros": "long",
}  # fmt: skip
DEFAULTS = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "int": lambda value: type(value) is int and -INT_MAX - 1 <= value <= INT_MAX,
    "long": lambda value: type(value) is int and -LONG_MAX - 1 <= value <= LONG_MAX,
    "float": lambda value: type(value) in (int, float) and value - value == 0,
    "double": lambda value: type(value) in (int, float) and value - value == 0,
    "string": lambda value: isinstance(value, str),
    "bytes": lambda value: isinstance(value, str) and all(ord(one) < 256 for one in value),
}


class StrictParser:
    """Parses one schema. Raises ValueError, with the place, for what the specification does not allow."""

    def __init__(self) -> None:
        self.names: dict[str, Mapping[str, Any]] = {}

    def parse(self, node: Any, space: str = "", place: str = "") -> None:
        if isinstance(node, list):
            return self._union(node, space, place)
        if isinstance(node, str):
            self._require(node in DEFAULTS or self._full(node, space) in self.names, f"{place}: {node} is unknown")
            return None
        kind = node["type"]
        if isinstance(kind, dict | list):
            raise ValueError(f"{place}: a type in a type")
        self._logical(node, place)
        if kind == "record":
            return self._record(node, space, place)
        if kind == "array":
            return self.parse(node["items"], space, f"{place}[]")
        if kind == "map":
            return self.parse(node["values"], space, f"{place}{{}}")
        self._require(kind in DEFAULTS, f"{place}: {kind} is no type")
        return None

    def _union(self, branches: list[Any], space: str, place: str) -> None:
        kinds = []
        for branch in branches:
            self._require(not isinstance(branch, list), f"{place}: a union in a union")
            self.parse(branch, space, place)
            kinds.append(branch if isinstance(branch, str) else branch.get("name", branch["type"]))
        self._require(len(set(kinds)) == len(kinds), f"{place}: two branches of one type")

    def _record(self, node: Mapping[str, Any], space: str, place: str) -> None:
        full = self._full(node["name"], node.get("namespace", space))
        self._require(all(map(NAME.fullmatch, full.split("."))), f"{place}: the name {full}")
        self._require(full not in self.names, f"{place}: {full} is defined twice")
        self.names[full] = node
        space = full.rpartition(".")[0]
        names = [field["name"] for field in node["fields"]]
        self._require(len(set(names)) == len(names) and all(map(NAME.fullmatch, names)), f"{place}: names of fields")
        for field in node["fields"]:
            inner = f"{place}.{field['name']}"
            self.parse(field["type"], space, inner)
            if "default" in field:
                self._default(field["type"], field["default"], space, inner)

    def _default(self, node: Any, value: Any, space: str, place: str) -> None:
        """A default of a union is one of its first branch, also where it stands in another default."""
        if isinstance(node, list):
            return self._default(node[0], value, space, place)
        if isinstance(node, str):
            node = node if node in DEFAULTS else self.names[self._full(node, space)]
        kind = node if isinstance(node, str) else node["type"]
        if kind == "array":
            self._require(isinstance(value, list), f"{place}: no default of an array")
            for item in value:
                self._default(node["items"], item, space, f"{place}[]")
        elif kind in ("map", "record"):
            self._require(isinstance(value, dict), f"{place}: no default of a {kind}")
            kinds = {field["name"]: field["type"] for field in node.get("fields", ())}
            for name, item in value.items():
                self._default(kinds[name] if kinds else node["values"], item, space, f"{place}.{name}")
            self._require(not kinds or value.keys() == kinds.keys(), f"{place}: a field without a value")
        else:
            self._require(DEFAULTS[kind](value), f"{place}: no default of {kind}")
            is_decimal = not isinstance(node, str) and node.get("logicalType") == "decimal"
            self._require(not is_decimal or bool(value), f"{place}: no number")
        return None

    def _logical(self, node: Mapping[str, Any], place: str) -> None:
        name = node.get("logicalType")
        self._require(name is None or LOGICAL.get(name) == node["type"], f"{place}: {name} of {node['type']}")
        if name == "decimal":
            self._require(0 <= node["scale"] <= node["precision"], f"{place}: scale and precision")

    def _full(self, name: str, space: str) -> str:
        return name if "." in name or not space else f"{space}.{name}"

    def _require(self, held: bool, message: str) -> None:
        if not held:
            raise ValueError(message)
