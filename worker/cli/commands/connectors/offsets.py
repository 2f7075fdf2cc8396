"""`cdcworker connector offsets`: how far a connector has come, and where it is to go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from cdcworker.worker.cli.client.connector_files import read_object
from cdcworker.worker.cli.client.remote import (
    WARNING_HEADER,
    RemoteCluster,
    cluster_options,
    complete_names,
    remote_command,
    segment,
)
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
@click.argument("file", required=False, type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--to",
    metavar="PLACE",
    help="earliest, now, skip (one transaction), a time (2026-01-31T12:00:00Z), or a place such as an LSN or a GTID.",
)
@click.option("--task", type=click.IntRange(min=0), help="With --to: only this task.")
@click.option(
    "--dry-run", is_flag=True, help="Show what would be done, and what is missed or comes again; change nothing."
)
def alter(remote: RemoteCluster, name: str, file: Path | None, to: str | None, task: int | None, dry_run: bool) -> None:
    """Set offsets from FILE (JSON; - is stdin), of the form that `get --json` gives: all of them or none.

    A null offset forgets the partition; partitions that FILE does not name stay as they are. With --to the source goes on
    at another place of its stream, and keeps what it knows otherwise.
    """
    if (file is None) == (to is None):
        raise click.UsageError("one of FILE and --to is needed")
    if task is not None and to is None:
        raise click.UsageError("--task needs --to")
    if file is not None:
        _change(remote, "PATCH", name, dry_run, _offsets_of(read_object(file)))
    else:
        _change(remote, "PATCH", name, dry_run, {"to": to, **({} if task is None else {"task": task})})


@remote_command(offsets, "reset")
@NAME
@click.option("--dry-run", is_flag=True, help="Show what would be done, change nothing.")
def reset(remote: RemoteCluster, name: str, dry_run: bool) -> None:
    """Forget all offsets: the connector begins as if it were new."""
    _change(remote, "DELETE", name, dry_run)


def _change(remote: RemoteCluster, method: str, name: str, dry_run: bool, body: Any = None) -> None:
    query, text = ("?dry_run=true", connector_texts.dry_run) if dry_run else ("", _message)
    answer = remote.ask(method, _path(name) + query, body)
    warning = answer.headers.get(WARNING_HEADER, "")
    remote.tell({**answer.content, "warning": warning} if warning else answer.content, text)


def _offsets_of(found: dict[str, Any]) -> dict[str, Any]:
    """Returns the offsets in a file; it may also be the answer of `get --json` with its envelope."""
    inner = found.get("result")
    return dict(inner) if "offsets" not in found and isinstance(inner, dict) else found


def _message(content: Any) -> str:
    return "\n  ".join(filter(None, (str(content["message"]), content.get("warning", ""))))


def _table(content: Any) -> TextTable:
    rows = [
        tuple(json.dumps(item[side], ensure_ascii=False, sort_keys=True) for side in ("partition", "offset"))
        for item in content["offsets"]
    ]
    return TextTable(("PARTITION", "OFFSET"), rows, of="partition")
