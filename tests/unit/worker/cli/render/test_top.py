"""`cdcworker top`: rates between two looks, what needs attention, and a layout that fits its terminal."""

from __future__ import annotations

import io
import json

import httpx
import pytest
from cdcworker.worker.cli.commands.top import top
from cdcworker.worker.cli.render.states import duration_text, size
from cdcworker.worker.cli.render.top import render, top_screen
from click.testing import CliRunner
from rich.console import Console

JOURNAL = {
    "entries": [
        {"seq": 8, "ts": 1, "cause": "lost", "moves": [
            {"connector": "shop", "task": 0, "from": "w3", "to": "w1", "why": "its worker is gone"},
            {"connector": "new", "task": 0, "from": None, "to": "w2", "why": "new"},
        ]},
    ]
}  # fmt: skip


def task(connector, state="RUNNING", worker="w1", epoch=7, error=None, waits_s=None, **metrics):
    return {
        "connector": connector,
        "task": 0,
        "state": state,
        "worker": worker,
        "epoch": epoch,
        "metrics": metrics,
        "error": error,
        "waits_s": waits_s,
    }


def worker(id, alive=True, draining=False, tasks=1):
    return {"id": id, "alive": alive, "draining": draining, "tasks": tasks, "version": "0.1.0"}


def cluster(*tasks, workers=(), leader="w1"):
    return {
        "leader": {"id": leader, "epoch": 3, "url": ""} if leader else None,
        "workers": workers or [worker("w1"), worker("w2")],
        "tasks": list(tasks),
    }


BUSY = cluster(
    task("shop", records=123_456, lag_s=0.42, slot_retained_bytes=3 << 30, cpu_cores=0.25, rss_bytes=90 << 20,
         snapshot_tables_left=2, snapshot_rows=1_000_000),
    task("warehouse", worker="w2", changes=99_000, lag_s=130.0, cpu_cores=1.5, rss_bytes=700 << 20),
    task("broken", "FAILED", error={"code": "postgres.slot_lost", "message": "the slot is gone"}),
    task("waiting", "UNASSIGNED", worker=None, waits_s=12.0),
    workers=[worker("w1", tasks=2), worker("w2", draining=True), worker("w3", alive=False)],
)  # fmt: skip


def text(shown, width):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(render(shown, "12:00:00 UTC", width))
    return console.file.getvalue()


@pytest.mark.parametrize(("width", "spared"), [(60, 2), (80, 0), (140, 0)])
def test_everything_of_a_busy_cluster_fits(width, spared):
    """What a narrow terminal does without are whole columns: no cell is cut."""
    shown = text(top_screen(BUSY, JOURNAL), width)
    lost = {*("0.25", "700.0 MiB")[:spared]}
    assert not [part for part in lost if part in shown]
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    for part in (
        "leader w1 (epoch 3)", "1 FAILED, 2 RUNNING, 1 UNASSIGNED", "! w2 hands its tasks over", "! w3 is gone",
        "[postgres.slot_lost]", "! waiting-0 waits for a worker, for 12 s at most", "its slot keeps 3.0 GiB",
        "0.4 s", "2 min", *({"123,456", "700.0 MiB", "0.25"} - lost), "shop-0: 1,000,000 rows, 2 tables left", "shop-0: w3 → w1, its worker is gone", "new-0: nowhere → w2",
    ):  # fmt: skip
        assert part in " ".join(shown.split()), part


def test_rates_are_between_two_looks_at_the_same_process():
    before = cluster(task("a", records=100), task("b", records=100, events_per_s=5.0), task("c", changes=10))
    after = cluster(task("a", records=300), task("b", records=50, epoch=8, events_per_s=6.0), task("c", changes=10))
    rates = [line.per_s for line in top_screen(after, JOURNAL, before, 2.0).tasks]
    assert rates == [100.0, 6.0, 0.0]
    assert top_screen(after, JOURNAL).tasks[0].per_s is None


def test_tables_that_stand_still_need_attention():
    shown = top_screen(cluster({**task("shop"), "held_tables": 3}, {**task("one"), "held_tables": 1}), {"entries": []})
    assert list(shown.attention) == ["shop-0: 3 tables are held back", "one-0: 1 table is held back"]


