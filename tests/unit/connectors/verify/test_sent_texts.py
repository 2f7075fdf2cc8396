"""The texts that are made of the values that records hold."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from cdcworker.connectors.mysql.doctor.sent_columns import sent_type
from cdcworker.connectors.verify.canonical_text import VerifiedColumn
from cdcworker.connectors.verify.lake_texts import CLIENT, LAKE
from cdcworker.connectors.verify.lake_texts import TEXTS as LAKE_TEXTS
from cdcworker.connectors.verify.sent_texts import ORDERED, SENT, TEXTS, WORDS, jsonb_text, micros_of, pair


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"b": 1,  "a": [true, null, false], "bb": "x"}', '{"a": [true, null, false], "b": 1, "bb": "x"}'),
        ('{"a": 1, "a": 2}', '{"a": 2}'),
        ("[]", "[]"),
        ("{}", "{}"),
        ("1.50", "1.50"),
        ("1e3", "1000"),
        ("-0", "0"),
        ("-0.0", "0.0"),
        ("12345678901234567890.123456789", "12345678901234567890.123456789"),
        ('"\\u00e4\\/\\u0001\\n\\"\\\\"', '"ä/\\u0001\\n\\"\\\\"'),
        ('{"ä": 1, "zz": 2, "b": 3}', '{"b": 3, "zz": 2, "ä": 1}'),
    ],
)
def test_json_is_written_as_jsonb_prints_it(text, shown):
    assert jsonb_text(text) == shown


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "{", ""])
def test_what_is_no_json_has_no_text(text):
    with pytest.raises(ValueError, match=r"."):
        jsonb_text(text)


@pytest.mark.parametrize("micros", [0, 1, 86_399_999_999, 360_000_000_000, -1, -3_600_000_000, -3_020_399_000_001])
def test_a_time_is_read_as_it_is_written(micros):
    assert micros_of(TEXTS["time"](micros)) == micros


def test_every_pair_has_texts():
    held = ("int", "bigint", "decimal(9,2)", "string", "boolean", "binary", "float", "double", "date", "day")
    targets = [
        VerifiedColumn("c", name, kind) for name in (*held, "timestamp", "timestamp_ntz") for kind in (LAKE, CLIENT)
    ]
    found = [pair(VerifiedColumn("c", word, SENT), target) for word in WORDS for target in targets]
    texts = [one for one in found if not isinstance(one, str)]
    assert texts
    assert {one.source for one in texts} <= TEXTS.keys()
    assert {one.target for one in texts} <= LAKE_TEXTS.keys()
    assert ORDERED <= WORDS


def test_what_has_no_common_text_is_told():
    told = pair(
        VerifiedColumn("c", "geometry", SENT, declared="polygon"), VerifiedColumn("c", "jsonb", declared="jsonb")
    )
    assert told == "no common text of polygon and jsonb"


def meaning(name, kind="int", **more):
    return {"type": kind, "connect.name": name, **more}


@pytest.mark.parametrize(
    ("avro", "value", "word", "text", "shown"),
    [
        ("long", -5, "integer", "integer", "-5"),
        ({"type": "int", "connect.type": "int16"}, 7, "integer", "integer", "7"),
        ("boolean", True, "boolean", "boolean", "true"),
        ("bytes", b"\0\xff", "bytes", "bytes", "00ff"),
        (meaning("org.apache.kafka.connect.data.Decimal", "bytes", scale=2), b"\xff\x6a", "decimal", "numeric", "-1.5"),
        (meaning("io.debezium.time.Date"), -1, "date", "date", "1969-12-31"),
        (meaning("io.debezium.time.IsoDate", "string"), "0001-02-03Z", "date", "date", "0001-02-03"),
        (meaning("io.debezium.time.Timestamp", "long"), -1500, "timestamp", "timestamp", "1969-12-31 23:59:58.5"),
        (meaning("io.debezium.time.NanoTimestamp", "long"), 1_000, "timestamp", "timestamp", "1970-01-01 00:00:00.000001"),
        (meaning("io.debezium.time.ZonedTimestamp", "string"), "2024-01-02T03:04:05.600Z", "zoned", "timestamp", "2024-01-02 03:04:05.6"),
        (meaning("io.debezium.time.MicroTime", "long"), -1, "span", "micros", "-1"),
        (meaning("io.debezium.time.IsoTime", "string"), "-100:00:00.5Z", "time", "time", "-101:59:59.5"),
        (meaning("io.debezium.data.Bits", "bytes"), b"\x05\x01", "bits", "bits", "100000101"),
        (meaning("io.debezium.data.Enum", "string"), "a", "text", "plain", "a"),
        (meaning("io.debezium.time.Year"), 1999, "integer", "integer", "1999"),
    ],
)  # fmt: skip
def test_a_records_value_has_the_text_of_its_meaning(avro, value, word, text, shown):
    found, convert = sent_type(avro)
    assert found == word
    assert found in WORDS
    assert TEXTS[text](convert(value)) == shown


def test_values_keep_all_that_they_have():
    _, convert = sent_type(meaning("org.apache.kafka.connect.data.Decimal", "bytes", scale=30))
    digits = 12345678901234567890123456789012345123456789012345678901234567890
    assert convert(digits.to_bytes(28, "big")) == Decimal((0, tuple(map(int, str(digits))), -30))
    _, convert = sent_type(meaning("io.debezium.time.MicroTimestamp", "long"))
    assert convert(253_402_300_799_999_999) == dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)
