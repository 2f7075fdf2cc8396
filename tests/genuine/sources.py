"""Configs of our source for tests with genuine clients."""

from __future__ import annotations

import uuid

import psycopg
from psycopg.conninfo import conninfo_to_dict

JSON = "org.apache.kafka.connect.json.JsonConverter"


def formats(*, schemas: bool) -> dict[str, str]:
    """JSON, with or without the schema in each record."""
    return {
        name: value
        for side in ("key", "value")
        for name, value in (
            (f"{side}.converter", JSON),
            (f"{side}.converter.schemas.enable", "true" if schemas else "false"),
        )
    }


def source_config(db: psycopg.Connection, prefix: str, **more: str) -> dict[str, str]:
    """Debezium's keys, as they are posted to Kafka Connect; JSON without schemas."""
    where = conninfo_to_dict(db.info.dsn)
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": str(where["host"]),
        "database.port": str(where["port"]),
        "database.user": str(where["user"]),
        "database.password": db.info.password,
        "database.dbname": str(where["dbname"]),
        "plugin.name": "pgoutput",
        "slot.name": f"genuine_{uuid.uuid4().hex[:8]}",
        "topic.prefix": prefix,
        **formats(schemas=False),
        **more,
    }
