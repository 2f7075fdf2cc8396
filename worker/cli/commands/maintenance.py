"""`cdcworker maintenance`: shows what was done to the tables of a lake, and asks for a run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click
from cdcworker.worker.cli.client.remote import RemoteCluster, complete_names, remote_command, segment
from cdcworker.worker.cli.render.output import TextTable, counted

Json = dict[str, Any]


@remote_command(None, "maintenance")
@click.argument("sink", shell_complete=complete_names)
@click.option("--run", "wants_run", is_flag=True, help="Maintain the tables now, at any time of the day.")
@click.option("--dry-run", is_flag=True, help="With --run: say what would be done, change nothing.")
def maintenance(remote: RemoteCluster, sink: str, wants_run: bool, dry_run: bool) -> None:
    """What the last run of maintenance has done to the tables of SINK, a lake, by task.

    Tables are compacted, old snapshots are expired and orphan files are deleted as the keys maintenance.* say, beside the batches.
    """
    path = f"/v1/connectors/{segment(sink)}/maintenance"
    if dry_run and not wants_run:
        raise click.UsageError("--dry-run goes with --run")
    if wants_run:
        remote.call("POST", f"{path}?dry_run=true" if dry_run else path, asked)
        return
    remote.tell(remote.get(path), table)


def asked(content: Json) -> str:
    return f"run {content['id']} {content['state']}" if "id" in content else "a run would be asked for"


def table(content: Json) -> TextTable:
    rows = [_row(task["task"], task["last"]) for task in content["tasks"]]
    runs = [f"run {run['id']} {run['state']}" for run in content["runs"]]
    failed = [
        f"task {task['task']}: {name} was not maintained: {code}"
        for task in content["tasks"]
        for name, code in ((task["last"] or {}).get("errors") or {}).items()
    ]
    head = ("TASK", "LAST (UTC)", "TOOK", "FILES", "BYTES", "DELETES", "REWRITTEN", "EXPIRED", "REMOVED")
    before = f"maintenance of {counted(len(rows), 'task')}"
    return TextTable(head, rows, before=before, after="\n".join([*failed, *runs]), of="task")


def _row(task: int, last: Json | None) -> tuple[str, ...]:
    if not last:
        return (str(task), "never", *[""] * 7)
    before, after = last["before"], last["after"]
    return (
        str(task),
        datetime.fromtimestamp(last["began_ms"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        f"{last['took_s']:.1f} s",
        *(f"{before[name]} > {after[name]}" for name in ("files", "bytes", "deletes")),
        str(last["rewritten"]["files"]),
        str(last["expired_snapshots"]),
        str(last["removed_files"]),
    )
