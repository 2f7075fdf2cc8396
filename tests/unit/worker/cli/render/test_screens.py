"""What `top`, `tail` and `explain` look like in terminals of several sizes: looked at once, and kept so."""

from __future__ import annotations

import time

import pytest
from cdcworker.worker.cli.commands.explain import picture as explain_picture
from cdcworker.worker.cli.render.output import plain
from cdcworker.worker.cli.render.tail import lines as tail_lines
from cdcworker.worker.cli.render.top import render, top_screen
from rich.console import Group
from rich.text import Text

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
    shown = top_screen(now, JOURNAL, before, 2.0)
    found = check(render(shown, "12:00:00 UTC", width, height), width, height, f"top-{width}x{height}")
    assert "broken-0" in found
    assert "postgres.slot_lost" in found


@pytest.mark.parametrize(("width", "height"), SIZES[:1])
def test_a_cluster_at_rest(width, height):
    quiet = cluster(task("shop", worker="cdc-0", records=10, lag_s=0.1), workers=[worker("cdc-0")], leader="cdc-0")
    check(
        render(top_screen(quiet, {"entries": []}), "12:00:00 UTC", width, height),
        width,
        height,
        f"quiet-{width}x{height}",
    )


NAMES = ["id", "customer", "größe", "名前", "a_column_with_a_name_of_more_than_thirty_characters", "note"]
LONG = (
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore. "
    * 3
)


def tailed():
    """Each kind of change, with names and values of every width."""
    before = dict(zip(NAMES, [7, "Ada", "XL", "花子", 1, None], strict=True))
    after = {**before, "customer": "Grace Hopper", "名前": "太郎", "note": LONG}
    head = {"topic": "shop.public.orders", "partition": 0, "offset": 48_123, "table": "public.orders", "key": {"id": 7}}
    head |= {"written_ms": 1_790_000_000_012, "source": {"ts_ms": 1_790_000_000_000}}
    yield {**head, "op": "create", "before": None, "after": before, "changed": None}
    yield {**head, "op": "update", "before": before, "after": after, "changed": ["customer", "名前", "note"]}
    yield {**head, "op": "update", "before": None, "after": after, "changed": None, "unknown": ["note"]}
    wide = {**head, "key": {"tenant": "a-tenant-with-a-long-name", "order": "2026-11-22/000000000000000000048123"}}
    yield {**wide, "op": "delete", "before": {"id": 7}, "after": None, "changed": None}
    yield {**head, "op": "truncate", "before": None, "after": None, "changed": None, "key": None}
    yield {**head, "op": "update", "before": None, "after": None, "changed": None, "too_large": 2_000_000}


@pytest.mark.parametrize(("width", "height"), [(80, 60), (120, 60)])
def test_changes_as_tail_shows_them(width, height):
    rows = [line for change in tailed() for line in tail_lines(change, all_columns=True, width=width)]
    found = check(Group(*(Text(line, style=colour) for colour, line in rows)), width, height, f"tail-{width}x{height}")
    assert found.count("Lorem") == 2, "a long value is cut, and says of how many characters"
    assert "333 characters" in found


def test_a_long_name_moves_no_value_and_is_one_line_where_lines_are_read_by_programs():
    change = next(tailed())
    on_screen = [text for _, text in tail_lines(change, width=80)]
    assert {line.rindex(" ") for line in on_screen if line.endswith((" 1", " Ada", " NULL"))} == {35}
    long = [text for _, text in tail_lines(change) if "more_than_thirty" in text]
    assert long == ["  + a_column_with_a_name_of_more_than_thirty_characters  1"]
    assert "  + a_column_with_a_name_of_more_than_thirty_characters" in on_screen


def explained():
    lsn = "0/16B3748"
    stages = [
        ("commit", 0, f"update in transaction 771, commit {lsn}, event 3 of it"),
        ("task", 2, "shop-0 ran on cdc-1 (epoch 48) when it was read; it runs on cdc-0 now"),
        ("topic", 14, "shop.public.orders/0@48123, schema 1203948572, written whole in one Kafka transaction"),
        ("sink", 612, "warehouse has applied it in batch 1093 or before: the ledger keeps the last; the row in the warehouse is of a later change"),
        ("sink", None, "archive has not come so far: it is 1,204 offsets behind it"),
    ]  # fmt: skip
    found = [
        {"stage": name, "found": at is not None, "at_ms": None if at is None else 1_790_000_000_000 + at, "text": text}
        for name, at, text in stages
    ]
    others = [
        {
            "written_ms": 1_790_000_000_900,
            "op": "update",
            "topic": "shop.public.orders",
            "partition": 0,
            "offset": 48_200,
        }
    ]
    return {"table": "public.orders", "key": {"id": 7}, "op": "update", "stages": found, "others": others, "newer": 1}


@pytest.mark.parametrize(("width", "height"), [(80, 30), (120, 24)])
def test_the_way_of_a_row_as_explain_shows_it(width, height):
    found = check(Text(plain(explain_picture(explained(), width))), width, height, f"explain-{width}x{height}")
    assert "later change" in " ".join(found.split())
