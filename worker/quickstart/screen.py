"""The demo's screen: live on a terminal, lines of progress elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from cdcworker.worker.quickstart.connectors import SINK
from cdcworker.worker.quickstart.monitor import ClusterSnapshot, ShownTask
from cdcworker.worker.quickstart.shop import SOURCE
from cdcworker.worker.quickstart.workload import TABLES, Workload

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

PLAIN_EVERY_S = 3.0
REFRESH_S = 0.25


class Screen:
    """Shows the demo. `note` prints an event; `show` refreshes the rest. Both may be called at any rate."""

    def __init__(self, began: float, *, live: bool | None = None) -> None:
        """`began` is a monotonic time, from which the seconds on screen count."""
        self._began = began
        self._is_live = sys.stdout.isatty() if live is None else live
        self._live: Live | None = None
        self._shown_at = float("-inf")

    def __enter__(self) -> Screen:
        if self._is_live:
            from rich.live import Live

            self._live = Live(auto_refresh=False, screen=False)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def note(self, text: str) -> None:
        for line in text.splitlines():
            stamped = f"{self.seconds:6.1f} s  {line}"
            if self._live is None:
                print(stamped, flush=True)
            else:
                # Above the live part, where it stays.
                self._live.console.print(stamped, markup=False, highlight=False)

    def show(self, snapshot: ClusterSnapshot, load: Workload | None, *, now: bool = False) -> None:
        """Refreshes the screen, at most as often as readers or log files need, unless `now`."""
        clock = time.monotonic()
        if not now and clock - self._shown_at < (PLAIN_EVERY_S if self._live is None else REFRESH_S):
            return
        self._shown_at = clock
        if self._live is None:
            print(f"{self.seconds:6.1f} s  {plain_line(snapshot, load)}", flush=True)
        else:
            self._live.update(render(snapshot, load), refresh=True)


def plain_line(snapshot: ClusterSnapshot, load: Workload | None) -> str:
    alive = [str(worker["id"]) for worker in snapshot.workers if worker.get("alive")]
    tasks = ", ".join(f"{task.connector}/{task.number} {task.state} on {task.worker or '-'}" for task in snapshot.tasks)
    tables = ", ".join(f"{table} {count(snapshot.source_rows.get(table))}" for table in TABLES)
    copies = ", ".join(f"{table} {count(snapshot.warehouse_rows.get(table))}" for table in TABLES)
    done = f"load {load.transactions} tx {load.changes} changes | " if load else ""
    return (
        f"{done}leader {snapshot.leader or '-'} | alive {' '.join(alive) or '-'} | {tasks or 'no tasks'}"
        f" | {snapshot.in_topics:,} in topics, {snapshot.events_per_s:.0f} events/s | lag {lag(snapshot, SOURCE)} source, {lag(snapshot, SINK)} sink"
        f" | source: {tables} | warehouse: {copies}"
    )


def count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def lag(snapshot: ClusterSnapshot, connector: str) -> str:
    value = snapshot.lag_s(connector)
    return "-" if value is None else f"{value:.1f} s"


def render(snapshot: ClusterSnapshot, load: Workload | None) -> RenderableType:
    from rich.columns import Columns
    from rich.console import Group
    from rich.text import Text

    numbers = Text.assemble(
        ("events ", "bold"), f"{snapshot.events_per_s:,.0f}/s   ",
        ("lag ", "bold"), f"source {lag(snapshot, SOURCE)}, warehouse {lag(snapshot, SINK)}   ",
        ("in topics ", "bold"), f"{snapshot.in_topics:,}   ",
        ("load ", "bold"), f"{load.transactions:,} transactions, {load.changes:,} changes" if load else "-",
    )  # fmt: skip
    return Group(numbers, Columns([worker_table(snapshot), task_table(snapshot), row_table(snapshot)]))


def worker_table(snapshot: ClusterSnapshot) -> RenderableType:
    from rich.table import Table

    table = Table("worker", "role", "tasks", title="workers")
    for worker in snapshot.workers:
        name, is_alive = str(worker["id"]), bool(worker.get("alive"))
        role = "dead" if not is_alive else "leader" if name == snapshot.leader else "worker"
        style = "red" if not is_alive else "bold green" if role == "leader" else ""
        table.add_row(name, role, str(worker.get("tasks", "")), style=style)
    return table


def task_table(snapshot: ClusterSnapshot) -> RenderableType:
    from rich.table import Table

    table = Table("task", "state", "on", "events/s", "lag", title="tasks")
    for task in snapshot.tasks:
        style = {"RUNNING": "green", "FAILED": "red"}.get(task.state, "yellow")
        state = f"{task.state}: {task.error}" if task.error else task.state
        table.add_row(f"{task.connector}/{task.number}", state, task.worker or "-", *task_numbers(task), style=style)
    return table


def task_numbers(task: ShownTask) -> tuple[str, str]:
    rate, late = task.number_of("events_per_s"), task.number_of("lag_s")
    return "-" if rate is None else f"{rate:,.0f}", "-" if late is None else f"{late:.1f} s"


def row_table(snapshot: ClusterSnapshot) -> RenderableType:
    from rich.table import Table

    table = Table("table", "source", "warehouse", title="rows")
    for name in TABLES:
        left, right = snapshot.source_rows.get(name), snapshot.warehouse_rows.get(name)
        table.add_row(name, count(left), count(right), style="green" if left == right else "yellow")
    return table
