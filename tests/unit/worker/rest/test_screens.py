"""What `top`, `tail` and `explain` look like in terminals of several sizes: looked at once, and kept so."""

from __future__ import annotations

import time

import pytest
from cdcworker.worker.cli.top_picture import picture, render

from .screens import check
from .test_top import cluster, task, worker

SIZES = [(80, 24), (120, 40), (60, 24), (60, 40)]
JOURNAL = {
    "entries": [
        {"seq": 9, "ts": 2, "cause": "its worker is gone", "moves": [
            {"connector": "bestellungen-größe-xl", "task": 0, "from": "cdc-2", "to": "cdc-0", "why": "its worker is gone"},
            {"connector": "warehouse", "task": 1, "from": "cdc-2", "to": "cdc-1", "why": "its worker is gone"},
        ]},
        {"seq": 8, "ts": 1, "cause": "new", "moves": [
            {"connector": "注文", "task": 0, "from": None, "to": "cdc-1", "why": "new"},
        ]},
    ]
}  # fmt: skip


def busy():
    tries = {"code": "postgres.unreachable", "count": 17, "since_ms": (time.time() - 240) * 1000}
    shop = task("shop", worker="cdc-0", records=48_123_456, lag_s=0.42, slot_retained_bytes=3 << 30, cpu_cores=0.25,
                rss_bytes=90 << 20, snapshot_tables_left=2, snapshot_rows=12_345_678, snapshot_left_s=840.0)  # fmt: skip
    return cluster(
        shop,
        task("bestellungen-größe-xl", worker="cdc-0", records=9_876, lag_s=1.5, slot_retained_bytes=1 << 20,
             cpu_cores=0.02, rss_bytes=71 << 20, snapshot_tables_left=1, snapshot_rows=10),
        task("注文", worker="cdc-1", records=120, lag_s=0.0, cpu_cores=0.01, rss_bytes=70 << 20),
        task("a-connector-whose-name-goes-on-and-on-until-nobody-can-read-it-any-more", worker="cdc-1", records=5, lag_s=4.0),
        {**task("away", worker="cdc-1", records=77_000, lag_s=240.0), "retrying": tries},
        {**task("warehouse", worker="cdc-0", changes=47_000_000, lag_s=0.9, cpu_cores=1.5, rss_bytes=1_700 << 20), "task": 0},
        {**task("warehouse", worker="cdc-1", changes=1_000, lag_s=130.0, cpu_cores=0.9, rss_bytes=1_500 << 20), "task": 1},
        task("broken", "FAILED", worker="cdc-0", error={"code": "postgres.slot_lost", "message": "the slot shop_slot has lost its log: wal_status is lost"}),
        task("waiting", "UNASSIGNED", worker=None, waits_s=12.0),
        task("paused", "PAUSED", worker="cdc-1", records=1, lag_s=86_400.0),
        workers=[
            {**worker("cdc-0", tasks=4), "version": "0.1.0"},
            worker("cdc-1", draining=True, tasks=5),
            worker("cdc-2", alive=False, tasks=0),
        ],
        leader="cdc-0",
    )  # fmt: skip


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_busy_cluster(width, height):
    now = busy()
    before = busy()
    for item in before["tasks"]:
        past = 0 if item["state"] != "RUNNING" else 1_000
        item["metrics"] = {name: value - past if name in ("records", "changes") else value for name, value in item["metrics"].items()}  # fmt: skip
    shown = picture(now, JOURNAL, before, 2.0)
    found = check(render(shown, "12:00:00 UTC", width, height), width, height, f"top-{width}x{height}")
    assert "broken-0" in found
    assert "postgres.slot_lost" in found


@pytest.mark.parametrize(("width", "height"), SIZES[:1])
def test_a_cluster_at_rest(width, height):
    quiet = cluster(task("shop", worker="cdc-0", records=10, lag_s=0.1), workers=[worker("cdc-0")], leader="cdc-0")
    check(
        render(picture(quiet, {"entries": []}), "12:00:00 UTC", width, height), width, height, f"quiet-{width}x{height}"
    )
