import pytest
from cdcworker.schemas.display import BYTES_MAX, TEXT_MAX, compile_display


def named(kind, title, **more):
    return {"type": kind, "connect.name": title, **more}


DECIMAL = named("bytes", "org.apache.kafka.connect.data.Decimal", **{"connect.parameters": {"scale": "2"}})
VARIABLE = named(
    "record", "io.debezium.data.VariableScaleDecimal", name="V",
    fields=[{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
)  # fmt: skip
SHOWN = [
    (DECIMAL, b"\x04\xd2", "12.34"),
    (DECIMAL, b"\xff", "-0.01"),
    (DECIMAL, b"\x00", "0.00"),
    ({**DECIMAL, "connect.parameters": {"scale": "0"}}, b"\x07", "7"),
    ({**DECIMAL, "connect.parameters": {"scale": "-2"}}, b"\x07", "700"),
    (DECIMAL, b"", "NaN"),
    ({**DECIMAL, "precision": 4}, b"\x27\x10", "NaN"),
    ({**DECIMAL, "precision": 4}, b"\x27\x0f", "99.99"),
    (VARIABLE, {"scale": 3, "value": b"\x04\xd2"}, "1.234"),
    (VARIABLE, {"scale": 0, "value": b""}, "NaN"),
    (VARIABLE, {"scale": 1, "value": b""}, "Infinity"),
    (VARIABLE, {"scale": -1, "value": b""}, "-Infinity"),
    (named("int", "io.debezium.time.Date"), -1, "1969-12-31"),
    (named("long", "io.debezium.time.MicroTimestamp"), 1_790_000_000_120_000, "2026-09-21 14:13:20.12"),
    (named("long", "io.debezium.time.NanoTimestamp"), 1_000_000_001, "1970-01-01 00:00:01.000000001"),
    (named("long", "org.apache.kafka.connect.data.Timestamp"), -1, "1969-12-31 23:59:59.999"),
    (named("long", "io.debezium.time.MicroTime"), 3_600_000_000, "01:00:00"),
    (named("long", "io.debezium.time.MicroTime"), 86_400_000_000, "24:00:00"),
    (named("long", "io.debezium.time.MicroTimestamp"), 2**62, 2**62),
    ("bytes", b"\x00\xff", "\\x00ff"),
    ("double", float("inf"), "inf"),
    ({"type": "array", "items": ["null", DECIMAL]}, [None, b"\x01"], [None, "0.01"]),
    ({"type": "map", "values": ["null", "string"]}, {"a": None, "b": "c"}, {"a": None, "b": "c"}),
    (["null", DECIMAL], None, None),
]


@pytest.mark.parametrize(("kind", "value", "shown"), SHOWN)
def test_values_read_as_people_write_them(kind, value, shown):
    assert compile_display(kind)(value) == shown


def test_a_type_that_is_named_once_is_known_wherever_it_is_used():
    row = {"type": "record", "name": "Value", "namespace": "a.b", "fields": [{"name": "d_u002e", "type": DECIMAL}]}
    fields = [{"name": "before", "type": ["null", row]}, {"name": "after", "type": ["null", "Value"]}]
    read = compile_display({"type": "record", "name": "Envelope", "fields": fields})
    assert read({"before": None, "after": {"d_u002e": b"\x01"}}) == {"before": None, "after": {"d.": "0.01"}}


def test_what_is_long_is_cut_and_says_so():
    assert compile_display("string")("x" * (TEXT_MAX + 1)).endswith(f"… ({TEXT_MAX + 1} characters)")
    assert compile_display("bytes")(bytes(BYTES_MAX + 1)).endswith(f"… ({BYTES_MAX + 1} bytes)")
