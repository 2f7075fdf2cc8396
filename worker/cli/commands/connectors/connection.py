"""`cdcworker connection`: addresses and logins that connectors name, over the REST API of any worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from cdcworker.worker.cli.client.connection_requests import connection_path, only_if, present_connection
from cdcworker.worker.cli.client.connector_files import read_config
from cdcworker.worker.cli.client.remote import RemoteCluster, cluster_options, remote_command
from cdcworker.worker.cli.render.output import FoldedText, TextTable, pretty

NAME = click.argument("name")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would be done, change nothing.")


@click.group("connection")
@cluster_options
def connection() -> None:
    """Connections: addresses and logins that connectors share."""


@remote_command(connection, "list")
def list_(remote: RemoteCluster) -> None:
    """All connections, with the connectors that use them."""
    remote.call("GET", "/v1/connections", _listing)


def _listing(content: Any) -> TextTable:
    rows = [
        (
            one["name"],
            one["config"].get("connector.class", ""),
            str(one["version"]),
            ", ".join(one["connectors"]) or "-",
        )
        for one in content["connections"]
    ]
    return TextTable(("NAME", "CLASS", "VERSION", "CONNECTORS"), rows, of="connection")


@remote_command(connection, "get")
@NAME
def get(remote: RemoteCluster, name: str) -> None:
    """The config, secrets masked, who uses it, and what each class of connectors gets from it."""
    remote.call(
        "GET",
        connection_path(name),
        lambda found: FoldedText(f"{name}: version {found['version']}", pretty(found)),
    )


@remote_command(connection, "set")
@NAME
@click.argument("file", required=False, type=click.Path(path_type=Path, allow_dash=True))
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Sets a key; may be repeated.")
@click.option("--unset", multiple=True, metavar="KEY", help="Takes a key out; may be repeated.")
@click.option("--no-live-checks", is_flag=True, help="Do not ask the server of a connector that uses it.")
@DRY_RUN
def set_(
    remote: RemoteCluster,
    name: str,
    file: Path | None,
    settings: tuple[str, ...],
    unset: tuple[str, ...],
    no_live_checks: bool,
    dry_run: bool,
) -> None:
    """Create the connection, or change it: the tasks of the connectors that use it start again, and no others.

    FILE (JSON; - is stdin) has its whole config. Without FILE the keys that --set and --unset do not name stay as they are.
    """
    present = present_connection(remote, name)
    _, given = read_config(file, settings)
    config = given if file is not None or present is None else {**present["config"], **given}
    config = {key: value for key, value in config.items() if key not in unset}
    query = "?" + "&".join([*(["validate=false"] if no_live_checks else []), *(["dry_run=true"] if dry_run else [])])
    headers = only_if(present["version"] if present is not None else None)
    answer = remote.ask("PUT", connection_path(name) + query.rstrip("?"), config, headers)
    users = present["connectors"] if present is not None else []
    remote.tell({**answer.content, "connectors": users}, _preview_text if dry_run else _done_text)


def _preview_text(content: Any) -> str:
    lines = [f"would be {content['effect']}: {content['connection']}"]
    lines += [f"  {item['key']}: {item['from'] or '-'} -> {item['to'] or '-'}" for item in content["changes"]]
    if content["connectors"] and content["effect"] == "changed":
        lines.append(f"  starts again: the tasks of {', '.join(content['connectors'])}")
    return "\n".join(lines)


def _done_text(content: Any) -> str:
    users = f"; used by {', '.join(content['connectors'])}" if content["connectors"] else ""
    return f"{content['name']} has version {content['version']}{users}"


@remote_command(connection, "delete")
@NAME
@DRY_RUN
def delete(remote: RemoteCluster, name: str, dry_run: bool) -> None:
    """Delete a connection that no connector uses."""
    if dry_run:
        remote.call("DELETE", f"{connection_path(name)}?dry_run=true", lambda _: f"would be deleted: {name}")
    else:
        remote.call("DELETE", connection_path(name), lambda _: f"deleted {name}")
