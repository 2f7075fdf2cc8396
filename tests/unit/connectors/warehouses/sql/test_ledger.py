"""What the ledger says of a batch, and of one change, whatever server it is in."""

from __future__ import annotations

import pytest
from cdcworker.connectors.warehouses.sql.ledger import is_fresh
from cdcworker.connectors.warehouses.sql.ledger_admin import position_of, row_state
from cdcworker.schemas.errors import CdcError

OFFSETS = {("t", 0): (5, 9), ("t", 1): (0, 3)}
OLD, NOW, NEW = b"\1", b"\2", b"\3"


@pytest.mark.parametrize(("stored", "fresh"), [((5, 0), True), ((4, 0), True), ((9, 3), False), ((12, 7), False)])
def test_a_batch_is_fresh_where_all_its_partitions_stand_before_it(stored, fresh):
    rows = [("t", number, at, 2, 1) for number, at in enumerate(stored)]
    assert is_fresh(OFFSETS, rows, (2, 1)) is fresh


@pytest.mark.parametrize(
    ("rows", "kind", "said"),
    [
        ([("t", 0, 7, 2, 1), ("t", 1, 0, 2, 1)], "fenced", "inside the batch"),
        ([("t", 0, 9, 2, 1), ("t", 1, 0, 2, 1)], "fenced", "a part of the batch"),
        ([("t", 0, 5, 2, 2), ("t", 1, 0, 2, 1)], "fenced", "a newer task"),
        ([("t", 0, 5, 2, 1), ("t", 1, 0, 3, 0)], "fenced", "a newer task"),
    ],
)
def test_a_batch_that_another_one_has_begun_is_not_applied(rows, kind, said):
    with pytest.raises(CdcError, match=said) as caught:
        is_fresh(OFFSETS, rows, (2, 1))
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (None, None),
        ([], "absent"),
        ([None], None),
        ([NOW], "this"),
        ([NEW], "newer"),
        ([OLD], "older"),
        ([OLD, None, NOW, NEW], "this"),
        ([OLD, NEW], "newer"),
    ],
)
def test_the_positions_of_a_keys_rows_say_whose_row_is_there(found, state):
    assert row_state(found, NOW) == state


def test_a_record_that_does_not_say_where_its_change_was_has_no_position():
    source = {"commit_lsn": 1, "tx_index": 2, "tx_sub": 3}
    assert position_of(source) == bytes.fromhex("00000000000000010000000200000003")
    assert position_of({**source, "name": "p"}) == position_of(source)
    assert position_of({"commit_lsn": 1}) is None
