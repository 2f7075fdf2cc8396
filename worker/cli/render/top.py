"""The screen of `cdcworker top`: figures from two successive states of the cluster, laid out for a given width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from cdcworker.worker.cli.render.output import STATES, clean, counted
from cdcworker.worker.cli.render.states import (
    duration_text,
    held_tables_text,
    retry_text,
    size,
    state_counts,
    task_states,
    worker_state,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

Json = Mapping[str, Any]
RECORD_COUNTS: Final = ("records", "changes")
"""The metrics that count the records of a source's and a sink's task."""
SLOT_BYTES: Final = 1 << 30
"""A slot that retains more than this is reported."""
MOVES: Final = 5
NEEDED: Final = ("TASK", "STATE", "WORKER")
OPTIONAL_COLUMNS: Final = ("CPU", "MEMORY", "SLOT", "TOTAL", "PER S", "LAG")
"""Columns that are left out on a narrow terminal, the first one first."""
GAP: Final = 2
LEGEND: Final = {
    "LAG": "LAG: age of the newest commit",
    "PER S": "PER S, TOTAL: records",
    "SLOT": "SLOT: log that the database keeps",
}
NAME_MIN: Final = 10
RANKS: Final = {"FAILED": 0, "RUNNING": 2, "PAUSED": 3, "STOPPED": 3}
"""The order of task states where not all tasks fit."""


@dataclass(frozen=True, slots=True)
class TaskLine:
    """One task. None stands for a figure that the task does not report."""

    name: str
    state: str
    worker: str
    lag_s: float | None
    per_s: float | None
    total: int | None
    load: str
    slot_bytes: int | None
    cores: float | None
    memory: int | None


@dataclass(frozen=True, slots=True)
class TopScreen:
    """Everything that one screen shows."""

    leader: str
    epoch: int | None
    workers: Sequence[Json] = ()
    tasks: Sequence[TaskLine] = ()
    attention: Sequence[str] = ()
    moves: Sequence[str] = ()
    states: Mapping[str, int] = field(default_factory=dict)


def top_screen(cluster: Json, journal: Json, before: Json | None = None, elapsed_s: float = 0.0) -> TopScreen:
    """Returns the screen. `before` is the same answer, `elapsed_s` seconds ago; rates are over that time."""
    leader = cluster["leader"]
    earlier = {_name(task): task for task in (before or {}).get("tasks", ())}
    return TopScreen(
        leader["id"] if leader else "",
        leader["epoch"] if leader else None,
        cluster["workers"],
        [_line(task, earlier.get(_name(task)), elapsed_s) for task in cluster["tasks"]],
        _attention(cluster),
        [
            f"{move['connector']}-{move['task']}: {move['from'] or 'nowhere'} → {move['to'] or 'nowhere'}, {move['why']}"
            for entry in journal["entries"]
            for move in entry["moves"]
        ][:MOVES],
        task_states(cluster),
    )


def _name(task: Json) -> str:
    return f"{task['connector']}-{task['task']}"


def _line(task: Json, before: Json | None, elapsed_s: float) -> TaskLine:
    numbers = task["metrics"] or {}
    return TaskLine(
        _name(task),
        task["state"],
        task["worker"] or "",
        _number(numbers.get("lag_s")),
        _rate(task, before, elapsed_s),
        next((numbers[name] for name in RECORD_COUNTS if name in numbers), None),
        _load(numbers),
        numbers.get("slot_retained_bytes"),
        _number(numbers.get("cpu_cores")),
        numbers.get("rss_bytes"),
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _rate(task: Json, before: Json | None, elapsed_s: float) -> float | None:
    """Returns the rate between two states of the same task process; at first the rate that the task reports."""
    numbers = task["metrics"] or {}
    if before is None or elapsed_s <= 0 or before["epoch"] != task["epoch"]:
        return _number(numbers.get("events_per_s"))
    for name in RECORD_COUNTS:
        old, new = (before["metrics"] or {}).get(name), numbers.get(name)
        if old is not None and new is not None and new >= old:
            return float(new - old) / elapsed_s
    return None


def _load(numbers: Json) -> str:
    left = numbers.get("snapshot_tables_left")
    if not left:
        return ""
    ends = _number(numbers.get("snapshot_left_s"))
    until = "" if ends is None else f", about {duration_text(ends)} to go"
    return f"{numbers.get('snapshot_rows', 0):,} rows, {counted(left, 'table')} left{until}"


def _attention(cluster: Json) -> list[str]:
    """Returns what needs attention; what does not heal by itself comes first."""
    out: list[str] = []
    failed: list[str] = []
    if cluster["leader"] is None:
        out.append("no worker leads: nothing can be changed at this moment")
    for worker in cluster["workers"]:
        if not worker["alive"]:
            had = f"; tasks that it had: {worker['tasks']}" if worker["tasks"] else ""
            out.append(f"{worker['id']} is gone{had}")
        elif worker["draining"]:
            out.append(f"{worker['id']} hands its tasks over")
    for task in cluster["tasks"]:
        error = task["error"] or {}
        if task["state"] == "FAILED" or error:
            failed.append(f"{_name(task)} {task['state']}: [{error.get('code', '?')}] {error.get('message', '')}")
        elif task["state"] == "UNASSIGNED":
            waits = f", for {task['waits_s']:.0f} s at most" if task.get("waits_s") is not None else ""
            out.append(f"{_name(task)} waits for a worker{waits}")
        elif tries := retry_text(task):
            out.append(f"{_name(task)} {tries}")
        if tables := held_tables_text(task):
            out.append(f"{_name(task)}: {tables}")
        retained = (task["metrics"] or {}).get("slot_retained_bytes") or 0
        if retained > SLOT_BYTES:
            out.append(f"{_name(task)}: its slot keeps {size(retained)} of the database's log")
    return failed + out


# --- layout -----------------------------------------------------------------------------------------------------------


def render(shown: TopScreen, when: str, width: int, height: int | None = None) -> RenderableType:
    """Returns the screen for a terminal of this width. `height` is the number of lines: what does not fit is counted."""
    from rich.console import Group
    from rich.text import Text

    alive = sum(worker["alive"] for worker in shown.workers)
    workers = f"{alive} of {len(shown.workers)}" if alive < len(shown.workers) else str(alive)
    leader = f"{clean(shown.leader)} (epoch {shown.epoch})" if shown.leader else "none"
    head = Text.assemble(f"{when}   ", ("workers ", "bold"), workers, ("   leader ", "bold"), leader)
    head.no_wrap, head.overflow = True, "ellipsis"
    parts: list[RenderableType] = [head, Text.assemble(("tasks ", "bold"), state_counts(shown.states))]
    lines_of = ScreenLines.of(shown, height)
    if shown.attention:
        lines = _cut([f"! {clean(line)}" for line in shown.attention], lines_of.attention)
        # Cut at the edge only where each line is counted.
        parts += [Text(""), *(_line_of(line, height, "bold red") for line in lines)]
    columns = _columns(_most_urgent(shown.tasks, lines_of.tasks), width)
    parts += [Text(""), _tasks(columns)]
    if len(shown.tasks) > lines_of.tasks:
        more = len(shown.tasks) - lines_of.tasks
        parts.append(Text(f"… and {more} more; cdcworker cluster assignments lists all", style="dim"))
    parts += [Text(line, style="dim") for line in _legend(columns, width)]
    parts += [Text(""), _workers(shown, lines_of.workers, width)]
    loads = [f"  {clean(line.name)}: {line.load}" for line in shown.tasks if line.load]
    for title, lines in (("snapshots", loads), ("last moves", [f"  {clean(move)}" for move in shown.moves])):
        if lines and lines_of.rest:
            parts += [Text(""), Text(title, style="bold"), *(_line_of(line, height) for line in _cut(lines, MOVES))]
    return Group(*parts)


def _line_of(text: str, height: int | None, style: str = "") -> RenderableType:
    from rich.text import Text

    return Text(text, style=style, no_wrap=height is not None, overflow="fold" if height is None else "ellipsis")


@dataclass(frozen=True, slots=True)
class ScreenLines:
    """The number of lines of each kind on the screen."""

    attention: int
    tasks: int
    workers: int
    rest: bool

    @classmethod
    def of(cls, shown: TopScreen, height: int | None) -> ScreenLines:
        full = cls(len(shown.attention), len(shown.tasks), len(shown.workers), True)
        loads = sum(bool(line.load) for line in shown.tasks)
        rest = sum(min(count, MOVES) + 2 for count in (loads, len(shown.moves)) if count)
        if height is None or full.lines() + rest <= height:
            return full
        if full.lines() <= height:
            return replace(full, rest=False)
        attention = min(full.attention, max(1, height // 4))
        workers = min(full.workers, max(1, height // 4))
        cut = cls(attention, 0, workers, False)
        return replace(cut, tasks=min(full.tasks, max(1, height - cut.lines() - 1)))

    def lines(self) -> int:
        """Returns the lines of the whole screen: head, empty lines, heads of tables, legend and contents."""
        return 2 + (self.attention + 1 if self.attention else 0) + 1 + self.tasks + 2 + 1 + 1 + self.workers


def _cut(lines: Sequence[str], most: int) -> list[str]:
    return list(lines) if len(lines) <= most else [*lines[: most - 1], f"… and {len(lines) - most + 1} more"]


def _most_urgent(lines: Sequence[TaskLine], most: int) -> Sequence[TaskLine]:
    """Returns the tasks that fit: first those that do not run, then those with the largest lag."""
    if len(lines) <= most:
        return lines
    return sorted(lines, key=lambda line: (RANKS.get(line.state, 1), -(line.lag_s or 0.0)))[:most]


def _columns(lines: Sequence[TaskLine], width: int) -> dict[str, list[str]]:
    """Returns the columns. Empty ones are left out, and those that do not fit, the least important first."""
    columns = {
        "TASK": [_short(line.name, width // 3, line.name[line.name.rfind("-") :]) for line in lines],
        "STATE": [line.state for line in lines],
        "WORKER": [_short(line.worker, width // 5) or "-" for line in lines],
        "LAG": [duration_text(line.lag_s) for line in lines],
        "PER S": ["-" if line.per_s is None else f"{line.per_s:,.0f}" for line in lines],
        "TOTAL": ["-" if line.total is None else f"{line.total:,}" for line in lines],
        "SLOT": ["-" if line.slot_bytes is None else size(line.slot_bytes) for line in lines],
        "CPU": ["-" if line.cores is None else f"{line.cores:.2f}" for line in lines],
        "MEMORY": ["-" if line.memory is None else size(line.memory) for line in lines],
    }
    return _fitting({title: cells for title, cells in columns.items() if title in NEEDED or {*cells} != {"-"}}, width)


def _short(name: str, most: int, end: str = "") -> str:
    """Returns a name cut to a width; `end` stays, the number of a task."""
    from rich.cells import cell_len, set_cell_size

    text, most = clean(name), max(NAME_MIN, most)
    if cell_len(text) <= most:
        return text
    return f"{set_cell_size(text, most - 1 - len(end)).rstrip()}…{end}"


def _legend(columns: Mapping[str, Sequence[str]], width: int) -> list[str]:
    """Returns the legend of the visible columns in one line."""
    line = ""
    for title, text in LEGEND.items():
        longer = f"{line}; {text}" if line else text
        if title == "PER S" and "TOTAL" not in columns:
            longer = longer.replace(", TOTAL", "")
        if title in columns and len(longer) <= width:
            line = longer
    return [line] if line else []


def _tasks(columns: Mapping[str, Sequence[str]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    if not columns["TASK"]:
        return Text("no tasks: cdcworker connector create FILE submits a connector")
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for title in columns:
        side: Literal["left", "right"] = "left" if title in NEEDED else "right"
        grid.add_column(title, justify=side, no_wrap=True, overflow="ellipsis")
    for row in zip(*columns.values(), strict=True):
        grid.add_row(*(Text(cell, style=STATES.get(cell, "")) for cell in row))
    return grid


def _fitting(columns: dict[str, list[str]], width: int) -> dict[str, list[str]]:
    from rich.cells import cell_len

    def used_width() -> int:
        return sum(max(map(cell_len, (title, *cells))) + GAP for title, cells in columns.items()) - GAP

    for title in OPTIONAL_COLUMNS:
        if used_width() > width:
            columns.pop(title, None)
    return columns


def _workers(shown: TopScreen, most: int, width: int) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    grid = Table("WORKER", "STATE", "TASKS", "VERSION", "", box=None, pad_edge=False, header_style="bold")
    # Those that are gone or go first, where not all fit.
    ranked = sorted(shown.workers, key=lambda worker: worker["alive"] and not worker["draining"])
    for worker in shown.workers if len(shown.workers) <= most else ranked[:most]:
        state = worker_state(worker)
        role = "leader" if worker["id"] == shown.leader else ""
        cells = (_short(worker["id"], width // 2), state, str(worker["tasks"]), worker["version"] or "", role)
        grid.add_row(*(Text(cell, style=STATES.get(cell, "")) for cell in cells))
    return grid
