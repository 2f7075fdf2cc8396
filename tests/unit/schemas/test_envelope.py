import dataclasses

import pytest
from cdcworker.connectors.capture.stream.transaction_metadata import transaction_table
from cdcworker.connectors.postgres.source_block import SOURCE_SCHEMA
from cdcworker.schemas import avro
from cdcworker.schemas.change import Column, Table
from cdcworker.schemas.envelope import bare_key_schema, column_field, key_schema, value_schema
from cdcworker.schemas.errors import CdcError

POINT = {"type": "record", "name": "Point", "namespace": "geo", "fields": [{"name": "x", "type": "double"}]}


def test_the_envelope_has_debeziums_fields_names_and_attributes(kit):
    schema = value_schema("shop", kit.ORDERS)
    assert [field["name"] for field in schema["fields"]] == [
        *("before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns")
    ]
    assert (schema["namespace"], schema["name"]) == ("shop.public.orders", "Envelope")
    assert schema["connect.name"] == "shop.public.orders.Envelope"
    before, after, source, transaction = schema["fields"][:4]
    assert before["type"][1]["connect.name"] == "shop.public.orders.Value"
    assert after == {"name": "after", "type": ["null", "Value"], "default": None}
    assert source["type"]["connect.name"] == "io.debezium.connector.postgresql.Source"
    assert transaction["type"][1]["connect.name"] == "event.block"
    assert all(field["default"] is None for field in (before, after, transaction, *schema["fields"][5:]))


def test_columns_carry_their_source_type_and_their_identity(kit):
    fields = value_schema("shop", kit.ORDERS)["fields"][0]["type"][1]["fields"]
    assert [(field["cdc.type"], field["cdc.colid"]) for field in fields] == [
        *(("bigint", 1), ("integer", 2), ("text", 3), ("numeric(12,2)", 4), ("bytea", 5))
    ]


def test_an_optional_column_is_null_first_and_a_default_comes_first():
    assert column_field(Column("a", "int"), {})["type"] == ["null", "int"]
    field = column_field(Column("a", "int", default=7), {})
    assert field["type"] == [{"type": "int", "connect.default": 7}, "null"]
    assert field["default"] == 7
    required = column_field(Column("a", "bytes", optional=False, default=b"\xff\0"), {})
    assert required["type"] == {"type": "bytes", "connect.default": "\u00ff\0"}
    assert required["default"] == "\u00ff\0"
    assert "default" not in column_field(Column("a", "double", optional=False, default=float("inf")), {})


def test_a_key_says_what_its_values_mean_and_nothing_else_of_its_columns(kit):
    enum = {"type": "string", "connect.parameters": {"allowed": "a,b"}, "connect.name": "io.debezium.data.Enum"}
    columns = (
        Column("d", kit.DECIMAL, False, b"\0", 1, "numeric(12,2)"),
        Column("p", POINT, False),
        Column("o", "int"),
        Column("e", enum, False),
    )
    table = Table(("public", "k"), 1, columns, (1, 0, 2, 3), kit.SOURCE)
    head = {"type": "record", "name": "Key", "namespace": "shop.public.k"}
    assert key_schema("shop", table) == {
        **head,
        "fields": [
            {"name": "p", "type": POINT},
            {"name": "d", "type": kit.DECIMAL},
            {"name": "o", "type": ["null", "int"], "default": None},
            # The labels of an enum may become more.
            {"name": "e", "type": {"type": "string", "connect.name": "io.debezium.data.Enum"}},
        ],
        "connect.name": "shop.public.k.Key",
    }
    assert bare_key_schema("shop", table) == {
        **head,
        "fields": [
            {"name": "p", "type": POINT},
            {"name": "d", "type": "bytes"},
            {"name": "o", "type": ["null", "int"]},
            {"name": "e", "type": "string"},
        ],
    }


def test_records_about_messages_and_transactions_have_debeziums_versions():
    table = Table(("message",), 0, (Column("prefix", "string"), Column("content", "bytes")), (0,), SOURCE_SCHEMA)
    key = key_schema("shop", table)
    assert (key["connect.version"], key["connect.name"]) == (1, "io.debezium.connector.postgresql.MessageKey")
    value = {field["name"]: field["type"] for field in value_schema("shop", table)["fields"]}
    assert value["source"]["connect.version"] == 1
    assert [field["type"] for field in value["message"]["fields"]] == [["null", "string"], ["null", "bytes"]]
    ends = transaction_table("shop.transaction", SOURCE_SCHEMA)
    assert key_schema("shop", ends)["connect.version"] == 1
    fields = {field["name"]: field["type"] for field in value_schema("shop", ends)["fields"]}
    collections = fields["data_collections"][1]["items"]
    assert (collections[0], collections[1]["connect.name"]) == ("null", "event.collection")


def test_a_key_does_not_change_when_other_facts_of_its_column_do(kit):
    first = dataclasses.replace(kit.ORDERS.columns[0], default=5, source_type="integer", column_id=9)
    changed = dataclasses.replace(kit.ORDERS, columns=(first, *kit.ORDERS.columns[1:3]))
    assert key_schema("shop", changed) == key_schema("shop", kit.ORDERS)


def test_a_named_type_of_two_columns_is_defined_once(kit):
    columns = (Column("a", POINT), Column("b", POINT), Column("c", {"type": "array", "items": POINT}))
    schema = value_schema("shop", Table(("public", "p"), 1, columns, (), kit.SOURCE))
    avro.check(schema)
    fields = schema["fields"][0]["type"][1]["fields"]
    assert fields[1]["type"] == ["null", "geo.Point"]
    assert fields[2]["type"][1]["items"] == "geo.Point"


def test_two_different_types_of_one_name_are_refused(kit):
    other = {**POINT, "fields": [{"name": "x", "type": "int"}]}
    table = Table(("public", "p"), 1, (Column("a", POINT), Column("b", other)), (), kit.SOURCE)
    with pytest.raises(CdcError) as caught:
        value_schema("shop", table)
    assert caught.value.code == "schema.name_conflict"


def test_columns_that_meet_after_escaping_are_refused(kit):
    table = Table(("public", "p"), 1, (Column("a", "int"), Column("a", "int")), (), kit.SOURCE)
    with pytest.raises(CdcError) as caught:
        value_schema("shop", table)
    assert caught.value.where["name"] == "a"


def test_names_that_avro_does_not_allow_are_escaped(kit):
    table = Table(("public", "order items"), 1, (Column("größe", "int", False),), (0,), kit.SOURCE)
    schema = value_schema("shop", table)
    assert schema["namespace"] == "shop.public.order_u0020items"
    assert schema["fields"][0]["type"][1]["fields"][0]["name"] == "gr_u00f6_u00dfe"
    avro.check(schema)