def test_a_quiet_cluster_needs_no_attention_and_shows_no_empty_columns():
    shown = top_screen(cluster(task("a")), {"entries": []})
    assert shown.attention == []
    lines = text(shown, 80)
    assert "!" not in lines
    assert "LAG" not in lines
    assert "last moves" not in lines


def test_no_tasks_and_no_leader_are_said():
    shown = top_screen(cluster(leader=None), {"entries": []})
    lines = text(shown, 80)
    assert "leader none" in lines
    assert "no worker leads" in lines
    assert "no tasks" in lines


def test_names_cannot_move_the_cursor():
    evil = cluster(task("a\x1b[2Jb", error={"code": "x", "message": "m\x1b]0;t\x07"}), workers=[worker("w\x1b[1m")])
    assert "\x1b" not in text(top_screen(evil, JOURNAL), 80)


def test_sizes_and_times_are_short():
    assert [size(n) for n in (0, 1023, 1536, 5 << 40, 3 << 50)] == ["0 B", "1023 B", "1.5 KiB", "5.0 TiB", "3072.0 TiB"]
    assert [duration_text(n) for n in (None, 0.04, 59, 600, 90_000)] == ["-", "0.0 s", "59 s", "10 min", "25 h"]


def test_the_command_looks_twice_and_prints_one_picture(client, cluster, monkeypatch):
    cluster.add("shop")
    cluster.plan("shop", "RUNNING", worker="leader:8083")

    def request(method, url, **options):
        kept = {name: options[name] for name in ("json", "headers")}
        return client(method, url.removeprefix("http://worker"), **kept)

    monkeypatch.setattr(httpx, "request", request)
    done = CliRunner().invoke(top, ["--url", "http://worker", "--interval", "0.2"])
    assert done.exit_code == 0, done.output
    assert "shop-0  RUNNING  leader:8083" in done.output
    done = CliRunner().invoke(top, ["--url", "http://worker", "--json"])
    assert json.loads(done.output)["result"]["cluster"]["tasks"][0]["connector"] == "shop"


@pytest.mark.parametrize("height", [10, 16, 24, 40, 80])
@pytest.mark.parametrize("count", [3, 30, 300])
def test_what_does_not_fit_the_height_is_counted_and_troubles_come_first(count, height):
    tasks = [task(f"quiet{n}", records=1, lag_s=0.1) for n in range(count)]
    tasks += [
        task("broken", "FAILED", error={"code": "postgres.slot_lost", "message": "gone"}),
        task("late", records=1, lag_s=99.0),
    ]
    many = cluster(*tasks, workers=[worker(f"w{n}", alive=n != count - 1) for n in range(count)], leader="w0")
    console = Console(width=80, file=io.StringIO(), highlight=False)
    console.print(render(top_screen(many, JOURNAL), "12:00:00 UTC", 80, height))
    lines = console.file.getvalue().splitlines()
    assert len(lines) <= max(height, 14), "\n".join(lines)
    assert any(line.startswith("broken-0") for line in lines)
    shown = sum(line.startswith(("quiet", "late", "broken")) for line in lines)
    hidden = [line for line in lines if "more; cdcworker cluster assignments" in line]
    assert hidden == (
        [] if shown == count + 2 else [f"… and {count + 2 - shown} more; cdcworker cluster assignments lists all"]
    )


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_long_names_and_messages_are_cut_at_the_edge_and_nothing_wraps(width):
    long = cluster(
        task("c" * 90, records=1, lag_s=0.2, slot_retained_bytes=3 << 30),
        task("d" * 90, "FAILED", error={"code": "postgres.slot_lost", "message": "m" * 300}),
        workers=[worker("w" * 70), worker("v" * 70, alive=False)],
        leader="w" * 70,
    )
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(render(top_screen(long, JOURNAL), "12:00:00 UTC", width))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    (head,) = [number for number, line in enumerate(lines) if line.startswith("TASK")]
    assert lines[head].split()[:3] == ["TASK", "STATE", "WORKER"]
    assert "RUNNING" in lines[head + 1]
    assert "FAILED" in lines[head + 2]
