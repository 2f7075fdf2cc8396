"""`cdcworker alerts`: incidents of a cluster, and the file that says who is told of them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.cli.client.remote import (
    RemoteCluster,
    cluster_options,
    command_name,
    json_option,
    remote_command,
    wants_json,
)
from cdcworker.worker.cli.commands.context import tell
from cdcworker.worker.cli.render.output import TextTable, of_error

WANTED = "wanted"
"""What the API says of a receiver that is to be told and was not yet."""
FILE = click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
Json = dict[str, Any]


@click.group("alerts")
@cluster_options
def alerts() -> None:
    """Incidents of connectors, and the receivers that are told of them (the worker property alerts.file)."""


@remote_command(alerts, "list")
@click.option("--all", "everything", is_flag=True, help="Also those that are over, of the last 30 days.")
def list_(remote: RemoteCluster, everything: bool) -> None:
    """Incidents, the newest first: what is wrong, since when, and which receivers know of it."""
    remote.call("GET", "/v1/incidents" if everything else "/v1/incidents?open=true", _listing)


def _listing(content: Json) -> TextTable:
    rows = [
        (
            _time(one["opened"]),
            _time(one["resolved"]) if one["resolved"] else "-",
            one["severity"],
            one["connector"],
            one["summary"],
            one["code"] or "-",
            ", ".join(f"{name}: {'not yet' if stage == WANTED else stage}" for name, stage in one["told"].items())
            or "-",
        )
        for one in content["incidents"]
    ]
    lines = (f"{name} takes no messages: {why}" for name, why in content["receivers"].items())
    head = ("SINCE (UTC)", "UNTIL", "SEVERITY", "CONNECTOR", "WHAT", "CODE", "TOLD")
    return TextTable(head, rows, after="\n".join(lines), of="incident")


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


@remote_command(alerts, "objectives")
def objectives(remote: RemoteCluster) -> None:
    """How connectors did by the objectives that have a target, in the last 30 days."""
    remote.call("GET", "/v1/incidents?open=true", _budgets)


def _budgets(content: Json) -> TextTable:
    rows = [
        (
            one["objective"],
            one["connector"],
            f"{one['target']:.4%}",
            "-" if one["held"] is None else f"{one['held']:.4%}",
            f"{one['budget_left']:.1%}",
            f"{one['late_s']:.0f} s",
        )
        for one in content["objectives"]
    ]
    head = ("OBJECTIVE", "CONNECTOR", "TARGET", "HELD", "BUDGET LEFT", "LATE")
    return TextTable(head, rows, of="objective")


@alerts.command("check")
@FILE
@json_option
def check(path: Path) -> None:
    """Read FILE as a worker does, with the files of secrets that it names, and say what is wrong with it."""
    settings = _read(path)
    rows = [(one.name, one.kind, one.severity, " ".join(one.connectors)) for one in settings.receivers]
    content = {
        "receivers": [dict(zip(("name", "kind", "severity", "connectors"), row, strict=True)) for row in rows],
        "objectives": [one.name for one in settings.objectives],
    }
    tell(content, TextTable(("RECEIVER", "KIND", "FROM SEVERITY", "CONNECTORS"), rows, of="receiver"))


@alerts.command("test")
@FILE
@click.option("--receiver", "only", metavar="NAME", help="Only this one.")
@json_option
def test(path: Path, only: str | None) -> None:
    """Send each receiver of FILE an incident that is none, and that it is over; the exit code is 1 when one does not take it."""
    from cdcworker.worker.alerts.delivery import Delivery
    from cdcworker.worker.alerts.incidents import trial
    from cdcworker.worker.alerts.messages import message
    from cdcworker.worker.alerts.posting import Poster

    receivers = [one for one in _read(path).receivers if only in (None, one.name)]
    if not receivers:
        raise click.UsageError(f"the file has no receiver {only}")
    begun, over = trial(time.time_ns() // 1_000_000)
    delivery = Delivery(Poster().post, time.monotonic)
    for one in receivers:
        if delivery.send(one, message(one, begun, "opened", "cdcworker")):
            delivery.send(one, message(one, over, "resolved", "cdcworker"))
    problems = delivery.problems()
    rows = [(one.name, one.kind, problems.get(one.name, "taken")) for one in receivers]
    content = {"receivers": [{"name": one.name, "problem": problems.get(one.name)} for one in receivers]}
    tell(content, TextTable(("RECEIVER", "KIND", "ANSWER"), rows, of="receiver"))
    if problems:
        click.get_current_context().exit(1)


def _read(path: Path) -> Any:
    from cdcworker.worker.alerts.settings import read

    try:
        return read(path)
    except CdcError as error:
        here = click.get_current_context()
        raise of_error(error, command_name(here), as_json=wants_json(here)) from error
