"""The columns that a source did not send are known by their names, wherever transforms put them."""

from __future__ import annotations

import pytest
from cdcworker.connectors.record_sink.unsent import unsent_columns
from cdcworker.connectors.transforms.data import ConnectRecord, Header

ROW = {"id": 1, "note": None, "body": None}


def record(value: object, *places: bytes) -> ConnectRecord:
    headers = tuple(Header("cdc.unchanged", None, text) for text in places)
    return ConnectRecord("t", value=value, headers=headers)


@pytest.mark.parametrize("value", [ROW, {"before": None, "after": ROW, "op": "u"}])
def test_columns_are_named_by_their_places_in_the_row(value: object) -> None:
    assert unsent_columns(record(value, b"2")) == ("body",)
    assert unsent_columns(record(value, b"1,2")) == ("note", "body")
    assert unsent_columns(record(value)) == ()


@pytest.mark.parametrize("value", [None, "text", {"before": ROW, "after": None, "op": "d"}])
def test_a_record_without_a_row_names_none_and_neither_do_places_that_are_none(value: object) -> None:
    assert unsent_columns(record(value, b"0,9,x")) == ()
