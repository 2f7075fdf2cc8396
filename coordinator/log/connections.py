"""What connectors run with: their own configs, and below these what the connections provide that they name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from cdcworker.coordinator.model import ClusterState, Connection, Connector

CONNECTION: Final = "connection"
"""The key of a connector's config that names a connection."""
CLASS: Final = "connector.class"
"""The key of a connection's config that says whose definition its keys are read by; it provides all others."""
MISSING: Final = "missing"
"""The stamp of a connector whose connection does not exist, or has a record that cannot be read."""


def connection_name(config: Mapping[str, str | None]) -> str:
    """Returns the name of the connection that a config names; empty: none."""
    return (config.get(CONNECTION) or "").strip()


def provided(connections: Mapping[str, Connection], config: Mapping[str, str | None]) -> dict[str, str]:
    """Returns the keys that a config gets from the connection that it names, and does not have itself."""
    found = connections.get(connection_name(config))
    if found is None:
        return {}
    return {key: value for key, value in found.config.items() if key != CLASS and config.get(key) is None}


def as_run(state: ClusterState, connector: Connector) -> Connector:
    """Returns the connector with the config that its tasks run with."""
    more = provided(state.connections, connector.config)
    return replace(connector, config={**more, **connector.config}) if more else connector


def all_as_run(state: ClusterState) -> ClusterState:
    """Returns the state in which each connector has the config that its tasks run with."""
    if not state.connections:
        return state
    return replace(state, connectors={name: as_run(state, one) for name, one in state.connectors.items()})


def stamp(state: ClusterState, connector: Connector) -> str:
    """Returns what changes whenever the connection that a connector names does; empty for one that names none."""
    name = connection_name(connector.config)
    if not name:
        return ""
    found = state.connections.get(name)
    return MISSING if found is None else f"{found.incarnation}/{found.version}"


def users(state: ClusterState, name: str) -> list[str]:
    """Returns the connectors that name a connection, in the order of their names."""
    return sorted(one.name for one in state.connectors.values() if connection_name(one.config) == name)


def own_shares(
    state: ClusterState, connector: Connector, shares: Iterable[Mapping[str, str]]
) -> tuple[Mapping[str, str], ...]:
    """Returns the configs of tasks without what the connection provides: it is kept once, and read by few."""
    more = provided(state.connections, connector.config)
    if not more:
        return tuple(shares)
    return tuple({key: value for key, value in share.items() if more.get(key) != value} for share in shares)
