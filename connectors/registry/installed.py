"""Connectors of other distributions, made from what their entry points name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from cdcworker.connectors.config.installed_plugins import (
    CONNECTORS,
    REFUSED,
    InstalledPlugin,
    InstalledPlugins,
    RefusedPlugin,
    installed,
    require_version,
)
from cdcworker.connectors.registry.plugin import Plugin
from cdcworker.connectors.registry.shipped import BY_NAME
from cdcworker.schemas.errors import CdcError


@dataclass(frozen=True, slots=True)
class ConnectorPlugins:
    """Connectors of other distributions, and those that cannot be used."""

    found: tuple[Plugin, ...] = ()
    refused: tuple[RefusedPlugin, ...] = ()


def connectors_of(plugins: InstalledPlugins) -> ConnectorPlugins:
    """Returns the connectors of installed plugins. They are imported now: one that fails stops none of the others."""
    found: list[Plugin] = []
    refused = list(plugins.refused)
    for plugin in plugins.of(CONNECTORS):
        try:
            found.append(_plugin_of(plugin))
        except Exception as error:  # noqa: BLE001 - somebody else's code
            refused.append(plugin.refused(error))
    return ConnectorPlugins(tuple(found), tuple(refused))


def _plugin_of(plugin: InstalledPlugin) -> Plugin:
    from cdcworker.connectors.api.plugin import SinkPlugin, SourcePlugin
    from cdcworker.connectors.kit.connector_classes import sink_class, source_class

    if plugin.name in BY_NAME:
        raise CdcError(REFUSED, "a connector of this name ships with the worker")
    made = plugin.load()
    if not isinstance(made, SourcePlugin | SinkPlugin):
        text = f"its entry point names {type(made).__name__}; expects a SourcePlugin or a SinkPlugin"
        raise CdcError(REFUSED, text)
    require_version(made.api)
    try:
        if isinstance(made, SinkPlugin):
            kind: Literal["source", "sink"] = "sink"
            built: type = sink_class(plugin.name, made)
        else:
            kind, built = "source", source_class(plugin.name, plugin.version, made)
    except (ValueError, TypeError, AttributeError) as error:
        raise CdcError(REFUSED, f"its keys make no definition: {error}") from error
    return Plugin(
        plugin.name, kind, plugin.entry.value, title=made.title, measures=kind == "sink", origin=plugin, made=built
    )


@cache
def of_this_process() -> ConnectorPlugins:
    """Returns those of the distributions that this process may load."""
    return connectors_of(installed())
