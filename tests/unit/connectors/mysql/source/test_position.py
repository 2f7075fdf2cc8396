"""The stored position as JSON, and what is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cdcworker.connectors.mysql.errors import POSITION_INVALID
from cdcworker.connectors.mysql.source.position import FilePlace, StoredPosition, TransactionPart, progress_of
from cdcworker.schemas.errors import CdcError

WHOLE = StoredPosition("mariadb", "u", "3-7-12", FilePlace("log.000004", 99, 5), 77, ts_ms=8)
INSIDE = StoredPosition(
    "mysql", "u", "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5", FilePlace("log.000004", 99), 77,
    part=TransactionPart("3e11fa47-71ca-11e1-9e33-c80aa9429562:6", 78, 50), orders={"shop.t": 50},
    snapshot={"loaded": [1]}, quarantine={"shop.t": {"code": "x"}}, shapes={"shop.t": "2:abc"},
)  # fmt: skip


@pytest.mark.parametrize("position", [WHOLE, INSIDE], ids=["between transactions", "inside one"])
def test_a_position_comes_back_as_it_was_stored(position: StoredPosition) -> None:
    stored = json.loads(json.dumps(position.to_json()))
    assert StoredPosition.from_json({**stored, "of a later version": 1}) == position
    assert stored["v"] == (2 if position.part else 1)


def test_the_last_number_is_the_one_of_a_transaction_that_was_handed_on_in_part() -> None:
    assert (WHOLE.last_number, INSIDE.last_number) == (77, 78)


def test_a_log_without_gtids_has_none() -> None:
    stored = StoredPosition("mysql", "u", "", FilePlace("log.000004", 99), 77, has_gtids=False).to_json()
    assert stored["gtids"] is None
    assert not StoredPosition.from_json(stored).has_gtids


@pytest.mark.parametrize(
    "change",
    [
        {"v": 99},
        {"product": "oracle"},
        {"gtids": "nonsense"},
        {"gtids": "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"},
        {"number": -1},
        {"number": "77"},
        {"pos": None},
        {"part": ["3-7-13", 78, 0]},
        {"part": [1]},
        {"snapshot": 3},
        {"quarantine": [1]},
    ],
)
def test_what_is_no_position_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CdcError) as caught:
        StoredPosition.from_json({**WHOLE.to_json(), **change})
    assert caught.value.code == POSITION_INVALID


def test_a_progress_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(CdcError) as caught:
        progress_of({"loads": 2})
    assert caught.value.code == POSITION_INVALID
