"""Converters that connectors have from their worker, as in Kafka Connect, where the operator says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from cdcworker.connectors.config.converters import SIDES
from cdcworker.connectors.config.definition import ConfigDef, ConfigKey
from cdcworker.connectors.registry import names as registry
from cdcworker.schemas.errors import CdcError

INHERITED: Final = "connector.converters.inherited"
INHERITED_KEY: Final = ConfigKey(
    INHERITED,
    "BOOLEAN",
    default=False,
    doc="Whether connectors without a key of key.converter, or of value.converter, have that of the worker's properties with its settings, as "
    "in Kafka Connect. It has to be the same on all workers, and so have the properties. Default: those properties have no effect.",
)


def inherited_of(properties: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, str]:
    """Returns the converters of a worker's properties for the processes that act for connectors; none where they have no
    effect."""
    if not values[INHERITED]:
        return {}
    names = [f"{side}.converter" for side in SIDES]
    return {key: value for key, value in properties.items() if any(_under(name)(key) for name in names)}


def with_inherited(config: Mapping[str, str], rules: Mapping[str, str]) -> dict[str, str]:
    """Returns the config with the converters that it has from the worker: each whole, and only for a connector that has
    converters. Of a side for which the config has a setting of its own it has nothing: a login of the worker's is for the
    address of the worker's alone."""
    names = [f"{side}.converter" for side in SIDES]
    missing = [name for name in names if name in rules and not any(map(_under(name), config))]
    if not missing or not _has_converters(config):
        return dict(config)
    return {**{key: value for key, value in rules.items() if any(_under(name)(key) for name in missing)}, **config}


def _under(name: str) -> Callable[[str], bool]:
    return lambda key: key == name or key.startswith(f"{name}.")


def _has_converters(config: Mapping[str, str]) -> bool:
    try:
        definition: ConfigDef = registry.lookup(config.get("connector.class", "")).load().config_def
    except (CdcError, ImportError, AttributeError):
        return False
    return all(f"{side}.converter" in definition.keys for side in SIDES)
