"""Avro's own parser in Java, as Spark brings it, takes the schema of every type."""

from __future__ import annotations

import json
import logging
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from cdcworker.worker.java.runtime import find_java
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from tests.conftest import REQUIRE_PARTS
from tests.java_gateways import untranslated_errors
from tests.unit.connectors.postgres.type_matrix import schemas

PARTS = ("avro-1", "jackson-core-2", "jackson-databind", "jackson-annotations", "slf4j-api", "commons-compress")


@pytest.fixture(scope="module")
def parse():
    """`parse(schema)` in a JVM. It refuses defaults and names that the specification does not allow."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        (pytest.fail if REQUIRE_PARTS else pytest.skip)("missing part Spark's libraries")
    jars = sorted(Path(found.origin).parent.joinpath("jars").glob("*.jar"))
    logging.getLogger("py4j").setLevel(logging.WARNING)
    port = launch_gateway(
        classpath=os.pathsep.join(str(jar) for jar in jars if jar.name.startswith((*PARTS, "py4j"))), die_on_exit=True,
        jarpath=str(next(jar for jar in jars if jar.name.startswith("py4j"))),
        java_path=str(find_java().home / "bin" / "java"), javaopts=["-Xmx128m"],
    )  # fmt: skip
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    with untranslated_errors():
        parser = gateway.jvm.org.apache.avro.Schema.Parser
        yield lambda schema: parser().setValidateDefaults(True).parse(json.dumps(schema))
    gateway.shutdown()


def test_avros_parser_takes_the_schema_of_every_type(parse):
    for name, schema in schemas():
        assert parse(schema).getName() == ("Key" if "key" in name else "Envelope"), name


def test_the_parser_is_strict(parse):
    field = {"name": "a", "type": {"type": "array", "items": "int"}, "default": ["x"]}
    with pytest.raises(Py4JJavaError, match="AvroTypeException"):
        parse({"type": "record", "name": "R", "fields": [field]})
