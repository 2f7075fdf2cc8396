"""Columns of the key come from the key: rows have them in the range of readers."""

from __future__ import annotations

import pytest
from cdcworker.connectors.postgres.types.mapping import VARIABLE_SCALE_DECIMAL

from tests import change_streams

INFINITY = 9_223_372_036_825_200_000
LAST = 253_402_300_799_999_999
MOMENT = {"type": "long", "connect.version": 1, "connect.name": "io.debezium.time.MicroTimestamp"}


def stream_of(*changes, bound=lambda value: min(value, LAST)):
    at = change_streams.column("at", MOMENT, "timestamp", False, bound=bound)
    table = change_streams.table(change_streams.ID, at, change_streams.column("until", MOMENT, "timestamp"), key=(0, 1))
    stream = change_streams.Stream(1)
    for kind, *arguments in changes:
        getattr(stream, kind)(table, *arguments)
    return stream


@pytest.mark.parametrize("log", [False, True])
def test_two_keys_stay_two_rows_with_their_own_values(log):
    stream = stream_of(
        ("insert", (1, INFINITY, 5)), ("insert", (1, LAST, 6)), ("update", (1, INFINITY, 7)), ("truncate",),
        ("insert", (2, INFINITY, 8)), ("insert", (2, LAST, None)), ("delete", (2, LAST)),
    )  # fmt: skip
    batch = stream.assembler(log).build(change_streams.arrow(stream.records), {}, 1)
    found = [
        tuple(row[name] for name in ("id", "at", "until")) for part in batch.tables for row in part.upserts.to_pylist()
    ]
    if log:
        first = [(1, INFINITY, 5), (1, LAST, 6), (1, INFINITY, 7), (None, None, None)]
        assert found == [*first, (2, INFINITY, 8), (2, LAST, None), (2, LAST, None)]
    else:
        assert found == [(2, INFINITY, 8)]
        assert [row["at"] for part in batch.tables for row in part.deletes.to_pylist()] == [LAST]


@pytest.mark.parametrize("log", [False, True])
def test_a_number_without_scale_is_the_keys(log):
    nan, most = {"scale": 0, "value": b""}, {"scale": 0, "value": b"\x05"}
    number = change_streams.column("n", VARIABLE_SCALE_DECIMAL, "numeric", False, bound=lambda _: most)
    table = change_streams.table(change_streams.ID, number, key=(0, 1))
    stream = change_streams.Stream(1)
    stream.insert(table, (1, nan))
    batch = stream.assembler(log).build(change_streams.arrow(stream.records), {}, 1)
    [part] = [one for one in batch.tables if one.table.endswith("orders") and "n" in one.upserts.column_names]
    assert part.upserts["n"].to_pylist()[0] == nan


def test_a_moved_key_has_its_own_value_under_both():
    stream = stream_of(("insert", (1, LAST, 5)), ("move", (1, LAST), (1, INFINITY, 6)))
    batch = stream.assembler(True).build(change_streams.arrow(stream.records), {}, 1)
    assert [row["at"] for row in batch.tables[0].upserts.to_pylist()] == [LAST, LAST, INFINITY]


def test_a_log_takes_the_row_where_the_key_cannot_be_read():
    stream = stream_of(("insert", (1, INFINITY, 5)), ("insert", (2, 3, 5)))
    stream.records[0]["key"] = b"{}"
    batch = stream.assembler(True).build(change_streams.arrow(stream.records), {}, 1)
    assert [row["at"] for row in batch.tables[0].upserts.to_pylist()] == [LAST, 3]


@pytest.mark.parametrize("log", [False, True])
def test_a_chosen_key_that_may_be_null_has_its_own_value(log):
    at = change_streams.column("at", MOMENT, "timestamp", True, bound=lambda value: min(value, LAST))
    table = change_streams.table(change_streams.ID, at, key=(1,))
    stream = change_streams.Stream(1)
    for row in ((1, INFINITY), (2, LAST), (3, INFINITY)):
        stream.insert(table, row)
    batch = stream.assembler(log).build(change_streams.arrow(stream.records), {}, 1)
    found = [(row["id"], row["at"]) for part in batch.tables for row in part.upserts.to_pylist()]
    assert sorted(found) == ([(1, INFINITY)] if log else []) + [(2, LAST), (3, INFINITY)]
