import base64
import json
from dataclasses import replace

import pytest
from cdcworker.schemas.avro import murmur2, unframe
from cdcworker.schemas.change import Column, Table
from cdcworker.schemas.decode import RecordDecoder
from cdcworker.schemas.encode import Encoder
from cdcworker.schemas.envelope import MESSAGE_PATH, change_value
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.format_encoder import FormatEncoder, make_encoder
from cdcworker.schemas.log import SchemaLog, register_in_memory
from cdcworker.schemas.patterns import compiled
from cdcworker.schemas.placeholders import UNAVAILABLE
from cdcworker.schemas.record_format import (
    AddedField,
    AvroFormat,
    ConnectJsonFormat,
    FlatFormat,
    RecordFormat,
    RegexRoute,
)
from hypothesis import given
from hypothesis import strategies as st

JSON, PLAIN = ConnectJsonFormat(), ConnectJsonFormat(schemas=False)


def maker(kit, log=None, **options):
    def make(key=PLAIN, value=PLAIN, flat=None, routes=()):
        register = register_in_memory(SchemaLog() if log is None else log)
        form = RecordFormat(key, value, flat, routes)
        return make_encoder(form, "shop", register, clock_ns=lambda: kit.CLOCK_NS, **options)

    return make


def refuse(registrations):
    raise AssertionError("JSON registers no schema")


# The envelope in JSON


def test_the_default_form_has_the_default_encoder(kit):
    assert type(maker(kit)(AvroFormat(), AvroFormat())) is Encoder
    assert type(maker(kit)(AvroFormat(), AvroFormat(), FlatFormat())) is FormatEncoder


def test_renamed_topics_leave_the_default_form(kit):
    """A source writes such records itself: the plan must have all that the one of the default encoder has."""
    avro, routes = AvroFormat(), (RegexRoute(compiled("shop.(.*)"), "to.$1"),)
    make = maker(kit)
    default, routed = make(avro, avro), make(avro, avro, routes=routes)
    assert (type(routed), routed.has_default_form) == (FormatEncoder, True)
    for change in (kit.change("c", after=kit.ROW), kit.change("d", before=kit.ROW)):
        expected = [record._replace(topic=f"to.{record.topic[5:]}") for record in default.encode([change])]
        assert routed.encode([change]) == expected
    ours, theirs = (one.plan(change.table, change.position) for one in (routed, default))
    assert (ours.key_id, ours.value_frame) == (theirs.key_id, theirs.value_frame)
    others = (make(), make(avro), make(PLAIN, avro), make(avro, avro, FlatFormat()))
    assert not any(other.has_default_form for other in others)


ORDER_SCHEMA = (
    '{"type":"struct","fields":[{"type":"int64","optional":false,"field":"id"},'
    '{"type":"int32","optional":true,"field":"quantity"},{"type":"string","optional":true,"field":"note"},'
    '{"type":"bytes","optional":true,"name":"org.apache.kafka.connect.data.Decimal","version":1,'
    '"parameters":{"scale":"2","connect.decimal.precision":"12"},"field":"price"},'
    '{"type":"bytes","optional":true,"field":"photo"}],"optional":true,"name":"shop.public.orders.Value"'
)
ORDER = '{"id":7,"quantity":3,"note":"gift","price":"BNI=","photo":"/9g="}'
KEY_SCHEMA = (
    '{"type":"struct","fields":[{"type":"int64","optional":false,"field":"id"}],"optional":false,'
    '"name":"shop.public.orders.Key"}'
)


