"""Text forms to values: exact, and as Java and Debezium write them."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal

import pytest
from cdcworker.connectors.postgres.snapshot.copy_text import copy_texts
from cdcworker.connectors.postgres.types import nested_values as composed
from cdcworker.connectors.postgres.types import text_values as v
from cdcworker.connectors.postgres.types.mapping import ENTRIES, HandlingModes, PgType, TypeRegistry, map_type
from cdcworker.schemas.placeholders import unscaled
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
    data = unscaled(number)
    assert int.from_bytes(data, "big", signed=True) == number
    assert len(data) == 1 or data[:1] not in (b"\x00", b"\xff") or (data[0] ^ data[1]) & 0x80


@given(st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**12), max_value=10**12))
def test_decimals_of_a_scale_are_exact(number):
    text = f"{number:.2f}".encode()
    assert int.from_bytes(v.decimal_bytes(2)(text), "big", signed=True) == int(Decimal(text.decode()) * 100)
    free = v.variable_decimal(text)
    assert (free["scale"], int.from_bytes(free["value"], "big", signed=True)) == (2, int(Decimal(text.decode()) * 100))


def test_a_decimal_of_another_scale_keeps_all_of_its_digits():
    digits = "123456789" * 5
    assert int.from_bytes(v.decimal_bytes(3)(f"{digits}.5".encode()), "big", signed=True) == int(f"{digits}500")


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
    assert composed.array(v.text)(text.encode()) == items


@pytest.mark.parametrize(
    ("text", "depth", "value", "bounds"),
    [
        (b"{{1,2},{3,NULL}}", 2, [[1, 2], [3, None]], None),
        (b"{{1,2},{3,NULL}}", 1, [1, 2, 3, None], "[1:2][1:2]"),
        (b"[2:3]={7,8}", 1, [7, 8], "[2:3]"),
        (b"[0:0][5:6]={{7,8}}", 2, [[7, 8]], "[0:0][5:6]"),
        (b"{1,2}", 2, [[1, 2]], "[1:2]"),
        (b"{{{1},{2}},{{3},{4}}}", 2, [[1, 2, 3, 4]], "[1:2][1:2][1:1]"),
        (b"{}", 3, [], None),
        (b"{{{NULL}}}", 1, [None], "[1:1][1:1][1:1]"),
        (b"{{{NULL}}}", 2, [[None]], "[1:1][1:1][1:1]"),
        (b"{{{NULL}}}", 3, [[[None]]], None),
        (b"{NULL}", 2, [[None]], "[1:1]"),
    ],
)
def test_an_array_keeps_its_elements_and_tells_a_shape_that_its_type_does_not(text, depth, value, bounds):
    found = composed.array(int, depth=depth)(text)
    assert found == value
    assert getattr(found, "bounds", None) == bounds


@pytest.mark.parametrize("text", [b"{1,2", b"{1}}", b'{{"a}', b"1,2", b"{1}{2}"])
def test_what_is_no_array_is_refused(text):
    with pytest.raises((ValueError, IndexError)):
        composed.array(v.text, depth=2)(text)


def test_a_composite_comes_apart():
    fields = composed.composite_texts(b'(1,"a ""b"" \\\\ c",,"",x)')
    assert fields == [b"1", b'a "b" \\ c', None, b"", b"x"]
    for text in (b"(1", b"1,2)", b"(1)2", b'("a)'):
        with pytest.raises(ValueError, match="composite"):
            composed.composite_texts(text)


def test_a_value_that_its_type_does_not_know_is_told_once_and_kept():
    told: list[int] = []
    labels = composed.EnumLabels(("sad",), lambda: told.append(1))
    assert [labels(text) for text in (b"sad", b"glad", b"glad")] == ["sad", "glad", "glad"]
    assert told == [1]
    record = composed.composite([("a", int)], lambda: told.append(2), lambda: told.append(3))
    assert record(b"(1)") == {"a": 1}
    assert record(b"()") == {"a": None}
    assert told == [1]
    pair = composed.composite([("a", int), ("b", int)], lambda: told.append(2), lambda: told.append(3))
    assert pair(b"(1)") == {"a": 1, "b": None}
    pair(b"(1,2,3)")
    assert told == [1, 2, 3]


def test_points_and_geometries_carry_their_wkb():
    assert composed.point(b"(1,-2)")["wkb"].hex() == "0101000000000000000000f03f00000000000000c0"
    with_srid = composed.geometry(b"0101000020E6100000000000000000F03F00000000000000C0")
    assert (with_srid["srid"], len(with_srid["wkb"])) == (4326, 25)
    assert composed.geometry(b"0101000000000000000000F03F00000000000000C0")["srid"] is None


def test_vectors():
    assert composed.number_list(b"[1,2.5]") == [1.0, 2.5]
    sparse = {"dimensions": 5, "vector": [{"key": 1, "value": 1.5}, {"key": 3, "value": 2.0}]}
    assert composed.sparse_vector(b"{1:1.5,3:2}/5") == sparse
    assert composed.sparse_vector(b"{}/5") == {"dimensions": 5, "vector": []}


@pytest.mark.parametrize(("digits", "text", "scaled"), [(2, "-1234.50", -123450), (0, "-123450", -123450)])
def test_money_is_what_the_server_stores_whatever_its_locale(digits, text, scaled):
    modes = HandlingModes(money_digits=digits)
    exact = map_type(PgType(1, "money"), -1, modes, TypeRegistry())
    assert int.from_bytes(exact.parse(b"-$1,234.50"), "big", signed=True) == scaled
    assert exact.avro["scale"] == digits
    assert v.money_text(digits)(b"-$1,234.50") == text


def test_nanoseconds_have_room_for_infinity_and_refuse_what_does_not_fit():
    assert v.timestamp_ns(b"infinity") == 2**63 - 1
    assert v.timestamp_ns(b"1970-01-01 00:00:00.000001") == 1000
    with pytest.raises(ValueError, match="nanoseconds"):
        v.timestamp_ns(b"2500-01-01 00:00:00")


def test_a_timestamp_behind_the_last_microsecond_is_refused_and_milliseconds_hold_it():
    last, beyond = b"294247-01-10 04:00:54.775807", b"294247-01-10 04:00:54.775808"
    assert v.timestamp_us(last) == 2**63 - 1
    for text in (beyond, b"294276-12-31 23:59:59.999999"):
        for parse in (v.timestamp_us, v.timestamp_ns):
            with pytest.raises(ValueError, match="does not fit"):
                parse(text)
    assert v.timestamp_ms(beyond) == 2**63 // 1000
    assert v.timestamp_ms(b"294276-12-31 23:59:59.999999") == 9224318015999999
    assert v.timestamp_ms(b"4713-11-24 00:00:00 BC") == v.timestamp_us(b"4713-11-24 00:00:00 BC") // 1000
    infinite = [v.TIMESTAMP_MINUS_INFINITY_US // 1000, v.TIMESTAMP_INFINITY_US // 1000]
    assert [v.timestamp_ms(text) for text in (b"-infinity", b"infinity")] == infinite


@pytest.mark.parametrize(("modes", "value"), [(HandlingModes(), b"\x05"), (HandlingModes(varbit="text"), "00000101")])
def test_a_bit_without_a_length_is_of_any(modes, value):
    bit = PgType(1560, "bit")
    mapped = map_type(bit, -1, modes, TypeRegistry())
    assert mapped.avro == map_type(PgType(1562, "varbit"), -1, modes, TypeRegistry()).avro
    assert mapped.parse(b"00000101") == value
    array = map_type(PgType(1561, "_bit", element=1560), -1, modes, TypeRegistry({1560: bit}))
    assert array.parse(b"{00000101}") == [value]


@pytest.mark.parametrize(("dimensions", "is_short"), [(5, True), (32767, True), (32768, False), (-1, False)])
def test_a_sparse_vector_of_many_dimensions_has_whole_ints(dimensions, is_short):
    avro = map_type(PgType(1, "sparsevec"), dimensions, HandlingModes(), TypeRegistry()).avro
    numbers = avro["fields"][0]["type"], avro["fields"][1]["type"]["items"]["fields"][0]["type"]
    assert numbers == (({"type": "int", "connect.type": "int16"},) * 2 if is_short else ("int", "int"))


def test_an_interval_too_long_for_its_form_ends_before_infinity():
    assert v.interval_us(b"178000000 years") == 2**63 - 2
    assert v.interval_us(b"-178000000 years") == -(2**63) + 1


@given(
    st.dictionaries(
        st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])), st.none() | st.text('a\\", =>')
    )
)
def test_hstore_comes_back(items):
    def quote(item: str) -> str:
        return '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'

    text = ", ".join(f"{quote(k)}=>{'NULL' if x is None else quote(x)}" for k, x in items.items())
    assert composed.hstore_map(text.encode()) == items


def test_a_copy_line_is_unescaped():
    assert copy_texts(b"a\\tb\t\\N\t\\\\N\t\t\\n\n") == [b"a\tb", None, b"\\N", b"", b"\n"]
    assert copy_texts(b"plain\t1\n") == [b"plain", b"1"]


def test_every_entry_maps_and_unknown_types_are_text_or_bytes():
    for name in ENTRIES:
        assert map_type(PgType(1, name), -1, HandlingModes(), TypeRegistry()).avro
    unknown = map_type(PgType(1, "cube"), -1, HandlingModes(), TypeRegistry())
    assert (unknown.avro, unknown.parse(b"(1)")) == ("string", "(1)")
    opaque = map_type(PgType(1, "cube"), -1, HandlingModes(unknown="bytes"), TypeRegistry())
    assert (opaque.avro, opaque.parse(b"(1)")) == ("bytes", b"(1)")
    encoded = map_type(PgType(1, "cube"), -1, HandlingModes(unknown="bytes", binary="base64"), TypeRegistry())
    assert (encoded.avro, encoded.parse(b"(1)")) == ("string", "KDEp")


@pytest.mark.parametrize("length", [-1, 1, 4])
def test_bit_varying_as_text_is_its_digits_of_whatever_length(length):
    mapped = map_type(PgType(1, "varbit"), length, HandlingModes(varbit="text"), TypeRegistry())
    assert (mapped.avro, mapped.parse(b""), mapped.parse(b"0")) == ("string", "", "0")


def test_numeric_keeps_precision_and_scale_and_falls_back_where_avro_cannot():
    def of(precision: int, scale: int):
        return map_type(
            PgType(1, "numeric"), (precision << 16 | scale & 0x7FF) + 4, HandlingModes(), TypeRegistry()
        ).avro

    assert (of(10, 2)["precision"], of(10, 2)["scale"]) == (10, 2)
    assert of(5, -2)["name"] == of(2, 5)["name"] == "VariableScaleDecimal"
