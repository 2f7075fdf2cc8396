"""EventRouter: the examples of Debezium's documentation, and what it does with rows that are no events."""

import logging

import pytest
from cdcworker.connectors.transforms.data import ConnectSchema, Header, struct
from cdcworker.schemas.errors import CdcError

ID = "406c07f3-26f0-4eea-a50c-109940064b8f"


def test_an_inserted_row_becomes_the_event_that_it_holds(outbox, envelopes):
    record = envelopes.event()
    event = outbox().apply(record)
    assert (event.topic, event.key, event.key_schema) == ("outbox.event.Order", "1", envelopes.STRING)
    assert (event.value, event.value_schema) == (record.value["after"]["payload"], envelopes.OPTIONAL)
    assert event.headers == (Header("h", None, b"1"), Header("id", envelopes.STRING, ID))
    assert (event.timestamp, event.partition) == (5, None)
    assert record.headers == (Header("h", None, b"1"),)


def test_a_row_of_a_snapshot_is_an_event_too(outbox, envelopes):
    assert outbox().apply(envelopes.event("r")).topic == "outbox.event.Order"


def test_what_is_deleted_is_left_out_and_so_is_its_tombstone(outbox, envelopes, kit):
    chain = outbox()
    assert chain.apply(envelopes.record(envelopes.OUTBOX, "d", before={"id": ID})) is None
    assert chain.apply(kit.value(None, None, key=b"1")) is None
    assert chain.take_filtered() == {"t": 2}


def test_a_record_of_another_form_passes(outbox, kit):
    record = kit.value(struct(("a", kit.INT32), name="heartbeat.Value"), {"a": 1})
    assert outbox().apply(record) is record


@pytest.mark.parametrize(("behavior", "level"), [("warn", logging.WARNING), ("error", logging.ERROR)])
def test_an_update_is_left_out_with_one_line_in_the_log(outbox, envelopes, caplog, behavior, level):
    chain = outbox(table_op_invalid_behavior=behavior)
    assert [chain.apply(envelopes.event("u", payload="canary")) for _ in range(3)] == [None] * 3
    assert [record.levelno for record in caplog.records] == [level]
    assert "canary" not in caplog.text


def test_an_update_can_be_an_error(outbox, envelopes):
    with pytest.raises(CdcError, match="Unexpected update message") as failed:
        outbox(table_op_invalid_behavior="FATAL").apply(envelopes.event("u", payload="canary"))
    assert failed.value.code == "transform.failed"
    assert "canary" not in str(failed.value)


def test_columns_and_topics_have_the_names_that_the_config_gives(outbox, envelopes):
    keys = {
        "table_field_event_id": "type",
        "table_field_event_key": "id",
        "table_field_event_payload": "aggregateid",
        "route_by_field": "type",
        "route_topic_regex": "Order(.*)",
        "route_topic_replacement": "orders-$1",
    }
    event = outbox(**keys).apply(envelopes.event())
    assert (event.topic, event.key, event.value) == ("orders-Created", ID, "1")
    assert event.headers[-1] == Header("id", envelopes.STRING, "OrderCreated")


def test_without_a_key_column_records_have_no_key(outbox, envelopes):
    event = outbox(table_field_event_key="").apply(envelopes.event())
    assert (event.key, event.key_schema) == (None, envelopes.STRING)


def test_further_columns_go_into_headers_the_envelope_and_the_partition(outbox, envelopes):
    chain = outbox(table_fields_additional_placement="type:header:eventType,type:envelope, version:partition")
    event = chain.apply(envelopes.event())
    assert event.headers[-1] == Header("eventType", envelopes.STRING, "OrderCreated")
    assert event.value["type"] == "OrderCreated"
    assert event.value["payload"].startswith("{")
    assert event.partition == 3
    assert event.value_schema.name == "shop.public.outbox.Order.Value"
    assert [name for name, _ in event.value_schema.fields] == ["payload", "type"]
    again = chain.apply(envelopes.event())
    assert again.value_schema is event.value_schema


