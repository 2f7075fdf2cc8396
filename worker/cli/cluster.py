"""`cdcworker cluster`: the workers, why tasks moved, and a worker's drain, over the REST API."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click
from cdcworker.worker.cli.connector import DEFAULT_URL, Remote, table


@click.group("cluster")
@click.option("--url", envvar="CDC_URL", default=DEFAULT_URL, show_default=True, help="REST address of any worker.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: command, ok, summary, result, error.")
@click.pass_context
def cluster(context: click.Context, url: str, as_json: bool) -> None:
    """The cluster: who is there, who leads, why tasks moved."""
    context.obj = Remote(url, as_json, "cluster")


@cluster.command("status")
@click.pass_obj
def status(remote: Remote) -> None:
    """The workers with their load."""
    remote.call("status", "GET", "/v1/cluster", _workers)


def _workers(content: Any) -> str:
    leader = content["leader"]
    rows = []
    for worker in content["workers"]:
        state = "gone" if not worker["alive"] else "draining" if worker["draining"] else "alive"
        leads = "leader" if leader and leader["id"] == worker["id"] else ""
        rows.append((worker["id"], state, str(worker["tasks"]), worker["version"] or "", leads))
    lost = sum(task["state"] == "UNASSIGNED" for task in content["tasks"])
    tail = f"\n{lost} of {len(content['tasks'])} tasks unassigned" if lost else ""
    return table(("WORKER", "STATE", "TASKS", "VERSION", ""), rows) + tail


@cluster.command("journal")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Decisions, newest first.")
@click.pass_obj
def journal(remote: Remote, limit: int) -> None:
    """Why tasks moved."""
    remote.call("journal", "GET", f"/v1/cluster/journal?limit={limit}", _moves)


def _moves(content: Any) -> str:
    rows = []
    for entry in content["entries"]:
        when = datetime.fromtimestamp(entry["ts"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        for move in entry["moves"]:
            task = f"{move['connector']}-{move['task']}"
            rows.append((str(entry["seq"]), when, task, move["from"] or "-", move["to"] or "-", move["why"]))
    return table(("SEQ", "UTC", "TASK", "FROM", "TO", "WHY"), rows)


@cluster.command("drain")
@click.option("--restart", is_flag=True, help="The worker comes back soon: its tasks wait for it.")
@click.pass_obj
def drain(remote: Remote, restart: bool) -> None:
    """Have the worker at this address hand its tasks over and end."""
    path = "/v1/drain?restart=expected" if restart else "/v1/drain"
    remote.call("drain", "POST", path, lambda _: "draining")
