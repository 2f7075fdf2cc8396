"""Formats of other distributions, as far as this process may load them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from cdcworker.connectors.config.installed_plugins import (
    CONVERTERS,
    REFUSED,
    InstalledPlugin,
    InstalledPlugins,
    RefusedPlugin,
    installed,
    require_version,
)
from cdcworker.connectors.converters.shipped import BY_NAME
from cdcworker.connectors.formats.format import Format
from cdcworker.connectors.formats.function_format import ConverterPlugin
from cdcworker.schemas.errors import CdcError


class PluginFormats(NamedTuple):
    """Formats by name, with where each is from, and those that cannot be used."""

    formats: Mapping[str, Format]
    sources: Mapping[str, InstalledPlugin]
    refused: tuple[RefusedPlugin, ...]


def formats_of(plugins: InstalledPlugins) -> PluginFormats:
    """Returns the formats of installed plugins."""
    formats, sources, refused = {}, {}, []
    for plugin in plugins.of(CONVERTERS):
        try:
            formats[plugin.name] = _format(plugin)
            sources[plugin.name] = plugin
        except Exception as error:  # noqa: BLE001 - somebody else's code
            refused.append(plugin.refused(error))
    return PluginFormats(formats, sources, tuple(refused))


@cache
def plugin_formats() -> PluginFormats:
    """Returns the formats that this process may load; they are imported at the first call."""
    return formats_of(installed())


def _format(plugin: InstalledPlugin) -> Format:
    if plugin.name in BY_NAME:
        raise CdcError(REFUSED, "a converter that ships has this name")
    made = plugin.load()
    if not isinstance(made, ConverterPlugin):
        raise CdcError(REFUSED, f"its entry point names {type(made).__name__}; expects a ConverterPlugin")
    require_version(made.api)
    if not callable(made.write) or not callable(made.read):
        raise CdcError(REFUSED, "its `write` or its `read` is no function")
    return made.format(plugin.name)
