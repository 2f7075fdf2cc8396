"""Changes as CloudEvents, as Debezium's documentation shows them, whole and with their attributes in headers."""

from __future__ import annotations

import json

import pytest
from cdcworker.connectors.formats.cloud_events import CloudEventsFormat, CloudEventsReader
from cdcworker.schemas.format_encoder import make_encoder
from cdcworker.schemas.log import SchemaLog, register_in_memory
from cdcworker.schemas.record_format import ConnectJsonFormat, RecordFormat, WritesHeaders

from tests.unit.schemas.conftest import Kit

ROW = {
    "type": "record", "name": "Value", "namespace": "test_server.s1.a", "connect.name": "test_server.s1.a.Value",
    "fields": [{"name": "pk", "type": "int"}, {"name": "aa", "type": ["null", "int"], "default": None}],
}  # fmt: skip
SOURCE = {
    "type": "record", "name": "Source", "namespace": "io.debezium.connector.postgresql", "fields": [
        {"name": "version", "type": "string"}, {"name": "connector", "type": "string"}, {"name": "name", "type": "string"},
        {"name": "ts_ms", "type": "long"}, {"name": "snapshot", "type": ["string", "null"], "default": "false"},
        {"name": "db", "type": "string"}, {"name": "txId", "type": ["null", "long"], "default": None},
        {"name": "lsn", "type": ["null", "long"], "default": None}, {"name": "xmin", "type": ["null", "long"], "default": None},
        {"name": "nested", "type": ["null", ROW], "default": None}, {"name": "number", "type": "int"},
    ],
}  # fmt: skip
BLOCK = {
    "type": "record",
    "name": "block",
    "fields": [{"name": "id", "type": "string"}, {"name": "total_order", "type": "long"}],
}
ENVELOPE = {
    "type": "record", "name": "Envelope", "namespace": "test_server.s1.a", "fields": [
        {"name": "before", "type": ["null", ROW]}, {"name": "after", "type": ["null", ROW]}, {"name": "source", "type": SOURCE},
        {"name": "transaction", "type": ["null", BLOCK]}, {"name": "op", "type": "string"}, {"name": "ts_ms", "type": "long"},
    ],
}  # fmt: skip
CHANGE = {
    "before": None, "after": {"pk": 1, "aa": 1}, "op": "r", "ts_ms": 1, "transaction": {"id": "571", "total_order": 1},
    "source": {
        "version": "3.0", "connector": "postgresql", "name": "test_server", "ts_ms": 1578923739738, "snapshot": "true",
        "db": "postgres", "txId": 565, "lsn": 29274832, "number": 7,
    },
}  # fmt: skip
EVENT = {
    "id": "name:test_server;lsn:29274832;txId:565",
    "source": "/debezium/postgresql/test_server",
    "specversion": "1.0",
    "type": "io.debezium.connector.postgresql.DataChangeEvent",
    "time": "2020-01-13T13:55:39.738Z",
    "datacontenttype": "application/json",
    "iodebeziumop": "r",
    "iodebeziumversion": "3.0",
    "iodebeziumconnector": "postgresql",
    "iodebeziumname": "test_server",
    "iodebeziumtsms": "1578923739738",
    "iodebeziumsnapshot": "true",
    "iodebeziumdb": "postgres",
    "iodebeziumtxId": "565",
    "iodebeziumlsn": "29274832",
    "iodebeziumxmin": None,
    "iodebeziumnumber": 7,
    "iodebeziumtxid": "571",
    "iodebeziumtxtotalorder": "1",
    "data": {"before": None, "after": {"pk": 1, "aa": 1}},
}


def test_a_change_is_the_event_of_the_documentation():
    writer = CloudEventsFormat(schemas=False).writer(ENVELOPE)
    data = writer.wrap(writer.body(CHANGE))
    assert json.loads(data) == EVENT
    assert list(json.loads(data)) == list(EVENT), "in this order"
    assert (
        writer.body(tuple(CHANGE.get(name) for name in ("before", "after", "source", "transaction", "op", "ts_ms")))
        == data
    )
    assert CloudEventsReader().read(data) == (None, EVENT)


def test_the_data_has_its_schema_with_it():
    event = json.loads(CloudEventsFormat().writer(ENVELOPE).body(CHANGE))
    assert event["data"]["payload"] == EVENT["data"]
    assert [field["field"] for field in event["data"]["schema"]["fields"]] == ["before", "after"]
    assert CloudEventsReader().read(json.dumps(event).encode()).value["data"] == EVENT["data"]


def test_without_a_transaction_its_attributes_are_null():
    event = json.loads(CloudEventsFormat(schemas=False).writer(ENVELOPE).body({**CHANGE, "transaction": None}))
    assert (event["iodebeziumtxid"], event["iodebeziumtxtotalorder"], event["iodebeziumtxId"]) == (None, None, "565")
    assert list(event) == list(EVENT)


def test_a_flat_row_with_columns_of_the_envelopes_names_is_no_change():
    row = {"type": "record", "name": "Value", "fields": [{"name": name, "type": "string"} for name in ("op", "source")]}
    writer = CloudEventsFormat().writer(row)
    assert json.loads(writer.body({"op": "a", "source": "b"})) == {"op": "a", "source": "b"}


def test_without_extensions_only_the_attributes_of_the_standard_are_there():
    event = json.loads(CloudEventsFormat(schemas=False, extensions=False).writer(ENVELOPE).body(CHANGE))
    assert list(event) == ["id", "source", "specversion", "type", "time", "datacontenttype", "data"]


def test_a_binary_event_has_its_attributes_in_headers():
    writer = CloudEventsFormat("binary", schemas=False).writer(ENVELOPE)
    assert isinstance(writer, WritesHeaders)
    headers = writer.headers(CHANGE)
    assert dict(headers)["ce_id"] == EVENT["id"].encode()
    assert dict(headers)["content-type"] == b"application/json"
    assert "ce_iodebeziumxmin" not in dict(headers)
    data = writer.body(CHANGE)
    assert json.loads(data) == EVENT["data"]
    got = CloudEventsReader().read(data, headers).value
    assert (got["id"], got["data"]) == (EVENT["id"], EVENT["data"])


def test_what_is_no_change_is_plain_json():
    writer = CloudEventsFormat().writer(ROW)
    assert json.loads(writer.body({"pk": 1})) == {"pk": 1, "aa": None}


@pytest.mark.parametrize("mode", ["structured", "binary"])
def test_the_encoder_writes_events_with_their_headers(mode):
    kit = Kit()
    register = register_in_memory(SchemaLog())
    form = RecordFormat(ConnectJsonFormat(schemas=False), CloudEventsFormat(mode, schemas=False))
    records = make_encoder(form, "shop", register).encode(
        [kit.change("c", after=kit.ROW), kit.change("d", before=kit.ROW)]
    )
    assert len(records) == 3
    created, deleted, tombstone = records
    assert tombstone.value is None
    for record, op in ((created, "c"), (deleted, "d")):
        event = CloudEventsReader().read(record.value, record.headers or ()).value
        assert event["iodebeziumop"] == op
        assert event["specversion"] == "1.0"
    assert bool(created.headers) == (mode == "binary")
    assert tombstone.headers is None
