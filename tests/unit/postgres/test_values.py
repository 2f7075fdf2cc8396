"""Text forms to values: exact, and as Java and Debezium write them."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal

import pytest
from cdcworker.connectors.postgres import values as v
from cdcworker.connectors.postgres.chunks import copy_texts
from cdcworker.connectors.postgres.types import ENTRIES, Modes, PgType, map_type
from hypothesis import given
from hypothesis import strategies as st


@given(st.dates())
def test_dates_agree_with_the_calendar(day):
    assert v.days(day.isoformat().encode()) == (day - date(1970, 1, 1)).days


@given(st.datetimes())
def test_timestamps_agree_with_the_calendar(moment):
    text = moment.isoformat(sep=" ")
    micros = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    trimmed = text.rstrip("0") if "." in text else text
    assert v.timestamp_us(trimmed.encode()) == micros
    assert v.timestamptz_us(trimmed.encode() + b"+00") == micros


@given(st.integers(-(10**30), 10**30))
def test_unscaled_bytes_are_the_shortest_twos_complement(number):
    data = v.unscaled(number)
    assert int.from_bytes(data, "big", signed=True) == number
    if number:
        with pytest.raises(OverflowError):
            number.to_bytes(len(data) - 1, "big", signed=True)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**12), max_value=10**12))
def test_decimals_of_a_scale_are_exact(number):
    text = f"{number:.2f}".encode()
    assert int.from_bytes(v.decimal_bytes(2)(text), "big", signed=True) == int(Decimal(text.decode()) * 100)
    free = v.variable_decimal(text)
    assert (free["scale"], int.from_bytes(free["value"], "big", signed=True)) == (2, int(Decimal(text.decode()) * 100))


def test_special_numbers_have_forms_of_their_own():
    assert v.decimal_bytes(2)(b"NaN") == b""
    assert v.decimal_bytes(0)(b"NaN") == b""
    specials = [v.variable_decimal(text) for text in (b"NaN", b"Infinity", b"-Infinity")]
    assert [(item["scale"], item["value"]) for item in specials] == [(0, b""), (1, b""), (-1, b"")]
    assert v.decimal_text(b"NaN") == "NAN"


@pytest.mark.parametrize(
    ("text", "micros", "iso"),
    [
        (b"1 year 2 mons 3 days 04:05:06.78", 37091106780000, "P1Y2M3DT4H5M6.78S"),
        (b"-00:00:01.5", -1500000, "P0Y0M0DT0H0M-1.5S"),
        (b"00:00:00", 0, "P0Y0M0DT0H0M0S"),
        (b"-1 days +02:03:00", -79020000000, "P0Y0M-1DT2H3M0S"),
        (b"1 mon", 2629800000000, "P0Y1M0DT0H0M0S"),
        (b"infinity", 2**63 - 1, "infinity"),
    ],
)
def test_intervals(text, micros, iso):
    assert v.interval_us(text) == micros
    assert v.interval_text(text) == iso


@given(st.lists(st.one_of(st.none(), st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])))))
def test_arrays_of_text_come_back(items):
    def quote(item: str | None) -> str:
        return "NULL" if item is None else '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'

    text = "{" + ",".join(map(quote, items)) + "}"
    assert v.array(v.text)(text.encode()) == items


def test_arrays_with_more_dimensions_are_refused():
    for text in (b"{{1,2},{3,4}}", b'{{"a b",c}}'):
        with pytest.raises(ValueError, match="dimension"):
            v.array(v.text)(text)


@given(
    st.dictionaries(
        st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])), st.none() | st.text('a\\", =>')
    )
)
def test_hstore_comes_back(items):
    def quote(item: str) -> str:
        return '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'

    text = ", ".join(f"{quote(k)}=>{'NULL' if x is None else quote(x)}" for k, x in items.items())
    assert v.hstore_map(text.encode()) == items


def test_a_copy_line_is_unescaped():
    assert copy_texts(b"a\\tb\t\\N\t\\\\N\t\t\\n\n") == [b"a\tb", None, b"\\N", b"", b"\n"]
    assert copy_texts(b"plain\t1\n") == [b"plain", b"1"]


def test_every_entry_maps_and_unknown_types_are_text():
    for name in ENTRIES:
        assert map_type(PgType(1, name), -1, Modes(), {}).avro
    unknown = map_type(PgType(1, "pg_lsn"), -1, Modes(), {})
    assert (unknown.avro, unknown.parse(b"0/1")) == ("string", "0/1")


def test_numeric_keeps_precision_and_scale_and_falls_back_where_avro_cannot():
    def of(precision: int, scale: int):
        return map_type(PgType(1, "numeric"), (precision << 16 | scale & 0x7FF) + 4, Modes(), {}).avro

    assert (of(10, 2)["precision"], of(10, 2)["scale"]) == (10, 2)
    assert of(5, -2)["name"] == of(2, 5)["name"] == "VariableScaleDecimal"
