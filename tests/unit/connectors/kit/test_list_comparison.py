"""Lists of rows with several of one key."""

from __future__ import annotations

from cdcworker.connectors.kit.list_comparison import ListChange, compared


def test_of_several_rows_with_one_key_the_last_one_counts_and_does_not_change_for_ever():
    rows = [([1], {"a": 1}), ([2], {"a": 1}), ([1], {"a": 2})]
    known, changes = compared(None, rows)
    assert changes == [ListChange("r", [2], 1), ListChange("r", [1], 2)]
    assert compared(known, rows) == (known, [])
    assert compared(known, rows[1:])[1] == []
    assert compared(known, rows[:2])[1] == [ListChange("u", [1], 0)]
