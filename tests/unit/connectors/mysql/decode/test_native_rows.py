"""The native core against the Python decoder and encoder: the same records, byte for byte, and no bytes make it crash."""

from __future__ import annotations

import pytest
from cdcworker.connectors.mysql.decode.native_layouts import CALL, kind_of
from cdcworker.connectors.mysql.decode.row_writer import DecoderOptions
from cdcworker.connectors.mysql.errors import ROW_IMAGE
from cdcworker.connectors.mysql.types.column import ColumnType, TypeCode
from hypothesis import given, settings
from hypothesis import strategies as st

from .row_events import (
    GBK,
    KINDS,
    LATIN1,
    MODES,
    MODES_IN_PART,
    SAMPLE,
    SAMPLE_TABLE,
    Kind,
    Logged,
    bits,
    image,
    layout_of,
    native,
    needs_native,
    outcome,
    plan_of,
    rows_event,
    streams,
)


def check(stream, modes, **more):
    """What the decoder cannot read the core does not write, but where it is not handed on. Of an event with a row that cannot be read
    the decoder hands on nothing, and the core what stands before it."""
    found, expected = (outcome(*stream, modes, **more, fast=fast) for fast in (True, False))
    if expected[1] is None:
        assert found == expected


def check_whole(stream, modes):
    found, expected = (outcome(*stream, modes, fast=fast) for fast in (True, False))
    assert found == expected


@needs_native
@given(streams(whole=True), MODES)
@settings(max_examples=60, deadline=None)
def test_the_core_writes_what_the_decoder_and_the_encoder_write_and_refuses_what_they_refuse(stream, modes):
    check_whole(stream, modes)


@needs_native
@given(streams(whole=False), MODES_IN_PART)
@settings(max_examples=50, deadline=None)
def test_the_core_writes_what_the_decoder_and_the_encoder_write_of_images_that_lack_columns(stream, modes):
    check(stream, modes)


@needs_native
@pytest.mark.long
@given(streams(whole=True), MODES, streams(whole=False), MODES_IN_PART)
@settings(max_examples=5_000, deadline=None)
def test_the_core_writes_what_the_decoder_and_the_encoder_write_of_many_tables(stream, modes, partly, modes_in_part):
    check_whole(stream, modes)
    check(partly, modes_in_part)


@needs_native
@given(streams(whole=False), st.sampled_from(["", "u", "c", "d", "ud"]), st.booleans(), st.booleans())
@settings(max_examples=30, deadline=None)
def test_the_core_leaves_out_what_the_decoder_leaves_out(stream, skipped, same, whole):
    """Among that updates without a change, and rows that are to be read again."""
    check(stream, {}, options=DecoderOptions(frozenset(skipped), skips_same=same, completes=whole))


@needs_native
def test_a_sample_of_every_kind_of_column_is_written_by_the_core():
    layout, core, every = layout_of(SAMPLE_TABLE, native), native.Core(), [True] * len(SAMPLE)
    core.set_event(b"", b"", b"")
    data = image(SAMPLE, every)
    assert core.rows(layout, ord("c"), data, 0, (b"", bits(every)), 0, 0) == (len(data), 1)
    for size in range(len(data)):
        assert core.rows(layout, ord("c"), data[:size], 0, (b"", bits(every)), 0, 0)[1] == 0


@needs_native
@pytest.mark.parametrize(
    ("column", "value"),
    [
        (ColumnType(TypeCode.VARCHAR, 40, collation=LATIN1), b"\x02\xe9 "),
        (ColumnType(TypeCode.STRING, 8, collation=LATIN1), b"\x02\xe9 "),
        (ColumnType(TypeCode.VARCHAR, 400, collation=GBK), b"\x02\x00\xba\xba"),
        (ColumnType(TypeCode.DATE), b"\0\0\0"),
        (ColumnType(TypeCode.TIMESTAMP2, 3), bytes(6)),
    ],
)
def test_a_value_that_the_core_does_not_know_is_its_columns_and_the_row_the_cores(column, value):
    table = Logged((KINDS[0], Kind(column, "", st.just(value))), (False, True), (0,))
    core, data = native.Core(), image([b"\1", value], [True, True])
    assert core.rows(layout_of(table, native), ord("c"), data, 0, (b"", b"\3"), 0, 0) == (len(data), 1)


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [("d", "10", "10"), ("u", "10", "01"), ("u", "10", "10"), ("c", "10", "10"), ("C", "10", "10")],
)
@pytest.mark.parametrize("fast", [pytest.param(True, marks=needs_native), False])
def test_a_row_that_was_logged_without_its_key_is_refused(kind, before, after, fast):
    table, parts = Logged(KINDS[:2], (False, True), (0,)), [[bit == "1" for bit in part] for part in (before, after)]
    images = b"".join(image([b"\1", b"\2"], part) for part in (parts if kind == "u" else parts[:1]))
    event = rows_event(kind, table, images, *parts)
    records, error, _, _ = outcome(table, [event], {"message.key.columns": "shop.t:c1"}, fast=fast)
    assert (records, error and error[0]) == ([], ROW_IMAGE)


@needs_native
@pytest.mark.parametrize(
    "arguments",
    [
        (ord("x"), b"", 0, (b"", b"")),
        (ord("c"), b"", 1, (b"", bytes(9))),
        (ord("c"), b"", -1, (b"", bytes(9))),
        (ord("c"), b"", 0, (b"", b"")),
        (ord("c"), b"", 0, (b"", bytes(len(bits([True] * len(SAMPLE)))))),
        (ord("u"), b"", 0, (bytes(len(bits([True] * len(SAMPLE)))), bits([True] * len(SAMPLE)))),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments):
    with pytest.raises(ValueError):
        native.Core().rows(layout_of(SAMPLE_TABLE, native), *arguments, 0, 0)


def test_common_types_are_native():
    """All but types that are written as another's text, old times, and decimals of many digits."""
    left = {
        kind.name
        for kind, column in zip(KINDS, plan_of(SAMPLE_TABLE).table.columns, strict=True)
        if kind_of(kind.type, column.type)[0] == CALL
    }
    assert left == {
        *("decimal(30,9)", "decimal(65,30)", "timestamp", "datetime", "time", "json", "geometry", "vector(2)", "inet4"),
        *("varchar(30)", "char(10)", "text", "set('a')"),
    }
