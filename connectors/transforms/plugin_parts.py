"""Converters, transforms and predicates as plugins: what there is beside the connectors, and the keys of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from cdcworker.connectors.config.converters import CONVERTERS, JSON, NOT_AVAILABLE, converter_keys
from cdcworker.connectors.config.definition import ConfigKey
from cdcworker.connectors.transforms.config import KNOWN, TRANSFORM_CLASSES, Plural, own_keys
from cdcworker.connectors.transforms.definitions import PREDICATES

SIMPLE_HEADERS: Final = "org.apache.kafka.connect.storage.SimpleHeaderConverter"
_IMPLICIT: Final = ("predicate", "negate")
"""Keys that a config may give to any transform: Kafka Connect does not show them as its own."""


@dataclass(frozen=True, slots=True)
class PluginPart:
    """A class that a config may name; `keys` are without the prefix that a config gives them."""

    name: str
    kind: Literal["converter", "header_converter", "transformation", "predicate"]
    keys: tuple[ConfigKey, ...] = ()


def _bare(keys: Iterable[ConfigKey], prefix: str) -> tuple[ConfigKey, ...]:
    return tuple(
        replace(key, name=key.name.removeprefix(prefix))
        for key in keys
        if key.name.startswith(prefix) and key.group != NOT_AVAILABLE
    )


def _converter(name: str) -> PluginPart:
    prefix = "value.converter."
    keys = _bare(converter_keys({"value.converter": name}), prefix) if name == JSON else ()
    return PluginPart(name, "converter", keys)


def _own(plural: Plural, name: str) -> tuple[ConfigKey, ...]:
    return tuple(key for key in _bare(own_keys(plural, name, "it.", ""), "it.") if key.name not in _IMPLICIT)


PARTS: Final[Sequence[PluginPart]] = (
    *(_converter(name) for name in dict.fromkeys(CONVERTERS.values())),
    PluginPart(SIMPLE_HEADERS, "header_converter"),
    *(PluginPart(name, "transformation", _own("transforms", name)) for name in TRANSFORM_CLASSES),
    *(PluginPart(name, "predicate", _own("predicates", name)) for name in PREDICATES),
)


def part_of(name: str) -> PluginPart | None:
    """Returns the class by any of its names."""
    known = CONVERTERS.get(name) or KNOWN["transforms"].get(name) or KNOWN["predicates"].get(name) or name
    return next((part for part in PARTS if part.name == known), None)
