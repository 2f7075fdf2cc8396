"""`cdcworker connector offsets`: how far a connector has come, and where it is to go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from cdcworker.worker.cli.client.connector_files import read_object
from cdcworker.worker.cli.client.remote import RemoteCluster, cluster_options, complete_names, remote_command, segment
from cdcworker.worker.cli.render import connector_texts
from cdcworker.worker.cli.render.output import TextTable

NAME = click.argument("name", shell_complete=complete_names)


@click.group("offsets")
@cluster_options
def offsets() -> None:
    """How far a connector has come, and where it is to go on; to change that it has to be stopped."""


def _path(name: str) -> str:
    return f"/connectors/{segment(name)}/offsets"


@remote_command(offsets, "get")
@NAME
def get(remote: RemoteCluster, name: str) -> None:
    """Positions of a source, offsets of a sink."""
    remote.call("GET", _path(name), _table)


@remote_command(offsets, "alter")
@NAME
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--dry-run", is_flag=True, help="Show what would be done, change nothing.")
def alter(remote: RemoteCluster, name: str, file: Path, dry_run: bool) -> None:
    """Set offsets from FILE (JSON; - is stdin), of the form that `get --json` gives: all of them or none.

    A null offset forgets the partition; partitions that FILE does not name stay as they are.
    """
    _change(remote, "PATCH", name, dry_run, _offsets_of(read_object(file)))


@remote_command(offsets, "reset")
@NAME
@click.option("--dry-run", is_flag=True, help="Show what would be done, change nothing.")
def reset(remote: RemoteCluster, name: str, dry_run: bool) -> None:
    """Forget all offsets: the connector begins as if it were new."""
    _change(remote, "DELETE", name, dry_run)


def _change(remote: RemoteCluster, method: str, name: str, dry_run: bool, body: Any = None) -> None:
    query, text = ("?dry_run=true", connector_texts.dry_run) if dry_run else ("", _message)
    remote.call(method, _path(name) + query, text, body)


def _offsets_of(found: dict[str, Any]) -> dict[str, Any]:
    """Returns the offsets in a file; it may also be the answer of `get --json` with its envelope."""
    inner = found.get("result")
    return dict(inner) if "offsets" not in found and isinstance(inner, dict) else found


def _message(content: Any) -> str:
    return str(content["message"])


def _table(content: Any) -> TextTable:
    rows = [
        tuple(json.dumps(item[side], ensure_ascii=False, sort_keys=True) for side in ("partition", "offset"))
        for item in content["offsets"]
    ]
    return TextTable(("PARTITION", "OFFSET"), rows, of="partition")
