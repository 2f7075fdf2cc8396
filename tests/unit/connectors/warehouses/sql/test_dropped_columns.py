"""Which columns a batch drops, by the positions of what has been applied before."""

from __future__ import annotations

import pyarrow as pa
import pytest
from cdcworker.connectors.api.table_batch import POSITION, TableBatch
from cdcworker.connectors.warehouses.column_changes import ColumnNaming
from cdcworker.connectors.warehouses.sql.dropped_columns import SettledColumns, position_column, settled

TOPIC = "shop.public.orders"
OLD, NOW, NEW = (bytes([0] * 15 + [number]) for number in (1, 2, 3))
GONE = ColumnNaming({"id": "id", "b": "b", "_cdc_position": "at"}, (), (), ("b",))


class Positions:
    def __init__(self, applied=None, newest=b""):
        self.found, self.looked = (applied, newest), 0

    def applied(self):
        return self.found[0]

    def newest(self, planned):
        self.looked += 1
        return self.found[1]


def batch(at=NOW):
    rows = pa.table({"id": [1], POSITION: pa.array([at], pa.binary())})
    return TableBatch(TOPIC, ("id",), rows, rows.slice(0, 0), {"fields": []})


def test_a_batch_that_is_newer_than_all_drops_the_column_and_looks_once():
    positions, newest = Positions(OLD, OLD), {}
    assert settled(batch(), GONE, ("id",), positions, newest) == SettledColumns(("b",))
    assert (positions.looked, newest) == (1, {})


def test_a_batch_that_is_read_again_drops_nothing_and_the_rows_are_looked_at_once():
    positions, newest = Positions(None, NEW), {}
    for _ in range(2):
        assert settled(batch(), GONE, ("id",), positions, newest) == SettledColumns(settled=False)
    assert (positions.looked, newest) == (1, {TOPIC: NEW})


@pytest.mark.parametrize("applied", [NOW, NEW])
def test_a_batch_of_an_older_shape_leaves_out_what_the_table_has_no_more(applied):
    planned = ColumnNaming({"id": "id"}, (), ("a", "id"))
    found = settled(batch(), planned, ("id",), Positions(applied), {})
    assert found == SettledColumns(late=("a",), settled=False)


def test_nothing_is_asked_where_no_column_comes_or_goes():
    assert settled(batch(), ColumnNaming({"id": "id"}, (), ()), ("id",), None, {}) == SettledColumns()


def test_the_column_of_positions_has_its_name_of_before():
    assert position_column(GONE, "at") == "_cdc_position"
    assert position_column(GONE, "elsewhere") == ""
