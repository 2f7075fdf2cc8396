"""What a warehouse is given."""

from __future__ import annotations

import pyarrow as pa
import pytest
from cdcworker.connectors.api.table_batch import TableBatch

NONE = pa.table({"id": pa.array([], pa.int64())})
ONE = pa.table({"id": [1]})


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"floor": None}, False),
        ({"key": ("id",)}, False),
        ({"upserts": ONE}, False),
        ({"deletes": ONE}, False),
    ],
    ids=["a truncate alone", "nothing", "its table's key is known", "with rows", "with deletes"],
)
def test_only_a_truncate_alone_leaves_the_key_to_the_target(changed, expected):
    parts = {"key": (), "upserts": NONE, "deletes": NONE, "floor": bytes(16)} | changed
    assert TableBatch("t", schema={}, **parts).bare is expected
