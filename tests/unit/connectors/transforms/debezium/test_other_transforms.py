"""Logical topics, changed columns, partitions, headers as fields, and messages as events."""

import pytest
from cdcworker.connectors.transforms.data import DATE, DECIMAL, TIMESTAMP, ConnectSchema, Header, struct
from cdcworker.connectors.transforms.debezium.partition_routing import java_hash
from cdcworker.schemas.errors import CdcError

PACKAGE = "io.debezium.transforms."
ORDERS = struct(
    ("id", ConnectSchema("int32")),
    ("status", ConnectSchema("string", optional=True)),
    ("tenant", ConnectSchema("string", optional=True)),
    name="shop.public.orders_1.Value",
    optional=True,
)


# --- logical topics


def routed(kit, record, kind="ByLogicalTableRouter", **more):
    keys = {"topic_regex": r"(.*)\.orders_(.*)", "topic_replacement": "$1.orders", **more}
    return kit.applied(PACKAGE + kind, record, **keys)


def shard(envelopes, topic="shop.public.orders_1", op="c"):
    record = envelopes.record(ORDERS, op, after={"id": 1, "status": "new"})
    record.topic, record.key = topic, {"id": 1}
    record.key_schema = struct(("id", ConnectSchema("int32")), name=f"{topic}.Key")
    return record


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("ByLogicalTableRouter", "__dbz__physicalTableIdentifier"),
        ("ToLogicalTopicRouter", "__dbz__sourceIdentifier"),
    ],
)
def test_tables_come_into_one_topic_and_their_keys_name_them(kit, envelopes, kind, field):
    made = routed(kit, shard(envelopes), kind)
    assert (made.topic, made.key) == ("shop.public.orders", {"id": 1, field: "shop.public.orders_1"})
    assert made.key_schema.name == "shop.public.orders.Key"
    assert made.key_schema.by_name[field] == ConnectSchema("string")
    assert made.value_schema.name == "shop.public.orders.Envelope"
    assert {made.value_schema.by_name[side].name for side in ("before", "after")} == {"shop.public.orders.Value"}
    assert made.value_schema.by_name["after"].optional
    assert made.value["after"] == {"id": 1, "status": "new"}


def test_the_table_s_name_in_keys_can_be_shorter_or_left_out(kit, envelopes):
    shorter = {"key_field_name": "shard", "key_field_regex": r".*_(\d+)", "key_field_replacement": "shard-$1"}
    assert routed(kit, shard(envelopes), **shorter).key == {"id": 1, "shard": "shard-1"}
    other = routed(kit, shard(envelopes, "shop.public.orders_x"), **shorter)
    assert other.key == {"id": 1, "shard": "shop.public.orders_x"}
    assert routed(kit, shard(envelopes), key_enforce_uniqueness="false").key == {"id": 1}


def test_a_topic_that_does_not_match_stays_and_a_tombstone_goes_with_its_key(kit, envelopes):
    record = shard(envelopes, "shop.public.items")
    assert routed(kit, record) is record
    tombstone = shard(envelopes).with_value(None, None)
    made = routed(kit, tombstone)
    assert (made.topic, made.value, made.key["__dbz__physicalTableIdentifier"]) == (
        "shop.public.orders", None, "shop.public.orders_1",
    )  # fmt: skip


def test_a_field_that_the_key_has_already_is_an_error(kit, envelopes):
    with pytest.raises(CdcError, match="field name duplication id"):
        routed(kit, shard(envelopes), key_field_name="id")


# --- changed columns


def test_an_update_names_what_it_changed(kit, envelopes):
    record = envelopes.record(ORDERS, "u", {"id": 1, "status": "paid", "tenant": None}, {"id": 1, "status": "new"})
    keys = {"header_changed_name": "Changed", "header_unchanged_name": "Unchanged"}
    made = kit.applied(f"{PACKAGE}ExtractChangedRecordState", record, **keys)
    assert [(header.key, header.value) for header in made.headers] == [
        ("Changed", ["status"]),
        ("Unchanged", ["id", "tenant"]),
    ]
    assert made.headers[0].schema.type == "array"
    only = kit.applied(f"{PACKAGE}ExtractChangedRecordState", record, header_changed_name="Changed")
    assert [header.key for header in only.headers] == ["Changed"]


def test_without_both_images_the_headers_are_there_and_empty(kit, envelopes):
    record = envelopes.record(ORDERS, "c", {"id": 1})
    made = kit.applied(f"{PACKAGE}ExtractChangedRecordState", record, header_changed_name="Changed")
    assert made.headers[0].value == []
    tombstone = kit.value(None, None)
    assert kit.applied(f"{PACKAGE}ExtractChangedRecordState", tombstone, header_changed_name="Changed") is tombstone


