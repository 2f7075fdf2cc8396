"""`cdcworker top`: shows the cluster at work, refreshed until Ctrl-C."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import click
from cdcworker.worker.cli.client.remote import RemoteCluster, remote_command
from cdcworker.worker.cli.render.output import coloured, counted
from cdcworker.worker.cli.render.top import MOVES, render, top_screen

CLUSTER, JOURNAL = "/v1/cluster", f"/v1/cluster/journal?limit={MOVES}"


@remote_command(None, "top")
@click.option(
    "--interval", type=click.FloatRange(min=0.2), default=1.0, show_default=True, help="Seconds between two looks."
)
@click.option("--once", is_flag=True, help="One picture, then end; so also where the output is no terminal.")
def top(remote: RemoteCluster, interval: float, once: bool) -> None:
    """Tasks with lag, rate and load, workers, what needs attention and what moved; Ctrl-C ends it."""
    if remote.as_json:
        cluster = remote.get(CLUSTER)
        remote.tell({"cluster": cluster, "journal": remote.get(JOURNAL)["entries"]}, lambda _: _summary(cluster))
    elif once or not coloured():
        _once(remote, interval)
    else:
        _live(remote, interval)


def _summary(cluster: Any) -> str:
    running = sum(task["state"] == "RUNNING" for task in cluster["tasks"])
    workers = sum(worker["alive"] for worker in cluster["workers"])
    return f"{counted(workers, 'worker')}, {running} of {counted(len(cluster['tasks']), 'task')} running"


def _frame(
    remote: RemoteCluster, before: tuple[Any, float] | None, width: int, height: int | None = None
) -> tuple[Any, tuple[Any, float]]:
    cluster, journal, now = remote.get(CLUSTER), remote.get(JOURNAL), time.monotonic()
    shown = top_screen(cluster, journal, before[0], now - before[1]) if before else top_screen(cluster, journal)
    return render(shown, datetime.now(UTC).strftime("%H:%M:%S UTC"), width, height), (cluster, now)


def _once(remote: RemoteCluster, interval: float) -> None:
    """Prints one screen from two requests, which rates need."""
    from rich.console import Console

    console = Console(highlight=False, no_color=not coloured())
    _, before = _frame(remote, None, console.width)
    time.sleep(interval)
    console.print(_frame(remote, before, console.width)[0])


def _live(remote: RemoteCluster, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    before: tuple[Any, float] | None = None
    with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live:
        while True:
            shown, before = _frame(remote, before, live.console.width, live.console.height)
            live.update(shown, refresh=True)
            time.sleep(interval)
