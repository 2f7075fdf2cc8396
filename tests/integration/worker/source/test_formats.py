"""Wire formats and registries of sources, written by a real worker: what readers of Kafka have of them."""

from __future__ import annotations

import json
import secrets
from typing import Any

import psycopg
import pytest
from cdcworker.connectors.converters.config import reader_of
from cdcworker.connectors.external_registry.client import RegistryClient
from cdcworker.connectors.formats.registry_keys import registry_of
from cdcworker.schemas.avro import unframe

from tests import plain_http
from tests.integration import one_worker
from tests.integration.connectors.external_registry.registry_server import RegistryServer
from tests.integration.worker.source.test_transforms import DEADLINE_S, Source

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]
PACKAGE = "org.apache.kafka.connect.transforms."
TABLE = "CREATE TABLE orders (id int PRIMARY KEY, price numeric(10,2), note text)"


@pytest.fixture(scope="module")
def worker(kafka, tmp_path_factory):
    one = one_worker.Worker(tmp_path_factory.mktemp("worker"), kafka.bootstrap, f"frm{secrets.token_hex(4)}")
    one.wait(lambda: one.get("/health")["status"] == "healthy", "health", DEADLINE_S)
    yield one
    assert one.end() == 0


@pytest.fixture
def db(postgres):
    name = postgres.create_database()
    with psycopg.connect(postgres.dsn(name), autocommit=True) as connection:
        yield connection
    postgres.drop_database(name)


@pytest.fixture
def source(worker, db):
    made: list[Source] = []

    def make(name: str) -> Source:
        made.append(Source(worker, db, name))
        return made[-1]

    yield make
    for one in made:
        one.delete()


class Registry:
    """A registry as a reader asks it."""

    def __init__(self, url: str) -> None:
        found = registry_of({"value.converter.schema.registry.url": url}, "value")
        assert found is not None
        self._client = RegistryClient(found)

    def stored(self, id: int) -> Any:
        found = self._client.by_id(id)
        assert found is not None, id
        return found


def values(config: dict[str, str], side: str, url: str, records: list[Any]) -> list[Any]:
    reader = reader_of(config, side, Registry(url))
    return [reader.read(record.key() if side == "key" else record.value()).value for record in records]


def put(made: Source, config: dict[str, str], transforms: dict[str, Any] | None = None) -> dict[str, str]:
    whole = {**made.config(transforms or {}), **config}
    made.worker.put(made.name, whole)
    return whole


def test_protobuf_and_json_schema_are_registered_with_their_types_and_read_by_the_workers_registry(worker, db, source):
    db.execute(TABLE)
    db.execute("INSERT INTO orders VALUES (1, 12.50, 'a')")
    made = source("proto")
    config = put(
        made,
        {
            "key.converter": "io.confluent.connect.json.JsonSchemaConverter",
            "value.converter": "io.confluent.connect.protobuf.ProtobufConverter",
            "value.converter.optional.for.nullables": "true",
        },
    )
    topic = f"{made.prefix}.public.orders"
    made.wait_loaded(1)
    db.execute("ALTER TABLE orders ADD COLUMN more int DEFAULT 7")
    db.execute("INSERT INTO orders VALUES (2, NULL, NULL, 8)")
    db.execute("DELETE FROM orders WHERE id = 1")
    records = made.records(topic, 4)
    assert values(config, "key", worker.url, records) == [{"id": 1}, {"id": 2}, {"id": 1}, {"id": 1}]
    first, second, gone, tombstone = values(config, "value", worker.url, records)
    assert (first["op"], first["after"]) == ("r", {"id": 1, "price": b"\x04\xe2", "note": "a"})
    assert (second["op"], second["after"]) == ("c", {"id": 2, "price": None, "note": None, "more": 8})
    assert (gone["op"], gone["after"], tombstone) == ("d", None, None)
    latest = worker.get(f"/subjects/{topic}-value/versions/latest")
    assert (latest["schemaType"], latest["version"]) == ("PROTOBUF", 2)
    assert worker.get(f"/subjects/{topic}-key/versions/latest")["schemaType"] == "JSON"
    history = plain_http.get(f"{worker.url}/v1/tables/public.orders/schemas", timeout=30.0)
    assert history.status_code in (200, 404)