def test_a_create_with_schemas_is_the_converters_text(kit):
    record = maker(kit)(JSON, JSON).encode([kit.change("c", after=kit.ROW)])[0]
    text = record.value.decode()
    assert text.startswith(
        '{"schema":{"type":"struct","fields":['
        + ORDER_SCHEMA
        + ',"field":"before"},'
        + ORDER_SCHEMA
        + ',"field":"after"},'
    )
    middle = text[text.index('"field":"after"},') + 17 : text.index(',"payload":')]
    assert middle.startswith('{"type":"struct","fields":[{"type":"string","optional":false,"field":"version"},')
    assert (
        '{"type":"string","optional":true,"name":"io.debezium.data.Enum","version":1,'
        '"parameters":{"allowed":"true,first,last,false,incremental"},"default":"false","field":"snapshot"}' in middle
    )
    assert middle.endswith(
        '"optional":false,"name":"io.debezium.connector.postgresql.Source","version":1,"field":"source"},'
        '{"type":"struct","fields":[{"type":"string","optional":false,"field":"id"},'
        '{"type":"int64","optional":false,"field":"total_order"},'
        '{"type":"int64","optional":false,"field":"data_collection_order"}],"optional":true,"name":"event.block",'
        '"version":1,"field":"transaction"},{"type":"string","optional":false,"field":"op"},'
        '{"type":"int64","optional":true,"field":"ts_ms"},{"type":"int64","optional":true,"field":"ts_us"},'
        '{"type":"int64","optional":true,"field":"ts_ns"}],"optional":false,"name":"shop.public.orders.Envelope",'
        '"version":2}'
    )
    assert text[text.index('"payload":') :].startswith(
        '"payload":{"before":null,"after":' + ORDER + ',"source":{"version":'
    )
    assert text.endswith('"op":"c","ts_ms":1790000001234,"ts_us":1790000001234567,"ts_ns":1790000001234567890}}')
    assert record.key.decode() == '{"schema":' + KEY_SCHEMA + ',"payload":{"id":7}}'


def test_without_schemas_there_is_the_payload_only(kit):
    make = maker(kit)
    with_schemas = make(JSON, JSON).encode([kit.change("c", after=kit.ROW)])[0]
    bare = make().encode([kit.change("c", after=kit.ROW)])[0]
    assert json.loads(bare.value) == json.loads(with_schemas.value)["payload"]
    assert bare.key == b'{"id":7}'
    assert bare.hash == with_schemas.hash == murmur2(b'{"id":7}') & 0x7FFFFFFF


@given(
    row=st.tuples(
        st.integers(-(2**63), 2**63 - 1),
        st.none() | st.integers(-(2**31), 2**31 - 1),
        st.none() | st.text(max_size=20),
        st.none() | st.binary(max_size=8),
        st.none() | st.binary(max_size=20),
    ),
    op=st.sampled_from("crud"),
)
def test_the_json_of_a_change_says_what_its_avro_says(kit, row, op):
    images = {"before": row if op in "ud" else None, "after": None if op == "d" else row}
    change = kit.change(op, **images)
    expected = json.loads(
        json.dumps(change_value(change, kit.CLOCK_NS), default=lambda data: base64.b64encode(data).decode())
    )
    assert json.loads(maker(kit)().encode([change])[0].value) == expected


def test_deletes_have_a_tombstone_unless_it_is_not_wanted(kit):
    change = kit.change("d", before=kit.ROW)
    first, tombstone = maker(kit)().encode([change])
    assert json.loads(first.value)["op"] == "d"
    assert tombstone == first._replace(value=None)
    assert len(maker(kit, tombstones=False)().encode([change])) == 1


def test_json_registers_nothing(kit):
    form = RecordFormat(JSON, JSON)
    records = make_encoder(form, "shop", refuse).encode([kit.change("c", after=kit.ROW)] * 2)
    assert len(records) == 2


def test_keys_in_json_leave_avro_values_as_they_are(kit):
    log, changes = SchemaLog(), [kit.change("u", before=kit.ROW, after=kit.ROW), kit.change("d", before=kit.ROW)]
    mixed = maker(kit, log)(PLAIN, AvroFormat()).encode(changes)
    plain = kit.encoder(SchemaLog()).encode(changes)
    assert [record.value for record in mixed] == [record.value for record in plain]
    assert {record.key for record in mixed} == {b'{"id":7}'}
    assert list(log.subjects()) == ["shop.public.orders-value"]


