"""Data files of Delta tables, and what the log says of them."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest
from cdcworker.connectors.warehouses.lake.delta_files import data_files
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from pyarrow import parquet

AT = dt.datetime(2026, 1, 2, 3, 4, 5, 678901)


def bounds(values, kind):
    said = data_files.stats(pa.table({"a": pa.array(values, kind)}))
    assert said["numRecords"] == len(values)
    assert said["nullCount"] == {"a": values.count(None)}
    return said["minValues"].get("a"), said["maxValues"].get("a")


@pytest.mark.parametrize(
    ("values", "kind", "wanted"),
    [
        ([3, None, 1], pa.int64(), (1, 3)),
        ([1.5, -2.0], pa.float64(), (-2.0, 1.5)),
        ([1.5, float("nan")], pa.float64(), (None, None)),
        ([float("inf"), 1.0], pa.float64(), (None, None)),
        ([None, None], pa.int64(), (None, None)),
        ([b"x"], pa.binary(), (None, None)),
        ([True, False], pa.bool_(), (None, None)),
        (["b", "a"], pa.string(), ("a", "b")),
        (["a" * 40], pa.string(), ("a" * 32, "a" * 32 + "\U0010ffff")),
        (["a" * 32 + "\U0010ffff"], pa.string(), (None, None)),
        ([Decimal("1.25"), Decimal("-3.50")], pa.decimal128(9, 2), (-3.5, 1.25)),
        ([Decimal("12345678901234567.5")], pa.decimal128(20, 1), (None, None)),
        ([dt.date(1, 1, 1), dt.date(2026, 1, 2)], pa.date32(), ("0001-01-01", "2026-01-02")),
        ([AT], pa.timestamp("us"), ("2026-01-02T03:04:05.678", "2026-01-02T03:04:05.679")),
        ([AT], pa.timestamp("us", "UTC"), ("2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05.679Z")),
        ([dt.datetime(9999, 12, 31, 23, 59, 59, 999999)], pa.timestamp("us"), (None, None)),
    ],
    ids=str,
)
def test_bounds_hold_all_values_or_are_not_told(values, kind, wanted):
    assert bounds(values, kind) == wanted


def test_a_file_is_what_its_action_says(tmp_path):
    rows = pa.table({"a": [1, 2], "tags": pa.array([["x"], None], pa.list_(pa.string()))})
    add = data_files.write(LocalDisk(tmp_path), rows, ("a",))
    path = tmp_path / add["path"]
    assert path.stat().st_size == add["size"]
    assert parquet.read_table(path).equals(rows)
    assert json.loads(add["stats"])["nullCount"] == {"a": 0}
