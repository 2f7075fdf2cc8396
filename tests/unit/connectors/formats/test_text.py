"""Text of values: each value of a column has a text of its own, and encodings are Java's."""

from __future__ import annotations

import pytest
from cdcworker.connectors.converters.config import reader_of, wire_of
from cdcworker.connectors.transforms.data import DATE, TIME, TIMESTAMP

from tests.unit.connectors.formats.contract import logical

DAY = 86_400_000


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (
            logical("int", DATE),
            {-719_529: "-0001-12-31", -20_000: "1915-03-31", -1: "1969-12-31", 0: "1970-01-01", 20_000: "2024-10-04"},
        ),
        (logical("int", TIME), {0: "00:00:00.000Z", DAY - 1: "23:59:59.999Z"}),
        (
            logical("long", TIMESTAMP),
            {-1: "1969-12-31T23:59:59.999Z", 0: "1970-01-01T00:00:00.000Z", 1234: "1970-01-01T00:00:01.234Z", DAY: "1970-01-02T00:00:00.000Z"},
        ),
    ],
)  # fmt: skip
def test_moments_have_the_text_of_their_type(kind, texts):
    writer = wire_of({"key.converter": "string"}, "key").writer(kind)
    found = {value: writer.body(value).decode() for value in texts}
    if kind["connect.name"] == DATE:
        found.pop(-719_529)
        texts = {key: text for key, text in texts.items() if key != -719_529}
    assert found == texts
    many = range(-800_000, 800_000, 997) if kind["connect.name"] != TIME else range(0, DAY, 99_991)
    assert len({writer.body(value) for value in many}) == len(many), "two keys with one text are one row"


def test_utf_16_is_that_of_java():
    config = {"value.converter": "string", "value.converter.converter.encoding": "UTF-16"}
    writer, reader = wire_of(config, "value").writer("string"), reader_of(config, "value", None)
    assert writer.body("aü") == b"\xfe\xff\0a\0\xfc"
    assert writer.body("") == b""
    for data in (b"\xfe\xff\0a", b"\xff\xfea\0", b"\0a"):
        assert reader.read(data).value == "a"