def test_a_version_that_is_no_number_and_an_envelope_without_its_operation_are_errors(outbox, envelopes, kit):
    keys = {"table_fields_additional_placement": "type:envelope", "table_field_event_schema_version": "type"}
    with pytest.raises(CdcError, match="The field type, which is to be the version of schemas, is no number"):
        outbox(**keys).apply(envelopes.event())
    bare = kit.value(envelopes.schema(envelopes.OUTBOX), {"after": {}})
    with pytest.raises(CdcError, match="op is not a valid field name"):
        outbox().apply(bare)
    routing = {"partition_payload_fields": "change.id", "partition_topic_num": "3"}
    kind = "io.debezium.transforms.partitions.PartitionRouting"
    assert kit.applied(kind, bare, **routing).partition is None


def test_the_version_column_is_the_version_of_the_schema(outbox, envelopes):
    keys = {
        "table_fields_additional_placement": "type:envelope",
        "table_field_event_schema_version": "version",
    }
    assert outbox(**keys).apply(envelopes.event()).value_schema.version == 3


def test_a_column_that_is_not_there_is_an_error_or_is_passed_over(outbox, envelopes):
    placed = {"table_fields_additional_placement": "none:header,type:header"}
    with pytest.raises(CdcError, match="Unable to find field none in event"):
        outbox(**placed).apply(envelopes.event())
    event = outbox(**placed, table_field_additional_missing="ignore").apply(envelopes.event())
    assert [header.key for header in event.headers] == ["h", "id", "type"]
    for key, text in (
        ("table_field_event_payload", "payload field none"),
        ("table_field_event_id", "event-id field none"),
        ("table_field_event_key", "field none"),
        ("route_by_field", "field none"),
        ("table_field_event_schema_version", "field none"),
    ):
        with pytest.raises(CdcError, match=f"Unable to find {text} in event"):
            outbox(**{key: "none"}).apply(envelopes.event())


def test_a_route_or_a_partition_of_another_type_is_an_error(outbox, envelopes):
    with pytest.raises(CdcError, match="aggregatetype, by which events are routed, is no text"):
        outbox().apply(envelopes.event(aggregatetype=None))
    with pytest.raises(CdcError, match="type is no number of a partition"):
        outbox(table_fields_additional_placement="type:partition").apply(envelopes.event())


@pytest.mark.parametrize("payload", [None, "", "  "])
def test_an_empty_payload_can_be_a_tombstone(outbox, envelopes, payload):
    assert outbox().apply(envelopes.event(payload=payload)).value == payload
    event = outbox(route_tombstone_on_empty_payload="true").apply(envelopes.event(payload=payload))
    assert (event.key, event.value, event.value_schema) == ("1", None, None)


def test_json_becomes_a_struct(outbox, envelopes):
    event = outbox(table_expand_json_payload="true").apply(envelopes.event())
    item = struct(
        ("id", ConnectSchema("int32", optional=True)),
        ("item", envelopes.OPTIONAL),
        ("totalPrice", ConnectSchema("float64", optional=True)),
        name="payload.lineItems",
        optional=True,
    )
    assert event.value_schema == struct(
        ("id", ConnectSchema("int32", optional=True)),
        ("lineItems", ConnectSchema("array", optional=True, value_schema=item)),
        name="payload",
        optional=True,
    )
    assert event.value == {"id": 1, "lineItems": [{"id": 1, "item": "Debezium", "totalPrice": 39.98}]}


def test_events_of_one_structure_share_a_schema(outbox, envelopes):
    chain = outbox(table_expand_json_payload="true")
    one, other = (chain.apply(envelopes.event(payload=text)) for text in ('{"a": 1}', '{"a": 2}'))
    assert one.value_schema is other.value_schema
    assert chain.apply(envelopes.event(payload='{"a": "x"}')).value_schema is not one.value_schema


@pytest.mark.parametrize("payload", ["canary", "[1]", '{"a": ', '{"a": [1, "canary"]}'])
def test_a_payload_that_is_no_object_stays_text(outbox, envelopes, caplog, payload):
    event = outbox(table_expand_json_payload="true").apply(envelopes.event(payload=payload))
    assert (event.value, event.value_schema) == (payload, envelopes.OPTIONAL)
    assert "is not expanded" in caplog.text
    assert "canary" not in caplog.text


def test_a_null_payload_is_no_warning(outbox, envelopes, caplog):
    assert outbox(table_expand_json_payload="true").apply(envelopes.event(payload=None)).value is None
    assert not caplog.records
