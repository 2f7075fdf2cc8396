"""Values out of the range of their types: with default settings stock readers take them all, and those in the range are as ever."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal

import pytest
from cdcworker.connectors.postgres.types.mapping import HandlingModes
from cdcworker.schemas.record_format import ConnectJsonFormat, RecordFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from .. import messages as m
from ..oracle import needs_native
from ..stock_readers import means, read_avro, read_connect
from ..type_matrix import DATES, MODES, MOMENTS, TYPES, MatrixColumn, Stream, columns, extremes

MATRIX = pytest.mark.parametrize("required", [False, True], ids=["optional", "required"])
ALL_MODES = pytest.mark.parametrize("mode", MODES)


@pytest.mark.sampled(3)
@ALL_MODES
@MATRIX
def test_stock_deserializers_read_extremes_of_every_type(mode, required):
    stream = Stream(columns(required=required), MODES[mode])
    found = [read_avro(stream.schemas, value)["after"] for value in stream.values(*extremes(stream))]
    assert [row["id"] for row in found] == list(range(len(MOMENTS)))


@pytest.mark.sampled(3)
@ALL_MODES
@MATRIX
def test_extremes_of_every_type_are_values_of_what_it_means(mode, required):
    stream = Stream(columns(required=required), MODES[mode])
    for change in stream.changes(*extremes(stream)):
        for column, value in zip(change.table.columns, change.after, strict=True):
            assert means(["null", column.type] if column.optional else column.type, value), column


@pytest.mark.sampled(3)
@ALL_MODES
@MATRIX
def test_connects_json_of_extremes_is_read_by_its_own_schema(mode, required):
    stream = Stream(columns(required=required), MODES[mode], RecordFormat(ConnectJsonFormat(), ConnectJsonFormat()))
    assert len([read_connect(value) for value in stream.values(*extremes(stream))]) == len(MOMENTS)


@pytest.mark.sampled(3)
@needs_native
@pytest.mark.parametrize(("mode", "out_of_range"), [(mode, how) for mode in MODES for how in ("clamp", "exact")])
@MATRIX
def test_the_native_core_writes_extremes_as_the_decoder_does(mode, required, out_of_range):
    modes = replace(MODES[mode], out_of_range=out_of_range)
    # Not every timestamp has an exact form.
    exact = [c for c in columns(required=required) if "timestamp" not in c.name and "pair" not in c.name]
    chosen = columns(required=required) if out_of_range == "clamp" else exact
    python, native = (Stream(chosen, modes) for _ in range(2))
    assert native.native_values(*extremes(native)) == python.values(*extremes(python))


def stream_of(
    name: str, typmod: int = -1, *, required: bool = False, modes: HandlingModes = MODES["default"]
) -> Stream:
    [oid] = [pg.oid for pg in TYPES.values() if pg.name == name]
    return Stream([columns(required=True)[0], MatrixColumn("c", oid, typmod, required)], modes)


def read(stream: Stream, *texts: str) -> list[object]:
    made = stream.values(*(m.insert(1, b"1", text.encode()) for text in texts))
    return [read_avro(stream.schemas, value)["after"]["c"] for value in made]


FIRST, LAST = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)


def test_a_timestamp_out_of_range_is_the_nearest_that_readers_have():
    found = read(stream_of("timestamp"), *MOMENTS)
    assert found[:9] == [LAST, FIRST, FIRST, FIRST, FIRST, LAST, LAST, LAST, LAST]
    assert found[-1] == dt.datetime(2024, 2, 29, 12)


def test_a_date_is_clamped_where_it_is_a_date_to_readers_and_an_infinite_one_everywhere():
    ends = [FIRST.date(), LAST.date()]
    found = read(stream_of("date", modes=MODES["connect"]), *DATES)
    assert found == [ends[1], ends[0], ends[0], ends[0], *ends, ends[1], ends[1]]
    plain = read(stream_of("date"), *DATES)
    assert plain == [2932896, -719162, -2440550, -719528, -719162, 2932896, 2932897, 2145042905]


@pytest.mark.parametrize(("mode", "value"), [("default", dt.time.max), ("connect", dt.time(23, 59, 59, 999000)),
                         ("nanoseconds", 86_399_999_999_000), ("text", "23:59:59.999999Z")])  # fmt: skip
def test_midnight_at_the_end_of_a_day_is_the_last_moment_before_it(mode, value):
    assert read(stream_of("time", modes=MODES[mode]), "24:00:00", "12:00:00")[0] == value


def test_what_is_no_number_is_null_and_the_greatest_number_where_null_is_not_allowed():
    fixed, free = (8 << 16 | 3) + 4, -1
    assert read(stream_of("numeric", fixed), "NaN", "1.500") == [None, Decimal("1.500")]
    assert read(stream_of("numeric", fixed, required=True), "NaN", "1.500") == [Decimal("99999.999"), Decimal("1.500")]
    assert read(stream_of("numeric", free), "NaN", "Infinity", "-Infinity") == [None] * 3
    found = read(stream_of("numeric", free, required=True), "NaN", "Infinity", "-Infinity")
    numbers = [int.from_bytes(value["value"], "big", signed=True) for value in found]
    assert numbers == [10**38 - 1, 10**38 - 1, 1 - 10**38]


@pytest.mark.parametrize("typmod", [0, 3])
def test_milliseconds_are_those_that_the_server_has_but_for_infinity(typmod):
    found = read(
        stream_of("timestamp", typmod), "infinity", "-infinity", "4713-01-01 00:00:00 BC", "12024-02-29 12:00:00"
    )
    assert found == [253_402_300_799_000, -62_135_596_800_000, -210_863_520_000_000, 317_278_728_000_000]
    exact = stream_of("timestamp", typmod, modes=HandlingModes(out_of_range="exact"))
    assert read(exact, "infinity", "-infinity") == [9_223_372_036_825_200, -9_223_372_036_832_400]


def test_nanoseconds_out_of_range_end_before_infinity():
    found = read(
        stream_of("timestamp", modes=MODES["nanoseconds"]),
        "infinity",
        "-infinity",
        "3000-01-01 00:00:00",
        "0044-03-15 00:00:00 BC",
    )
    assert found == [2**63 - 1, -(2**63), 2**63 - 2, -(2**63) + 1]


texts = {
    "timestamp": st.datetimes().map(lambda moment: moment.isoformat(" ")),
    "date": st.dates().map(str),
    "time": st.times().map(str),
    "numeric": st.decimals(allow_nan=False, allow_infinity=False, places=4, max_value=10**12, min_value=-(10**12)).map(
        str
    ),
}


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(sorted(texts)), st.sampled_from(["adaptive", "connect", "microseconds"]))
def test_values_in_the_range_have_the_same_bytes_in_both_modes(data, name, time):
    text = data.draw(texts[name]).encode()
    clamp, exact = (stream_of(name, modes=HandlingModes(time=time, out_of_range=mode)) for mode in ("clamp", "exact"))
    assert clamp.values(m.insert(1, b"1", text)) == exact.values(m.insert(1, b"1", text))


@pytest.mark.parametrize(
    ("name", "typmod", "text", "raw"),
    [
        ("timestamp", -1, "infinity", 9_223_372_036_825_200_000),
        ("timestamp", -1, "0044-03-15 00:00:00 BC", -63_517_824_000_000_000),
        ("time", -1, "24:00:00", 86_400_000_000),
        ("numeric", (8 << 16 | 3) + 4, "NaN", b""),
        ("numeric", -1, "-Infinity", {"scale": -1, "value": b""}),
        ("date", -1, "infinity", 2**31 - 1),
    ],
)
def test_exact_forms_are_kept_on_request(name, typmod, text, raw):
    stream = stream_of(name, typmod, modes=HandlingModes(out_of_range="exact"))
    [change] = stream.changes(m.insert(1, b"1", text.encode()))
    assert change.after == (1, raw)
    if name.startswith("time"):
        with pytest.raises((OverflowError, ValueError)):
            read(stream, text)
