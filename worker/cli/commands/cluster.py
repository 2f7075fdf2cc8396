"""`cdcworker cluster`: the workers, who has which task, why tasks moved, and a worker's drain."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import click
from cdcworker.worker.cli.client.follow import follow
from cdcworker.worker.cli.client.remote import RemoteCluster, cluster_options, remote_command
from cdcworker.worker.cli.render.output import EXIT_RUNTIME, FoldedText, TextTable, clean, counted
from cdcworker.worker.cli.render.states import state_counts, task_states, worker_state


@click.group("cluster")
@cluster_options
def cluster() -> None:
    """The cluster: who is there, who leads, who has which task, why tasks moved."""


@remote_command(cluster, "info")
def info(remote: RemoteCluster) -> None:
    """Version, Kafka cluster, leader and counts."""
    root, cluster_state = remote.get("/"), remote.get("/v1/cluster")
    leader = cluster_state["leader"]
    remote.tell(
        {
            "version": root["version"],
            "kafka_cluster_id": root["kafka_cluster_id"],
            "leader": leader,
            "workers": sum(worker["alive"] for worker in cluster_state["workers"]),
            "connectors": len({task["connector"] for task in cluster_state["tasks"]}),
            "tasks": task_states(cluster_state),
            # A worker of an earlier version tells none.
            "warnings": cluster_state.get("warnings", []),
        },
        _info,
    )


def _info(content: Any) -> FoldedText:
    leader = content["leader"]
    lead = f"{leader['id']} leads" if leader else "nobody leads"
    tasks = state_counts(content["tasks"])
    text = "\n".join(
        (
            f"version   {content['version']}",
            f"kafka     {content['kafka_cluster_id'] or 'unknown'}",
            f"leader    {leader['id']} (epoch {leader['epoch']})" if leader else "leader    none at this moment",
            f"workers   {content['workers']}",
            f"tasks     {tasks}",
            *(f"warning   {clean(warning)}" for warning in content["warnings"]),
        )
    )
    return FoldedText(f"{counted(content['workers'], 'worker')}, {lead}, tasks: {tasks}", text)


def _workers(content: Any) -> TextTable:
    leader = content["leader"]
    rows = []
    for worker in content["workers"]:
        leads = "leader" if leader and leader["id"] == worker["id"] else ""
        rows.append((worker["id"], worker_state(worker), str(worker["tasks"]), worker["version"] or "", leads))
    lost = sum(task["state"] == "UNASSIGNED" for task in content["tasks"])
    after = f"{lost} of {len(content['tasks'])} tasks unassigned" if lost else ""
    return TextTable(("WORKER", "STATE", "TASKS", "VERSION", ""), rows, after=after, of="worker")


def _listed(name: str) -> None:
    def command(remote: RemoteCluster) -> None:
        """The workers with their load."""
        remote.call("GET", "/v1/cluster", _workers)

    remote_command(cluster, name)(command)


_listed("workers")
_listed("status")


@remote_command(cluster, "assignments")
def assignments(remote: RemoteCluster) -> None:
    """Every task: where it runs, how it is, and how long it has been waiting for a worker."""
    remote.call("GET", "/v1/cluster", _assignments)


def _assignments(content: Any) -> TextTable:
    rows = []
    for task in content["tasks"]:
        waits = f"{task['waits_s']:.0f} s" if task.get("waits_s") is not None else ""
        why = (task["error"] or {}).get("message", "")
        rows.append((task["connector"], str(task["task"]), task["state"], task["worker"] or "-", waits, why))
    return TextTable(("CONNECTOR", "TASK", "STATE", "WORKER", "WAITS", "WHY"), rows, of="task")


@remote_command(cluster, "journal")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Decisions, newest first.")
def journal(remote: RemoteCluster, limit: int) -> None:
    """Why tasks moved."""
    remote.call("GET", f"/v1/cluster/journal?limit={limit}", _moves)


def _moves(content: Any) -> TextTable:
    rows = []
    for entry in content["entries"]:
        when = datetime.fromtimestamp(entry["ts"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        for move in entry["moves"]:
            task = f"{move['connector']}-{move['task']}"
            rows.append((str(entry["seq"]), when, task, move["from"] or "-", move["to"] or "-", move["why"]))
    return TextTable(("SEQ", "UTC", "TASK", "FROM", "TO", "WHY"), rows, of="move")


@remote_command(cluster, "events")
@click.option("--connector", "names", multiple=True, help="Only of this connector; may be repeated.")
@click.option("--limit", type=click.IntRange(min=1), help="End after so many.")
def events(remote: RemoteCluster, names: tuple[str, ...], limit: int | None) -> None:
    """State changes as they happen, one a line; Ctrl-C ends it. With --json each line is an object."""
    query: list[tuple[str, Any]] = [("connector", name) for name in names]
    if limit is not None:
        query.append(("limit", limit))
    for kind, data in follow(remote, "/v1/events", query, limited=limit is not None):
        if remote.as_json:
            click.echo(json.dumps({"event": kind, **data}, ensure_ascii=False))
        elif kind not in ("hello", "reset"):
            click.echo(clean(_event(kind, data)))


def _event(kind: str, data: Any) -> str:
    when = datetime.fromtimestamp(data["ts"] / 1000, UTC).strftime("%H:%M:%S")
    return f"{when}  {kind:<18} {_what(kind, data)}"


def _what(kind: str, data: Any) -> str:
    if kind == "task.changed":
        return f"{data['connector']}-{data['task']}: {_side(data['from'])} -> {_side(data['to'])}"
    if kind == "connector.changed":
        return f"{data['connector']}: {data['what']}, {data['to']['state']}"
    if kind == "leader.changed":
        return str((data["to"] or {}).get("worker", "none"))
    if kind == "tasks.moved":
        return ", ".join(f"{move['connector']}-{move['task']} to {move['to'] or '-'}" for move in data["moves"])
    return str(data.get("connector") or data.get("worker") or "")


def _side(task: Any) -> str:
    return "none" if task is None else f"{task['state']} on {task['worker']}" if task["worker"] else str(task["state"])


@remote_command(cluster, "drain")
@click.argument("worker", required=False)
@click.option("--restart", is_flag=True, help="The worker comes back soon: its tasks wait for it.")
@click.option("--dry-run", is_flag=True, help="Show which tasks it would hand over.")
def drain(remote: RemoteCluster, worker: str | None, restart: bool, dry_run: bool) -> None:
    """Have WORKER (an id of `cluster workers`) hand its tasks over and end.

    Without WORKER it is the one at the address, which then must be a single one.
    """
    if worker is not None:
        remote.use_only(_url_of(remote, worker))
    elif len(remote.urls) > 1:
        raise click.UsageError("several addresses are given: name the WORKER that is to be drained")
    if dry_run:
        remote.call("POST", "/v1/drain?dry_run=true", _would_drain)
    else:
        path = "/v1/drain?restart=expected" if restart else "/v1/drain"
        remote.call("POST", path, lambda _: "draining")


def _would_drain(content: Any) -> str:
    tasks = [f"{task['connector']}-{task['task']}" for task in content["tasks"]]
    return f"would be drained {content['worker']}\n  tasks: {', '.join(tasks) or 'none'}"


def _url_of(remote: RemoteCluster, worker: str) -> str:
    workers = remote.get("/v1/cluster")["workers"]
    for item in workers:
        if item["id"] == worker and item["url"]:
            return str(item["url"]).rstrip("/")
    known = ", ".join(item["id"] for item in workers if item["url"])
    message = f"there is no living worker {worker}; there are: {known or 'none'}"
    raise remote.error({"code": "rest.not_found", "message": message}, EXIT_RUNTIME)