# --- partitions


def partition(kit, record, fields, count="1000"):
    keys = {"partition_payload_fields": fields, "partition_topic_num": count}
    return kit.applied(f"{PACKAGE}partitions.PartitionRouting", record, **keys).partition


def test_fields_decide_on_the_partition(kit, envelopes):
    row = {"id": 7, "status": "new", "tenant": "acme"}
    created, deleted = envelopes.record(ORDERS, "c", row), envelopes.record(ORDERS, "d", None, row)
    assert partition(kit, created, "after.tenant") == 346  # "acme".hashCode() is 2988346
    assert partition(kit, created, "change.tenant") == partition(kit, deleted, "change.tenant") == 346
    assert (
        partition(kit, created, "after.id, source.table") == (7 - 1005526083 & 0x7FFFFFFF) % 1000
    )  # with "outbox".hashCode()
    assert partition(kit, deleted, "after.tenant") is None
    assert partition(kit, created, "no.such.field") is None
    assert partition(kit, envelopes.record(ORDERS, "t"), "source.table") is None


@pytest.mark.parametrize(
    ("type", "value", "hash", "more"),
    [
        ("string", "", 0, {}), ("string", "hello", 99162322, {}), ("string", "\U0001f600", 1772899, {}),
        ("int32", -5, -5, {}), ("int64", 1 << 32, 1, {}), ("int64", -(1 << 40) - 3, 258, {}),
        ("boolean", True, 1231, {}), ("boolean", False, 1237, {}),
        ("float64", 1.5, 1073217536, {}), ("float64", -0.0, -2147483648, {}), ("float64", 1e300, -164130400, {}),
        ("float32", 1.5, 1069547520, {}), ("bytes", b"\x01\xff", 931, {}),
        ("bytes", (12345).to_bytes(2, "big"), 382697, {"name": DECIMAL, "parameters": {"scale": "2"}}),
        ("bytes", (-(1 << 40) - 1).to_bytes(6, "big", signed=True), -246047, {"name": DECIMAL}),
        ("bytes", ((1 << 64) + 7).to_bytes(9, "big"), 30011, {"name": DECIMAL, "parameters": {"scale": "3"}}),
        ("bytes", b"\0", 5, {"name": DECIMAL, "parameters": {"scale": "5"}}),
        ("int32", 1, 86_400_000, {"name": DATE}), ("int64", 1_700_000_000_000, -807048821, {"name": TIMESTAMP}),
    ],
)  # fmt: skip
def test_hash_codes_are_java_s(type, value, hash, more):
    """The numbers are what Java's own classes return."""
    assert java_hash(value, ConnectSchema(type, **more)) & 0xFFFFFFFF == hash & 0xFFFFFFFF


def test_a_struct_has_no_hash_code(kit, envelopes):
    with pytest.raises(CdcError, match="A struct has no hash code"):
        partition(kit, envelopes.record(ORDERS, "c", {"id": 1}), "after")


# --- expressions


def test_a_condition_keeps_the_records_that_meet_it(kit, envelopes):
    keys = {"language": "jsr223.groovy", "condition": "value.op == 'u' && value.before.id == 2"}
    chain = kit.chain(f"{PACKAGE}Filter", **keys)
    kept = envelopes.record(ORDERS, "u", {"id": 2}, {"id": 2})
    assert chain.apply(kept) is kept
    assert chain.apply(envelopes.record(ORDERS, "u", {"id": 3}, {"id": 3})) is None
    assert chain.apply(envelopes.record(ORDERS, "d", None, {"id": 2})) is None
    assert chain.take_filtered() == {"t": 2}
    with pytest.raises(CdcError, match="neither true nor false"):
        kit.applied(f"{PACKAGE}Filter", kept, language="cel", condition="value.op")


@pytest.mark.parametrize(("mode", "kept"), [("keep", True), ("drop", False), ("evaluate", True)])
def test_tombstones_are_kept_dropped_or_judged(kit, mode, kept):
    keys = {"language": "cel", "condition": "value == null", "null_handling_mode": mode}
    tombstone = kit.value(None, None)
    assert (kit.chain(f"{PACKAGE}Filter", **keys).apply(tombstone) is tombstone) is kept


