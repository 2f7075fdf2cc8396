"""Requests about one connector that several commands make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdcworker.worker.cli.client.remote import RemoteCluster, segment
from cdcworker.worker.cli.render.output import CliError


def path_of(name: str) -> str:
    return f"/connectors/{segment(name)}"


def live_query(no_live_checks: bool) -> str:
    return "?validate=false" if no_live_checks else ""


def validated(remote: RemoteCluster, config: Mapping[str, Any], *, no_live_checks: bool) -> dict[str, Any]:
    """Returns the report of a worker that has validated the config."""
    plugin = segment(str(config.get("connector.class") or "-"))
    answer = remote.ask("PUT", f"/connector-plugins/{plugin}/config/validate{live_query(no_live_checks)}", dict(config))
    return dict(answer.content)


def previewed(remote: RemoteCluster, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the cluster says the config would do: `effect`, `type`, `changes` and `tasks`. Nothing is changed."""
    return dict(remote.ask("PUT", f"{path_of(name)}/config?validate=false&dry_run=true", dict(config)).content)


def with_secrets_compared(
    remote: RemoteCluster, name: str, config: Mapping[str, Any], changes: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Returns the changes after the cluster has compared masked secrets, if it would take the config from this caller."""
    if not any(item["change"] == "unknown" for item in changes):
        return changes
    try:
        differ = {item["key"] for item in previewed(remote, name, config)["changes"]}
    except CliError:
        return changes
    return [
        {**item, "change": "secret"} if item["change"] == "unknown" else item
        for item in changes
        if item["change"] != "unknown" or item["key"] in differ
    ]
