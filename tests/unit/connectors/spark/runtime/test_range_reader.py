"""What tasks are asked to read."""

from __future__ import annotations

from cdcworker.connectors.spark.runtime import range_reader as reading


def test_a_partition_stays_in_its_share_whether_or_not_others_have_records():
    all_of_them = {("a", 0): (0, 5), ("a", 1): (3, 4), ("b", 0): (-2, 9)}
    assert reading.shares(all_of_them, 2) == "0\na 0 0 5\nb 0 -2 9\n\n1\na 1 3 4"
    assert reading.shares({**all_of_them, ("a", 0): (5, 5)}, 2) == "1\na 1 3 4\n\n0\nb 0 -2 9"


def test_nothing_new_asks_for_no_task():
    assert reading.shares({("a", 0): (5, 5)}, 2) == ""
    assert reading.table([]).num_rows == 0
