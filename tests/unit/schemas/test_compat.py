import pytest
from cdcworker.schemas.compat import incompatibilities, unreadable


def record(*fields, name="R"):
    return {"type": "record", "name": name, "fields": list(fields)}


X = {"name": "x", "type": "int"}
Y = {"name": "y", "type": "int"}
Y_DEFAULT = {**Y, "default": 0}
NODE = {"name": "next", "type": ["null", "R"], "default": None}


@pytest.mark.parametrize(
    ("reader", "writer", "readable"),
    [
        ("long", "int", True),
        ("int", "long", False),
        ("double", "long", True),
        ("bytes", "string", True),
        (["null", "long"], "int", True),
        ("int", ["null", "int"], False),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, True),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, False),
        (record(X, Y_DEFAULT), record(X), True),
        (record(X, Y), record(X), False),
        (record(X), record(X, Y), True),
        (record(X, name="S"), record(X), False),
        (record({**Y, "aliases": ["x"]}), record(X), True),
        (record(NODE, X), record(NODE, X), True),
        (record(NODE, X), record(NODE), False),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}, False),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, {"type": "enum", "name": "E", "symbols": ["A", "B"]}, False),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, {"type": "enum", "name": "E", "symbols": ["A"]}, True),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 4},
            False,
        ),
    ],
)
def test_a_reader_reads_what_resolution_allows(reader, writer, readable):
    assert (unreadable(reader, writer) == []) == readable


def test_levels_ask_in_their_direction_and_as_far_back_as_they_say():
    first, second, new = record(X), record(X, Y_DEFAULT), record(X, Y)
    assert incompatibilities("BACKWARD", new, [first, second]) == []
    assert incompatibilities("BACKWARD_TRANSITIVE", new, [first, second])
    assert incompatibilities("FORWARD_TRANSITIVE", new, [first, second]) == []
    assert incompatibilities("FULL", record(X, Y), [record(X)])
    assert incompatibilities("NONE", "int", ["string"]) == []
    assert incompatibilities("FULL_TRANSITIVE", "int", []) == []
