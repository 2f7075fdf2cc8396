"""Changes of tables through a chain of transforms into records."""

import json
from dataclasses import replace

import pytest
from cdcworker.connectors.transform_chain.config import chain_of, format_of
from cdcworker.connectors.transform_chain.encoder import WRITERS_MAX, TransformEncoder, encoder_of
from cdcworker.connectors.transforms.avro_form import JSON_WRITTEN, REGISTERED, avro_of, schema_of
from cdcworker.connectors.transforms.data import ConnectSchema
from cdcworker.schemas.avro import canonical, murmur2, unframe
from cdcworker.schemas.change import Column, PlainRecord
from cdcworker.schemas.connect_json import connect_schema
from cdcworker.schemas.decode import RecordDecoder
from cdcworker.schemas.encode import Encoder
from cdcworker.schemas.envelope import MESSAGE_PATH
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.format_encoder import make_encoder
from cdcworker.schemas.log import SchemaLog, register_in_memory

from tests.unit.connectors.postgres.type_matrix import schemas
from tests.unit.schemas.conftest import ORDERS, ROW, Kit

PACKAGE = "org.apache.kafka.connect.transforms."
PLAIN = {f"{side}.converter": "JsonConverter" for side in ("key", "value")} | {
    f"{side}.converter.schemas.enable": "false" for side in ("key", "value")
}
SCHEMAS = {f"{side}.converter": "JsonConverter" for side in ("key", "value")}
UNWRAP = {"transforms.u.type": "io.debezium.transforms.ExtractNewRecordState"}
IDLE = {"transforms": "i", "transforms.i.type": f"{PACKAGE}DropHeaders", "transforms.i.headers": "no-such-header"}
"""A transform that changes nothing."""
BEFORE = (7, 2, None, None, None)


def encoder(config, log=None, **options):
    register = register_in_memory(SchemaLog() if log is None else log)
    return encoder_of(chain_of(config), format_of(config), "shop", register, clock_ns=lambda: Kit.CLOCK_NS, **options)


MESSAGES = replace(
    ORDERS, path=MESSAGE_PATH, key=(0,),
    columns=(Column("prefix", "string", optional=False), Column("content", "bytes", optional=False)),
)  # fmt: skip
ODD = replace(
    ORDERS, path=("public", "odd-1"), key=(1,),
    columns=(Column("unit price", "long", default=5), Column("the id", "string", optional=False)),
)  # fmt: skip


def changes(table=ORDERS):
    short = Kit.change("c", table, 6, after=ROW)
    del short.source["snapshot"], short.source["xmin"]
    return [
        short,
        Kit.change("m", MESSAGES, 7, after=("p", b"content")),
        Kit.change("u", ODD, 8, before=(None, None), after=(None, "a")),
        Kit.change("c", table, 0, after=ROW),
        Kit.change("u", table, 1, before=BEFORE, after=(7, None, "x", None, None), unchanged=(4,)),
        Kit.change("d", table, 2, before=ROW, other_key=(8,)),
        Kit.change("c", table, 3, after=(8, 1, None, None, None), other_key=(7,)),
        Kit.change("t", table, 4),
        Kit.change("r", table, 5, after=ROW, transaction={"id": "1:2", "total_order": 1, "data_collection_order": 1}),
    ]


def one(kind, **keys):
    config = {"transforms": "t", "transforms.t.type": PACKAGE + kind}
    return {**config, **{f"transforms.t.{name.replace('_', '.')}": value for name, value in keys.items()}}


def test_without_transforms_the_default_form_keeps_its_encoder():
    assert type(encoder({})) is Encoder
    assert type(encoder({"transforms": "u", **UNWRAP})) is not TransformEncoder
    assert type(encoder(IDLE)) is TransformEncoder


