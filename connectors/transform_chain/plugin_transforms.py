"""Transforms of other distributions, as far as this process may load them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from cdcworker.connectors.config.installed_plugins import (
    REFUSED,
    TRANSFORMS,
    InstalledPlugin,
    InstalledPlugins,
    RefusedPlugin,
    installed,
    require_version,
)
from cdcworker.connectors.transforms.definitions import TransformDefinition
from cdcworker.connectors.transforms.function_transform import TransformPlugin
from cdcworker.schemas.errors import CdcError


class PluginTransforms(NamedTuple):
    """Transforms by name, with where each is from, and those that cannot be used."""

    definitions: Mapping[str, TransformDefinition]
    sources: Mapping[str, InstalledPlugin]
    refused: tuple[RefusedPlugin, ...]


def transforms_of(plugins: InstalledPlugins) -> PluginTransforms:
    """Returns the transforms of installed plugins. Their names are of small letters, those that ship have capitals."""
    definitions, sources, refused = {}, {}, []
    for plugin in plugins.of(TRANSFORMS):
        try:
            definitions[plugin.name] = _definition(plugin)
            sources[plugin.name] = plugin
        except Exception as error:  # noqa: BLE001 - somebody else's code
            refused.append(plugin.refused(error))
    return PluginTransforms(definitions, sources, tuple(refused))


@cache
def plugin_transforms() -> PluginTransforms:
    """Returns the transforms that this process may load; they are imported at the first call."""
    return transforms_of(installed())


def _definition(plugin: InstalledPlugin) -> TransformDefinition:
    made = plugin.load()
    if not isinstance(made, TransformPlugin):
        raise CdcError(REFUSED, f"its entry point names {type(made).__name__}; expects a TransformPlugin")
    require_version(made.api)
    if not callable(made.apply):
        raise CdcError(REFUSED, "its `apply` is no function")
    return made.definition(plugin.name)
