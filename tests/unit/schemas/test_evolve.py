import dataclasses

import pytest
from cdcworker.schemas.change import Column, Table
from cdcworker.schemas.envelope import key_schema, value_schema
from cdcworker.schemas.evolve import classify, column_changes


def decimal(precision, scale):
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@pytest.fixture
def schema_of(kit):
    def make(*columns, key=()):
        return value_schema("shop", Table(("public", "t"), 1, columns, key, kit.SOURCE))

    return make


A = Column("a", "int", False, column_id=1, source_type="integer")
B = Column("b", "string", True, column_id=2, source_type="text")
TIME = {"type": "long", "connect.name": "io.debezium.time.Timestamp"}
MICROS = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}


def test_the_same_columns_are_identical_whatever_the_source_block_says(schema_of, kit):
    other = value_schema("shop", Table(("public", "t"), 1, (A, B), (), {**kit.SOURCE, "connect.version": 2}))
    assert classify(schema_of(A, B), other) == "identical"


def test_a_new_column_is_an_add_and_a_missing_one_a_drop(schema_of):
    assert classify(schema_of(A), schema_of(A, B)) == "add"
    assert classify(schema_of(A, B), schema_of(A)) == "drop"


def test_a_rename_is_known_by_the_column_id(schema_of):
    renamed = dataclasses.replace(B, name="c")
    assert classify(schema_of(A, B), schema_of(A, renamed)) == "rename"
    assert classify(schema_of(A, B), schema_of(A, dataclasses.replace(renamed, column_id=3))) == "drop"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (("int", "integer"), ("long", "bigint"), "widen"),
        (("long", "bigint"), ("int", "integer"), "narrow"),
        (("int", "smallint"), ("int", "integer"), "widen"),
        (("int", "integer"), ("int", "smallint"), "narrow"),
        (("float", "real"), ("double", "double precision"), "widen"),
        (("int", "integer"), ("double", "double precision"), "widen"),
        (("long", "bigint"), ("double", "double precision"), "retype"),
        (("int", "integer"), ("string", "text"), "retype"),
        (("string", "character varying(10)"), ("string", "character varying(20)"), "widen"),
        (("string", "character varying(20)"), ("string", "character varying(10)"), "narrow"),
        (("string", "character varying(20)"), ("string", "text"), "widen"),
        (("int", "tinyint"), ("int", "smallint"), "widen"),
        (("int", "mediumint"), ("int", "smallint"), "narrow"),
        (("string", "text"), ("string", "longtext"), "widen"),
        (("string", "varchar(10)"), ("string", "text"), "widen"),
        (("string", "json"), ("string", "jsonb"), "retype"),
        ((decimal(10, 2), "numeric(10,2)"), (decimal(12, 4), "numeric(12,4)"), "widen"),
        ((decimal(10, 2), "numeric(10,2)"), (decimal(10, 4), "numeric(10,4)"), "narrow"),
        ((decimal(12, 4), "numeric(12,4)"), (decimal(12, 2), "numeric(12,2)"), "narrow"),
        ((decimal(10, 2), "numeric(10,2)"), ("bytes", "bytea"), "retype"),
        ((TIME, "timestamp(3)"), (MICROS, "timestamp(6)"), "retype"),
    ],
)
def test_types_widen_narrow_or_change(schema_of, old, new, expected):
    columns = [Column("x", kind, column_id=1, source_type=text) for kind, text in (old, new)]
    assert classify(schema_of(columns[0]), schema_of(columns[1])) == expected


def test_becoming_optional_widens_and_becoming_required_narrows(schema_of):
    optional = dataclasses.replace(A, optional=True)
    assert classify(schema_of(A), schema_of(optional)) == "widen"
    assert classify(schema_of(optional), schema_of(A)) == "narrow"


def test_another_default_alone_is_no_change(schema_of):
    assert classify(schema_of(A, B), schema_of(A, dataclasses.replace(B, default="x"))) == "identical"


def test_the_most_far_reaching_change_names_the_class(schema_of):
    long = dataclasses.replace(A, type="long", source_type="bigint")
    old, new = schema_of(A, B), schema_of(long, Column("c", "int", column_id=3))
    assert column_changes(old, new) == [("a", "widen"), ("c", "add"), ("b", "drop")]
    assert classify(old, new) == "drop"


def test_a_keys_type_is_class_key_and_its_name_alone_is_a_rename(kit):
    def key(column):
        return key_schema("shop", Table(("public", "t"), 1, (column,), (0,), kit.SOURCE))

    assert classify(key(A), key(dataclasses.replace(A, source_type="int4"))) == "identical"
    assert classify(key(A), key(dataclasses.replace(A, name="z"))) == "rename"
    assert classify(key(A), key(dataclasses.replace(A, type="long"))) == "key"
