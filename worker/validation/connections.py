"""What connections hold, and what connectors get from them: judged by the definitions of the connectors' own keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.config import secret_names
from cdcworker.connectors.config.definition import ConfigDef, default_text
from cdcworker.coordinator.log.connections import CLASS, CONNECTION, connection_name, provided
from cdcworker.coordinator.model import Connection
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.validation.validate import INVALID_VALUE, ConnectorCatalog, check_keys

NOT_OF_CONNECTION: Final = declare(
    "config.not_of_connection",
    "config",
    "A connection holds what a connector reads to reach a server and to log in, and nothing else",
    "Put the key into the configs of the connectors; `cdcworker plugins CLASS` lists the keys of a class.",
)
UNKNOWN_CONNECTION: Final = declare(
    "config.connection_unknown",
    "config",
    "The config names a connection that is not there",
    "`cdcworker connection list` shows those that there are; create it first.",
)
NOTHING_PROVIDED: Final = declare(
    "config.connection_without_use",
    "config",
    "The connection has no key that this class of connectors reads",
    "Name a connection for this kind of server.",
)
BESIDE_CONNECTION: Final = declare(
    "config.key_beside_connection",
    "config",
    "The config would send what the connection holds to another place",
    "Take the key out, so that the connection says where; who has the role admin on the connection may set it.",
)
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,248}")
NAME_RULE: Final = "a connection's name has up to 249 letters, digits, dots, hyphens and underscores"
Connections = Mapping[str, Connection]


def is_of_connection(definition: ConfigDef, name: str) -> bool:
    """Returns whether a key is one that a connection may hold: a secret, what decides where secrets are sent, or what else it
    takes to reach the server and to log in."""
    key = definition.keys.get(name) or next((key for key in definition.keys.values() if key.former == name), None)
    if key is None or name in (CLASS, CONNECTION):
        return False
    return key.type == "PASSWORD" or bool(key.connects) or key.of_server


def findings(catalog: ConnectorCatalog, config: Mapping[str, str | None]) -> Iterator[CheckFinding]:
    """Yields what is wrong with the config of a connection. CdcError where its `connector.class` is missing or unknown."""
    given = {name: value for name, value in config.items() if value is not None}
    definition = catalog.definition(catalog.plugin_of(config)).of(given)
    for name in sorted(config):
        if config[name] is None:
            yield CheckFinding(secret_names.name(name), "error", INVALID_VALUE, f"{secret_names.name(name)} is null")
        elif name != CLASS and not is_of_connection(definition, name):
            text = f"{secret_names.name(name)} is no key of a connection for {catalog.plugin_of(config).name}"
            yield CheckFinding(secret_names.name(name), "error", NOT_OF_CONNECTION, text)
    if len(given) < 2:
        yield CheckFinding(CLASS, "error", NOT_OF_CONNECTION, "the connection holds nothing")
    for value in definition.validate(given):
        if value.name in given and value.known and is_of_connection(definition, value.name):
            for error in value.errors:
                yield CheckFinding(value.name, "error", INVALID_VALUE, error)


def whole(
    catalog: ConnectorCatalog, config: Mapping[str, str | None], connections: Connections
) -> dict[str, str | None]:
    """Returns a connector's config with the keys of its connection that its class reads. CdcError where it names one that is
    not there, or from which it gets nothing."""
    name = connection_name(config)
    if not name:
        return dict(config)
    if name not in connections:
        text = f"there is no connection {name[:249]}"
        raise CdcError(UNKNOWN_CONNECTION, text, where={"key": CONNECTION})
    more = read_of(catalog, config, connections)
    if not more and not provides(catalog, config.get(CLASS) or "", connections[name]):
        plugin = catalog.plugin_of(config).name
        raise CdcError(NOTHING_PROVIDED, f"{name} provides nothing for {plugin}", where={"key": CONNECTION})
    return {**more, **config}


def read_of(catalog: ConnectorCatalog, config: Mapping[str, str | None], connections: Connections) -> dict[str, str]:
    """Returns the keys that a config gets from its connection and that its class reads."""
    more = provided(connections, config)
    given = {key: value for key, value in {**more, **config}.items() if value is not None}
    definition = catalog.definition(catalog.plugin_of(config)).of(given)
    return {key: value for key, value in more.items() if is_of_connection(definition, key)}


def provides(catalog: ConnectorCatalog, plugin: str, connection: Connection) -> list[str]:
    """Returns the names of the keys that connectors of a class read from a connection."""
    definition = catalog.definition(catalog.plugin_of({CLASS: plugin})).of(connection.config)
    return [secret_names.name(key) for key in sorted(connection.config) if is_of_connection(definition, key)]


def check_beside(
    catalog: ConnectorCatalog,
    config: Mapping[str, str | None],
    stored: Mapping[str, str] | None,
    known: Connections,
) -> None:
    """CdcError where a config that names a connection says itself where secrets go, unless it did so before. A class for
    another kind of server than the connection's does so too: it has another port, and other rules of TLS.

    `stored`: the connector's config so far. What it said counts only with the same class and the same connection.
    """
    same = stored is not None and all(stored.get(key) == config.get(key) for key in (CLASS, CONNECTION))
    connection = known.get(connection_name(config))
    if connection is not None and not same and not _is_of_same_servers(catalog, config, connection.config):
        text = f"connector.class decides where the secrets of {connection.name} are sent, which is for another class"
        raise CdcError(BESIDE_CONNECTION, text, where={"key": CLASS})
    moved = catalog.moved_destinations(config, stored if same and stored is not None else {})
    own = [name for name in moved if name not in (CLASS, CONNECTION)]
    if own:
        text = f"{secret_names.name(own[0])} decides where the secrets of {connection_name(config)} are sent"
        raise CdcError(BESIDE_CONNECTION, text, where={"key": secret_names.name(own[0])})


def _is_of_same_servers(
    catalog: ConnectorCatalog, config: Mapping[str, str | None], connection: Mapping[str, str]
) -> bool:
    """Returns whether the classes of a connector and of a connection have the same keys of servers, with the same defaults."""
    own, others = (_keys_of_servers(catalog.definition(catalog.plugin_of(one))) for one in (config, connection))
    return own == others


def _keys_of_servers(definition: ConfigDef) -> dict[str, str | None]:
    return {name: default_text(key) for name, key in definition.keys.items() if is_of_connection(definition, name)}


def is_known(catalog: ConnectorCatalog, config: Mapping[str, str]) -> bool:
    """Returns whether a config's class can be loaded here; of another one nothing can be said."""
    try:
        catalog.definition(catalog.plugin_of(config))
    except CdcError:
        return False
    return True


def broken(
    catalog: ConnectorCatalog, config: Mapping[str, str], connections: Connections, before: Connection
) -> list[CheckFinding]:
    """Returns the errors that a connector's config has because its connection is another one than `before`."""
    touched = {*before.config, *connections[before.name].config} - {CLASS}
    try:
        full = whole(catalog, config, connections)
    except CdcError as error:
        return [CheckFinding(CONNECTION, "error", error.code, error.message)]
    return [finding for finding in check_keys(catalog, full, takes_unknown=True).errors if finding.key in touched]
