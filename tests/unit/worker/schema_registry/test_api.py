import asyncio
import json
import socket
import threading

import httpx
import pytest
import uvicorn
from cdcworker.connectors.converters.config import reader_of, wire_of
from cdcworker.schemas import avro
from cdcworker.schemas.change import Change, Column, Position, Table
from cdcworker.schemas.encode import Encoder
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.log import RegistrationMeta, SchemaLog, register_in_memory
from cdcworker.worker.schema_registry.api import BODY_BYTES_MAX, MEDIA_TYPE, routes
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tests.unit.connectors.formats.contract import VALUES, row_kind, rows

SOURCE = {"type": "record", "name": "Source", "namespace": "io.x", "fields": [{"name": "lsn", "type": "long"}]}
TABLE = Table(
    ("public", "orders"),
    16401,
    (
        Column("id", "long", False, column_id=1, source_type="bigint"),
        Column("note", "string", column_id=2, source_type="text"),
        Column(
            "at",
            {
                "type": "long",
                "logicalType": "local-timestamp-micros",
                "connect.name": "io.debezium.time.MicroTimestamp",
            },
            column_id=3,
            source_type="timestamp",
        ),
    ),
    (0,),
    SOURCE,
)
KEY, VALUE = "shop.public.orders-key", "shop.public.orders-value"
RECORD = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}
WIDER = {**RECORD, "fields": [*RECORD["fields"], {"name": "y", "type": "int"}]}
BUSY = declare("test.registry_busy", "transient", "The log cannot be read now", "Wait.")


def changes():
    row = (7, "gift", 1_790_000_000_000_000)
    return [Change("c", TABLE, Position(100, 0, 0), {"lsn": 100}, after=row)]


class World:
    """A log with one encoded table, and what a worker does when it is asked to write."""

    def __init__(self):
        self.log = SchemaLog()
        self.records = Encoder("shop", register_in_memory(self.log)).encode(changes())
        self.value_id = avro.unframe(self.records[0].value)[0]
        self.fails = False

    def read(self):
        if self.fails:
            raise CdcError(BUSY, "not read to its end yet")
        return self.log

    def register(self, subject, schema):
        planned = self.log.plan_registration(subject, schema, RegistrationMeta())
        for record in planned.records:
            self.log.apply(*record)
        return planned.id

    def set_level(self, subject, level):
        self.log.apply(*self.log.plan_level(subject, level))

    def app(self, *, writable=True):
        callbacks = (self.register, self.set_level) if writable else ()
        connect = Route("/connectors", lambda _: PlainTextResponse("connectors"))
        return Starlette(routes=[connect, *routes(self.read, *callbacks)])


class Client:
    """Synchronous calls straight into the application, without a socket."""

    def __init__(self, app):
        self.app = app

    def __call__(self, method, path, body=None, **options):
        async def send():
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://registry") as client:
                return await client.request(method, path, json=body, **options)

        return asyncio.run(send())

    def refused(self, method, path, body=None, **options):
        answer = self(method, path, body, **options)
        assert set(answer.json()) == {"error_code", "message"}
        assert answer.headers["content-type"] == MEDIA_TYPE
        return answer.status_code, answer.json()["error_code"]


@pytest.fixture
def world():
    return World()


@pytest.fixture
def client(world):
    return Client(world.app())


@pytest.fixture
def reader(world):
    return Client(world.app(writable=False))


def asks(schema, **more):
    return {"schema": json.dumps(schema), **more}


# Reading


