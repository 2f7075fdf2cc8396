import json
from pathlib import Path

import fastavro.schema
import pytest
from cdcworker.schemas import avro
from cdcworker.schemas.errors import CdcError
from hypothesis import given
from hypothesis import strategies as st

CORPUS = json.loads((Path(__file__).parent / "corpus.json").read_text("utf-8"))


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case["name"])
def test_the_corpus_keeps_its_canonical_forms_and_digests(case):
    assert avro.canonical(case["schema"]) == case["canonical"]
    assert avro.fingerprint(case["schema"]) == case["sha256"]
    assert avro.schema_id(case["sha256"]) == case["id"]
    assert avro.guid(case["sha256"]) == case["guid"]


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case["name"])
def test_a_canonical_form_is_its_own_canonical_form_and_readable_by_others(case):
    parsed = avro.parse(case["canonical"])
    assert avro.canonical(parsed) == case["canonical"]
    fastavro.parse_schema(parsed)


@pytest.mark.parametrize("case", [case for case in CORPUS if case.get("plain")], ids=lambda case: case["name"])
def test_without_kept_attributes_the_form_is_the_specifications(case):
    assert case["canonical"] == fastavro.schema.to_parsing_canonical_form(case["schema"])


def test_schemas_that_differ_in_meaning_differ_in_fingerprint():
    def decimal(precision, scale):
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}

    schemas = [
        decimal(10, 2),
        decimal(12, 4),
        "bytes",
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "long", "logicalType": "timestamp-micros"},
        "long",
        {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"},
    ]
    assert len({avro.fingerprint(schema) for schema in schemas}) == len(schemas)


def test_documentation_and_order_of_attributes_do_not_change_the_fingerprint():
    a = {"type": "record", "name": "A", "doc": "x", "fields": [{"name": "f", "type": {"type": "int"}, "doc": "y"}]}
    b = {"fields": [{"type": "int", "order": "ignore", "name": "f"}], "name": "A", "type": "record"}
    assert avro.fingerprint(a) == avro.fingerprint(b)


@pytest.mark.parametrize(
    "schema",
    [
        "Unknown",
        {"type": "record", "fields": []},
        {"type": "array"},
        {"type": "record", "name": "A", "fields": [{"name": "x"}]},
        {"type": "record", "name": "A", "fields": [{"name": "x", "type": "B"}]},
        [{"type": "fixed", "name": "A", "size": 2}, {"type": "fixed", "name": "A", "size": 2}],
        {"type": "fixed", "name": "A"},
        {"no": "type"},
        {"type": "long", "default": float("nan")},
        7,
    ],
)
def test_a_malformed_schema_is_refused(schema):
    with pytest.raises(CdcError) as caught:
        avro.canonical(schema)
    assert caught.value.code == "schema.invalid"


def test_a_schema_nested_too_deeply_is_refused():
    schema = "int"
    for _ in range(avro.DEPTH_MAX - 1):
        schema = {"type": "array", "items": schema}
    avro.check(schema)
    with pytest.raises(CdcError, match="deeper"):
        avro.check({"type": "array", "items": schema})
    with pytest.raises(CdcError):
        avro.parse('{"type":"array","items":' * 100_000)


def test_a_schema_with_too_many_fields_is_refused():
    fields = [{"name": f"f{i}", "type": "int"} for i in range(avro.FIELDS_MAX)]
    avro.check({"type": "record", "name": "A", "fields": fields})
    with pytest.raises(CdcError, match="more than 2000 fields"):
        avro.check({"type": "record", "name": "A", "fields": [*fields, {"name": "one_more", "type": "int"}]})


def test_a_schema_text_beyond_one_mebibyte_is_refused():
    with pytest.raises(CdcError, match="characters"):
        avro.parse('"' + " " * avro.SCHEMA_CHARS_MAX + '"')


def test_an_id_is_never_zero():
    assert avro.schema_id("0" * 64) == 1
    assert avro.schema_id("f" * 64) == 0x7FFFFFFF


def test_frames_are_confluents():
    assert avro.frame(258, b"body") == b"\0\0\0\1\2body"
    assert avro.unframe(b"\0\0\0\1\2body") == (258, 5)
    for data in (b"", b"\0\0\0\1", b"\1\0\0\1\2body"):
        with pytest.raises(CdcError):
            avro.unframe(data)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(text, expected):
    assert avro.murmur2(text.encode()) == expected & 0xFFFFFFFF


@given(st.binary(max_size=40))
def test_murmur2_is_a_32_bit_number(data):
    assert 0 <= avro.murmur2(data) <= 0xFFFFFFFF


def test_logical_types_are_taken_off_everywhere():
    day = {"type": "int", "logicalType": "date"}
    schema = {
        "type": "record",
        "name": "A",
        "fields": [{"name": "a", "type": ["null", day]}, {"name": "b", "type": {"type": "array", "items": day}}],
    }
    assert "logicalType" not in json.dumps(avro.without_logical_types(schema))