def test_avro_keys_beside_json_values_are_registered_alone(kit):
    log = SchemaLog()
    mixed = maker(kit, log)(AvroFormat(), PLAIN).encode([kit.change("c", after=kit.ROW)])[0]
    plain = kit.encoder(SchemaLog()).encode([kit.change("c", after=kit.ROW)])[0]
    assert (mixed.key, mixed.hash) == (plain.key, plain.hash)
    assert list(log.subjects()) == ["shop.public.orders-key"]


def test_a_key_change_names_the_other_key_in_json(kit):
    gone = kit.change("d", before=kit.ROW, other_key=(8,))
    come = kit.change("c", after=(8, *kit.ROW[1:]), other_key=(7,))
    records = maker(kit)(PLAIN, AvroFormat()).encode([gone, come])
    assert [record.headers for record in records] == [
        [("__debezium.newkey", b'{"id":8}')], [("__debezium.newkey", b'{"id":8}')], [("__debezium.oldkey", b'{"id":7}')]
    ]  # fmt: skip


def test_a_header_has_the_other_key_without_a_schema_as_connects_converter_of_headers_writes_it(kit):
    """Connect's SimpleHeaderConverter would take the schema for a part of the key, which ends Debezium's JDBC sink."""
    gone = kit.change("d", before=kit.ROW, other_key=(8,))
    record = maker(kit)(ConnectJsonFormat(), PLAIN).encode([gone])[0]
    assert set(json.loads(record.key)) == {"schema", "payload"}
    assert record.headers == [("__debezium.newkey", b'{"id":8}')]


def test_unsent_values_are_placeholders_and_named_in_the_header(kit):
    change = kit.change("u", after=(7, 3, None, None, None), unchanged=(2, 4))
    record = maker(kit)().encode([change])[0]
    after = json.loads(record.value)["after"]
    assert after["note"] == UNAVAILABLE
    assert base64.b64decode(after["photo"]) == UNAVAILABLE.encode()
    assert record.headers == [("cdc.unchanged", b"2,4")]


def test_a_table_without_a_key_has_no_key_and_no_tombstone(kit):
    table = replace(kit.ORDERS, key=())
    records = maker(kit)().encode([kit.change("c", table, after=kit.ROW), kit.change("d", table, before=kit.ROW)])
    assert [(record.key, record.hash) for record in records] == [(None, None)] * 2


def test_required_columns_of_a_key_only_image_have_their_zero(kit):
    columns = (Column("id", "int", False), Column("n", "int", False, 5), Column("t", "string", False))
    table = Table(("public", "t"), 1, columns, (0,), kit.SOURCE)
    record = maker(kit)(JSON, JSON).encode([kit.change("d", table, before=(1, None, None))])[0]
    assert json.loads(record.value)["payload"]["before"] == {"id": 1, "n": 5, "t": ""}
    schema = json.loads(record.value)["schema"]
    assert schema["fields"][0]["fields"][1] == {"type": "int32", "optional": False, "default": 5, "field": "n"}


def test_names_are_escaped_in_avro_and_not_in_json(kit):
    table = Table(("public", "t"), 1, (Column("a b", "int", False), Column("é", "int")), (0,), kit.SOURCE)
    change = kit.change("c", table, after=(1, 2))
    record = maker(kit)(JSON, PLAIN).encode([change])[0]
    assert json.loads(record.value)["after"] == {"a b": 1, "é": 2}
    assert json.loads(record.key)["payload"] == {"a b": 1}
    assert json.loads(maker(kit)(PLAIN, PLAIN, FlatFormat()).encode([change])[0].value) == {"a b": 1, "é": 2}


