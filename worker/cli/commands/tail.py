"""`cdcworker tail`: rows of a connector's tables as they change, before and after."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click
from cdcworker.worker.cli.client.follow import Query, follow, stream
from cdcworker.worker.cli.client.remote import RemoteCluster, complete_names, remote_command, segment
from cdcworker.worker.cli.render.output import EXIT_RUNTIME
from cdcworker.worker.cli.render.tail import print_change

OPS = ("create", "update", "delete", "read", "truncate", "message", "tombstone", "upsert")
NOW = "now"
COUNTED = ("read", "matched", "dropped", "unreadable")
CUT = "cut off: what changed until the stream was taken up again is not shown"


@remote_command(None, "tail")
@click.argument("connector", shell_complete=complete_names)
@click.option("--table", "tables", multiple=True, metavar="PATTERN", help="Only of tables that it matches as a whole.")
@click.option("--op", "ops", multiple=True, type=click.Choice(OPS), help="Only such changes; may be repeated.")
@click.option("--row-key", "keys", multiple=True, metavar="[COLUMN=]VALUE", help="Only of rows with this key.")
@click.option(
    "--where", multiple=True, metavar="COLUMN=VALUE", help="Only of rows that have it, before or after; NULL is null."
)
@click.option(
    "--from", "begin", default=NOW, show_default=True, metavar="WHERE",
    help="now, beginning, an offset, an age like 15m, or a time with its zone.",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(min=1), help="End after so many changes.")
@click.option("--no-follow", is_flag=True, help="End where the topics end now.")
@click.option("--all-columns", is_flag=True, help="Of updates show the columns that did not change too.")
def tail(remote: RemoteCluster, connector: str, all_columns: bool, **asked: Any) -> None:
    """Show changes of CONNECTOR, a source or a sink, as its topics hold them; Ctrl-C ends it.

    Who follows what happens now and is slower than the stream is told how many changes were left out. From anywhere
    else every change is shown, as fast as they are taken. With --json each line is an object. Rows are data: this needs
    the role operate, and the audit trail names who looked.
    """
    path = f"/v1/connectors/{segment(connector)}/changes"
    counts: dict[str, int] = {}
    earlier: dict[str, int] = {}
    for kind, data in _events(remote, path, _query(asked), asked["begin"] == NOW and not asked["no_follow"]):
        if kind == "ready":
            earlier, counts = _sum(earlier, counts), {}
        if kind in ("counts", "end"):
            _tell_dropped(remote, counts, data)
            counts = {**counts, **data}
        if kind == "error":
            raise remote.error({**data, "suggestion": data.get("hint")}, EXIT_RUNTIME)
        if remote.as_json:
            click.echo(json.dumps({"event": kind, **data}, ensure_ascii=False))
        elif kind == "change":
            print_change(data, all_columns=all_columns)
        elif kind == "ready":
            remote.note(f"topics: {', '.join(data['topics']) or 'none yet'}")
        if kind == "end" and data["why"] in ("limit", "end"):
            break
    if not remote.as_json:
        remote.note(_summary(_sum(earlier, counts)))


def _sum(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    """Each connection counts for itself."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in COUNTED}


def _query(asked: dict[str, Any]) -> Query:
    lists = {"table": asked["tables"], "op": asked["ops"], "key": asked["keys"], "where": asked["where"]}
    query: list[tuple[str, Any]] = [(name, text) for name, texts in lists.items() for text in texts]
    query.append(("from", asked["begin"]))
    if asked["limit"]:
        query.append(("limit", asked["limit"]))
    if asked["no_follow"]:
        query.append(("follow", "false"))
    return query


def _events(remote: RemoteCluster, path: str, query: Query, is_live: bool) -> Iterator[tuple[str, Any]]:
    """Yields the events. A stream of present changes is opened again when it breaks; one of the past is not, since its
    rows would be shown twice."""
    import httpx

    if is_live:
        yield from follow(remote, path, query, limited=False, on_cut=lambda: remote.note(CUT))
        return
    try:
        for kind, _, data in stream(remote, path, query):
            yield kind, data
    except httpx.HTTPError as exc:
        raise remote.unreachable([remote.url], exc) from exc


def _tell_dropped(remote: RemoteCluster, before: dict[str, int], now: dict[str, Any]) -> None:
    fresh = now.get("dropped", 0) - before.get("dropped", 0)
    if fresh > 0 and not remote.as_json:
        remote.note(
            f"! {fresh:,} changes left out: the stream is faster than this terminal ({now['dropped']:,} in all)"
        )


def _summary(counts: dict[str, int]) -> str:
    shown = counts.get("matched", 0) - counts.get("dropped", 0)
    parts = [f"{counts.get('read', 0):,} records read", f"{shown:,} changes shown"]
    for name, text in (("dropped", "left out"), ("unreadable", "not readable")):
        if counts.get(name):
            parts.append(f"{counts[name]:,} {text}")
    return ", ".join(parts)
