"""`cdcworker snapshots`: reads tables again while the stream goes on, shows the progress, pauses or cancels it."""

from __future__ import annotations

from typing import Any

import click
from cdcworker.worker.cli.client.remote import RemoteCluster, cluster_options, complete_names, remote_command, segment
from cdcworker.worker.cli.render import connector_texts
from cdcworker.worker.cli.render.output import TextTable

CONNECTOR = click.argument("connector", shell_complete=complete_names)
IDENTITY = click.argument("snapshot")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would be done, change nothing.")
UNITS = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB"))


@click.group("snapshots")
@cluster_options
def snapshots() -> None:
    """Rows of a connector's tables: begin to read them, watch, pause, cancel."""


def _path(connector: str, *rest: str) -> str:
    return "/".join((f"/v1/connectors/{segment(connector)}/snapshots", *map(segment, rest)))


@remote_command(snapshots, "list")
@CONNECTOR
def list_(remote: RemoteCluster, connector: str) -> None:
    """All snapshots of a connector, the first load included."""
    remote.call("GET", _path(connector), lambda content: listing(content["snapshots"]))


@remote_command(snapshots, "get")
@CONNECTOR
@IDENTITY
def get(remote: RemoteCluster, connector: str, snapshot: str) -> None:
    """How far a snapshot has come, table by table."""
    remote.call("GET", _path(connector, snapshot), details)


@remote_command(snapshots, "create")
@CONNECTOR
@click.argument("tables", nargs=-1, required=True)
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="TABLE=CONDITION",
    help="Only rows that meet this SQL; may be repeated.",
)
@click.option("--rows-per-s", type=click.IntRange(0), help="At most so many rows a second; 0: no limit.")
@DRY_RUN
def create(
    remote: RemoteCluster,
    connector: str,
    tables: tuple[str, ...],
    filters: tuple[str, ...],
    rows_per_s: int | None,
    dry_run: bool,
) -> None:
    """Read TABLES (full names, or regular expressions) once more, beside the stream."""
    body: dict[str, Any] = {"tables": list(tables)}
    if filters:
        pairs = [text.partition("=") for text in filters]
        if any(not separator for _, separator, _ in pairs):
            raise click.UsageError("--filter is TABLE=CONDITION")
        body["filters"] = {name: condition for name, _, condition in pairs}
    if rows_per_s is not None:
        body["rows_per_s"] = rows_per_s
    _change(remote, "POST", _path(connector), dry_run, body)


def _control(name: str, method: str, help: str, *rest: str) -> None:
    """Adds a command that changes one snapshot."""

    @CONNECTOR
    @IDENTITY
    @DRY_RUN
    def command(remote: RemoteCluster, connector: str, snapshot: str, dry_run: bool) -> None:
        _change(remote, method, _path(connector, snapshot, *rest), dry_run)

    command.__doc__ = help
    remote_command(snapshots, name)(command)


_control("pause", "PUT", "Read no further until it is resumed; the stream goes on.", "pause")
_control("resume", "PUT", "Go on where it was paused.", "resume")
_control("cancel", "DELETE", "End a snapshot; what was read stays read.")


def _change(remote: RemoteCluster, method: str, path: str, dry_run: bool, body: Any = None) -> None:
    query, text = ("?dry_run=true", connector_texts.dry_run) if dry_run else ("", _line)
    remote.call(method, path + query, text, body)


def _line(content: Any) -> str:
    return f"{content['id']} {content['state']}, wanted {content['wanted']}"


def listing(snapshots: list[dict[str, Any]]) -> TextTable:
    rows = [
        (
            item["id"],
            item["origin"],
            item["state"],
            f"{item['tables_done'] or 0}/{item['tables_total'] or 0}",
            _rows(item),
            size(item["bytes"]),
            f"{item['rows_per_s']:g}" if item["rows_per_s"] else "",
            duration(item["eta_s"]),
            (item["error"] or {}).get("code") or item["waits_for"],
        )
        for item in snapshots
    ]
    return TextTable(
        ("ID", "ORIGIN", "STATE", "TABLES", "ROWS", "BYTES", "ROWS/S", "LEFT", "REMARK"), rows, of="snapshot"
    )


def details(item: dict[str, Any]) -> TextTable:
    rows = [
        (one["table"], one["state"], _rows(one), size(one["bytes"]), one.get("waits_for", ""))
        for one in item["details"]
    ]
    (summary,) = listing([item]).rows
    head = " ".join(f"{name.lower()}={text}" for name, text in zip(listing([]).head, summary, strict=True) if text)
    error = item["error"]
    after = f"[{error['code']}] {error['message']}" if error else ""
    return TextTable(("TABLE", "STATE", "ROWS", "BYTES", "WAITS FOR"), rows, before=head, after=after)


def _rows(item: dict[str, Any]) -> str:
    done, whole = item["rows"], item.get("rows_estimate")
    if not whole:
        return str(done or 0)
    return f"{done or 0} of ~{whole} ({min(100, 100 * (done or 0) // whole)} %)"


def size(count: int | None) -> str:
    for unit, name in UNITS:
        if count and count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count or 0} B"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{left:02}s" if minutes else f"{left}s"
