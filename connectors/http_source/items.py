"""Items of an answer as rows: which fields they have, and what a value has to be."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from cdcworker.connectors.api.small_source import FieldType, SourceField, SourceTable
from cdcworker.connectors.http_source.pointers import Pointer, parse_pointer, value_at

TYPES: Final[Sequence[FieldType]] = ("string", "int64", "float64", "boolean", "timestamp", "json")
WHOLE: Final = "item"
"""The field that holds a whole item where no fields are declared."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_LONG: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class ItemField:
    """One field of a row, and where in an item its value stands."""

    name: str
    type: FieldType
    pointer: Pointer

    def value(self, found: Any) -> Any:
        """Returns a value of JSON as a row has it. One that does not fit is returned as it is: the engine refuses it by the
        field's name."""
        if isinstance(found, float) and not math.isfinite(found):
            # A number that no double holds, such as 1e999. A list of it fits no type.
            return [found]
        if self.type == "timestamp" and isinstance(found, str):
            return moment(found) or found
        if self.type == "string" and isinstance(found, int | float):
            return json.dumps(found)
        return found


@dataclass(frozen=True, slots=True)
class ItemTable:
    """The one table of a source."""

    name: str
    fields: Sequence[ItemField]
    key: Sequence[ItemField]

    def table(self) -> SourceTable:
        fields = [SourceField(field.name, field.type) for field in self.fields]
        return SourceTable(self.name, fields, [field.name for field in self.key])

    def raw(self, item: Any) -> list[Any]:
        """Returns the values of an item as JSON has them, in the order of the fields."""
        return [value_at(item, field.pointer) for field in self.fields]

    def row(self, raw: Sequence[Any]) -> dict[str, Any]:
        return {field.name: field.value(value) for field, value in zip(self.fields, raw, strict=True)}

    def raw_key(self, item: Any) -> list[Any]:
        return [value_at(item, field.pointer) for field in self.key]

    def key_row(self, raw: Sequence[Any]) -> dict[str, Any]:
        return {field.name: field.value(value) for field, value in zip(self.key, raw, strict=True)}


def table_of(config: Mapping[str, Any]) -> ItemTable:
    """Returns the table of a parsed config. Without declared fields a row has its key as text, and the item as JSON."""
    declared, key = parse_fields(config["http.fields"] or ()), list(config["http.key"] or ())
    if not declared:
        declared = [ItemField(name, "string", (name,)) for name in key]
        declared.append(ItemField(WHOLE, "json", ()))
    by_name = {field.name: field for field in declared}
    return ItemTable(config["http.table"], declared, [by_name[name] for name in key])


def parse_fields(texts: Iterable[str]) -> list[ItemField]:
    """Returns the fields of texts `name:type` or `name:type:pointer`. ValueError for others, with a sentence."""
    found: list[ItemField] = []
    for text in texts:
        name, _, rest = text.partition(":")
        kind, has_pointer, pointer = rest.partition(":")
        if not _NAME.fullmatch(name) or kind not in TYPES:
            raise ValueError(f"expects NAME:TYPE or NAME:TYPE:POINTER, with one of {', '.join(TYPES)}")
        try:
            steps = parse_pointer(pointer) if has_pointer else (name,)
        except ValueError:
            raise ValueError("expects a JSON pointer behind the type, such as /customer/name") from None
        found.append(ItemField(name, cast(FieldType, kind), steps))
    if len({field.name for field in found}) != len(found):
        raise ValueError("names a field twice")
    return found


def name_problem(name: str) -> str | None:
    """Returns what is wrong with the name of a field."""
    return None if _NAME.fullmatch(name) else "expects names of letters, digits and _"


def moment(text: str) -> datetime | None:
    """Returns the moment that a text names in the form of RFC 3339, with a zone; None for any other."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def proposed(items: Sequence[Any]) -> Sequence[str]:
    """Returns declarations of the members that samples have: the narrowest type that all of their values fit into, `json` where
    they are of several kinds or all null."""
    kinds: dict[str, set[str]] = {}
    for item in items:
        for name, value in item.items() if isinstance(item, dict) else ():
            if _NAME.fullmatch(name):
                kinds.setdefault(name, set()).update(() if value is None else (_kind(value),))
    return [f"{name}:{_type(found)}" for name, found in kinds.items()]


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "int64" if -_LONG <= value < _LONG else "json"
    if isinstance(value, float):
        return "float64"
    if isinstance(value, str):
        return "timestamp" if moment(value) else "string"
    return "json"


def _type(kinds: set[str]) -> str:
    for wide, narrow in (("float64", "int64"), ("string", "timestamp")):
        if kinds == {wide, narrow}:
            return wide
    return kinds.copy().pop() if len(kinds) == 1 else "json"
