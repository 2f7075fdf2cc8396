"""Repairs in batches that a source takes at once; what is told of them holds no keys."""

from __future__ import annotations

import json

from cdcworker.connectors.snapshot_jobs import REPAIR_ROWS_MAX, repaired_rows
from cdcworker.worker.diagnostics.repair import KEY_BYTES_MAX, TOO_LONG, RepairPlan
from hypothesis import given
from hypothesis import strategies as st


def table(name, rows, **more):
    counts = {"missing": len(rows), "different": 0, "extra": 0}
    item = {"table": name, "key": ["id"], "rows": rows, "deletes": True, "counts": counts, "refused": []}
    return {**item, "complete": True, **more}


TABLES = st.lists(
    st.tuples(st.integers(0, 120), st.integers(0, 900), st.integers(1, 400)), max_size=5, unique_by=lambda item: item[0]
)


@given(TABLES)
def test_every_key_is_in_one_batch_and_each_batch_is_one_that_a_source_takes(shapes):
    tables = [table(f"public.t{name}", [[f"{n}".zfill(size)] for n in range(rows)]) for name, rows, size in shapes]
    plan = RepairPlan(tables)
    found: dict = {}
    for batch in plan.batches:
        for name, (key, rows, deletes) in repaired_rows(batch).items():
            assert (key, deletes) == (["id"], True)
            found.setdefault(name, []).extend(rows)
    assert found == {item["table"]: item["rows"] for item in tables if item["rows"]}
    assert plan.rows == sum(map(len, found.values()))


def test_a_batch_has_a_bounded_number_of_rows_and_of_tables():
    assert len(RepairPlan([table("public.t", [[str(n)] for n in range(REPAIR_ROWS_MAX)])]).batches) == 1
    assert len(RepairPlan([table("public.t", [[str(n)] for n in range(REPAIR_ROWS_MAX + 1)])]).batches) == 2
    many = RepairPlan([table(f"public.t{number}", [["1"]]) for number in range(250)])
    assert [len(batch["tables"]) for batch in many.batches] == [100, 100, 50]
    assert RepairPlan([]).batches == []


def test_whether_keys_without_a_row_are_deleted_is_said_of_each_table():
    plan = RepairPlan([table("public.a", [["1"]], deletes=False), table("public.b", [["1"]])])
    (batch,) = plan.batches
    assert {name: rows.deletes for name, rows in repaired_rows(batch).items()} == {"public.a": False, "public.b": True}


def test_keys_that_no_request_has_room_for_are_refused():
    plan = RepairPlan([table("public.t", [["k" * KEY_BYTES_MAX], ["short"]])])
    assert plan.rows == 1
    assert plan.shown()["tables"][0]["refused"] == [{"rows": 1, "why": TOO_LONG}]


def test_what_is_told_has_numbers_and_no_keys():
    plan = RepairPlan([table("public.t", [["key-4711"]], refused=[{"rows": 2, "why": "twice"}])])
    assert plan.shown() == {
        "rows": 1,
        "batches": 1,
        "tables": [
            {
                "table": "public.t",
                "missing": 1,
                "different": 0,
                "extra": 0,
                "complete": True,
                "refused": [{"rows": 2, "why": "twice"}],
            }
        ],
    }
    assert "4711" not in json.dumps(plan.shown()) + repr(plan)
