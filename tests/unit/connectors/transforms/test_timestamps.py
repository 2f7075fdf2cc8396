"""TimestampConverter, TimestampRouter and Java's SimpleDateFormat."""

from datetime import UTC, datetime

import pytest
from cdcworker.connectors.transforms.data import DATE, TIME, TIMESTAMP, ConnectRecord, ConnectSchema
from cdcworker.connectors.transforms.dates import date_format, parts_of
from cdcworker.schemas.errors import CdcError
from hypothesis import given
from hypothesis import strategies as st

# Connect's own example: the start of 1970 plus one day, 3 hours, 4 minutes, 5.123 seconds.
MILLIS, DAY, TIME_MS = 97_445_123, 1, 11_045_123
TEXT, PATTERN = "1970-01-02 03:04:05.123 UTC", "yyyy-MM-dd HH:mm:ss.SSS z"
SCHEMAS = {
    "string": ConnectSchema("string"),
    "unix": ConnectSchema("int64"),
    "Date": ConnectSchema("int32", name=DATE, version=1),
    "Time": ConnectSchema("int32", name=TIME, version=1),
    "Timestamp": ConnectSchema("int64", name=TIMESTAMP, version=1),
}
VALUES = {"string": TEXT, "unix": MILLIS, "Date": DAY, "Time": TIME_MS, "Timestamp": MILLIS}
LESS = {"Date": 86_400_000, "Time": TIME_MS}
"""What a moment is after it was a date, or a time of the day."""


