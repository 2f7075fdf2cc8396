"""An existing schema registry: schemas are registered, looked up and read there, and what it refuses is told by name."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time
from dataclasses import replace

import pytest
from cdcworker.connectors.config import allowed_hosts
from cdcworker.connectors.config.allowed_hosts import HostPolicy
from cdcworker.connectors.external_registry.client import RegistryClient
from cdcworker.connectors.external_registry.registrar import ExternalRegistrar
from cdcworker.connectors.external_registry.schemas import OWN_IDS_FROM, RegistrySchemas
from cdcworker.connectors.formats.registry_keys import RegistrySettings, registry_of
from cdcworker.schemas.avro import TypedSchema
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import Registration, RegistrationMeta, SchemaLog, StoredSchema, register_in_memory
from cdcworker.worker.devstack.ports import free_ports

from tests.certificates import Authority
from tests.integration.connectors.external_registry.registry_server import RegistryServer

ORDER = {"type": "record", "name": "Value", "namespace": "shop.orders", "fields": [{"name": "id", "type": "long"}]}
WIDER = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string"}]}
PROTO = TypedSchema("PROTOBUF", 'syntax = "proto3";\npackage shop;\n\nmessage A {\n  int32 n = 1;\n}\n', "shop.A")
META = RegistrationMeta(table_id=7, path=("public", "orders"))


def settings(*urls: str, **more: str) -> RegistrySettings:
    names = {"value.converter.schema.registry.url": ",".join(urls)}
    found = registry_of({**names, **{f"value.converter.{key}": value for key, value in more.items()}}, "value")
    assert found is not None
    return found


@pytest.fixture
def server():
    with RegistryServer() as made:
        yield made


class registrar:
    """A registrar that keeps no connection, so that none outlives its test."""

    def __init__(self, *urls: str, **more: str) -> None:
        found = settings(*urls, **more)
        self._registrar = ExternalRegistrar(found, "value", RegistryClient(found))

    def id_of(self, topic: str, registration: Registration) -> int:
        try:
            return self._registrar.id_of(topic, registration)
        finally:
            self._registrar.close()


def registration(schema=ORDER, topic: str = "shop.orders") -> Registration:
    return Registration(f"{topic}-value", schema, META)


def test_a_schema_is_registered_once_and_found_by_its_id(server):
    own = registrar(server.url)
    assert [own.id_of("shop.orders", registration()) for _ in range(3)] == [1, 1, 1]
    assert own.id_of("shop.orders", registration(WIDER)) == 2
    assert len(server.requests) == 2
    assert server.subjects == {"shop.orders-value": [1, 2]}
    client = RegistryClient(settings(server.url))
    found = client.by_id(1)
    assert found is not None
    assert found.schema["fields"] == ORDER["fields"]
    assert client.by_id(99) is None
    assert registrar(server.url).id_of("t", registration(PROTO)) == 3
    typed = client.by_id(3)
    assert typed == StoredSchema(3, PROTO.fingerprint, PROTO.text, "PROTOBUF")


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("TopicNameStrategy", "shop.orders-value"),
        ("io.confluent.kafka.serializers.subject.RecordNameStrategy", "shop.orders.Value"),
        ("TopicRecordNameStrategy", "shop.orders-shop.orders.Value"),
    ],
)
def test_subjects_are_named_by_the_strategy(server, strategy, subject):
    own = registrar(server.url, **{"value.subject.name.strategy": strategy})
    own.id_of("shop.orders", registration())
    assert list(server.subjects) == [subject]


def test_a_refusal_as_incompatible_names_subject_and_table_and_not_what_the_registry_says(server):
    own = registrar(server.url)
    own.id_of("shop.orders", registration())
    server.levels["shop.orders-value"] = "BACKWARD"
    with pytest.raises(CdcError) as caught:
        own.id_of("shop.orders", registration(WIDER))
    assert (caught.value.code, caught.value.kind) == ("registry.incompatible", "data")
    assert caught.value.where["subject"] == "shop.orders-value"
    assert caught.value.where["table"] == "public.orders"
    assert "secret-5f1c" not in f"{caught.value} {caught.value.where}"
    server.levels.clear()
    assert own.id_of("shop.orders", registration(WIDER)) == 2


def test_without_auto_register_a_schema_has_to_be_there(server):
    looking = {"auto.register.schemas": "false"}
    with pytest.raises(CdcError) as caught:
        registrar(server.url, **looking).id_of("shop.orders", registration())
    assert (caught.value.code, caught.value.where["table"]) == ("registry.not_registered", "public.orders")
    assert server.subjects == {}
    registrar(server.url).id_of("shop.orders", registration())
    assert registrar(server.url, **looking).id_of("shop.orders", registration()) == 1


def test_the_latest_version_counts_where_it_is_what_is_written(server):
    latest = {"auto.register.schemas": "false", "use.latest.version": "true"}
    documented = {**ORDER, "doc": "an order", "connect.name": "x", "aliases": ["Old"]}
    registrar(server.url).id_of("shop.orders", registration(documented))
    assert registrar(server.url, **latest).id_of("shop.orders", registration()) == 1
    with pytest.raises(CdcError) as caught:
        registrar(server.url, **latest).id_of("shop.orders", registration(WIDER))
    assert caught.value.code == "registry.not_registered"
    with pytest.raises(CdcError) as caught:
        registrar(server.url, **latest).id_of("other", registration(topic="other"))
    assert caught.value.code == "registry.not_registered"


def test_normalize_is_asked_for(server):
    registrar(server.url, **{"normalize.schemas": "true"}).id_of("t", registration())
    assert server.requests == ["POST /subjects/t-value/versions?normalize=true"]


@pytest.mark.parametrize("fault", [0, 500, 503, 429, 408])
def test_an_outage_is_transient_and_the_next_address_is_asked(server, fault):
    server.faults = [fault]
    with pytest.raises(CdcError) as caught:
        registrar(server.url).id_of("t", registration())
    assert (caught.value.code, caught.value.kind) == ("registry.unavailable", "transient")
    with RegistryServer() as second:
        server.faults = [fault]
        own = registrar(server.url, second.url)
        assert own.id_of("t", registration()) == 1
        assert server.subjects == {}
        own.id_of("t", registration(WIDER))
        assert len(second.subjects["t-value"]) == 2, "the address that has answered is asked first"


@pytest.mark.parametrize("fault", [400, 404, 405, 409, 410, 413, 422])
def test_what_a_gateway_says_is_no_judgement_of_the_registry(server, fault):
    server.fault_body = b"<html>default backend</html>"
    for ask in (
        lambda: registrar(server.url).id_of("t", registration()),
        lambda: registrar(server.url, **{"auto.register.schemas": "false"}).id_of("t", registration()),
        lambda: RegistryClient(settings(server.url)).by_id(1),
    ):
        server.faults = [fault]
        with pytest.raises(CdcError) as caught:
            ask()
        assert (caught.value.code, caught.value.kind) == ("registry.unavailable", "transient")


def test_a_registry_that_takes_nothing_for_now_is_away(server):
    server.faults, server.fault_body = [422], b'{"error_code": 42205, "message": "read-only"}'
    with pytest.raises(CdcError) as caught:
        registrar(server.url).id_of("t", registration())
    assert caught.value.kind == "transient"
    server.faults, server.fault_body = [422], b'{"error_code": 42201, "message": "invalid"}'
    with pytest.raises(CdcError) as caught:
        registrar(server.url).id_of("t", registration())
    assert caught.value.code == "registry.schema_invalid"


def test_addresses_that_never_answer_have_one_deadline_and_each_is_a_step():
    steps: list[tuple[str, float]] = []
    with contextlib.ExitStack() as stack:
        urls = []
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.bind(("127.0.0.1", 0))
            sock.listen(64)
            urls.append(f"http://127.0.0.1:{sock.getsockname()[1]}")
        client = RegistryClient(settings(*urls), lambda doing, s: steps.append((doing, s)), asked_s=2.0)
        began = time.monotonic()
        with pytest.raises(CdcError) as caught:
            client.register("t-value", ORDER)
        client.close()
    assert caught.value.code == "registry.unavailable"
    assert time.monotonic() - began < 5
    assert len(steps) == 4
    assert all(0 < allowed <= 2.0 for _, allowed in steps)


def test_nobody_at_the_address_is_an_outage():
    with pytest.raises(CdcError) as caught:
        registrar(f"http://127.0.0.1:{free_ports(1)[0]}").id_of("t", registration())
    assert caught.value.kind == "transient"


def test_hosts_that_the_worker_does_not_allow_are_not_asked(server):
    allowed_hosts.use(HostPolicy(loopback=False))
    try:
        with pytest.raises(CdcError) as caught:
            registrar(server.url).id_of("t", registration())
    finally:
        allowed_hosts.use(HostPolicy())
    assert caught.value.code == "config.host_not_allowed"
    assert caught.value.where["key"] == "value.converter.schema.registry.url"
    assert server.requests == []


@pytest.mark.parametrize("status", [301, 302, 401, 403])
def test_a_server_that_points_elsewhere_or_lets_nobody_in_is_refused(server, status):
    server.faults = [status]
    with pytest.raises(CdcError) as caught:
        registrar(server.url).id_of("t", registration())
    assert (caught.value.code, caught.value.kind) == ("registry.refused", "config")


def test_logins():
    with RegistryServer(login="shop:pass:word") as server:
        given = {"basic.auth.credentials.source": "USER_INFO", "basic.auth.user.info": "shop:pass:word"}
        assert registrar(server.url, **given).id_of("t", registration()) == 1
        inside = server.url.replace("http://", "http://shop:pass%3Aword@")
        assert registrar(inside).id_of("t", registration()) == 1
        assert settings(inside).urls == (server.url,)
        assert "pass" not in repr(settings(inside))
        old = {"schema.registry.basic.auth.user.info": "shop:pass:word"}
        assert registrar(server.url, **old).id_of("t", registration()) == 1
        with pytest.raises(CdcError) as caught:
            registrar(server.url, **{**given, "basic.auth.user.info": "shop:wrong"}).id_of("t", registration())
        assert caught.value.code == "registry.refused"
        assert "wrong" not in repr(settings(server.url, **given))
        assert "pass" not in f"{caught.value} {settings(server.url, **given)}"
    with RegistryServer(token="t0ken") as server:
        assert registrar(server.url, **{"bearer.auth.token": "t0ken"}).id_of("t", registration()) == 1


def test_a_login_that_http_cannot_say_is_refused_without_it(server):
    with pytest.raises(CdcError) as caught:
        registrar(server.url, **{"bearer.auth.token": "s3cret\r\nX: y"}).id_of("t", registration())
    assert caught.value.code == "registry.refused"
    assert "s3cret" not in f"{caught.value} {caught.value.where}"
    assert server.requests == []


def test_tls_with_certificates_of_both(tmp_path):
    authority = Authority(tmp_path, "ca")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("registry"))
    context.load_verify_locations(authority.file)
    context.verify_mode = ssl.CERT_REQUIRED
    client = authority.issue("client").read_text()
    chain, key = client[: client.index("-----BEGIN PRIVATE")], client[client.index("-----BEGIN PRIVATE") :]
    trusted = {"schema.registry.ssl.truststore.certificates": authority.file.read_text()}
    own = {"schema.registry.ssl.keystore.certificate.chain": chain, "schema.registry.ssl.keystore.key": key}
    with RegistryServer(tls=context) as server:
        assert registrar(server.url, **trusted, **own).id_of("t", registration()) == 1
        for given in (trusted, own):
            with pytest.raises(CdcError) as caught:
                registrar(server.url, **given).id_of("t", registration())
            assert caught.value.code in ("registry.refused", "registry.unavailable")


def test_answers_that_are_none_are_refused(server):
    client = RegistryClient(settings(server.url))
    server.schemas[1] = ("AVRO", "{")
    server.schemas[2] = ("THRIFT", "x")
    server.schemas[3] = ("JSON", "[")
    for id in (1, 2, 3):
        with pytest.raises(CdcError) as caught:
            client.by_id(id)
        assert caught.value.kind == "data"


def test_ids_of_both_registries_are_found_in_one_topic(server):
    log = SchemaLog()
    [own_id] = register_in_memory(log)([registration(WIDER)])
    assert own_id >= OWN_IDS_FROM

    class Own:
        def stored(self, id: int) -> StoredSchema:
            found = log.by_id(id)
            if found is None:
                raise CdcError("schema.unknown_id", "not in the log", where={"id": id})
            return found

    registrar(server.url).id_of("t", registration())
    schemas = RegistrySchemas(RegistryClient(settings(server.url)), Own())
    assert len(schemas.stored(1).schema["fields"]) == 1
    assert len(schemas.stored(own_id).schema["fields"]) == 2
    asked = len(server.requests)
    assert schemas.stored(1) is schemas.stored(1)
    assert len(server.requests) == asked, "a schema that is known is not asked for again"
    for id in (5, OWN_IDS_FROM + 5):
        with pytest.raises(CdcError) as caught:
            schemas.stored(id)
        assert caught.value.code == "schema.unknown_id"
    server.faults = [503]
    with pytest.raises(CdcError) as caught:
        schemas.stored(2)
    assert caught.value.kind == "transient", "a record that nobody could explain is no bad record"


def test_settings_are_those_of_each_side():
    config = {
        "key.converter.schema.registry.url": "http://a:8081/, http://b:8081/base/",
        "key.converter.key.subject.name.strategy": "io.confluent.kafka.serializers.subject.RecordNameStrategy",
        "value.converter.schema.registry.url": "",
    }
    found = registry_of(config, "key")
    assert found is not None
    assert (found.urls, found.strategy) == (("http://a:8081", "http://b:8081/base"), "RecordNameStrategy")
    assert registry_of(config, "value") is None
    assert registry_of({**config, "key.converter.schema.registry.ids": "own"}, "key") is None
    for url in ("http://a:99999", "http://a:0", "http://[:::::]:80", "http://a:80/?x=1"):
        assert registry_of({"key.converter.schema.registry.url": url}, "key") is None
    assert replace(found, urls=("x",)) != found
    assert json.dumps(str(found))
