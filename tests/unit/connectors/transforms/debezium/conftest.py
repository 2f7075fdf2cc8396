"""Records with the envelope of a change."""

from collections.abc import Mapping
from typing import Any

import pytest
from cdcworker.connectors.transform_chain.chain import TransformChain
from cdcworker.connectors.transforms.data import ConnectRecord, ConnectSchema, Header, struct

STRING, INT32 = ConnectSchema("string"), ConnectSchema("int32")
OPTIONAL = ConnectSchema("string", optional=True)
OUTBOX = struct(
    ("id", STRING),
    ("aggregatetype", STRING),
    ("aggregateid", STRING),
    ("type", STRING),
    ("payload", OPTIONAL),
    ("version", INT32),
    name="shop.public.outbox.Value",
    optional=True,
)


class Envelopes:
    """Makes records of changes. The schema of a row is the same object in all of them, as it is in a source."""

    STRING, INT32, OPTIONAL, OUTBOX = STRING, INT32, OPTIONAL, OUTBOX

    def __init__(self) -> None:
        self._schemas: dict[int, ConnectSchema] = {}

    def schema(self, row: ConnectSchema) -> ConnectSchema:
        made = struct(
            ("before", row), ("after", row), ("source", struct(("table", STRING), name="source")), ("op", STRING),
            name=f"{(row.name or '').removesuffix('.Value')}.Envelope",
        )  # fmt: skip
        return self._schemas.setdefault(id(row), made)

    def record(
        self, row: ConnectSchema, op: str, after: Any = None, before: Any = None, key: Any = None, **more: Any
    ) -> ConnectRecord:
        value = {"before": before, "after": after, "source": {"table": "outbox"}, "op": op}
        return ConnectRecord("shop.public.outbox", None, key, self.schema(row), value, timestamp=5, **more)

    def event(self, op: str = "c", **columns: Any) -> ConnectRecord:
        """A row of the outbox table of Debezium's documentation."""
        row: Mapping[str, Any] = {
            "id": "406c07f3-26f0-4eea-a50c-109940064b8f",
            "aggregatetype": "Order",
            "aggregateid": "1",
            "type": "OrderCreated",
            "payload": '{"id": 1, "lineItems": [{"id": 1, "item": "Debezium", "totalPrice": 39.98}]}',
            "version": 3,
            **columns,
        }
        return self.record(OUTBOX, op, after=row, headers=(Header("h", None, b"1"),))


@pytest.fixture
def envelopes() -> Envelopes:
    return Envelopes()


@pytest.fixture
def outbox(kit: Any) -> Any:
    """Makes a chain with EventRouter."""

    def make(**keys: str) -> TransformChain:
        found: TransformChain = kit.chain("io.debezium.transforms.outbox.EventRouter", **keys)
        return found

    return make