@pytest.mark.parametrize("wire", [{}, PLAIN, SCHEMAS], ids=["avro", "plain", "schemas"])
@pytest.mark.parametrize("form", [{}, {"transforms.u.add.fields": "op", "transforms.u.add.headers": "op", **UNWRAP}], ids=["envelope", "flat"])  # fmt: skip
def test_a_transform_that_changes_nothing_leaves_each_byte_as_it_was(wire, form):
    config = {**IDLE, **wire, **form, "transforms": "u,i" if form else "i"}
    if form:
        config["transforms.u.delete.tombstone.handling.mode"] = "rewrite-with-tombstone"
    logs = SchemaLog(), SchemaLog()
    plain = {key: value for key, value in config.items() if not key.startswith("transforms.i.")}
    plain["transforms"] = "u" if form else ""
    register = register_in_memory(logs[1])
    expected = make_encoder(format_of(plain), "shop", register, clock_ns=lambda: Kit.CLOCK_NS).encode(changes())
    assert encoder(config, logs[0]).encode(changes()) == expected
    assert logs[0].subjects() == logs[1].subjects()


def test_schemas_of_every_type_come_back_as_they_were():
    for name, kind in (
        (name, kind) for name, kind in schemas() if not name[-1].isdigit()
    ):  # former keys are not written
        assert canonical(avro_of(schema_of(kind), REGISTERED)) == canonical(kind), name
        assert connect_schema(avro_of(schema_of(kind), JSON_WRITTEN))["type"] == "struct"


def test_fields_are_left_out_of_flat_rows_and_registered_so():
    log = SchemaLog()
    config = {"transforms": "u,t", **UNWRAP} | {
        **one("ReplaceField$Value", exclude="photo", renames="note:remark"),
        "transforms": "u,t",
    }
    record = encoder(config, log).encode([Kit.change("c", after=ROW)])[0]
    schema = log.by_id(unframe(record.value)[0]).schema
    assert [field["name"] for field in schema["fields"]] == ["id", "quantity", "remark", "price"]
    assert [field["cdc.colid"] for field in schema["fields"]] == [1, 2, 3, 4]
    assert RecordDecoder(log).decode(record.value)["remark"] == "gift"
    assert record.topic == "shop.public.orders"


def test_a_masked_uuid_is_no_uuid_to_readers_of_avro():
    log = SchemaLog()
    uuid = {"type": "string", "connect.version": 1, "connect.name": "io.debezium.data.Uuid"}
    known = {**uuid, "logicalType": "uuid"}
    table = replace(ORDERS, columns=(Column("id", "long", optional=False), Column("a", known), Column("b", known)))
    config = one("MaskField$Value", fields="a", replacement="***") | {"transforms": "u,t", **UNWRAP}
    row = (1, "0b9a5d3e-6f0a-4d52-8f11-c5f3c4a1f0a7", "0b9a5d3e-6f0a-4d52-8f11-c5f3c4a1f0a7")
    record = encoder(config, log).encode([Kit.change("c", table, after=row)])[0]
    fields = log.by_id(unframe(record.value)[0]).schema["fields"]
    assert [field["type"] for field in fields[1:]] == [["null", uuid], ["null", known]]
    assert RecordDecoder(log).decode(record.value)["a"] == "***"


def test_a_primitive_key_and_its_partition():
    log = SchemaLog()
    record = encoder(one("ExtractField$Key", field="id"), log).encode([Kit.change("c", after=ROW)])[0]
    assert log.by_id(unframe(record.key)[0]).schema == "long"
    assert record.hash == murmur2(record.key[5:]) & 0x7FFFFFFF
    plain = encoder({**one("ExtractField$Key", field="id"), **PLAIN}).encode([Kit.change("c", after=ROW)])[0]
    assert plain.key == b"7"


def test_a_partition_that_a_transform_chose_takes_the_place_of_the_key_s():
    kind = "io.debezium.transforms.partitions.PartitionRouting"
    keys = {"partition.payload.fields": "change.id", "partition.topic.num": "5"}
    config = {"transforms": "t", "transforms.t.type": kind, **{f"transforms.t.{name}": keys[name] for name in keys}}
    made = encoder(config).encode([Kit.change("c", after=ROW), Kit.change("d", before=ROW)])
    assert [record.hash for record in made] == [2, 2, murmur2(made[2].key[5:]) & 0x7FFFFFFF]


