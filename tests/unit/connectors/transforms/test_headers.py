"""DropHeaders, HeaderFrom, InsertHeader, and how literals and headers are written."""

import pytest
from cdcworker.connectors.transform_chain.record_writer import header_bytes
from cdcworker.connectors.transforms.data import DATE, DECIMAL, TIME, TIMESTAMP, Header
from cdcworker.connectors.transforms.values import parse_literal
from cdcworker.schemas.errors import CdcError


def test_headers_are_left_out_by_name(kit):
    record = kit.value(None, None, headers=(Header("a", None, b"1"), Header("b", None, b"2"), Header("a", None, b"3")))
    assert kit.applied("DropHeaders", record, headers="a,c").headers == (Header("b", None, b"2"),)


def test_a_header_is_added_behind_the_others(kit):
    record = kit.value(None, None, headers=(Header("h", None, b"1"),))
    made = kit.applied("InsertHeader", record, header="h", value_literal="123")
    assert made.headers == (Header("h", None, b"1"), Header("h", kit.INT8, 123))
    assert record.headers == (Header("h", None, b"1"),)


class TestHeaderFrom:
    def record(self, kit):
        return kit.value(kit.struct(("a", kit.INT32), ("b", kit.optional(kit.STRING, "d"))), {"a": 1, "b": None})

    def test_fields_are_copied(self, kit):
        made = kit.applied("HeaderFrom$Value", self.record(kit), fields="a,b", headers="x,y", operation="copy")
        assert made.headers == (Header("x", kit.INT32, 1), Header("y", kit.optional(kit.STRING, "d"), "d"))
        assert made.value == {"a": 1, "b": None}

    def test_fields_are_moved(self, kit):
        keys = {"fields": "b", "headers": "y", "operation": "move", "replace_null_with_default": "false"}
        made = kit.applied("HeaderFrom$Value", self.record(kit), **keys)
        assert made.headers[0].value is None
        assert (made.value_schema, made.value) == (kit.struct(("a", kit.INT32)), {"a": 1})

    def test_without_a_schema(self, kit):
        made = kit.applied(
            "HeaderFrom$Value", kit.value(None, {"a": 1, "b": 2}), fields="a,z", headers="x,y", operation="move"
        )
        assert made.headers == (Header("x", None, 1), Header("y", None, None))
        assert made.value == {"b": 2}

    def test_a_tombstone_is_an_error(self, kit):
        with pytest.raises(CdcError, match=r"\[header copy\], found: null"):
            kit.applied("HeaderFrom$Value", kit.value(None, None), fields="a", headers="x", operation="copy")


@pytest.mark.parametrize(
    ("literal", "type", "name", "value", "text"),
    [
        ("null", None, None, None, None),
        ("true", "boolean", None, True, b"true"),
        ("127", "int8", None, 127, b"127"),
        ("128", "int16", None, 128, b"128"),
        ("-40000", "int32", None, -40_000, b"-40000"),
        ("3000000000", "int64", None, 3_000_000_000, b"3000000000"),
        ("1.50", "float32", None, 1.5, b"1.5"),
        ("1.0", "int8", None, 1, b"1"),
        ("99999999999999999999", "bytes", DECIMAL, b"\x05\x6b\xc7\x5e\x2d\x63\x0f\xff\xff", b"99999999999999999999"),
        ("2020-01-02", "int32", DATE, 18_263, b"2020-01-02"),
        ("12:34:56.789Z", "int32", TIME, 45_296_789, b"12:34:56.789Z"),
        ("2020-01-02T12:34:56.789Z", "int64", TIMESTAMP, 1_577_968_496_789, b"2020-01-02T12:34:56.789Z"),
        ("hello world", "string", None, "hello world", b"hello world"),
        ("true}", "string", None, "true}", b"true}"),
        ("1e999999999", "string", None, "1e999999999", b"1e999999999"),
        ("[1, 2, 300]", "array", None, [1, 2, 300], b"[1,2,300]"),
        ('["a", null]', "array", None, ["a", None], b'["a",null]'),
        ('{"a": 1, "b": 2}', "map", None, {"a": 1, "b": 2}, b'{"a":1,"b":2}'),
        ("[1, 2", "string", None, "[1, 2", b"[1, 2"),
        ("[" * 100, "string", None, "[" * 100, b"[" * 100),
    ],
)
def test_what_a_literal_means_and_how_it_is_written(literal, type, name, value, text):
    found = parse_literal(literal)
    assert (found.schema and found.schema.type, found.schema and found.schema.name) == (type, name)
    assert found.value == value
    assert header_bytes(Header("h", *found)) == text


def test_the_items_of_a_list_have_the_widest_type():
    assert parse_literal("[1, 2.5]").schema.value_schema.type == "float32"
    assert parse_literal("[1, 2.5]").value == [1.0, 2.5]
    assert parse_literal('[1, "a"]').schema.value_schema is None
