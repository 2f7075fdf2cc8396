"""`cdcworker explain`: where one row went, stage by stage, and what could not be found."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import click
from cdcworker.worker.cli.cells import folded, width_of_terminal
from cdcworker.worker.cli.output import EXIT_RUNTIME, Table, clean
from cdcworker.worker.cli.remote import Remote, complete_names, remote_command, segment

HEAD = ("FOUND", "STAGE", "UTC", "AFTER", "WHAT IS KNOWN")
MIN = 24
"""Columns for what is known, however narrow the terminal is."""


@remote_command(None, "explain")
@click.argument("connector", shell_complete=complete_names)
@click.argument("table")
@click.argument("row_key", nargs=-1, required=True, metavar="[COLUMN=]VALUE...")
@click.option("--lsn", default="", help="Of the change, or of its commit; else the row's newest change.")
def explain(remote: Remote, connector: str, table: str, row_key: tuple[str, ...], lsn: str) -> None:
    """Follow one row of TABLE from the source's commit to the warehouse; CONNECTOR is its source or a sink.

    Each stage has its time, and what is not found says why. Rows are data: this needs the role operate, and the audit
    trail names who looked.
    """
    query = [("of", table), *(("key", text) for text in row_key), *([("lsn", lsn)] if lsn else [])]
    content = remote.get(f"/v1/connectors/{segment(connector)}/explain?{urlencode(query)}")
    if content.get("error"):
        raise remote.error({**content["error"], "suggestion": content["error"].get("hint")}, EXIT_RUNTIME)
    remote.tell(
        content,
        lambda found: picture(found, width_of_terminal()),
        ok=all(stage["found"] for stage in content["stages"]),
    )


def picture(content: Any, width: int | None = None) -> Table:
    """What is known of a stage goes on below itself where the terminal is narrow."""
    stages, first = content["stages"], None
    rows: list[tuple[str, ...]] = []
    for stage in stages:
        at = stage["at_ms"]
        first = at if first is None else first
        rows.append(
            ("yes" if stage["found"] else "no", stage["stage"], _time(at), _after(at, first), clean(stage["text"]))
        )
    if width is not None:
        beside = sum(max(map(len, (title, *(row[n] for row in rows)))) + 2 for n, title in enumerate(HEAD[:-1]))
        rows = [(*(row[:4] if not n else ("",) * 4), line) for row in rows
                for n, line in enumerate(folded(row[4], max(MIN, width - beside), 0))]  # fmt: skip
    head = f"{content['table']} {_key(content.get('key'))}: {content.get('op', 'not found')}".replace("  ", " ")
    return Table(HEAD, rows, before=head, after=_others(content))


def _others(content: Any) -> str:
    lines = [
        f"  {_time(one['written_ms'])}  {one['op']}  {one['topic']}/{one['partition']}@{one['offset']}"
        for one in content.get("others", ())
    ]
    if not lines:
        return ""
    newer = f", {content['newer']} of them later" if content.get("newer") else ""
    return "\n".join((f"other changes of the row that were seen{newer}:", *lines))


def _key(key: Any) -> str:
    return " ".join(f"{name}={value}" for name, value in key.items()) if isinstance(key, dict) else ""


def _time(at_ms: int | None) -> str:
    if at_ms is None:
        return ""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _after(at_ms: int | None, first: int | None) -> str:
    """Clocks of several machines: what seems to come before its cause is shown as it is."""
    if at_ms is None or first is None or at_ms == first:
        return ""
    late = at_ms - first
    return f"{late:+d} ms" if abs(late) < 10_000 else f"{late / 1000:+.1f} s"
