"""Configs as people run Debezium with them, kept as samples: what becomes of their keys, and what is in the way."""

from __future__ import annotations

import pytest
from cdcworker.worker.cli.takeover.debezium_config import taken

JSON = "org.apache.kafka.connect.json.JsonConverter"
WORKER = {
    "key.converter": JSON,
    "value.converter": JSON,
    "value.converter.schemas.enable": "false",
    "group.id": "connect",
}
POSTGRES = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "tasks.max": "1",
    "database.hostname": "db",
    "database.password": "secret of a sample",
    "database.dbname": "shop",
    "plugin.name": "pgoutput",
    "topic.prefix": "shop",
    "table.include.list": "public.orders",
}
MARIADB = {
    "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
    "topic.prefix": "shop",
    "schema.history.internal.kafka.topic": "history",
    "skipped.operations": "none",
}


def effects(found):
    return {one.key: one.effect for one in found.findings}


def test_defaults_of_debezium_stay_and_converters_come_from_the_worker():
    found = taken(POSTGRES, "ours", WORKER)
    assert found.config == {
        **POSTGRES,
        **{name: value for name, value in WORKER.items() if "converter" in name},
        "name": "ours",
        "skipped.operations": "t",
        "extended.headers.enabled": "true",
        "publication.autocreate.mode": "disabled",
    }
    assert set(effects(found).values()) == {"set"}
    assert found.refused == []
    assert "secret of a sample" not in repr(found)


def test_what_the_connector_says_itself_counts():
    found = taken(MARIADB | {"key.converter": "avro", "value.converter": "avro"}, "ours", WORKER)
    assert (found.config["key.converter"], found.config["skipped.operations"]) == ("avro", "none")
    assert "publication.autocreate.mode" not in found.config
    assert effects(found)["value.converter"] == "note", "ids of another registry"
    moved = taken(found.config, "ours", WORKER, "shop2")
    assert moved.config["topic.prefix"] == "shop2"
    assert "value.converter" not in effects(moved)


@pytest.mark.parametrize(
    ("config", "worker", "key"),
    [
        (POSTGRES, {}, "value.converter"),
        (POSTGRES | {"plugin.name": "decoderbufs"}, WORKER, "plugin.name"),
        (POSTGRES | {"slot.drop.on.stop": "true"}, WORKER, "slot.drop.on.stop"),
        (POSTGRES | {"connector.class": "io.debezium.connector.oracle.OracleConnector"}, WORKER, "connector.class"),
        (POSTGRES | {"topic.prefix": ""}, WORKER, "topic.prefix"),
    ],
)
def test_what_cannot_be_taken_over_is_said(config, worker, key):
    assert key in [one.key for one in taken(config, "ours", worker).refused]
