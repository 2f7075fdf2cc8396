from __future__ import annotations

import contextlib
import io
import math
import struct

import numpy as np
import pyarrow as pa
import pytest
from cdcworker.connectors.arrow import decode as d
from fastavro import schemaless_writer
from fastavro.schema import parse_schema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import unless_built

native = d.native()
needs_native = unless_built(native)
relaxed = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))

PRIMITIVES = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=40),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
}


def takes_bytes(schema):
    """Items without a byte are refused: a length alone would fill the memory."""
    if isinstance(schema, dict) and schema["type"] == "record":
        return any(takes_bytes(field["type"]) for field in schema["fields"])
    return schema != "null" and not (isinstance(schema, dict) and schema.get("size") == 0)


@st.composite
def types(draw, depth=0):
    """(Avro type, strategy of its values)"""
    kinds = [*PRIMITIVES, "nullable", "fixed", "enum"]
    if depth < 3:
        kinds += ["record", "array", "map", "union"]
    kind = draw(st.sampled_from(kinds))
    number = draw(st.integers(0, 10**9))
    if kind in PRIMITIVES:
        return kind, PRIMITIVES[kind]
    if kind == "nullable":
        inner, values = draw(types(depth + 1).filter(lambda made: made[0] != "null" and not isinstance(made[0], list)))
        return (["null", inner] if number % 2 else [inner, "null"]), st.none() | values
    if kind == "fixed":
        size = number % 7
        return {"type": "fixed", "name": f"f{number}", "size": size}, st.binary(min_size=size, max_size=size)
    if kind == "enum":
        symbols = [f"S{i}" for i in range(1 + number % 4)]
        return {"type": "enum", "name": f"e{number}", "symbols": symbols}, st.sampled_from(symbols)
    if kind == "record":
        members = draw(st.lists(types(depth + 1), min_size=1, max_size=4))
        fields = [{"name": f"m{i}", "type": made[0]} for i, made in enumerate(members)]
        values = st.fixed_dictionaries({f"m{i}": made[1] for i, made in enumerate(members)})
        return {"type": "record", "name": f"r{number}", "fields": fields}, values
    if kind == "union":
        return ["null", "long", "string"], st.none() | PRIMITIVES["long"] | PRIMITIVES["string"]
    inner, values = draw(types(depth + 1).filter(lambda made: takes_bytes(made[0])))
    if kind == "array":
        return {"type": "array", "items": inner}, st.lists(values, max_size=4)
    return {"type": "map", "values": inner}, st.dictionaries(PRIMITIVES["string"], values, max_size=3)


@st.composite
def batches(draw):
    members = draw(st.lists(types(), min_size=1, max_size=6))
    schema = {
        "type": "record",
        "name": "top",
        "fields": [{"name": f"c{i}", "type": made[0]} for i, made in enumerate(members)],
    }
    row = st.fixed_dictionaries({f"c{i}": made[1] for i, made in enumerate(members)})
    return schema, draw(st.lists(row, max_size=6))


def same(left, right):
    """Equal types and values, a NaN equal to a NaN at any depth."""
    return left.type == right.type and repr(left.to_pylist()) == repr(right.to_pylist())


def unique_names(schema):
    names = str(schema).count("'name': ")
    try:
        parse_schema(schema, named_schemas={})
    except Exception:  # noqa: BLE001 - two generated types drew the same name
        return False
    return names > 0


def encoded(schema, rows, lead=5):
    parsed = parse_schema(schema, named_schemas={})
    bodies = []
    for row in rows:
        out = io.BytesIO()
        schemaless_writer(out, parsed, row)
        bodies.append(b"\0" * lead + out.getvalue())
    return framed(bodies)


def framed(bodies):
    sizes = np.cumsum([0, *(len(body) for body in bodies)]).astype(np.int64)
    return b"".join(bodies), sizes


@needs_native
@relaxed
@given(batches().filter(lambda made: unique_names(made[0])))
def test_native_and_reference_give_equal_arrow(made):
    schema, rows = made
    plan = d.DecodePlan(schema)
    data, offsets = encoded(schema, rows)
    fast = d.decode_native(native, plan, data, offsets, 5)
    slow = d.decode_pure(plan, data, offsets, 5)
    fast.validate(full=True)
    assert fast.type == slow.type
    assert same(fast, slow)


@needs_native
@relaxed
@given(batches().filter(lambda made: unique_names(made[0])), st.sets(st.integers(0, 5)))
def test_what_is_not_asked_for_is_read_over(made, wanted):
    schema, rows = made
    names = [f"c{i}" for i in wanted if i < len(schema["fields"])]
    if not names:
        return
    plan = d.DecodePlan(schema, [(name,) for name in names])
    data, offsets = encoded(schema, rows)
    fast = d.decode_native(native, plan, data, offsets, 5)
    whole = d.decode_pure(d.DecodePlan(schema), data, offsets, 5)
    for name in names:
        assert same(fast.field(name), whole.field(name))


