"""What stands for values that the database did not send: any reader takes it, of every type."""

from __future__ import annotations

from typing import Any

import pytest
from cdcworker.schemas.decode import decode
from cdcworker.schemas.placeholders import UNAVAILABLE, unavailable_value, zero_value
from cdcworker.schemas.record_format import ConnectJsonFormat, FlatFormat, RecordFormat

from ..oracle import needs_native
from ..stock_readers import means, read_avro, read_connect
from ..type_matrix import MODES, Stream, columns, placeholders

MATRIX = pytest.mark.parametrize("required", [False, True], ids=["optional", "required"])
ALL_MODES = pytest.mark.parametrize("mode", MODES)
FREE = tuple(f"io.debezium.data.{name}" for name in ("Json", "Xml", "Ltree", "Tsvector"))
"""Types whose texts hold Debezium's placeholder as it is, for readers that compare it."""


def is_free(kind: Any) -> bool:
    if isinstance(kind, list):
        return is_free(kind[-1])
    return isinstance(kind, dict) and (kind.get("connect.name") in FREE or is_free(kind.get("items")))


@ALL_MODES
@MATRIX
def test_stock_deserializers_read_what_stands_for_unsent_values_of_every_type(mode, required):
    stream = Stream(columns(required=required), MODES[mode])
    deleted, updated = (read_avro(stream.schemas, value) for value in stream.values(*placeholders(stream)))
    assert (deleted["op"], deleted["before"]["id"], deleted["after"]) == ("d", 1, None)
    assert (updated["op"], updated["after"]["id"], updated["before"]) == ("u", 1, None)
    assert [value is None for value in deleted["before"].values()] == [
        False,
        *[not required] * (len(stream.columns) - 1),
    ]


@needs_native
@ALL_MODES
@MATRIX
def test_the_native_core_writes_the_same_for_unsent_values_of_every_type(mode, required):
    python, native = (Stream(columns(required=required), MODES[mode]) for _ in range(2))
    assert native.native_values(*placeholders(native)) == python.values(*placeholders(python))


@ALL_MODES
@MATRIX
@pytest.mark.parametrize("flat", [None, FlatFormat(deletes="rewrite")], ids=["envelope", "flat"])
def test_connects_json_of_unsent_values_is_read_by_its_own_schema(mode, required, flat):
    form = RecordFormat(ConnectJsonFormat(), ConnectJsonFormat(), flat)
    stream = Stream(columns(required=required), MODES[mode], form)
    for value in stream.values(*placeholders(stream)):
        read = read_connect(value)
        assert (read if flat else read["before"] or read["after"])["id"] == 1


@ALL_MODES
@MATRIX
def test_a_placeholder_is_a_value_of_what_its_type_means(mode, required):
    stream = Stream(columns(required=required), MODES[mode])
    [change] = stream.changes(placeholders(stream)[0])
    for column in change.table.columns[1:]:
        zero = zero_value(column)
        assert means(column.type, zero), column
        unsent = unavailable_value(column, UNAVAILABLE)
        assert unsent in (UNAVAILABLE, [UNAVAILABLE]) if is_free(column.type) else means(["null", column.type], unsent)


@pytest.mark.parametrize(("name", "zero"), [("mood", "sad"), ("size", "a,b"), ("bit", b"\0\0"), ("varbit", b"")])
def test_the_zero_of_a_type_whose_values_its_schema_does_not_tell(name, zero):
    key, *others = columns(required=True)
    [column] = [c for c in others if c.name.endswith(f"_{name}") and "__" not in c.name and c.typmod in (-1, 9)]
    stream = Stream([key, column])
    value = stream.values(placeholders(stream)[0])[0]
    assert list(decode(stream.schemas[2], value[5:])["before"].values()) == [1, zero]
