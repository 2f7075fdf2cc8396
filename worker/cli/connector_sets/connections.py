"""Connections of a set: what happens to each, and what connectors of the set get from them before they are in the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cdcworker.connectors.config.secret_names import MASK
from cdcworker.worker.cli.client.connection_requests import connection_path, only_if, present_connections
from cdcworker.worker.cli.client.remote import RemoteCluster, segment
from cdcworker.worker.cli.connector_sets.files import WantedConnection
from cdcworker.worker.cli.render import connector_texts
from cdcworker.worker.cli.render.output import EXIT_ENVIRONMENT, CliError

CLASS = "connector.class"
CONNECTION = "connection"
FORBIDDEN = 403


@dataclass(frozen=True)
class PlannedConnection:
    """What happens to one connection."""

    name: str
    effect: Literal["created", "changed", "unchanged"]
    version: int | None = None
    """The version that the cluster has; None: the connection is not there."""
    changes: Sequence[Mapping[str, Any]] = ()
    """Keys with their values before and after, secrets masked."""
    restarts: Sequence[str] = ()
    """The connectors whose tasks start again."""
    findings: Sequence[Mapping[str, Any]] = ()

    @property
    def refused(self) -> bool:
        """Whether the cluster would refuse it."""
        return bool(self.findings)


def planned(remote: RemoteCluster, wanted: Sequence[WantedConnection], no_live_checks: bool) -> list[PlannedConnection]:
    """Returns what happens to each connection of the set. Nothing is changed, and none is ever deleted."""
    present = present_connections(remote) if wanted else {}
    return [_planned(remote, one, present.get(one.name), no_live_checks) for one in wanted]


def _planned(
    remote: RemoteCluster, wanted: WantedConnection, present: Mapping[str, Any] | None, no_live_checks: bool
) -> PlannedConnection:
    version = present["version"] if present is not None else None
    query = "?dry_run=true" + ("&validate=false" if no_live_checks else "")
    try:
        found = remote.ask("PUT", connection_path(wanted.name) + query, dict(wanted.config)).content
    except CliError as error:
        if error.exit_code == EXIT_ENVIRONMENT and error.error.get("error_code") != FORBIDDEN:
            raise
        effect: Any = "created" if present is None else "changed"
        return PlannedConnection(wanted.name, effect, version, findings=[{"severity": "error", **error.error}])
    users = present["connectors"] if present is not None and found["effect"] == "changed" else ()
    return PlannedConnection(wanted.name, found["effect"], version, found["changes"], users)


def apply_one(remote: RemoteCluster, step: PlannedConnection, wanted: WantedConnection, no_live_checks: bool) -> None:
    """Writes one connection, if the cluster still has the version that the plan has seen."""
    headers = only_if(step.version)
    query = "?validate=false" if no_live_checks else ""
    remote.ask("PUT", connection_path(wanted.name) + query, dict(wanted.config), headers)


def with_connection(
    remote: RemoteCluster, config: Mapping[str, Any], connections: Mapping[str, WantedConnection]
) -> dict[str, Any]:
    """Returns the config as it is judged before a connection of the set is in the cluster: with the keys that it would
    provide. Of one that is not in the set the cluster knows by itself."""
    found = connections.get(str(config.get(CONNECTION) or "").strip())
    if found is None:
        return dict(config)
    keys = remote.get(f"/connector-plugins/{segment(str(config.get(CLASS) or '-'))}/config")
    known = {item["name"] for item in keys} - {CLASS}
    # Of a masked secret only the cluster knows what it stands for, and only for the connection.
    more = {key: value for key, value in found.config.items() if key in known and MASK not in str(value)}
    return {**more, **{key: value for key, value in config.items() if key != CONNECTION}}


def lines(one: Mapping[str, Any]) -> list[str]:
    """Returns a planned connection as text."""
    out = [f"{ {'created': '+', 'changed': '~'}[one['effect']] } connection {one['name']}: {one['effect']}"]
    if one["effect"] == "changed":
        out += [f"    {item['key']}: {item['from'] or '-'} -> {item['to'] or '-'}" for item in one["changes"]]
    if one["restarts"]:
        out.append(f"    tasks of {', '.join(one['restarts'])} start again")
    out += [f"    {connector_texts.indented(item['message']).strip()}" for item in one["findings"]]
    return out
