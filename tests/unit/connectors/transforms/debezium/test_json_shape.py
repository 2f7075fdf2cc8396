"""The schemas that JSON documents have by their structure."""

import json

import pytest
from cdcworker.connectors.transforms.avro_form import REGISTERED, WRITTEN, avro_of
from cdcworker.connectors.transforms.data import ConnectSchema, Field
from cdcworker.connectors.transforms.debezium.json_shape import LEVELS_MAX, JsonShapes, NoShapeError, ShapeOptions
from cdcworker.schemas.avro import canonical
from cdcworker.schemas.avro_binary import compile_type
from hypothesis import given
from hypothesis import strategies as st


def read(text, **options):
    return JsonShapes(ShapeOptions(**options)).read(text, "payload")


@pytest.mark.parametrize(
    ("text", "type"),
    [
        ("1", "int32"), ("-2147483648", "int32"), ("2147483648", "int64"), ("9223372036854775808", "float64"),
        ("1.0", "float64"), ("1e3", "float64"), ("true", "boolean"), ('"1"', "string"),
    ],
)  # fmt: skip
def test_types(text, type):
    schema, value = read(f'{{"a": {text}}}')
    assert schema.by_name["a"] == ConnectSchema(type, optional=True)
    assert value == {"a": json.loads(text)}


def test_what_has_no_type_is_left_out_unless_it_is_asked_for():
    text = '{"n": null, "e": [], "a": 1}'
    assert list(read(text)[0].by_name) == ["a"]
    schema, value = read(text, null_as_bytes=True, empty_array_of_strings=True)
    assert schema.by_name["n"].type == "bytes"
    assert schema.by_name["e"].value_schema == ConnectSchema("string", optional=True)
    assert value == {"n": None, "e": [], "a": 1}


def test_objects_of_an_array_have_the_fields_of_all():
    schema, value = read('{"a": [{"x": null, "y": 1}, null, {"x": "t", "z": {"q": true}}]}', null_as_bytes=True)
    item = schema.by_name["a"].value_schema
    assert {name: of.type for name, of in item.fields} == {"x": "string", "y": "int32", "z": "struct"}
    assert item.name == "payload.a"
    assert value["a"] == [
        {"x": None, "y": 1, "z": None},
        None,
        {"x": "t", "y": None, "z": {"q": True}},
    ]


@pytest.mark.parametrize(
    "items",
    [
        [{"b": {"c": 1}}, {"b": {"d": 1}}],
        [{"b": [{"c": 1}]}, {"b": [{"d": 1}]}],
        [[{"c": 1}], [{"d": 1}], []],
        [{"b": [1]}, {"b": [{"c": 1}][:0]}],
    ],
)
def test_inner_objects_of_an_array_lose_nothing(items):
    def bare(node):
        if isinstance(node, dict):
            return {name: bare(each) for name, each in node.items() if each is not None}
        return [bare(each) for each in node] if isinstance(node, list) else node

    schema, value = read(json.dumps({"a": items}))
    assert bare(value["a"]) == items
    assert compile_type(avro_of(schema, WRITTEN))(value) is not None


def nested(levels):
    return '{"a":' * (levels - 1) + "{}" + "}" * (levels - 1)


def test_what_can_be_read_can_be_registered():
    """Beside other columns a payload is a level deeper."""
    schema, _ = read(nested(LEVELS_MAX), null_as_bytes=True)
    outer = ConnectSchema("struct", name="outer", fields=(Field("payload", schema),))
    assert canonical(avro_of(outer, REGISTERED))
    for levels in (LEVELS_MAX + 1, 200, 300):
        with pytest.raises(NoShapeError):
            read(nested(levels))
    with pytest.raises(NoShapeError, match="two different objects in it have one name"):
        read('{"a.b": {"z": 1}, "a": {"b": {"q": 1}}}')


@pytest.mark.parametrize(
    "text",
    [
        "", "1", "[]", "null", '{"a": NaN}', '{"a": [1, "x"]}', '{"a": [1, 2147483648]}', '{"a": [null]}', '{"a": [[]]}',
        '{"a": [{"x": 1}, {"x": "t"}]}', '{"a": "\\ud800"}', '{"\\ud800": 1}', '{"a":' * 100_000, "{" + "9" * 5000,
    ],
)  # fmt: skip
def test_what_has_no_shape_is_told_without_a_value(text):
    with pytest.raises(NoShapeError) as refused:
        read(text)
    assert str(refused.value) in {
        "it is no JSON", "it is no object", "an array has items of several types", "an array has items of no known type",
    }  # fmt: skip
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


leaves = st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False, allow_infinity=False)
documents = st.dictionaries(
    st.text(max_size=3),
    st.recursive(
        leaves | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


@given(documents, st.booleans(), st.booleans())
def test_whatever_has_a_shape_can_be_written(document, nulls, empty):
    try:
        schema, value = read(json.dumps(document), null_as_bytes=nulls, empty_array_of_strings=empty)
    except NoShapeError:
        return
    assert compile_type(avro_of(schema, WRITTEN))(value) is not None