def of(millis, target):
    return {"string": date_format(PATTERN).format(millis), "Date": millis // 86_400_000, "Time": millis % 86_400_000}.get(target, millis)  # fmt: skip


@pytest.mark.parametrize("source", SCHEMAS)
@pytest.mark.parametrize("target", SCHEMAS)
def test_each_form_becomes_each_other(kit, source, target):
    record = kit.value(SCHEMAS[source], VALUES[source])
    made = kit.applied("TimestampConverter$Value", record, target_type=target, format=PATTERN)
    assert made.value == of(LESS.get(source, MILLIS), target)
    assert made.value_schema == SCHEMAS[target]


def test_one_field_of_a_struct(kit):
    schema = kit.struct(("ts", kit.optional(SCHEMAS["Timestamp"])), ("other", kit.STRING))
    keys = {"field": "ts", "target_type": "unix"}
    made = kit.applied("TimestampConverter$Value", kit.value(schema, {"ts": MILLIS, "other": "test"}), **keys)
    assert made.value == {"ts": MILLIS, "other": "test"}
    assert made.value_schema == kit.struct(("ts", kit.optional(kit.INT64)), ("other", kit.STRING))
    assert kit.applied("TimestampConverter$Value", kit.value(schema, {"other": "x"}), **keys).value["ts"] is None


def test_one_field_of_a_map(kit):
    made = kit.applied("TimestampConverter$Value", kit.value(None, {"ts": MILLIS}), field="ts", target_type="Timestamp")
    assert made.value == {"ts": datetime(1970, 1, 2, 3, 4, 5, 123_000, tzinfo=UTC)}
    made = kit.applied("TimestampConverter$Key", ConnectRecord("t", None, TEXT), target_type="Date", format=PATTERN)
    assert made.key == datetime(1970, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("precision", "number", "millis"),
    [
        ("seconds", 5, 5000),
        ("microseconds", -1, 0),
        ("microseconds", 1999, 1),
        ("nanoseconds", 5_000_001, 5),
        ("milliseconds", 7, 7),
    ],
)
def test_numbers_have_the_precision_of_the_config(kit, precision, number, millis):
    keys = {"target_type": "Timestamp", "unix_precision": precision}
    assert kit.applied("TimestampConverter$Value", kit.value(kit.INT64, number), **keys).value == millis


def test_numbers_are_written_with_it_too(kit):
    made = [
        kit.applied(
            "TimestampConverter$Value", kit.value(SCHEMAS["Timestamp"], MILLIS), target_type="unix", unix_precision=each
        ).value
        for each in ("seconds", "milliseconds", "microseconds", "nanoseconds")
    ]
    assert made == [97_445, MILLIS, MILLIS * 1000, MILLIS * 1_000_000]


def test_null_stays_null_and_has_the_new_schema(kit):
    made = kit.applied(
        "TimestampConverter$Value", kit.value(kit.optional(kit.INT64), None), target_type="string", format=PATTERN
    )
    assert (made.value_schema, made.value) == (kit.optional(kit.STRING), None)


def test_a_text_that_does_not_match_is_an_error_without_the_text(kit):
    with pytest.raises(CdcError, match=r"does not match pattern \(yyyy\)") as caught:
        kit.applied("TimestampConverter$Value", kit.value(kit.STRING, "secret"), target_type="unix", format="yyyy")
    assert "secret" not in str(caught.value)


def test_a_schema_of_no_moment_is_an_error(kit):
    with pytest.raises(CdcError, match=r"INT32.* does not correspond to a known timestamp type format"):
        kit.applied("TimestampConverter$Value", kit.value(kit.INT32, 1), target_type="unix")


class TestSimpleDateFormat:
    @given(st.integers(-(10**14), 10**15))
    def test_a_pattern_of_numbers_alone_is_written_as_its_parts_are(self, millis):
        """A part that no number stands for takes the slow way: here in a text of its own, which is cut off again."""
        for pattern in ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "d.M.y '100 %' z", "LL/HHmm"):
            slow = date_format(f"{pattern}EEE").format(millis)
            assert date_format(pattern).format(millis) == slow[:-3]

    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2017-07-14T02:40:00.123Z"),
            ("yy M/d h:mm a z", "17 7/14 2:40 AM UTC"),
            ("EEEE, d. MMMM y G", "Friday, 14. July 2017 AD"),
            ("EEE MMM DDD w W F u", "Fri Jul 195 28 3 2 5"),
            ("kk KK hh Z 'o''clock' ''", "02 02 02 +0000 o'clock '"),
            ("SSSSSS", "000123"),
            ("YYYY", "2017"),
        ],
    )
    def test_what_it_writes(self, pattern, expected):
        assert date_format(pattern).format(1_500_000_000_123) == expected

    @pytest.mark.parametrize(
        ("pattern", "text", "millis"),
        [
            ("yyyy-MM-dd", "2020-02-30", 1_583_020_800_000),
            ("yyyyMMddHHmmss", "20200102030405", 1_577_934_245_000),
            ("yyyy-MM-dd HH:mm", "2020-01-02 03:04 and more", 1_577_934_240_000),
            ("MMM d, yyyy h:mm a z", "feb 3, 2021 4:05 PM GMT+02:00", 1_612_361_100_000),
            ("d MMMM yyyy hh a", "1 March 1970 12 AM", 59 * 86_400_000),
            ("HH:mm:ss.SSS", "00:00:01.5", 1005),
            ("yyyy-MM-dd'T'HH:mmXXX", "1970-01-01T02:00+02:00", 0),
            ("yyyy-DDD", "1970-032", 31 * 86_400_000),
            ("kk:mm", "24:01", 60_000),
            ("y G", "1 BC", -62_167_219_200_000),
        ],
    )
    def test_what_it_reads(self, pattern, text, millis):
        assert date_format(pattern).parse(text) == millis

    @pytest.mark.parametrize(
        ("pattern", "text"), [("yyyy-MM", "2020"), ("yyyy", "x"), ("EEE", "Xyz"), ("z", "Nowhere"), ("ww", "3")]
    )
    def test_what_it_does_not_read(self, pattern, text):
        with pytest.raises(ValueError, match=r"."):
            date_format(pattern).parse(text)

    @pytest.mark.parametrize(
        ("pattern", "text"),
        [
            ("yyyy'", "Unterminated quote"),
            ("yyyy-b", "Illegal pattern character 'b'"),
            ("XXXX", "invalid ISO 8601 format: length=4"),
        ],
    )
    def test_what_is_no_pattern(self, pattern, text):
        with pytest.raises(ValueError, match=text):
            parts_of(pattern)

    @pytest.mark.parametrize("millis", [-1, 0, 1_500_000_000_123, -62_135_596_800_000, 253_402_300_799_999])
    def test_what_it_writes_it_reads(self, millis):
        pattern = date_format("yyyy-MM-dd HH:mm:ss.SSS")
        assert pattern.parse(pattern.format(millis)) == millis


class TestTimestampRouter:
    def test_the_topic_has_the_time_in_it(self, kit):
        record = ConnectRecord("test", timestamp=1_483_425_001_864)
        assert kit.applied("TimestampRouter", record).topic == "test-20170103"
        keys = {"topic_format": "foo-${timestamp}-${topic}", "timestamp_format": "yyyy.MM"}
        assert kit.applied("TimestampRouter", record, **keys).topic == "foo-2017.01-test"

    def test_a_record_without_a_time_is_an_error(self, kit):
        with pytest.raises(CdcError, match="Timestamp missing on record"):
            kit.applied("TimestampRouter", ConnectRecord("test"))
