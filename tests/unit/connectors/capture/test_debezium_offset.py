"""What Debezium's offsets of all databases have in common, from kept samples."""

from __future__ import annotations

import pytest
from cdcworker.connectors.capture import debezium_offset as debezium
from cdcworker.schemas.errors import CdcError

STREAMING = {
    "lsn": 27172904,
    "lsn_proc": 27172904,
    "lsn_commit": 27172000,
    "messageType": "INSERT",
    "ts_usec": 1700000000000000,
    "txId": 770,
    "transaction_id": "770:27172904",
    "transaction_data_collection_order_public.orders": 3,
    "transaction_data_collection_order_public.customers": 1,
}


def test_events_of_the_transaction_are_counted_by_table_and_back():
    counts = debezium.order_counts(STREAMING)
    assert counts == {"public.orders": 3, "public.customers": 1}
    plain = {name: value for name, value in STREAMING.items() if not name.startswith("transaction_")}
    assert debezium.with_orders(plain, "770:27172904", counts) == STREAMING
    assert debezium.order_counts(plain) is None
    assert debezium.with_orders(plain, "770:27172904", None) == plain


@pytest.mark.parametrize(
    "ended",
    [
        {},
        {"snapshot": False},
        {"snapshot": "INITIAL", "snapshot_completed": True},
        {"snapshot": "true", "last_snapshot_record": "true"},
    ],
)
def test_a_snapshot_that_has_ended_is_none(ended):
    debezium.require_streaming({**STREAMING, **ended})


@pytest.mark.parametrize("under_way", [{"snapshot": "INITIAL"}, {"snapshot": True, "snapshot_completed": False}])
def test_a_snapshot_that_has_not_ended_is_refused(under_way):
    with pytest.raises(CdcError) as caught:
        debezium.require_streaming({**STREAMING, **under_way})
    assert caught.value.code == debezium.SNAPSHOT_UNFINISHED


@pytest.mark.parametrize("value", ["27", -1, True, 1.5, [1]])
def test_what_is_no_number_is_refused_by_its_name(value):
    with pytest.raises(CdcError, match="lsn_commit"):
        debezium.number({"lsn_commit": value}, "lsn_commit")


def test_an_incremental_snapshot_under_way_is_told():
    assert debezium.notes_of({**STREAMING, "incremental_snapshot_collections": '[{"id":"public.orders"}]'})
    assert not debezium.notes_of(STREAMING)