def test_a_schema_is_found_by_id_and_by_guid(client, world):
    stored = world.log.by_id(world.value_id)
    answer = client("GET", f"/schemas/ids/{stored.id}")
    assert answer.headers["content-type"] == MEDIA_TYPE
    assert answer.json() == {"schema": stored.text, "guid": stored.guid}
    assert client("GET", f"/schemas/guids/{stored.guid}").json() == answer.json()
    assert client("GET", f"/schemas/guids/{stored.guid}/ids").json() == [{"context": ".", "id": stored.id}]
    assert client("GET", f"/schemas/ids/{stored.id}/schema").json() == stored.schema
    assert client("GET", f"/schemas/ids/{stored.id}/subjects").json() == [VALUE]
    assert client("GET", f"/schemas/ids/{stored.id}/versions").json() == [{"subject": VALUE, "version": 1}]
    assert client("GET", f"/schemas/ids/{stored.id}?fetchMaxId=true").json()["maxId"] >= stored.id


def test_subjects_and_versions_are_listed(client):
    assert client("GET", "/subjects").json() == [KEY, VALUE]
    assert client("GET", "/subjects?subjectPrefix=shop.public.orders-v").json() == [VALUE]
    assert client("GET", "/subjects?offset=1&limit=1").json() == [VALUE]
    assert client("GET", f"/subjects/{VALUE}/versions").json() == [1]
    assert client("GET", "/schemas/types").json() == ["AVRO", "JSON", "PROTOBUF"]
    assert client("GET", "/contexts").json() == ["."]
    listed = client("GET", "/schemas?subjectPrefix=shop&latestOnly=true").json()
    assert [(item["subject"], item["version"]) for item in listed] == [(KEY, 1), (VALUE, 1)]


@pytest.mark.parametrize("version", ["1", "latest", "-1"])
def test_a_version_is_found_by_number_and_as_the_latest(client, world, version):
    stored = world.log.by_id(world.value_id)
    expected = {"subject": VALUE, "version": 1, "id": stored.id, "guid": stored.guid, "schema": stored.text}
    assert client("GET", f"/subjects/{VALUE}/versions/{version}").json() == expected
    assert client("GET", f"/subjects/{VALUE}/versions/{version}/schema").json() == stored.schema
    assert client("GET", f"/subjects/{VALUE}/versions/{version}/referencedby").json() == []


def test_the_version_in_force_at_a_position_is_offered(client):
    answer = client("GET", f"/subjects/{VALUE}/in-force?commit_lsn=150").json()
    assert (answer["version"], answer["effective"]) == (1, {"commit_lsn": 100, "tx_index": 0})
    assert client.refused("GET", f"/subjects/{VALUE}/in-force?commit_lsn=99") == (404, 40402)
    assert client.refused("GET", f"/subjects/{VALUE}/in-force") == (422, 42202)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/schemas/ids/1", 404, 40403),
        ("/schemas/ids/x", 404, 404),
        ("/schemas/ids/99999999999", 404, 404),
        ("/schemas/guids/none", 404, 40403),
        ("/subjects/none/versions", 404, 40401),
        ("/subjects/none/versions/1", 404, 40401),
        (f"/subjects/{VALUE}/versions/2", 404, 40402),
        (f"/subjects/{VALUE}/versions/0", 422, 42202),
        (f"/subjects/{VALUE}/versions/x", 422, 42202),
        ("/config/none", 404, 40408),
        ("/mode/none", 404, 40409),
    ],
)
def test_what_is_not_there_has_the_registrys_error_codes(client, path, status, code):
    assert client.refused("GET", path) == (status, code)


def test_a_log_that_cannot_be_read_yet_is_unavailable_and_says_why(client, world):
    world.fails = True
    answer = client("GET", "/subjects")
    assert (answer.status_code, answer.json()["error_code"]) == (503, 50001)
    assert "test.registry_busy" in answer.json()["message"]


def test_the_other_routes_of_the_port_are_untouched(client):
    assert client("GET", "/connectors").text == "connectors"


# Looking up and registering


def test_a_look_up_finds_a_schema_however_it_is_written(client, world):
    schema = world.log.by_id(world.value_id).schema
    answer = client("POST", f"/subjects/{VALUE}?normalize=true", asks({**schema, "doc": "any"}))
    assert (answer.status_code, answer.json()["id"], answer.json()["version"]) == (200, world.value_id, 1)
    assert client.refused("POST", f"/subjects/{VALUE}", asks(RECORD)) == (404, 40403)
    assert client.refused("POST", "/subjects/none", asks(RECORD)) == (404, 40401)