def test_tombstones_pass_the_chain_and_may_be_left_out():
    config = one("Filter", predicate="p") | {"predicates": "p", "predicates.p.type": "RecordIsTombstone"}
    made = encoder({**config, **PLAIN}).encode([Kit.change("d", before=ROW)])
    assert len(made) == 1
    assert json.loads(made[0].value)["op"] == "d"
    assert len(encoder({**IDLE, **PLAIN}).encode([Kit.change("d", before=ROW)])) == 2


def test_all_records_of_a_batch_may_be_left_out():
    assert encoder(one("Filter")).encode(changes()) == []


def test_a_null_with_a_schema_is_a_tombstone_in_avro_and_a_record_in_json():
    config = one("ExtractField$Value", field="after")
    assert encoder(config).encode([Kit.change("d", before=ROW)])[0].value is None
    assert encoder({**config, **PLAIN}).encode([Kit.change("d", before=ROW)])[0].value == b"null"
    text = encoder({**config, **SCHEMAS}).encode([Kit.change("d", before=ROW)])[0].value
    assert json.loads(text)["payload"] is None


def test_a_topic_by_the_time_is_registered_under_its_name():
    log = SchemaLog()
    record = encoder(one("TimestampRouter"), log).encode([Kit.change("c", after=ROW)])[0]
    assert record.topic == "shop.public.orders-20260921"
    assert set(log.subjects()) == {f"{record.topic}-key", f"{record.topic}-value"}


def test_headers_of_fields_are_text():
    config = one("HeaderFrom$Value", fields="op,ts_ms,before", headers="o,t,b", operation="copy")
    record = encoder({**config, **PLAIN}).encode([Kit.change("c", after=ROW)])[0]
    assert record.headers == [("o", b"c"), ("t", b"1790000001234"), ("b", None)]


def test_an_error_holds_the_table_and_tells_no_value():
    made = encoder(one("Cast$Value", spec="op:int8"))
    with pytest.raises(CdcError) as caught:
        made.encode([Kit.change("c", after=(7, 3, "hush-hush", None, None))])
    error = caught.value
    assert (error.code, error.kind, error.where["table"], error.where["transform"]) == (
        "transform.failed", "data", "public.orders", "t",
    )  # fmt: skip
    assert "hush" not in str(error)


@pytest.mark.parametrize("topic", ["a b", "x" * 250, "."])
def test_a_topic_name_that_kafka_does_not_allow_holds_the_table(topic):
    with pytest.raises(CdcError, match="does not allow") as caught:
        encoder(one("TimestampRouter", topic_format=topic)).encode([Kit.change("c", after=ROW)])
    assert caught.value.where["table"] == "public.orders"


def test_two_tables_share_a_topic_only_where_truncates_are_left_out():
    other = replace(ORDERS, path=("public", "others"))
    config = one("TimestampRouter", topic_format="all")
    both = [Kit.change("c", after=ROW), Kit.change("c", other, after=ROW)]
    with pytest.raises(CdcError, match="the topic is another table's"):
        encoder(config).encode(both)
    made = encoder({**config, "skipped.operations": "t"})
    assert [record.topic for record in made.encode(both)] == ["all", "all"]
    assert made.path_of("all") == ()


def test_the_table_of_a_topic_is_known():
    made = encoder(one("TimestampRouter", topic_format="elsewhere"))
    made.encode([Kit.change("c", after=ROW)])
    assert made.path_of("elsewhere") == ("public", "orders")


def test_a_map_has_no_form_in_avro():
    table = replace(ORDERS, key=())
    config = {"transforms": "h,e"} | {
        "transforms.h.type": f"{PACKAGE}HoistField$Value", "transforms.h.field": "x",
        "transforms.e.type": f"{PACKAGE}ExtractField$Value", "transforms.e.field": "x",
    }  # fmt: skip
    assert encoder({**config, **PLAIN}).encode([Kit.change("c", table, after=ROW)])[0].key is None
    hoisted = encoder(one("HoistField$Value", field="x"))
    with pytest.raises(CdcError, match="cannot be written as Avro"):
        hoisted.encode([Kit.change("d", before=ROW)])


