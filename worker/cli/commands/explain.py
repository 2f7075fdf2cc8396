"""`cdcworker explain`: where one row went, stage by stage, and which stages could not be found."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import click
from cdcworker.worker.cli.client.remote import RemoteCluster, complete_names, remote_command, segment
from cdcworker.worker.cli.render.output import EXIT_RUNTIME, TextTable, clean
from cdcworker.worker.cli.render.text_columns import folded, width_of_terminal

HEAD = ("FOUND", "STAGE", "UTC", "AFTER", "WHAT IS KNOWN")
TEXT_WIDTH_MIN = 24
"""The width of the last column, however narrow the terminal is."""


@remote_command(None, "explain")
@click.argument("connector", shell_complete=complete_names)
@click.argument("table")
@click.argument("row_key", nargs=-1, required=True, metavar="[COLUMN=]VALUE...")
@click.option(
    "--lsn",
    default="",
    help="The LSN of a change, or of its commit; of MySQL and MariaDB a GTID, or FILE:POSITION. Without it the row's newest change is followed.",
)
def explain(remote: RemoteCluster, connector: str, table: str, row_key: tuple[str, ...], lsn: str) -> None:
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


def picture(content: Any, width: int | None = None) -> TextTable:
    """Draws the stages as a table. In a narrow terminal the text of a stage is wrapped below itself."""
    stages, first = content["stages"], None
    rows: list[tuple[str, ...]] = []
    for stage in stages:
        at = stage["at_ms"]
        first = at if first is None else first
        rows.append(
            ("yes" if stage["found"] else "no", stage["stage"], _time(at), _after(at, first), clean(stage["text"]))
        )
    if width is not None:
        before = sum(max(map(len, (title, *(row[n] for row in rows)))) + 2 for n, title in enumerate(HEAD[:-1]))
        rows = [(*(row[:4] if not n else ("",) * 4), line) for row in rows
                for n, line in enumerate(folded(row[4], max(TEXT_WIDTH_MIN, width - before), 0))]  # fmt: skip
    head = f"{content['table']} {_key(content.get('key'))}: {content.get('op', 'not found')}".replace("  ", " ")
    return TextTable(HEAD, rows, before=head, after=_others(content))


def _others(content: Any) -> str:
    """Returns the lines about the row's other changes that were seen; empty without any."""
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
    """Returns the time since the first stage. The clocks are of several machines, so a stage may seem to come before its
    cause; it is shown as it is."""
    if at_ms is None or first is None or at_ms == first:
        return ""
    late = at_ms - first
    return f"{late:+d} ms" if abs(late) < 10_000 else f"{late / 1000:+.1f} s"
