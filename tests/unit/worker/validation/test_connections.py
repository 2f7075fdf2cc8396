"""What connections hold and provide, by the definitions of the real plugins."""

from __future__ import annotations

import pytest
from cdcworker.coordinator.model import Connection
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.validation import connections
from cdcworker.worker.validation.validate import ConnectorCatalog

CATALOG = ConnectorCatalog()

LOGINS = (
    {
        "connector.class": "jdbc-sink",
        "connection.url": "jdbc:postgresql://db.example/shop",
        "connection.username": "writer",
        "connection.password": "p",
    },
    {
        "connector.class": "http-sink",
        "http.url": "https://hook.example/",
        "http.authorization.type": "basic",
        "http.authorization.user": "writer",
        "http.authorization.password": "p",
    },
    {
        "connector.class": "kafka",
        "target.bootstrap.servers": "kafka.example:9093",
        "target.security.protocol": "SASL_SSL",
        "target.sasl.mechanism": "SCRAM-SHA-512",
        "target.sasl.username": "writer",
        "target.sasl.password": "p",
    },
    {
        "connector.class": "nats",
        "nats.servers": "tls://nats.example:4222",
        "nats.username": "writer",
        "nats.password": "p",
    },
    {
        "connector.class": "rabbitmq",
        "rabbitmq.addresses": "amqps://a.example:5671,amqps://b.example:5671",
        "rabbitmq.virtual.host": "shop",
        "rabbitmq.username": "writer",
        "rabbitmq.password": "p",
    },
    {
        "connector.class": "redis",
        "redis.hosts": "redis.example:6379",
        "redis.client.mode": "Cluster",
        "redis.username": "writer",
        "redis.password": "p",
    },
    {
        "connector.class": "s3",
        "warehouse.path": "s3://bucket/shop",
        "warehouse.s3.endpoint": "https://store.example",
        "warehouse.s3.region": "eu-central-1",
        "warehouse.s3.path.style.access": "true",
        "warehouse.s3.access.key": "AKIA",
        "warehouse.s3.secret.key": "p",
    },
)
MYSQL = {
    "connector.class": "mysql",
    "database.hostname": "db.example",
    "database.user": "cdc",
    "database.password": "p",
    "database.ssl.mode": "verify_identity",
}


def known(**configs):
    return {name: Connection(name, "i", 1, config) for name, config in configs.items()}


@pytest.mark.parametrize("config", LOGINS, ids=lambda config: config["connector.class"])
def test_a_connection_holds_the_whole_login_and_all_that_it_takes_to_reach_the_server(config):
    assert list(connections.findings(CATALOG, config)) == []
    name = config["connector.class"]
    more = connections.read_of(CATALOG, {"connector.class": name, "connection": "c"}, known(c=config))
    assert {"connector.class": name, **more} == config


def test_who_may_only_use_a_connection_does_not_take_it_for_another_kind_of_server():
    """Another class asks at another port, with other rules of TLS than the connection has."""
    config = {"connector.class": "postgres", "connection": "m"}
    with pytest.raises(CdcError) as refused:
        connections.check_beside(CATALOG, config, None, known(m=MYSQL))
    assert refused.value.code == "config.key_beside_connection"
    assert refused.value.where == {"key": "connector.class"}
    connections.check_beside(CATALOG, config, {**config, "topic.prefix": "t"}, known(m=MYSQL))


def test_who_may_only_use_a_connection_uses_it_from_classes_that_reach_the_same_kind_of_server():
    for name in ("mysql", "mariadb", "io.debezium.connector.mysql.MySqlConnector"):
        connections.check_beside(CATALOG, {"connector.class": name, "connection": "m"}, None, known(m=MYSQL))


def test_a_connection_that_turns_to_another_kind_of_server_breaks_the_connectors_that_use_it():
    before, jdbc = known(m=MYSQL)["m"], known(m=LOGINS[0])
    (found,) = connections.broken(CATALOG, {"connector.class": "mysql", "connection": "m"}, jdbc, before)
    assert (found.key, found.code) == ("connection", "config.connection_without_use")