def test_a_registration_gives_an_id_and_again_the_same(client):
    first = client("POST", "/subjects/mine-value/versions", asks(RECORD))
    assert first.json()["id"] == avro.schema_id(avro.fingerprint(RECORD))
    assert client("POST", "/subjects/mine-value/versions", asks(RECORD)).json() == first.json()
    assert client("GET", "/subjects/mine-value/versions").json() == [1]
    second = client("POST", "/subjects/mine-value/versions", asks(WIDER))
    assert (first.json()["version"], second.json()["version"]) == (1, 2)
    assert client("GET", "/subjects/mine-value/versions").json() == [1, 2]


@pytest.mark.parametrize(
    "path",
    [
        "/subjects", f"/subjects/{VALUE}/versions", f"/subjects/{VALUE}/versions/latest", f"/subjects/{VALUE}/metadata",
        "/config", "/mode", "/schemas", "/schemas/types", "/contexts", f"/mode/{VALUE}",
    ],
)  # fmt: skip
def test_a_slash_at_the_end_of_a_path_means_nothing(client, path):
    plain, slashed = client("GET", path), client("GET", f"{path}/")
    assert (slashed.status_code, slashed.json()) == (200, plain.json())


def test_writes_take_a_slash_at_the_end_too(client):
    assert client("PUT", "/config/", {"compatibility": "FULL"}).status_code == 200
    assert client("POST", "/subjects/mine-value/versions/", asks(RECORD)).json()["version"] == 1
    assert client("POST", "/subjects/mine-value/", asks(RECORD)).json()["version"] == 1


def test_the_newest_version_is_found_by_metadata_which_ours_do_not_have(client):
    latest = client("GET", f"/subjects/{VALUE}/versions/latest").json()
    assert client("GET", f"/subjects/{VALUE}/metadata").json() == latest
    assert client.refused("GET", f"/subjects/{VALUE}/metadata?key=owner&value=shop") == (404, 40403)
    assert client.refused("GET", "/subjects/none/metadata") == (404, 40401)


def test_a_subject_of_a_task_takes_no_other_schema(client, world):
    assert client.refused("POST", f"/subjects/{VALUE}/versions", asks(RECORD)) == (422, 42205)
    known = client("POST", f"/subjects/{VALUE}/versions", asks(world.log.by_id(world.value_id).schema))
    assert known.json()["id"] == world.value_id


def test_without_callbacks_writing_is_refused_and_says_so(reader, world):
    for method, path, body in [
        ("POST", "/subjects/mine-value/versions", asks(RECORD)),
        ("PUT", "/config", {"compatibility": "FULL"}),
        ("DELETE", f"/subjects/{VALUE}", None),
        ("DELETE", f"/subjects/{VALUE}/versions/1", None),
    ]:
        assert reader.refused(method, path, body) == (405, 40501)
    assert reader("GET", "/mode").json() == {"mode": "READONLY"}
    known = reader("POST", f"/subjects/{VALUE}/versions", asks(world.log.by_id(world.value_id).schema))
    assert known.status_code == 200


PROTO = 'syntax = "proto3";\n\nmessage A {\n  int32 n = 1;\n}\n'
JSON_SCHEMA = '{"type":"object","properties":{"n":{"type":"integer"}}}'


