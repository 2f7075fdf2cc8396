"""Converters and transforms as plugins: what there is beside the connectors, and the keys of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from cdcworker.connectors import formats
from cdcworker.connectors.config import ConfigKey

SIMPLE_HEADERS: Final = "org.apache.kafka.connect.storage.SimpleHeaderConverter"


@dataclass(frozen=True, slots=True)
class Part:
    """A class that a config may name; `keys` are without the prefix that a config gives them."""

    name: str
    kind: Literal["converter", "header_converter", "transformation"]
    keys: tuple[ConfigKey, ...] = ()


def _bare(keys: Iterable[ConfigKey], prefix: str) -> tuple[ConfigKey, ...]:
    return tuple(
        replace(key, name=key.name.removeprefix(prefix))
        for key in keys
        if key.name.startswith(prefix) and key.group != formats.NOT_AVAILABLE
    )


def _converter(name: str) -> Part:
    prefix = "value.converter."
    keys = _bare(formats.converter_keys({"value.converter": name}), prefix) if name == formats.JSON else ()
    return Part(name, "converter", keys)


def _transform(name: str) -> Part:
    config = {"transforms": "it", "transforms.it.type": name}
    keys = _bare(formats.format_keys(config), "transforms.it.")
    return Part(name, "transformation", tuple(key for key in keys if key.name != "type"))


PARTS: Final[Sequence[Part]] = (
    *(_converter(name) for name in dict.fromkeys(formats.CONVERTERS.values())),
    Part(SIMPLE_HEADERS, "header_converter"),
    *(_transform(name) for name in dict.fromkeys(formats.TRANSFORMS.values())),
)


def part_of(name: str) -> Part | None:
    """By any of its names."""
    known = formats.CONVERTERS.get(name) or formats.TRANSFORMS.get(name) or name
    return next((part for part in PARTS if part.name == known), None)
