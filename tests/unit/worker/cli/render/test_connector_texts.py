"""What commands say of a connector."""

from __future__ import annotations

from cdcworker.worker.cli.render import connector_texts as texts

NUMBERS = {
    "lag_bytes": 5_000_010,
    "table_lag_s": {"public.orders": 3.2, "public.b": 0.0},
    "table_lag_bytes": {"public.orders": 5_000_000, "public.b": 10},
    "quarantine": [{"table": "public.c", "code": "postgres.type_refused", "message": "no form"}],
}
STATUS = {
    "name": "shop",
    "health": "degraded",
    "reason": "1 table is held back",
    "connector": {"state": "RUNNING", "worker_id": "w"},
    "tasks": [{"id": 0, "state": "RUNNING", "worker_id": "w", "held_tables": 1}],
}


def lines(**numbers):
    content = {"status": STATUS, "tasks": [{"task": 0, "metrics": numbers}], "topics": [], "config": {}}
    return texts.description(content).splitlines()


def test_why_a_connector_is_not_well_stands_beside_its_health():
    shown = texts.status(STATUS)
    assert shown.before == "shop: degraded (1 table is held back)"
    assert shown.rows[1] == ("task 0", "RUNNING", "w", "1 table is held back")


def test_how_late_each_table_is_is_described_the_latest_first():
    found = lines(**NUMBERS)
    assert "task 0 holds back public.c: [postgres.type_refused] no form" in found
    at = found.index("task 0, how late each table is:")
    shown = [line.split("  ") for line in found[at + 1 : at + 4]]
    assert [[cell.strip() for cell in line if cell] for line in shown] == [
        ["TABLE", "LAG", "BYTES"], ["public.orders", "3.2 s", "4.8 MiB"], ["public.b", "0.0 s", "10 B"],
    ]  # fmt: skip


def test_a_sink_names_its_topics_and_of_many_the_latest():
    found = lines(topic_lag_bytes={f"t{n}": n for n in range(15)}, paused={"t3": "the column n is another"})
    assert "task 0 holds back t3: the column n is another" in found
    text = "\n".join(found)
    assert "t14" in text
    assert "t4 " not in text
    assert "… and 5 more" in text