@pytest.mark.parametrize(("type", "text"), [("PROTOBUF", PROTO), ("JSON", JSON_SCHEMA)])
def test_a_schema_of_another_type_is_registered_and_served_with_its_type(client, type, text):
    body = {"schema": text, "schemaType": type}
    made = client("POST", "/subjects/other-value/versions", body).json()
    assert (made["schemaType"], made["schema"], made["version"]) == (type, text, 1)
    by_id = client("GET", f"/schemas/ids/{made['id']}").json()
    assert (by_id["schemaType"], by_id["schema"]) == (type, text)
    assert client("POST", "/subjects/other-value", body).json()["id"] == made["id"]
    assert client("GET", "/subjects/other-value/versions/1").json()["schemaType"] == type
    assert client("GET", f"/schemas/guids/{made['guid']}").json()["schemaType"] == type
    bare = client("GET", f"/schemas/ids/{made['id']}/schema")
    assert bare.text == text if type == "PROTOBUF" else bare.json() == json.loads(text)
    # The same text is another schema as another type, and compatibility is judged of Avro only.
    assert client("POST", "/subjects/other-value", asks(RECORD)).status_code == 404
    client("PUT", "/config/other-value", {"compatibility": "BACKWARD"})
    assert client.refused("POST", "/subjects/other-value/versions", asks(RECORD)) == (422, 42201)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 422, 42201),
        ({"schema": "message A { group", "schemaType": "PROTOBUF"}, 422, 42201),
        ({"schema": "[1]", "schemaType": "JSON"}, 422, 42201),
        ({"schema": "{}", "schemaType": "THRIFT"}, 422, 42201),
        ({"schema": ""}, 422, 42201),
        ({"schema": "{"}, 422, 42201),
        ({"schema": '{"type":"record"}'}, 422, 42201),
        ({"schema": '"int"', "schemaType": "PROTOBUF"}, 422, 42201),
        ({"schema": '"int"', "references": [{"name": "x", "subject": "y", "version": 1}]}, 422, 42201),
        (["int"], 400, 400),
    ],
)
def test_what_is_no_schema_is_refused(client, body, status, code):
    assert client.refused("POST", "/subjects/mine-value/versions", body) == (status, code)


def test_a_request_that_is_too_large_or_no_json_is_refused(client):
    assert client.refused("POST", "/subjects/mine-value/versions", content=b"x" * (BODY_BYTES_MAX + 1)) == (413, 413)
    assert client.refused("POST", "/subjects/mine-value/versions", content=b"{") == (400, 400)


# Compatibility


def test_levels_are_kept_per_subject_and_globally(client):
    assert client("GET", "/config").json() == {"compatibilityLevel": "NONE"}
    assert client("PUT", "/config/mine-value", {"compatibility": "full"}).json() == {"compatibility": "FULL"}
    assert client("GET", "/config/mine-value").json() == {"compatibilityLevel": "FULL"}
    assert client("GET", "/config/other?defaultToGlobal=true").json() == {"compatibilityLevel": "NONE"}
    assert client("DELETE", "/config/mine-value").json() == {"compatibilityLevel": "FULL"}
    assert client.refused("GET", "/config/mine-value") == (404, 40408)
    assert client.refused("PUT", "/config", {"compatibility": "SOMETIMES"}) == (422, 42203)


def test_compatibility_is_asked_for_and_enforced_only_where_a_level_is_set(client):
    client("POST", "/subjects/mine-value/versions", asks(RECORD))
    path = "/compatibility/subjects/mine-value/versions"
    assert client("POST", path, asks(WIDER)).json() == {"is_compatible": True}
    client("PUT", "/config", {"compatibility": "BACKWARD"})
    answer = client("POST", f"{path}/latest?verbose=true", asks(WIDER)).json()
    assert not answer["is_compatible"]
    assert "/y/" in answer["messages"][0]
    assert client.refused("POST", "/subjects/mine-value/versions", asks(WIDER)) == (409, 40901)
    assert client.refused("POST", f"{path}/7", asks(WIDER)) == (404, 40402)


def test_the_mode_follows_from_who_owns_the_subject(client):
    assert client("GET", "/mode").json() == {"mode": "READWRITE"}
    assert client("GET", f"/mode/{VALUE}").json() == {"mode": "READONLY"}
    assert client("GET", "/mode/mine-value?defaultToGlobal=true").json() == {"mode": "READWRITE"}
    assert client.refused("PUT", "/mode", {"mode": "IMPORT"}) == (422, 42205)


