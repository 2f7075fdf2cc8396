"""Requests about connections that several commands make."""

from __future__ import annotations

from typing import Any

from cdcworker.worker.cli.client.remote import RemoteCluster, segment
from cdcworker.worker.cli.render.output import CliError

GONE = 404


def connection_path(name: str) -> str:
    return f"/v1/connections/{segment(name)}"


def only_if(version: int | None) -> dict[str, str]:
    """Returns the header of a change that holds only for this version of the connection; None: only if there is none."""
    return {"If-Match": f'"{version or 0}"'}


def present_connection(remote: RemoteCluster, name: str) -> dict[str, Any] | None:
    """Returns the connection as the cluster shows it; None where there is none."""
    try:
        return dict(remote.get(connection_path(name)))
    except CliError as error:
        if error.error.get("error_code") != GONE:
            raise
        return None


def present_connections(remote: RemoteCluster) -> dict[str, dict[str, Any]]:
    """Returns the connections that the caller may see, by name; none of a cluster of a version without them."""
    try:
        return {one["name"]: one for one in remote.get("/v1/connections")["connections"]}
    except CliError as error:
        if error.error.get("error_code") != GONE:
            raise
        return {}
