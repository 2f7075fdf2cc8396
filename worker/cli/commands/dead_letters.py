"""`cdcworker dead-letters`: lists what a sink has set aside, and redrives it."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import click
from cdcworker.worker.cli.client.remote import RemoteCluster, complete_names, remote_command, segment
from cdcworker.worker.cli.render.output import TextTable, counted

Json = dict[str, Any]


@remote_command(None, "dead-letters")
@click.argument("sink", shell_complete=complete_names)
@click.option("--redrive", is_flag=True, help="Apply them again, once the cause is repaired.")
@click.option("--topic", default="", help="Only of this topic.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many to list.")
@click.option("--after", default="", metavar="TOPIC:PARTITION:OFFSET", help="Begin behind this one.")
@click.option("--dry-run", is_flag=True, help="With --redrive: say what would be done, change nothing.")
def dead_letters(
    remote: RemoteCluster, sink: str, redrive: bool, topic: str, limit: int, after: str, dry_run: bool
) -> None:
    """Records that SINK could not handle, by topic, partition and offset, with their cause; never what is in them.

    --redrive has each applied to the warehouse, in the order of its key: newer rows and newer deletes stay. A sink without Spark sends
    them to its target the way that their records came. What fails again stays a dead letter, and the exit code is 1.
    """
    path = f"/v1/connectors/{segment(sink)}/dead-letters"
    if dry_run and not redrive:
        raise click.UsageError("--dry-run goes with --redrive")
    if not redrive:
        query = {"topic": topic, "limit": limit, "after": after}
        remote.tell(remote.get(f"{path}?{_query(query)}"), table)
        return
    result = _redriven(
        remote, f"{path}/redrive", {"topic": topic, "after": after, "dry_run": "true" if dry_run else ""}
    )
    remote.tell(result, outcome, ok=not result["failed"])
    if result["failed"]:
        click.get_current_context().exit(1)


def _query(parts: Json) -> str:
    return urlencode({name: value for name, value in parts.items() if value})


def _redriven(remote: RemoteCluster, path: str, query: Json) -> Json:
    """Sends redrive requests until each dead letter had its turn."""
    total: Json = {}
    causes: Counter[tuple[str, str]] = Counter()
    while True:
        query_text = _query(query)
        result: Json = remote.ask("POST", f"{path}?{query_text}" if query_text else path).content
        causes.update({(item["code"], item["cause"]): item["letters"] for item in result["causes"]})
        for name in ("redriven", "rows", "failed"):
            result[name] += total.get(name, 0)
        result["causes"] = [{"code": code, "cause": cause, "letters": n} for (code, cause), n in causes.most_common()]
        total = result
        if result["complete"]:
            return result
        query["after"] = result["next"]
        remote.note(f"{outcome(result).partition(chr(10))[0]}; going on")


def outcome(content: Json) -> str:
    letters, rows = counted(content["redriven"], "dead letter"), counted(content["rows"], "row")
    would = "would be " if content.get("dry_run") else ""
    lines = [
        f"{letters} {would}applied again, {rows} {would}changed; {content['failed']} failed, {content['left']} left"
    ]
    lines += [f"  {counted(item['letters'], 'letter')}: [{item['code']}] {item['cause']}" for item in content["causes"]]
    return "\n".join(lines)


def table(content: Json) -> TextTable:
    rows = [
        (
            item["topic"],
            str(item["partition"]),
            str(item["offset"]),
            datetime.fromtimestamp(item["at_ms"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S"),
            item["code"],
            item["cause"],
        )
        for item in content["dead_letters"]
    ]
    more = f"more: --after {content['next']}" if content["next"] else ""
    head = ("TOPIC", "PARTITION", "OFFSET", "SINCE (UTC)", "CODE", "CAUSE")
    return TextTable(
        head, rows, before=f"{counted(content['total'], 'dead letter')} in all", after=more, of="dead letter"
    )