def test_schema_names_are_not_escaped_in_json(kit):
    table = replace(kit.ORDERS, path=("public", "my-orders"))
    change = kit.change("c", table, after=kit.ROW)
    record = maker(kit)(JSON, JSON).encode([change])[0]
    value, key = json.loads(record.value)["schema"], json.loads(record.key)["schema"]
    names = [value["name"], value["fields"][0]["name"], value["fields"][1]["name"], key["name"]]
    assert names == [f"shop.public.my-orders.{part}" for part in ("Envelope", "Value", "Value", "Key")]
    flat = maker(kit)(JSON, JSON, FlatFormat()).encode([change])[0]
    assert json.loads(flat.value)["schema"]["name"] == "shop.public.my-orders.Value"


def test_logical_messages_keep_their_form(kit):
    columns = (Column("prefix", "string", optional=False), Column("content", "bytes", optional=False))
    table = Table(MESSAGE_PATH, 0, columns, (0,), kit.SOURCE)
    for flat in (None, FlatFormat()):
        record = maker(kit)(PLAIN, JSON, flat).encode([kit.change("m", table, after=("p", b"hi"))])[0]
        found = json.loads(record.value)
        assert (record.topic, record.key) == ("shop.message", b'{"prefix":"p"}')
        assert found["payload"]["message"] == {"prefix": "p", "content": "aGk="}
        assert [field["field"] for field in found["schema"]["fields"]] == list(found["payload"])
    log = SchemaLog()
    record = maker(kit, log)(PLAIN, AvroFormat()).encode([kit.change("m", table, after=("p", b"hi"))])[0]
    assert RecordDecoder(log).decode(record.value)["message"] == {"prefix": "p", "content": b"hi"}


def test_a_value_that_does_not_fit_is_named_by_its_column(kit):
    with pytest.raises(CdcError) as caught:
        maker(kit)().encode([kit.change("c", after=(7, "three", None, None, None))])
    assert caught.value.where["column"] == "quantity"
    assert "three" not in str(caught.value)


# The row itself


def flat_of(deletes="tombstone", trailing=False, fields="", headers=""):
    def added(text):
        return tuple(AddedField.parse(item, "__") for item in text.split(",") if item)

    return FlatFormat(deletes, trailing, added(fields), added(headers))


def test_a_row_alone_has_the_columns_and_nothing_else(kit):
    record = maker(kit)(JSON, JSON, flat_of()).encode([kit.change("c", after=kit.ROW)])[0]
    assert record.value.decode() == '{"schema":' + ORDER_SCHEMA + '},"payload":' + ORDER + "}"


def test_added_fields_follow_the_columns_and_the_mark_of_deletion_is_last(kit):
    flat = flat_of("rewrite", fields="op,table,source.ts_ms,lsn:position,transaction.id,ts_ms")
    record = maker(kit)(PLAIN, JSON, flat).encode([kit.change("r", after=kit.ROW)])[0]
    found = json.loads(record.value)
    assert list(found["payload"].items())[5:] == [
        ("__op", "r"), ("__table", "orders"), ("__source_ts_ms", 1_790_000_000_000), ("__position", 25_000_000_000),
        ("__transaction_id", None), ("__ts_ms", 1_790_000_001_234), ("__deleted", "false"),
    ]  # fmt: skip
    assert found["schema"]["fields"][5:7] == [
        {"type": "string", "optional": True, "field": "__op"}, {"type": "string", "optional": True, "field": "__table"}
    ]  # fmt: skip
    assert found["schema"]["fields"][-1] == {"type": "string", "optional": True, "field": "__deleted"}
    assert (found["schema"]["optional"], found["schema"]["name"]) == (False, "shop.public.orders.Value")


DELETED = {"id": 7, "quantity": 3, "note": "gift", "price": "BNI=", "photo": "/9g="}