def test_a_single_value_is_written_as_text_and_a_row_is_refused_before_it_starts(worker, db, source):
    db.execute(TABLE)
    db.execute("INSERT INTO orders VALUES (1, 12.50, 'a')")
    made = source("text")
    text = {"key.converter": "org.apache.kafka.connect.storage.StringConverter"}
    config = {**made.config({}), **text}
    answer = plain_http.put(f"{worker.url}/connectors/{made.name}/config", json=config, timeout=30.0)
    assert answer.status_code == 400
    assert "ExtractField$Key" in answer.json()["message"]
    put(made, {**text, "heartbeat.interval.ms": "500"}, {"id": {"type": f"{PACKAGE}ExtractField$Key", "field": "id"}})
    [record] = made.records(f"{made.prefix}.public.orders", 1)
    assert record.key() == b"1"
    beat = made.records(f"__debezium-heartbeat.{made.prefix}", 1)[0]
    assert beat.key() == f"Struct{{serverName={made.prefix}}}".encode()


def test_an_existing_registry_gives_the_ids_and_its_outage_loses_nothing(worker, db, source):
    db.execute(TABLE)
    db.execute("INSERT INTO orders VALUES (1, 12.50, 'a')")
    made = source("ext")
    server = RegistryServer(login="shop:secret")
    try:
        address = {
            "schema.registry.url": server.url,
            "basic.auth.credentials.source": "USER_INFO",
            "basic.auth.user.info": "shop:secret",
        }
        own = {f"{side}.converter.{key}": value for side in ("key", "value") for key, value in address.items()}
        put(made, own)
        topic = f"{made.prefix}.public.orders"
        [record] = made.records(topic, 1)
        assert [unframe(part)[0] < 10 for part in (record.key(), record.value())] == [True, True]
        assert set(server.subjects) == {f"{topic}-key", f"{topic}-value"}
        assert worker.get("/subjects?subjectPrefix=" + made.prefix) == []
        made.wait_loaded(1)

        server.close()
        db.execute("ALTER TABLE orders ADD COLUMN more int")
        db.execute("INSERT INTO orders VALUES (2, 1, 'b', 3)")
        worker.wait(lambda: "registry.unavailable" in worker.log.read_text(), "the outage is told", DEADLINE_S)
        port = int(server.url.rpartition(":")[2])
        again = RegistryServer(login="shop:secret", port=port)
        again.schemas, again.subjects = server.schemas, server.subjects
        server = again
        records = made.records(topic, 2)
        stored = server.schemas[unframe(records[1].value())[0]][1]
        assert '"more"' in stored
        assert len(records) == 2

        server.levels[f"{topic}-value"] = "FULL_TRANSITIVE"
        db.execute("CREATE TABLE items (id int PRIMARY KEY)")
        db.execute("ALTER TABLE orders ALTER COLUMN id TYPE text")
        db.execute("INSERT INTO orders VALUES ('x', 1, 'b', 3)")
        db.execute("INSERT INTO items VALUES (1)")
        worker.wait(
            lambda: "registry.incompatible" in json.dumps(worker.get("/v1/cluster")), "the table is held", DEADLINE_S
        )
        assert "secret" not in worker.log.read_text()
    finally:
        server.close()


def test_a_connector_that_has_own_ids_keeps_them_when_a_url_comes(worker, db, source):
    db.execute(TABLE)
    db.execute("INSERT INTO orders VALUES (1, 12.50, 'a')")
    made = source("kept")
    put(made, {})
    topic = f"{made.prefix}.public.orders"
    [first] = made.records(topic, 1)
    made.wait_loaded(1)
    with RegistryServer() as server:
        url = {"value.converter.schema.registry.url": server.url}
        put(made, url)
        db.execute("INSERT INTO orders VALUES (2, 1, 'b')")
        second = made.records(topic, 2)[1]
        assert unframe(second.value())[0] == unframe(first.value())[0]
        assert server.requests == []
        put(made, {**url, "value.converter.schema.registry.ids": "url"})

        def moved() -> bool:
            db.execute("INSERT INTO orders SELECT max(id) + 1 FROM orders")
            return unframe(worker.read(topic)[-1].value())[0] == 1

        worker.wait(moved, "ids of the url", DEADLINE_S)
