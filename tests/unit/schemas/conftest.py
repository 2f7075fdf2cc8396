from collections.abc import Callable
from typing import Any

import pytest
from cdcworker.schemas.change import Change, Column, Position, Table
from cdcworker.schemas.encode import Encoder
from cdcworker.schemas.log import SchemaLog, register_in_memory

DECIMAL = {
    "type": "bytes",
    "scale": 2,
    "precision": 12,
    "connect.version": 1,
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "12"},
    "connect.name": "org.apache.kafka.connect.data.Decimal",
    "logicalType": "decimal",
}
SNAPSHOT = {
    "type": "string",
    "connect.version": 1,
    "connect.parameters": {"allowed": "true,first,last,false,incremental"},
    "connect.default": "false",
    "connect.name": "io.debezium.data.Enum",
}


def _optional(kind: Any) -> dict[str, Any]:
    return {"type": ["null", kind], "default": None}


SOURCE = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium.connector.postgresql",
    "fields": [
        {"name": "version", "type": "string"},
        {"name": "connector", "type": "string"},
        {"name": "name", "type": "string"},
        {"name": "ts_ms", "type": "long"},
        {"name": "snapshot", "type": [SNAPSHOT, "null"], "default": "false"},
        {"name": "db", "type": "string"},
        {"name": "sequence", **_optional("string")},
        {"name": "ts_us", **_optional("long")},
        {"name": "ts_ns", **_optional("long")},
        {"name": "schema", "type": "string"},
        {"name": "table", "type": "string"},
        {"name": "txId", **_optional("long")},
        {"name": "lsn", **_optional("long")},
        {"name": "xmin", **_optional("long")},
        {"name": "origin", **_optional("string")},
        {"name": "origin_lsn", **_optional("long")},
        {"name": "commit_lsn", "type": "long"},
        {"name": "tx_index", "type": "int"},
        {"name": "tx_sub", "type": "int"},
    ],
    "connect.version": 1,
    "connect.name": "io.debezium.connector.postgresql.Source",
}


def make_source(index: int = 0, **overrides: Any) -> dict[str, Any]:
    lsn = 25_000_000_000 + index
    return {
        "version": "0.1.0",
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": 1_790_000_000_000,
        "snapshot": "false",
        "db": "shop",
        "sequence": f'["25000000000","{lsn}"]',
        "ts_us": 1_790_000_000_000_000,
        "ts_ns": 1_790_000_000_000_000_000,
        "schema": "public",
        "table": "orders",
        "txId": 771,
        "lsn": lsn,
        "xmin": None,
        "origin": None,
        "origin_lsn": None,
        "commit_lsn": 25_000_000_000,
        "tx_index": index,
        "tx_sub": 0,
        **overrides,
    }


ORDERS = Table(
    path=("public", "orders"),
    table_id=16401,
    columns=(
        Column("id", "long", optional=False, column_id=1, source_type="bigint"),
        Column("quantity", "int", column_id=2, source_type="integer"),
        Column("note", "string", column_id=3, source_type="text"),
        Column("price", DECIMAL, column_id=4, source_type="numeric(12,2)"),
        Column("photo", "bytes", column_id=5, source_type="bytea"),
    ),
    key=(0,),
    source_schema=SOURCE,
)
ROW = (7, 3, "gift", b"\x04\xd2", b"\xff\xd8")


class Kit:
    """What most tests of this folder need, in one fixture."""

    ORDERS, ROW, SOURCE, DECIMAL = ORDERS, ROW, SOURCE, DECIMAL
    source = staticmethod(make_source)
    CLOCK_NS = 1_790_000_001_234_567_890

    @staticmethod
    def change(op: str = "c", table: Table = ORDERS, index: int = 0, **fields: Any) -> Change:
        return Change(op, table, Position(25_000_000_000, index, 0), make_source(index), **fields)  # type: ignore[arg-type]

    def encoder(self, log: SchemaLog | None = None, **options: Any) -> Encoder:
        register: Callable[..., Any] = register_in_memory(SchemaLog() if log is None else log)
        return Encoder("shop", register, clock_ns=lambda: self.CLOCK_NS, **options)


@pytest.fixture(scope="session")
def kit() -> Kit:
    return Kit()
