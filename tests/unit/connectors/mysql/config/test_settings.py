"""The configuration of MySQL and MariaDB sources: Debezium's names, its defaults, and what cannot work is refused by name."""

from __future__ import annotations

import pytest
from cdcworker.connectors.mysql.config.settings import CONFIG_DEF, parse
from cdcworker.connectors.mysql.source_block import source_schema
from cdcworker.schemas.errors import CdcError

DEFAULTS = {
    "database.port": "3306",
    "database.ssl.mode": "preferred",
    "decimal.handling.mode": "precise",
    "time.precision.mode": "adaptive_time_microseconds",
    "binary.handling.mode": "bytes",
    "bigint.unsigned.handling.mode": "long",
    "snapshot.mode": "initial",
    "snapshot.locking.mode": "minimal",
    "include.schema.changes": "true",
    "include.schema.comments": "false",
    "include.query": "false",
    "event.deserialization.failure.handling.mode": "fail",
    "inconsistent.schema.handling.mode": "fail",
    "event.processing.failure.handling.mode": "fail",
    "gtid.source.filter.dml.events": "true",
    "connect.timeout.ms": "30000",
    "connect.keep.alive": "true",
    "connect.keep.alive.interval.ms": "60000",
    "binlog.buffer.size": "0",
    "min.row.count.to.stream.results": "1000",
    "enable.time.adjuster": "true",
    "database.jdbc.driver": "com.mysql.cj.jdbc.Driver",
    "database.protocol": "jdbc:mysql",
    "use.nongraceful.disconnect": "false",
    "tombstones.on.delete": "true",
    "provide.transaction.metadata": "false",
    "max.batch.size": "2048",
    "schema.history.internal": "io.debezium.storage.kafka.history.KafkaSchemaHistory",
    "schema.history.internal.kafka.topic": "history",
    "schema.history.internal.kafka.bootstrap.servers": "kafka:9092",
}
"""Of Debezium's connectors, with what its tutorial gives besides."""


def posted(**more: str) -> dict[str, str]:
    return {
        "name": "shop",
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "database.hostname": "h",
        "database.user": "u",
        "database.password": "hunter2",
        "database.server.id": "184054",
        "topic.prefix": "shop",
        **{name.replace("__", "."): value for name, value in more.items()},
    }


def problems(config: dict[str, str]) -> dict[str, str]:
    found = {value.name: " ".join(value.errors) for value in CONFIG_DEF.validate(config)}
    return {name: text for name, text in found.items() if text}


def test_debeziums_defaults_are_accepted_together():
    config = {**posted(), **DEFAULTS}
    assert problems(config) == {}
    settings = parse(config)
    assert (settings.prefix, settings.server_id, settings.login.port) == ("shop", 184054, 3306)
    assert (settings.login.sslmode, settings.connect_timeout_s) == ("prefer", 30.0)
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        *(
            ("disabled", "disable"),
            ("required", "require"),
            ("verify_ca", "verify-ca"),
            ("verify_identity", "verify-full"),
        ),
        *(("disable", "disable"), ("trust", "require"), ("verify-ca", "verify-ca"), ("verify-full", "verify-full")),
    ],
)
def test_modes_of_tls_have_the_words_of_both_connectors(given: str, mode: str):
    config = posted(database__ssl__mode=given, database__sslrootcert="/etc/ca.pem")
    assert parse(config).login.sslmode == mode


def test_databases_are_what_the_filters_name():
    filters = parse(posted(database__include__list="shop,stock", table__exclude__list=r"shop\.audit")).filters
    assert filters.table("shop", "orders")
    assert filters.table("stock", "items")
    assert not filters.table("shop", "audit")
    assert not filters.table("other", "orders")
    assert not parse(posted()).filters.table("mysql", "user")
    assert not parse(posted()).filters.table("performance_schema", "threads")


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"database__server__id": "0"}, "database.server.id"),
        ({"database__server__id": "4294967296"}, "database.server.id"),
        ({"database__port": "70000"}, "database.port"),
        ({"database__ssl__mode": "verify_identity"}, "database.sslrootcert"),
        ({"database__ssl__keystore": "/etc/keys.jks"}, "database.ssl.keystore"),
        ({"database__ssl__truststore": "/etc/keys.jks"}, "database.ssl.truststore"),
        ({"database__initial__statements": "set x = 1"}, "database.initial.statements"),
        ({"gtid__source__includes": ".*"}, "gtid.source.includes"),
        ({"event__deserialization__failure__handling__mode": "skip"}, "event.deserialization.failure.handling.mode"),
        ({"inconsistent__schema__handling__mode": "warn"}, "inconsistent.schema.handling.mode"),
        ({"time__precision__mode": "adaptive"}, "time.precision.mode"),
        ({"snapshot__mode": "schema_only_recovery"}, "snapshot.mode"),
        ({"database__include__list": "a", "database__exclude__list": "b"}, "database.exclude.list"),
        ({"database__whitelist": "a"}, "database.whitelist"),
        ({"plugin__name": "pgoutput"}, "plugin.name"),
    ],
)
def test_what_cannot_work_is_refused_at_its_key(more: dict[str, str], key: str):
    assert list(problems(posted(**more))) == [key]


@pytest.mark.parametrize("key", ["database.hostname", "database.user", "database.server.id", "topic.prefix"])
def test_a_config_without_what_is_needed_is_refused(key: str):
    config = posted()
    del config[key]
    with pytest.raises(CdcError) as caught:
        parse(config)
    assert caught.value.code == "config.invalid"
    assert key in str(caught.value)


def test_the_source_block_is_debeziums_with_the_position_behind_it():
    mysql, mariadb = source_schema("mysql"), source_schema("mariadb")
    assert mysql["connect.name"] == "io.debezium.connector.mysql.Source"
    assert mariadb["connect.name"] == "io.debezium.connector.mariadb.Source"
    assert mysql["fields"] == mariadb["fields"]
    names = [field["name"] for field in mysql["fields"]]
    assert names[9:] == [
        *("table", "server_id", "gtid", "file", "pos", "row", "thread", "query", "commit_lsn", "tx_index", "tx_sub"),
    ]