@pytest.mark.parametrize(
    ("flat", "values"),
    [
        (flat_of("drop"), []),
        (flat_of("drop", trailing=True), [None]),
        (flat_of("tombstone"), [None]),
        (flat_of("tombstone", trailing=True), [None, None]),
        (flat_of("rewrite"), [{**DELETED, "__deleted": "true"}]),
        (flat_of("rewrite", trailing=True), [{**DELETED, "__deleted": "true"}, None]),
        (flat_of("rewrite", fields="op"), [{**DELETED, "__op": "d", "__deleted": "true"}]),
    ],
)
def test_a_deletion_becomes_what_the_mode_says(kit, flat, values):
    records = maker(kit)(PLAIN, PLAIN, flat).encode([kit.change("d", before=kit.ROW)])
    assert [record.value and json.loads(record.value) for record in records] == values
    assert {record.key for record in records} <= {b'{"id":7}'}


def test_headers_carry_fields_and_a_tombstone_the_operation_only(kit):
    flat = flat_of("rewrite", trailing=True, headers="op,db,xmin")
    first, tombstone = maker(kit)(PLAIN, PLAIN, flat).encode([kit.change("d", before=kit.ROW)])
    assert first.headers == [("__op", b"d"), ("__db", b"shop")]
    assert tombstone.headers == [("__op", b"d")]


def test_a_truncate_has_no_row_and_no_record(kit):
    assert maker(kit)(PLAIN, PLAIN, flat_of()).encode([kit.change("t")]) == []


def test_a_flat_row_in_avro_is_registered_and_decodes(kit):
    log = SchemaLog()
    flat = flat_of("rewrite", fields="op,snapshot,lsn")
    encoder = maker(kit, log)(AvroFormat(), AvroFormat(), flat)
    records = encoder.encode([kit.change("c", after=kit.ROW), kit.change("d", before=kit.ROW)])
    rows = [RecordDecoder(log).decode(record.value) for record in records]
    names = ("id", "quantity", "note", "price", "photo")
    common = {**dict(zip(names, kit.ROW, strict=True)), "__snapshot": "false", "__lsn": 25_000_000_000}
    assert rows == [
        {**common, "__op": "c", "__deleted": "false"}, {**common, "__op": "d", "__deleted": "true"}
    ]  # fmt: skip
    stored = json.loads(log.by_id(unframe(records[0].value)[0]).text)
    assert stored["name"] == "shop.public.orders.Value"
    wider = replace(kit.ORDERS, columns=(*kit.ORDERS.columns, Column("more", "int", column_id=6)))
    encoder.encode([kit.change("c", wider, after=(*kit.ROW, 1))])
    assert len(log.versions("shop.public.orders-value")) == 2


def test_a_field_that_is_not_there_is_refused(kit):
    for flat in (flat_of(fields="nothing"), flat_of(headers="nothing")):
        with pytest.raises(CdcError) as caught:
            maker(kit)(PLAIN, PLAIN, flat).encode([kit.change("c", after=kit.ROW)])
        assert caught.value.code == "schema.unknown_field"


@pytest.mark.parametrize("value", [AvroFormat(), PLAIN])
def test_an_added_field_never_hides_a_column(kit, value):
    flat = FlatFormat(fields=(AddedField("", "op", "quantity"),))
    with pytest.raises(CdcError) as caught:
        maker(kit)(PLAIN, value, flat).encode([kit.change("c", after=kit.ROW)])
    assert (caught.value.code, caught.value.where["name"]) == ("schema.name_conflict", "quantity")


def test_added_names_are_escaped_in_avro(kit):
    log = SchemaLog()
    flat = FlatFormat(fields=(AddedField("", "op", "cdc-op"),))
    record = maker(kit, log)(AvroFormat(), AvroFormat(), flat).encode([kit.change("c", after=kit.ROW)])[0]
    assert list(RecordDecoder(log).decode(record.value).values())[-1] == "c"


@pytest.mark.parametrize("text", ["", "a.b", "op:", "source.", "before.id", "op:a:b", "a b"])
def test_only_fields_of_the_envelope_can_be_named(text):
    with pytest.raises(ValueError, match="no field name"):
        AddedField.parse(text, "__")


