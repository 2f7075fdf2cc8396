"""A chain of one transform, made from a config as users write it."""

from collections.abc import Callable
from typing import Any

import pytest
from cdcworker.connectors.transform_chain.chain import TransformChain
from cdcworker.connectors.transform_chain.config import chain_of
from cdcworker.connectors.transforms.data import ConnectRecord, ConnectSchema, struct

INT8, INT16, INT32, INT64 = (ConnectSchema(f"int{bits}") for bits in (8, 16, 32, 64))  # type: ignore[arg-type]
STRING, BOOLEAN, BYTES = ConnectSchema("string"), ConnectSchema("boolean"), ConnectSchema("bytes")
FLOAT32, FLOAT64 = ConnectSchema("float32"), ConnectSchema("float64")


def optional(schema: ConnectSchema, default: Any = None) -> ConnectSchema:
    return ConnectSchema(
        schema.type, True, default, schema.name, schema.version, schema.doc, schema.parameters, schema.fields,
        schema.key_schema, schema.value_schema,
    )  # fmt: skip


def chain_with(kind: str, **keys: str) -> TransformChain:
    """Keys have underscores for dots. A class without a package is Kafka Connect's."""
    name = kind if kind.startswith("io.") else f"org.apache.kafka.connect.transforms.{kind}"
    config = {"transforms": "t", "transforms.t.type": name}
    return chain_of({**config, **{f"transforms.t.{name.replace('_', '.')}": value for name, value in keys.items()}})


class Kit:
    """What the tests of transforms need, in one fixture."""

    INT8, INT16, INT32, INT64 = INT8, INT16, INT32, INT64
    STRING, BOOLEAN, BYTES, FLOAT32, FLOAT64 = STRING, BOOLEAN, BYTES, FLOAT32, FLOAT64
    optional = staticmethod(optional)
    struct = staticmethod(struct)
    chain: Callable[..., TransformChain] = staticmethod(chain_with)

    @staticmethod
    def value(schema: ConnectSchema | None, value: Any, **more: Any) -> ConnectRecord:
        return ConnectRecord("shop.orders", value_schema=schema, value=value, **more)

    def applied(self, kind: str, record: ConnectRecord, **keys: str) -> ConnectRecord:
        found = self.chain(kind, **keys).apply(record)
        assert found is not None
        return found


@pytest.fixture(scope="session")
def kit() -> Kit:
    return Kit()
