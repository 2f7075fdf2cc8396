"""Paths of fields: the name of one field, or with `field.syntax.version=V2` names behind dots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cdcworker.connectors.transforms.data import ConnectSchema, DataError, class_name, require_map

_PURPOSE: Final = "nested field access"


def steps_of(path: str) -> tuple[str, ...]:
    """Returns the names of a path of the second syntax. A name with dots stands between backticks, of which one that is part
    of the name and followed by a dot is written behind a backslash. Raises ValueError with Kafka Connect's text."""
    steps: list[str] = []
    at = 0
    while at < len(path):
        if path[at] == "`":
            name, at = _quoted(path, at)
            steps.append(name)
            continue
        end = path.find(".", at)
        end = len(path) if end < 0 else end
        steps.append(path[at:end])
        at = end + 1
    if path.endswith("."):
        steps.append("")
    return tuple(steps)


def _quoted(path: str, start: int) -> tuple[str, int]:
    """Returns the name that stands between backticks, and where the next one begins."""
    name, begin, at = "", start + 1, start + 1
    while True:
        at = path.find("`", at)
        is_escaped = at > 0 and path[at - 1] == "\\"
        if at < 0 or (at == len(path) - 1 and is_escaped):
            raise ValueError(
                f"Incomplete backtick pair in path: [{path}], consider adding a backslash before backtick at position "
                f"{start} to escape it"
            )
        if at == len(path) - 1:
            return name + path[begin:at], at + 1
        if path[at + 1] != ".":
            at += 1
        elif is_escaped:
            name += path[begin : at - 1] + "`"
            at += 1
            begin = at
        else:
            return name + path[begin:at], at + 2


class FieldPath:
    """A path to one field."""

    def __init__(self, text: str, *, nested: bool) -> None:
        self.text = text
        self._steps = (steps_of(text) or ("",)) if nested else (text,)

    def schema_in(self, schema: ConnectSchema) -> ConnectSchema | None:
        """Returns the schema of the field; None where there is none of the name."""
        for step in self._steps:
            if schema.type != "struct":
                raise DataError("Cannot look up fields on non-struct type")
            found = schema.by_name.get(step)
            if found is None:
                return None
            schema = found
        return schema

    def value_in(self, schema: ConnectSchema, value: Any, *, with_default: bool) -> Any:
        """Returns the field's value in a struct, null where a struct on the way to it is null."""
        for step in self._steps[:-1]:
            value = schema.of(value, step)
            schema = schema.by_name[step]
            if value is None:
                return None
            if schema.type != "struct":
                raise DataError(f"Only Struct objects supported for [{_PURPOSE}], found: {class_name(value, schema)}")
        last = self._steps[-1]
        return schema.of(value, last) if with_default else value.get(last)

    def value_in_map(self, value: Mapping[str, Any]) -> Any:
        """Returns the field's value in a map, null where there is none."""
        for step in self._steps[:-1]:
            found = value.get(step)
            if found is None:
                return None
            value = require_map(found, _PURPOSE)
        return value.get(self._steps[-1])
