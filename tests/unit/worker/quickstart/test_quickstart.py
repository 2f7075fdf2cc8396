"""The demo's load, its proof's SQL and what the screen says."""

from __future__ import annotations

import io
from collections import Counter
from unittest import mock

import pytest
from cdcworker.worker.cli.commands.local.quickstart import _course
from cdcworker.worker.quickstart import flow, proof
from cdcworker.worker.quickstart.connectors import SINK, sink_config
from cdcworker.worker.quickstart.mariadb_shop import MariaDbShop
from cdcworker.worker.quickstart.monitor import ClusterSnapshot, task_of
from cdcworker.worker.quickstart.postgres_shop import PostgresShop
from cdcworker.worker.quickstart.screen import plain_line, render
from cdcworker.worker.quickstart.shop import SOURCE
from cdcworker.worker.quickstart.workload import ADDED_COLUMN, KEY_CHANGE, UNCHANGED_TOAST, Workload

TRANSACTIONS = 2000


def fixed_load() -> Workload:
    load = Workload()
    list(load.first_rows())
    for _ in range(TRANSACTIONS):
        load.transaction()
    return load


def test_the_fixed_load_holds_every_kind_of_change():
    load = fixed_load()
    assert load.changes >= 20_000
    assert load.transactions == TRANSACTIONS
    assert all(load.operations[name] > 1000 for name in ("insert", "update", "delete"))
    assert load.specials[KEY_CHANGE] > 50
    assert load.specials[UNCHANGED_TOAST] > 1000
    assert load.specials[ADDED_COLUMN] == 1


def test_the_same_seed_gives_the_same_statements():
    def statements(seed: int) -> list[object]:
        load = Workload(seed)
        return [*load.first_rows(), *(row for _ in range(50) for row in load.transaction())]

    assert statements(1) == statements(1)
    assert statements(1) != statements(2)


def test_every_delete_and_key_change_meets_a_row_that_is_there():
    load = Workload(column_after=10)
    rows = list(load.first_rows())
    for _ in range(400):
        rows += load.transaction()
    orders: Counter[int] = Counter()
    customers: set[int] = set()
    for row in rows:
        if row.sql.startswith("INSERT INTO orders"):
            orders[row.parameters[0]] += 1
        elif row.sql.startswith("DELETE FROM orders"):
            orders[row.parameters[0]] -= 1
            assert orders[row.parameters[0]] == 0
        elif row.sql.startswith("INSERT INTO customers"):
            customers.add(row.parameters[0])
        elif row.special == KEY_CHANGE:
            customers.remove(row.parameters[1])
            customers.add(row.parameters[0])
    assert set(orders.values()) <= {0, 1}


def test_the_checksum_names_its_columns_quoted_and_in_order():
    sql = proof.checksum_sql("public", 'odd"name', [proof.ProofColumn("b", "text"), proof.ProofColumn("A", "numeric")])
    assert '("b")::text' in sql
    assert 'trim_scale(("A")::numeric)::text' in sql
    assert sql.index('"b"') < sql.index('"A"')
    assert '"public"."odd""name"' in sql


def result(there: proof.Checksum | None, problem: str = "") -> proof.TableResult:
    return proof.TableResult("orders", proof.Checksum(2, 77), there, problem)


@pytest.mark.parametrize(
    ("there", "problem", "equal"),
    [
        (proof.Checksum(2, 77), "", True),
        (proof.Checksum(2, 78), "", False),
        (proof.Checksum(3, 77), "", False),
        (None, "the table is not in the warehouse", False),
    ],
)
def test_a_table_is_equal_only_by_rows_and_checksum(there, problem, equal):
    found = result(there, problem)
    assert found.equal is equal
    text = flow.summary([found], {"insert": 1234}, {KEY_CHANGE: 5})
    assert ("every table is equal" in text) is equal
    assert ("differ" in text.lower()) is not equal
    assert problem in text
    assert "1,234" in text


def test_passwords_are_references_in_connector_configs():
    dsn = "postgresql://cdc:p%40ss@127.0.0.1:5555/shop"
    for config, prefix, user in (
        (PostgresShop(dsn).source_config("${env:X}"), "database", "shop_reader"),
        (MariaDbShop(dsn.replace("postgresql", "mysql")).source_config("${env:X}"), "database", "shop_reader"),
        (sink_config("public", dsn, "${env:X}"), "warehouse", "cdc"),
    ):
        assert config[f"{prefix}.password"] == "${env:X}"
        assert config[f"{prefix}.user"] == user
        assert config[f"{prefix}.port"] == "5555"
        assert "p@ss" not in str(config)


def picture() -> ClusterSnapshot:
    tasks = [
        {
            "connector": SOURCE,
            "task": 0,
            "state": "RUNNING",
            "worker": "w2",
            "metrics": {"events_per_s": 1200.4, "lag_s": 0.2},
        },
        {"connector": SINK, "task": 0, "state": "RUNNING", "worker": "w1", "metrics": {"lag_s": 1.5}, "error": None},
    ]
    workers = ({"id": "w1", "alive": True, "tasks": 1}, {"id": "w2", "alive": False, "tasks": 1})
    return ClusterSnapshot("w1", workers, tuple(map(task_of, tasks)), {"orders": 10}, {"orders": 9})


def test_the_screen_says_who_leads_where_tasks_run_and_how_far_behind():
    line = plain_line(picture(), None)
    for part in (
        "leader w1",
        "alive w1 ",
        f"{SOURCE}/0 RUNNING on w2",
        "1200 events/s",
        "lag 0.2 s source, 1.5 s sink",
    ):
        assert part in line
    assert "orders 10" in line
    assert "orders 9" in line


def test_the_live_screen_shows_the_same():
    from rich.console import Console

    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render(picture(), fixed_load()))
    text = console.export_text()
    for part in ("leader", "dead", SOURCE, "RUNNING", "1.5 s", "orders", "2,000 transactions"):
        assert part in text


def test_a_takeover_needs_every_task_on_a_living_worker():
    assert picture().all_run((SOURCE, SINK))
    assert not picture().all_run((SOURCE, SINK), without="w2")
    assert not ClusterSnapshot().all_run((SOURCE,))


def demo_that_found(found):
    demo = mock.MagicMock()
    demo.idle.side_effect = KeyboardInterrupt
    demo.prove.return_value = [proof.TableResult("orders", proof.Checksum(2, 7), found)]
    demo.loader.workload.operations = demo.loader.workload.specials = {}
    demo.loader.workload.transactions = demo.loader.workload.changes = 0
    return demo


@pytest.mark.parametrize(("found", "code"), [(proof.Checksum(2, 7), 0), (proof.Checksum(2, 99), 1), (None, 1)])
def test_a_fixed_load_ends_with_the_leader_killed_on_its_way_and_zero_only_where_all_is_equal(found, code):
    demo, stack = demo_that_found(found), mock.MagicMock()
    assert _course(demo, stack, sabotage=False, seconds=None) == code
    demo.kill_leader.assert_called_once_with(stack.kill_worker)
    demo.loader.pause_at.assert_called_once()
    demo.idle.assert_not_called()


@pytest.mark.parametrize("found", [proof.Checksum(2, 99), None])
def test_a_live_demo_that_found_a_difference_ends_with_one(found):
    demo = demo_that_found(found)
    assert _course(demo, mock.MagicMock(), sabotage=True, seconds=30) == 1
    demo.prove.return_value = [proof.TableResult("orders", proof.Checksum(2, 7), proof.Checksum(2, 7))]
    with pytest.raises(KeyboardInterrupt):
        _course(demo, mock.MagicMock(), sabotage=False, seconds=30)