@needs_native
@relaxed
@given(
    batches().filter(lambda made: unique_names(made[0]) and made[1]),
    st.integers(0, 10**6),
    st.binary(max_size=6),
    st.booleans(),
)
def test_damaged_records_never_crash_and_are_never_read_otherwise_than_the_reference_does(made, at, noise, cut):
    schema, rows = made
    plan = d.DecodePlan(schema)
    data, offsets = encoded(schema, rows[:1])
    at = 5 + at % max(1, len(data) - 5)
    broken = data[:at] if cut else data[:at] + noise + data[at + len(noise) :]
    offsets = np.array([0, len(broken)], np.int64)
    try:
        fast = d.decode_native(native, plan, broken, offsets, 5)
    except d.UndecodableRow:
        return
    assert same(fast, d.decode_pure(plan, broken, offsets, 5))


@needs_native
@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_garbage_is_refused_or_read(garbage):
    schema = {
        "type": "record",
        "name": "t",
        "fields": [
            {"name": "a", "type": ["null", "string"]},
            {"name": "b", "type": {"type": "array", "items": ["null", "long"]}},
            {"name": "c", "type": {"type": "map", "values": "bytes"}},
            {"name": "d", "type": {"type": "record", "name": "r", "fields": [{"name": "x", "type": "double"}]}},
        ],
    }
    data, offsets = framed([garbage])
    for paths in ((("a",),), ((),)):
        with contextlib.suppress(d.UndecodableRow):
            d.decode_native(native, d.DecodePlan(schema, paths), data, offsets, 0)


def test_a_record_with_bytes_left_over_is_refused_by_both():
    plan = d.DecodePlan({"type": "record", "name": "t", "fields": [{"name": "a", "type": "long"}]})
    data, offsets = framed([b"\x02", b"\x02\x02"])
    for decode in (lambda: d.decode_pure(plan, data, offsets, 0), lambda: d.decode(plan, data, offsets, 0)):
        with pytest.raises(d.UndecodableRow) as caught:
            decode()
        assert caught.value.row == 1


def test_text_that_is_not_utf8_is_refused_with_its_row():
    plan = d.DecodePlan({"type": "record", "name": "t", "fields": [{"name": "a", "type": "string"}]})
    data, offsets = framed([b"\x02a", b"\x02\xff"])
    with pytest.raises(d.UndecodableRow) as caught:
        d.decode(plan, data, offsets, 0)
    assert caught.value.row == 1


def test_a_recursive_type_is_text_and_can_be_read_over():
    node = {
        "type": "record",
        "name": "node",
        "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "node"]}],
    }
    schema = {"type": "record", "name": "t", "fields": [{"name": "n", "type": node}, {"name": "z", "type": "int"}]}
    data, offsets = encoded(schema, [{"n": {"v": 1, "next": {"v": 2, "next": None}}, "z": 9}])
    assert d.decode(d.DecodePlan(schema, [("z",)]), data, offsets).to_pylist() == [{"z": 9}]
    found = d.decode(d.DecodePlan(schema), data, offsets).to_pylist()
    assert found == [{"n": {"v": 1, "next": '{"next": null, "v": 2}'}, "z": 9}]
    assert d.decode_pure(d.DecodePlan(schema), data, offsets).to_pylist() == found


def test_nan_and_infinity_pass_through():
    schema = {"type": "record", "name": "t", "fields": [{"name": "a", "type": "double"}]}
    data, offsets = framed([struct.pack("<d", value) for value in (math.nan, math.inf, -0.0)])
    found = d.decode(d.DecodePlan(schema), data, offsets, 0).field("a")
    assert found.type == pa.float64()
    assert math.isnan(found[0].as_py())
    assert str(found[2].as_py()) == "-0.0"


def test_no_rows_give_an_empty_array_of_the_right_type():
    plan = d.DecodePlan({"type": "record", "name": "t", "fields": [{"name": "a", "type": ["null", "string"]}]})
    data, offsets = framed([])
    assert d.decode(plan, data, offsets).type == d.decode_pure(plan, data, offsets).type == plan.arrow


@needs_native
@pytest.mark.parametrize("convert", [native and native.hexes, native and native.decimals])
def test_offsets_that_point_elsewhere_are_refused(convert):
    def ends(*numbers):
        return np.array(numbers, np.int32)

    assert convert(b"", ends(0)) is not None
    for wrong in (ends(), ends(0, 9), ends(-1, 1), ends(2, 1), ends(0, 4, 2**31 - 1), ends(-(2**31), 2**31 - 1)):
        with pytest.raises(ValueError, match="bad offsets"):
            convert(b"abcd", wrong)


@needs_native
def test_a_block_that_claims_the_most_negative_number_of_items_is_refused():
    schema = {"type": "record", "name": "t", "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}]}
    data, offsets = framed([b"\xff" * 9 + b"\x01" + b"\x00" + b"\x00"])
    with pytest.raises(d.UndecodableRow):
        d.decode_native(native, d.DecodePlan(schema), data, offsets, 0)