def test_an_expression_holds_for_some_topics(kit, envelopes):
    record = envelopes.record(ORDERS, "c", {"id": 1})
    keys = {"language": "cel", "condition": "false", "topic_regex": "other"}
    assert kit.applied(f"{PACKAGE}Filter", record, **keys) is record


def test_an_expression_gives_the_topic(kit, envelopes):
    keys = {"language": "jsr223.groovy", "topic_expression": "value.op == 'u' ? 'updates' : null"}
    record = envelopes.record(ORDERS, "c", {"id": 1})
    assert kit.applied(f"{PACKAGE}ContentBasedRouter", record, **keys) is record
    assert kit.applied(f"{PACKAGE}ContentBasedRouter", envelopes.record(ORDERS, "u"), **keys).topic == "updates"
    with pytest.raises(CdcError, match="gives no text for a topic"):
        kit.applied(f"{PACKAGE}ContentBasedRouter", record, language="cel", topic_expression="1")


# --- headers as fields


def test_headers_become_fields(kit, envelopes):
    headers = (Header("a", kit.INT32, 5), Header("b", None, b"text"), Header("c", None, b"other"))
    record = envelopes.record(ORDERS, "c", {"id": 1}, headers=headers)
    keys = {"headers": "a,b", "fields": "number,after.text", "operation": "copy"}
    made = kit.applied(f"{PACKAGE}HeaderToValue", record, **keys)
    assert made.value["number"] == 5
    assert made.value["after"] == {"id": 1, "text": "text"}
    assert made.value_schema.by_name["number"] == kit.INT32
    assert made.value_schema.by_name["after"].by_name["text"] == ConnectSchema("string", optional=True)
    assert made.headers == headers
    moved = kit.applied(f"{PACKAGE}HeaderToValue", record, **{**keys, "operation": "move"})
    assert moved.headers == (headers[2],)
    assert record.value["after"] == {"id": 1}


def test_without_such_headers_the_record_stays(kit, envelopes):
    record = envelopes.record(ORDERS, "c", {"id": 1})
    keys = {"headers": "a", "fields": "x", "operation": "move"}
    assert kit.applied(f"{PACKAGE}HeaderToValue", record, **keys) is record


@pytest.mark.parametrize("field", ["op", "op.x", "none.x"])
def test_a_field_that_cannot_be_added_is_an_error(kit, envelopes, field):
    record = envelopes.record(ORDERS, "c", {"id": 1}, headers=(Header("a", None, b"1"),))
    with pytest.raises(CdcError, match="Cannot create field because"):
        kit.applied(f"{PACKAGE}HeaderToValue", record, headers="a", fields=field, operation="copy")


# --- messages


MESSAGE = struct(
    ("op", ConnectSchema("string")),
    ("message", struct(("prefix", ConnectSchema("string")), ("content", ConnectSchema("bytes")), name="block")),
    name="io.debezium.connector.postgresql.MessageValue",
)
DECODE = "io.debezium.connector.postgresql.transforms.DecodeLogicalDecodingMessageContent"


def message(kit, content):
    record = kit.value(MESSAGE, {"op": "m", "message": {"prefix": "outbox", "content": content}})
    return record.with_key(struct(("prefix", kit.STRING)), {"prefix": "outbox"})


def test_a_message_becomes_an_event(kit, outbox):
    content = b'{"id": "1", "aggregatetype": "Order", "aggregateid": "7", "payload": {"total": 3}, "none": null}'
    decoded = kit.applied(DECODE, message(kit, content))
    assert (decoded.key, decoded.key_schema, decoded.value["op"]) == (None, None, "c")
    assert "message" not in decoded.value
    assert "none" not in decoded.value_schema.by_name["after"].by_name
    event = outbox().apply(decoded)
    assert (event.topic, event.key, event.value) == ("outbox.event.Order", "7", {"total": 3})
    again = kit.chain(DECODE)
    assert again.apply(message(kit, content)).value_schema is again.apply(message(kit, content)).value_schema
    kept = kit.applied(DECODE, message(kit, content), fields_null_include="true")
    assert kept.value_schema.by_name["after"].by_name["none"].type == "bytes"


@pytest.mark.parametrize("content", [b"canary", b"[1]", "canary", b"\xff", None])
def test_another_content_is_an_error(kit, content):
    with pytest.raises(CdcError, match="content of a logical decoding message") as failed:
        kit.applied(DECODE, message(kit, content))
    assert "canary" not in str(failed.value)


def test_a_change_passes(kit, envelopes):
    record = envelopes.record(ORDERS, "c", {"id": 1})
    assert kit.applied(DECODE, record) is record