def test_a_table_with_another_structure_is_registered_anew_and_once():
    calls = []
    register = register_in_memory(SchemaLog())

    def counted(registrations):
        calls.append([registration.subject for registration in registrations])
        return register(registrations)

    config = one("InsertField$Value", topic_field="topic")
    made = encoder_of(chain_of(config), format_of(config), "shop", counted, clock_ns=lambda: Kit.CLOCK_NS)
    wider = replace(ORDERS, columns=(*ORDERS.columns, Column("more", "int", column_id=6)))
    for table, row in ((ORDERS, ROW), (ORDERS, ROW), (wider, (*ROW, 1)), (ORDERS, ROW)):
        made.encode([Kit.change("c", table, after=row)])
    assert calls == [["shop.public.orders-key", "shop.public.orders-value"]] * 3


def test_schemas_of_many_tables_are_compiled_and_registered_once():
    calls = []
    register = register_in_memory(SchemaLog())

    def counted(registrations):
        calls.append(registrations)
        return register(registrations)

    config = one("InsertField$Value", topic_field="topic")
    made = encoder_of(chain_of(config), format_of(config), "shop", counted, clock_ns=lambda: Kit.CLOCK_NS)
    tables = [replace(ORDERS, path=("public", f"orders{number}")) for number in range(300)]
    for _ in range(2):
        made.encode([Kit.change("c", table, after=ROW) for table in tables])
    assert len(calls) == len(tables)


def test_of_topics_with_the_time_in_their_names_only_the_last_keep_writers():
    clock = [Kit.CLOCK_NS]
    config = one("TimestampRouter")
    made = encoder_of(
        chain_of(config), format_of(config), "shop", register_in_memory(SchemaLog()), clock_ns=lambda: clock[0]
    )
    for _ in range(WRITERS_MAX):
        (record,) = made.encode([Kit.change("c", after=ROW)])
        clock[0] += 86_400 * 10**9
    assert record.topic == "shop.public.orders-20270603"
    assert len(made.plan(ORDERS, Kit.change("c").position).writers) <= WRITERS_MAX


def test_many_topics_of_a_table_are_registered_once_each():
    calls, register = [], register_in_memory(SchemaLog())
    config = {"transforms": "t", "transforms.t.type": "io.debezium.transforms.ContentBasedRouter"}
    config |= {"transforms.t.language": "cel", "transforms.t.topic.expression": "'o.' + string(value.after.id)"}
    made = encoder_of(
        chain_of(config), format_of(config), "shop", lambda wanted: [calls.append(wanted), register(wanted)][1],
        clock_ns=lambda: Kit.CLOCK_NS,
    )  # fmt: skip
    rows = [Kit.change("c", ORDERS, number, after=(number % 100, *ROW[1:])) for number in range(200)]
    records = made.encode(rows)
    assert [record.topic for record in records] == [f"o.{number % 100}" for number in range(200)]
    assert len(calls) == 100
    assert len({record.value[:5] for record in records}) == 1


def test_records_beside_those_of_tables_are_not_transformed():
    heart = replace(
        ORDERS, path=("heartbeat",), columns=(Column("serverName", "string", optional=False), Column("ts_ms", "long", optional=False)),
        plain=PlainRecord("__debezium-heartbeat.shop", "io.debezium.ServerNameKey", "io.debezium.Heartbeat", of_key=False),
    )  # fmt: skip
    made = encoder({**one("Filter"), **PLAIN}).encode([Kit.change("m", heart, after=("shop", 5))])
    assert [(record.topic, record.value) for record in made] == [("__debezium-heartbeat.shop", b'{"ts_ms":5}')]


def test_a_struct_without_a_name_has_connects_name():
    schema = ConnectSchema("struct", fields=(("a b", ConnectSchema("int8")),))
    kind = avro_of(schema, REGISTERED)
    assert (kind["namespace"], kind["name"]) == ("io.confluent.connect.avro", "ConnectDefault")
    assert kind["fields"] == [{"name": "a_u0020b", "type": {"type": "int", "connect.type": "int8"}}]
    assert "name" not in connect_schema(avro_of(schema, JSON_WRITTEN))