# Topics


def test_a_route_renames_what_it_matches_and_no_two_tables_share_a_topic(kit):
    route = RegexRoute(compiled(r"shop\.public\.(.*)"), "$1")
    log = SchemaLog()
    encoder = maker(kit, log)(AvroFormat(), AvroFormat(), None, (route,))
    assert encoder.encode([kit.change("c", after=kit.ROW)])[0].topic == "orders"
    assert list(log.subjects()) == ["orders-key", "orders-value"]
    other = replace(kit.ORDERS, path=("sales", "orders"))
    assert encoder.encode([kit.change("c", other, after=kit.ROW)])[0].topic == "shop.sales.orders"
    one = maker(kit)(PLAIN, PLAIN, None, (RegexRoute(compiled(r"shop\..*"), "all"),))
    one.encode([kit.change("c", after=kit.ROW)])
    with pytest.raises(CdcError) as caught:
        one.encode([kit.change("c", other, after=kit.ROW)])
    assert caught.value.code == "schema.topic_taken"


ALL = (RegexRoute(compiled(r"shop\..*"), "all"),)


def shared(kit, log, wire=PLAIN):
    """An encoder that brings all tables into one topic."""
    return make_encoder(
        RecordFormat(wire, wire, None, ALL, shared=True), "shop", register_in_memory(log), clock_ns=lambda: kit.CLOCK_NS
    )


@pytest.mark.parametrize("wire", [PLAIN, AvroFormat()], ids=["json", "avro"])
def test_tables_of_the_same_columns_share_a_topic_where_truncates_are_left_out(kit, wire):
    log = SchemaLog()
    encoder, other = shared(kit, log, wire), replace(kit.ORDERS, path=("sales", "orders"), table_id=77)
    tables = (kit.ORDERS, other, kit.ORDERS, replace(other), kit.ORDERS)
    records = [encoder.encode([kit.change("c", table, after=kit.ROW)])[0] for table in tables]
    assert {record.topic for record in records} == {"all"}
    # They take turns without a new schema for each turn.
    assert encoder.version == 2
    assert encoder.path_of("all") == ()
    assert len({record.key for record in records}) == (1 if wire == PLAIN else 2)
    assert len({record.hash for record in records}) == 1
    if wire != PLAIN:
        assert [len(log.versions(subject)) for subject in sorted(log.subjects())] == [2, 2]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda c: c[:-1], True),
        (lambda c: (*c[:-1], replace(c[-1], type="boolean")), True),
        (lambda c: (*c[:-1], replace(c[-1], optional=not c[-1].optional)), True),
        (lambda c: (*c[:-1], replace(c[-1], column_id=c[-1].column_id + 40)), True),
        (lambda c: (*c[:-1], replace(c[-1], default=None)), False),
    ],
)
def test_a_table_with_other_columns_is_kept_out_of_a_shared_topic_by_name(kit, change, named):
    encoder = shared(kit, SchemaLog())
    encoder.encode([kit.change("c", after=kit.ROW)])
    other = replace(kit.ORDERS, path=("sales", "orders"), columns=change(kit.ORDERS.columns))
    if not named:
        encoder.plan(other, kit.change("c", other, after=kit.ROW).position)
        return
    with pytest.raises(CdcError) as caught:
        encoder.plan(other, kit.change("c", after=kit.ROW).position)
    place = caught.value.where
    assert (caught.value.code, caught.value.kind) == ("schema.columns_differ", "data")
    assert (place["topic"], place["table"], place["other"]) == ("all", "sales.orders", "public.orders")
    assert place["columns"] == kit.ORDERS.columns[-1].name
    # It is nothing that a later record would find: the table that is there goes on.
    assert encoder.encode([kit.change("c", after=kit.ROW)])[0].topic == "all"
    with pytest.raises(CdcError, match=r"schema\.columns_differ"):
        encoder.plan(replace(other, key=()), kit.change("c", after=kit.ROW).position)
