import json
import math

import pytest
from cdcworker.schemas.connect_json import compile_json, connect_schema, field_schema
from cdcworker.schemas.errors import CdcError

DECIMAL = {
    "type": "bytes", "scale": 2, "precision": 12, "connect.version": 1, "logicalType": "decimal",
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "12"},
    "connect.name": "org.apache.kafka.connect.data.Decimal",
}  # fmt: skip
VARIABLE = {
    "type": "record", "name": "VariableScaleDecimal", "namespace": "io.debezium.data",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
    "connect.doc": "Variable scaled decimal", "connect.version": 1,
    "connect.name": "io.debezium.data.VariableScaleDecimal",
}  # fmt: skip


def semantic(kind: str, name: str, **parameters: str):
    more = {"connect.parameters": parameters} if parameters else {}
    return {"type": kind, "connect.version": 1, **more, "connect.name": name}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("boolean", '{"type":"boolean","optional":false}'),
        ("int", '{"type":"int32","optional":false}'),
        ({"type": "int", "connect.type": "int16"}, '{"type":"int16","optional":false}'),
        (["null", "long"], '{"type":"int64","optional":true}'),
        ("float", '{"type":"float","optional":false}'),
        ("double", '{"type":"double","optional":false}'),
        (["null", "bytes"], '{"type":"bytes","optional":true}'),
        (
            semantic("int", "io.debezium.time.Date"),
            '{"type":"int32","optional":false,"name":"io.debezium.time.Date","version":1}',
        ),
        (
            semantic("string", "io.debezium.data.Enum", allowed="a,b"),
            '{"type":"string","optional":false,"name":"io.debezium.data.Enum","version":1,"parameters":{"allowed":"a,b"}}',
        ),
        (
            ["null", DECIMAL],
            '{"type":"bytes","optional":true,"name":"org.apache.kafka.connect.data.Decimal","version":1,'
            '"parameters":{"scale":"2","connect.decimal.precision":"12"}}',
        ),
        (
            VARIABLE,
            '{"type":"struct","fields":[{"type":"int32","optional":false,"field":"scale"},'
            '{"type":"bytes","optional":false,"field":"value"}],"optional":false,'
            '"name":"io.debezium.data.VariableScaleDecimal","version":1,"doc":"Variable scaled decimal"}',
        ),
        (
            {"type": "array", "items": ["null", "int"]},
            '{"type":"array","items":{"type":"int32","optional":true},"optional":false}',
        ),
        (
            {"type": "map", "values": ["null", "string"]},
            '{"type":"map","keys":{"type":"string","optional":false},"values":{"type":"string","optional":true},'
            '"optional":false}',
        ),
    ],
)
def test_a_type_has_the_schema_of_the_converter(kind, text):
    assert json.dumps(connect_schema(kind), separators=(",", ":")) == text


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("boolean", True, "true"),
        ("long", -(2**63), "-9223372036854775808"),
        ("double", 1.5, "1.5"),
        ("double", math.nan, '"NaN"'),
        ("float", -math.inf, '"-Infinity"'),
        ("string", 'a"\\\n\u0001é/😀', '"a\\"\\\\\\n\\u0001é/😀"'),
        ("bytes", b"\xff\xd8\x00", '"/9gA"'),
        ("bytes", b"", '""'),
        (["null", "string"], None, "null"),
        (DECIMAL, b"\x04\xd2", '"BNI="'),
        (VARIABLE, {"scale": 3, "value": b"\x01"}, '{"scale":3,"value":"AQ=="}'),
        (semantic("string", "io.debezium.data.Json"), '{"a":1}', '"{\\"a\\":1}"'),
        ({"type": "array", "items": ["null", "int"]}, [1, None], "[1,null]"),
        ({"type": "map", "values": ["null", "string"]}, {"a": None, 'b"': "c"}, '{"a":null,"b\\"":"c"}'),
        ({"type": "enum", "name": "M", "symbols": ["A"]}, "A", '"A"'),
        ({"type": "fixed", "name": "F", "size": 1}, b"\x00", '"AA=="'),
    ],
)
def test_a_value_is_written_as_the_converter_writes_it(kind, value, text):
    assert compile_json(kind)(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(b"\x04\xd2", "12.34"), (b"\xff", "-0.01"), (b"\0", "0.00"), (b"\x64", "1.00")]
)
def test_decimals_are_numbers_on_request(value, text):
    assert compile_json(DECIMAL, numeric=True)(value) == text


@pytest.mark.parametrize(
    ("field", "default"),
    [
        ({"name": "a", "type": ["int", "null"], "default": 7}, 7),
        ({"name": "a", "type": [DECIMAL, "null"], "default": "\x04\u00d2"}, "BNI="),
        ({"name": "a", "type": {"type": "array", "items": "bytes"}, "default": ["\xff"]}, ["/w=="]),
        ({"name": "a", "type": {"type": "map", "values": "int"}, "default": {"x": 1}}, {"x": 1}),
    ],
)
def test_a_default_has_the_form_of_a_value(field, default):
    assert field_schema(field)["default"] == default
    assert list(field_schema(field))[-1] == "field"


def test_a_default_that_holds_a_struct_is_left_out():
    field = {"name": "a", "type": VARIABLE, "default": {"scale": 1, "value": "\x01"}}
    assert "default" not in field_schema(field)
    assert "default" not in field_schema({**field, "type": {"type": "array", "items": VARIABLE}, "default": []})


def test_a_null_default_is_none():
    assert "default" not in field_schema({"name": "a", "type": ["null", "int"], "default": None})


@pytest.mark.parametrize(("kind", "value"), [("int", "7"), ("string", 7), ("bytes", "x"), ("boolean", "t")])
def test_a_value_of_another_type_is_not_written(kind, value):
    with pytest.raises((TypeError, LookupError, ValueError)):
        compile_json(kind)(value)


def test_a_union_of_several_types_has_no_form():
    with pytest.raises(CdcError) as caught:
        compile_json(["int", "string"])
    assert caught.value.code == "schema.no_json_form"
