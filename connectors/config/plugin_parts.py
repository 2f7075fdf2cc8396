"""Converters and transforms as plugins: what there is beside the connectors, and the keys of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from cdcworker.connectors.config import converters_and_transforms
from cdcworker.connectors.config.definition import ConfigKey

SIMPLE_HEADERS: Final = "org.apache.kafka.connect.storage.SimpleHeaderConverter"


@dataclass(frozen=True, slots=True)
class PluginPart:
    """A class that a config may name; `keys` are without the prefix that a config gives them."""

    name: str
    kind: Literal["converter", "header_converter", "transformation"]
    keys: tuple[ConfigKey, ...] = ()


def _bare(keys: Iterable[ConfigKey], prefix: str) -> tuple[ConfigKey, ...]:
    return tuple(
        replace(key, name=key.name.removeprefix(prefix))
        for key in keys
        if key.name.startswith(prefix) and key.group != converters_and_transforms.NOT_AVAILABLE
    )


def _converter(name: str) -> PluginPart:
    prefix = "value.converter."
    keys = (
        _bare(converters_and_transforms.converter_keys({"value.converter": name}), prefix)
        if name == converters_and_transforms.JSON
        else ()
    )
    return PluginPart(name, "converter", keys)


def _transform(name: str) -> PluginPart:
    config = {"transforms": "it", "transforms.it.type": name}
    keys = _bare(converters_and_transforms.format_keys(config), "transforms.it.")
    return PluginPart(name, "transformation", tuple(key for key in keys if key.name != "type"))


PARTS: Final[Sequence[PluginPart]] = (
    *(_converter(name) for name in dict.fromkeys(converters_and_transforms.CONVERTERS.values())),
    PluginPart(SIMPLE_HEADERS, "header_converter"),
    *(_transform(name) for name in dict.fromkeys(converters_and_transforms.TRANSFORMS.values())),
)


def part_of(name: str) -> PluginPart | None:
    """By any of its names."""
    known = converters_and_transforms.CONVERTERS.get(name) or converters_and_transforms.TRANSFORMS.get(name) or name
    return next((part for part in PARTS if part.name == known), None)
