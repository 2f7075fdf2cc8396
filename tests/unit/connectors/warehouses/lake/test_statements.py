"""Statements over tables of a lake."""

from __future__ import annotations

import pyarrow as pa
import pytest
from cdcworker.connectors.sink_errors import SCHEMA_REFUSED
from cdcworker.connectors.warehouses import target_columns as shaping
from cdcworker.connectors.warehouses.lake import statements as lakesql
from cdcworker.connectors.warehouses.target_columns import COLID, DEFAULT
from cdcworker.schemas.errors import CdcError
from hypothesis import given
from hypothesis import strategies as st

TABLE = "lake.`public`.`t`"


def field(name, kind, id=0, default=None):
    notes = {COLID: str(id).encode()} if id else {}
    return pa.field(name, kind, metadata=notes | ({DEFAULT: default} if default is not None else {}))


@given(st.text(min_size=1), st.text(min_size=1))
def test_a_stored_name_is_plain_and_leads_back(name, other):
    stored = lakesql.stored_name(name)
    assert lakesql.plain_name(stored) == name
    assert not set(stored) & set("./\\`'\"%:")
    assert (stored == lakesql.stored_name(other)) == (name == other)


def test_a_name_may_hold_what_quotes_and_a_text_may_too():
    assert lakesql.quoted("a`b.c") == "`a``b.c`"
    assert lakesql.literal("it's \\n") == "'it\\'s \\\\n'"


def test_columns_are_added_renamed_and_widened():
    have = pa.schema([field("id", pa.int32(), 1), field("old", pa.string(), 2)])
    want = pa.schema([field("id", pa.int64(), 1), field("new", pa.string(), 2), field("n", pa.decimal128(9, 2), 3)])
    assert lakesql.changes(TABLE, {"id": "int", "old": "string"}, have, want, {}) == [
        f"ALTER TABLE {TABLE} RENAME COLUMN `old` TO `new`",
        f"ALTER TABLE {TABLE} ALTER COLUMN `id` TYPE bigint",
        f"ALTER TABLE {TABLE} ADD COLUMNS (`n` decimal(9,2))",
    ]


def test_what_a_run_that_died_has_changed_is_not_changed_again():
    have = pa.schema([field("old", pa.string(), 2)])
    want = pa.schema([field("new", pa.string(), 2), field("n", pa.int32(), 3)])
    assert lakesql.changes(TABLE, {"new": "string", "n": "int"}, have, want, {}) == []


@pytest.mark.parametrize(
    ("there", "kind"), [("int", pa.string()), ("bigint", pa.int32()), ("decimal(9,2)", pa.decimal128(9, 3))]
)
def test_a_type_that_a_lake_would_have_to_rewrite_is_refused(there, kind):
    with pytest.raises(CdcError) as caught:
        lakesql.changes(TABLE, {"n": there}, None, pa.schema([field("n", kind)]), {"topic": "t"})
    assert (caught.value.code, caught.value.where["topic"]) == (SCHEMA_REFUSED, "t")


def test_names_that_change_hands_make_room_first_however_far_a_run_that_died_has_come():
    have = pa.schema([field("a", pa.int32(), 1), field("b", pa.int32(), 2), field("c", pa.int32(), 3)])
    want = pa.schema([field("b", pa.int32(), 1), field("a", pa.int32(), 2), field("c_dropped_3", pa.int32(), 3)])
    want = want.append(field("c", pa.int32(), 4))
    names = lakesql.room(have, want)
    assert names == {"a": "_cdc_moving_0", "b": "_cdc_moving_1", "c": "c_dropped_3"}
    there = {"a": "int", "b": "int", "c": "int"}
    assert len(lakesql.renames(TABLE, there, names, {})) == 3
    assert lakesql.renames(TABLE, {"_cdc_moving_0": "int", "b": "int", "c_dropped_3": "int"}, names, {}) == [
        f"ALTER TABLE {TABLE} RENAME COLUMN `b` TO `_cdc_moving_1`"
    ]
    between = shaping.under(have, names)
    assert lakesql.room(between, want) == {}
    there = {"b": "int", "_cdc_moving_1": "int", "c_dropped_3": "int"}
    assert lakesql.changes(TABLE, there, between, want, {}) == [
        f"ALTER TABLE {TABLE} RENAME COLUMN `_cdc_moving_1` TO `a`",
        f"ALTER TABLE {TABLE} ADD COLUMNS (`c` int)",
    ]
    assert lakesql.changes(TABLE, {field.name: "int" for field in want}, between, want, {}) == []


def test_a_name_that_somebody_elses_column_has_is_refused():
    have, want = (pa.schema([field(name, pa.int32(), 1)]) for name in ("a", "mine"))
    with pytest.raises(CdcError) as caught:
        lakesql.changes(TABLE, {"a": "int", "mine": "int"}, have, want, {"topic": "t"})
    assert (caught.value.code, caught.value.where) == (SCHEMA_REFUSED, {"topic": "t", "column": "mine"})


def test_only_columns_that_are_new_get_their_default():
    have = pa.schema([field("a", pa.int32(), 1, b"1"), field("b", pa.int32(), 2, b"2")])
    want = pa.schema([*have, field("c", pa.string(), 3, b"it's"), field("d", pa.int32(), 4)])
    assert lakesql.added(have, want) == {"c": "CAST('it\\'s' AS string)"}
    assert lakesql.added(None, want) == {}
    renamed = pa.schema([field("z", pa.int32(), 1, b"1"), have.field(1)])
    assert lakesql.added(have, renamed) == {}


def test_types_are_those_of_spark():
    kinds = [pa.list_(pa.int32()), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(38, 4), pa.date32()]
    names = ["array<int>", "timestamp_ntz", "timestamp", "decimal(38,4)", "date"]
    assert [lakesql.type_of(kind) for kind in kinds] == names


KINDS = [pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32()]
KINDS += [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(12, 3), pa.list_(pa.decimal128(5, 0))]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_type_leads_to_spark_and_back(kind):
    assert lakesql.arrow_of(lakesql.type_of(kind)) == kind


def test_a_type_that_the_sink_makes_none_of_is_left_alone():
    assert [lakesql.arrow_of(kind) for kind in ("smallint", "array<smallint>", "struct<a:int>", "")] == [None] * 4


def test_columns_are_dropped_where_they_are_there_still():
    assert lakesql.drops("t", {"a", "b`c"}, ["a", "gone", "b`c"]) == [
        "ALTER TABLE t DROP COLUMN `a`",
        "ALTER TABLE t DROP COLUMN `b``c`",
    ]