# Confluent's own client


@pytest.fixture
def url(world):
    server = uvicorn.Server(uvicorn.Config(world.app(), log_level="warning", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def confluent(url):
    from confluent_kafka.schema_registry import SchemaRegistryClient

    with SchemaRegistryClient({"url": url}) as client:
        yield client


def test_confluents_deserializer_reads_the_encoders_bytes(confluent, world):
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    record = world.records[0]
    decode = AvroDeserializer(confluent)
    value = decode(record.value, SerializationContext(record.topic, MessageField.VALUE))
    assert value["op"] == "c"
    assert value["after"]["note"] == "gift"
    assert decode(record.key, SerializationContext(record.topic, MessageField.KEY)) == {"id": 7}


def test_confluents_client_reads_and_registers(confluent, world):
    from confluent_kafka.schema_registry import Schema
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    assert confluent.get_subjects() == [KEY, VALUE]
    latest = confluent.get_latest_version(VALUE)
    assert (latest.schema_id, latest.version) == (world.value_id, 1)
    assert confluent.get_version(VALUE, 1).schema.schema_str == world.log.by_id(world.value_id).text
    assert confluent.lookup_schema(VALUE, latest.schema).version == 1
    assert confluent.get_schema_by_guid(latest.guid).schema_str == latest.schema.schema_str

    schema = Schema(json.dumps(RECORD), "AVRO")
    assert confluent.register_schema("mine-value", schema) == avro.schema_id(avro.fingerprint(RECORD))
    assert confluent.test_compatibility("mine-value", Schema(json.dumps(WIDER), "AVRO"))
    with pytest.raises(SchemaRegistryError) as caught:
        confluent.register_schema(VALUE, schema)
    assert caught.value.error_code == 42205
    with pytest.raises(SchemaRegistryError) as caught:
        confluent.get_schema(1)
    assert caught.value.error_code == 40403


def test_confluents_serializer_writes_what_our_reader_reads(confluent, world):
    from cdcworker.schemas.decode import RecordDecoder
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    encode = AvroSerializer(confluent, json.dumps(RECORD))
    data = encode({"x": 5}, SerializationContext("mine", MessageField.VALUE))
    assert RecordDecoder(world.log).decode(data) == {"x": 5}


@pytest.mark.parametrize(
    "path", ["/schemas/ids/" + "9" * 5000, "/schemas/ids/²", f"/subjects/{VALUE}/versions/" + "9" * 5000]
)
def test_an_endless_number_is_refused(client, path):
    assert client("GET", path).status_code in (404, 422)


def test_confluents_json_readers_and_writers_take_our_json_schema(confluent, world):
    from confluent_kafka.schema_registry import Schema
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    config = {"value.converter": "json_schema", "value.converter.decimal.format": "NUMERIC"}
    kind = row_kind(*VALUES)
    writer = wire_of(config, "value").writer(kind)
    writer.bind(confluent.register_schema("rows-value", Schema(writer.schema.text, "JSON")))
    context = SerializationContext("rows", MessageField.VALUE)
    decode = JSONDeserializer(None, schema_registry_client=confluent)

    class Finds:
        def stored(self, id):
            return world.log.by_id(id)

    reader = reader_of(config, "value", Finds())
    for row in [*rows(), dict.fromkeys(VALUES)]:
        data = writer.wrap(writer.body(row))
        told = decode(data, context)  # it judges the value by the schema
        assert told["string"] == row["string"]
        assert reader.read(data).value == row
    encode = JSONSerializer(writer.schema.text, confluent)
    assert reader.read(encode({"int32": 5, "string": "a"}, context)).value == {
        **dict.fromkeys(VALUES),
        "int32": 5,
        "string": "a",
    }
