"""Columns of the key come from the key: rows have them in the range of readers."""

from __future__ import annotations

import pyarrow as pa
import pytest
from cdcworker.connectors.arrow.key_numbers import with_empty_nan
from cdcworker.connectors.capture.avro_types import decimal_type
from cdcworker.connectors.postgres.types.mapping import VARIABLE_SCALE_DECIMAL
from cdcworker.connectors.warehouses.arrow_types import to_arrow
from cdcworker.connectors.warehouses.source_types import target_column
from cdcworker.connectors.warehouses.value_text import to_text
from cdcworker.schemas.change import Position
from cdcworker.schemas.encode import Encoder
from cdcworker.schemas.envelope import former_key_schemas
from cdcworker.schemas.log import Registration, RegistrationMeta, register_in_memory

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


BEYOND = {2: b"\x64", 5: b"\x01\x86\xa0", 38: (10**38).to_bytes(16, "big")}
"""The first number with more digits than so many."""


def batch_of(kind, source_type, key_value, row_value, former=None):
    """What a sink makes of a row whose key has one value of a column and whose row has another. `former`: the key's schema that
    the topic has already, by its number."""
    number = change_streams.column("n", kind, source_type, False, bound=lambda _: row_value)
    table = change_streams.table(change_streams.ID, number, key=(0, 1))
    stream = change_streams.Stream(1)
    if former is not None:
        meta = RegistrationMeta(1, table.path, Position(1, 0, 0))
        subject = f"{change_streams.topic_name(change_streams.PREFIX, table.path)}-key"
        schema = former_key_schemas(change_streams.PREFIX, table)[former]
        register = register_in_memory(stream.schemas.log)
        register([Registration(subject, schema, meta)])
        stream.encoder = Encoder(change_streams.PREFIX, register)
    stream.insert(table, (1, key_value))
    return stream, table


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("former", [None, 0, 1])
@pytest.mark.parametrize("precision", BEYOND)
def test_nan_of_a_key_is_nan_in_either_form_that_a_source_writes(log, former, precision):
    for written in (BEYOND[precision], b""):
        stream, _ = batch_of(decimal_type(precision, 0), f"numeric({precision},0)", written, b"\x09", former)
        batch = stream.assembler(log).build(change_streams.arrow(stream.records), {}, 1)
        [part] = batch.tables
        assert part.upserts["n"].to_pylist() == [b""]
        column = target_column("n", next(field for field in part.schema["fields"] if field["name"] == "n"))
        values = part.upserts["n"].combine_chunks()
        assert to_text(values, column).to_pylist() == ["NaN"]
        assert to_arrow(values, column, pa.decimal128(precision, 0)).to_pylist() == [None]


@pytest.mark.parametrize("former", [None, 0, 1])
def test_numbers_of_a_key_stay_what_they_are(former):
    for value in (b"\x63", b"\x9d", b"\x00"):
        stream, _ = batch_of(decimal_type(2, 0), "numeric(2,0)", value, value, former)
        batch = stream.assembler().build(change_streams.arrow(stream.records), {}, 1)
        assert batch.tables[0].upserts["n"].to_pylist() == [value]


def test_a_key_of_before_the_column_was_widened_is_read_by_its_own_schema():
    values = pa.array([BEYOND[2], BEYOND[5], None])
    kinds = decimal_type(2, 0), ["null", decimal_type(5, 0)]
    assert with_empty_nan(values, kinds).to_pylist() == [b"", BEYOND[5], None]
    assert with_empty_nan(values, ("bytes", kinds[1])).to_pylist() == [BEYOND[2], b"", None]
    assert with_empty_nan(values, ("bytes", None)).to_pylist() == values.to_pylist()
    # Whoever may register schemas says how long numbers are.
    assert with_empty_nan(values, (decimal_type(10**12, 0), None)).to_pylist() == values.to_pylist()


def test_a_deleted_and_a_moved_key_of_nan_are_nan():
    stream, table = batch_of(decimal_type(2, 0), "numeric(2,0)", b"\x64", b"\x63")
    stream.move(table, (1, b"\x64"), (1, b"\x05"))
    batch = stream.assembler().build(change_streams.arrow(stream.records), {}, 1)
    assert [row["n"] for part in batch.tables for row in part.deletes.to_pylist()] == [b""]


PAIR = {
    "type": "record", "name": "pair", "namespace": "composite.public",
    "fields": [{"name": "n", "type": ["null", decimal_type(2, 0)], "default": None}, {"name": "v", "type": ["null", "string"], "default": None}],
}  # fmt: skip
LISTED = {"type": "array", "items": ["null", decimal_type(2, 0)]}


@pytest.mark.parametrize(
    ("kind", "written", "read"),
    [
        (LISTED, [b"\x64", None, b"\x05"], [b"", None, b"\x05"]),
        ({"type": "array", "items": ["null", LISTED]}, [[b"\x64"], None], [[b""], None]),
        (PAIR, {"n": b"\x64", "v": "d"}, {"n": b"", "v": "d"}),
        (PAIR, {"n": None, "v": None}, {"n": None, "v": None}),
    ],
)
def test_nan_within_an_array_or_a_record_of_a_key_is_nan(kind, written, read):
    stream, _ = batch_of(kind, "", written, written)
    batch = stream.assembler().build(change_streams.arrow(stream.records), {}, 1)
    assert batch.tables[0].upserts["n"].to_pylist() == [read]
