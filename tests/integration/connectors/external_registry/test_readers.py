"""Sinks read records whose ids are those of an existing registry, and of the cluster's own, in one topic."""

from __future__ import annotations

import pytest
from cdcworker.connectors.external_registry.client import RegistryClient
from cdcworker.connectors.external_registry.registrar import ExternalRegistrar
from cdcworker.connectors.record_sink.converters import converted
from cdcworker.connectors.sink_engine.kafka.brokers import SchemaLogReader
from cdcworker.schemas.avro import unframe
from cdcworker.schemas.encode import Encoder
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import SchemaLog, StoredSchema, encode_record, plan_all, register_in_memory

from tests.integration.connectors.external_registry.registry_server import RegistryServer
from tests.integration.connectors.external_registry.test_client import settings
from tests.unit.schemas.conftest import Kit


class Message:
    """A message as Kafka's client returns it."""

    def __init__(self, record) -> None:
        self._record = record

    def topic(self) -> str:
        return self._record.topic

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7

    def key(self) -> bytes | None:
        return self._record.key

    def value(self) -> bytes | None:
        return self._record.value

    def headers(self) -> list[tuple[str, bytes]]:
        return self._record.headers or []

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000


class Own:
    """The cluster's own registry as a sink asks it."""

    def __init__(self) -> None:
        self.log = SchemaLog()

    def stored(self, id: int) -> StoredSchema:
        found = self.log.by_id(id)
        if found is None:
            raise CdcError("schema.unknown_id", "not in the log", where={"id": id})
        return found


@pytest.fixture
def server():
    with RegistryServer() as made:
        yield made


def external(url: str):
    """Registers as a source does whose converters name the url."""
    registrars = {
        side: ExternalRegistrar(settings(url), side, RegistryClient(settings(url))) for side in ("key", "value")
    }

    def register(registrations):
        try:
            parts = [(each.subject.rpartition("-"), each) for each in registrations]
            return [registrars[side].id_of(topic, each) for (topic, _, side), each in parts]
        finally:
            for each in registrars.values():
                each.close()

    return register


def test_a_sink_of_records_reads_ids_of_both_registries(server):
    kit, own = Kit(), Own()
    records = [
        Encoder("shop", register).encode([kit.change("c", after=kit.ROW)])[0]
        for register in (register_in_memory(own.log), external(server.url))
    ]
    ids = [unframe(record.value)[0] for record in records]
    assert ids[1] in server.schemas
    assert ids[0] not in server.schemas
    config = {f"{side}.converter.schema.registry.url": server.url for side in ("key", "value")}
    reader = converted(config, own)
    first, second = [reader.read(Message(record)) for record in records]
    assert first.value["after"] == second.value["after"]
    assert first.key == second.key
    assert reader.schemas.stored(ids[1]).schema, "a target that takes messages as they are asks too"
    with pytest.raises(CdcError) as caught:
        converted({}, own).read(Message(records[1]))
    assert caught.value.code == "schema.unknown_id"


def test_a_warehouse_sink_finds_ids_of_both_registries(server):
    kit, own = Kit(), SchemaLog()
    foreign = Encoder("shop", external(server.url)).encode([kit.change("c", after=kit.ROW)])[0]
    asked = []

    def register(registrations):
        asked.extend(registrations)
        return register_in_memory(own)(registrations)

    mine = Encoder("shop", register).encode([kit.change("c", after=kit.ROW)])[0]
    reader = SchemaLogReader({}, "schemas", RegistryClient(settings(server.url)))
    for record in plan_all(SchemaLog(), asked)[1]:
        reader._log.read(*encode_record(record))
    names = {reader.by_id(unframe(record.value)[0])["name"] for record in (mine, foreign)}
    assert names == {"shop.public.orders.Envelope"}
    requests = len(server.requests)
    reader.by_id(unframe(foreign.value)[0])
    assert len(server.requests) == requests
    assert reader.by_id(424242) is None
    server.faults = [503]
    with pytest.raises(CdcError) as caught:
        reader.by_id(99)
    assert caught.value.kind == "transient"
    assert SchemaLogReader({}, "schemas").by_id(unframe(foreign.value)[0]) is None
