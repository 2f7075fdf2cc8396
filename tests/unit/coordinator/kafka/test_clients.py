import logging

import pytest
from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.kafka.clients import (
    connection,
    make_producer,
    member_config,
    producer_config,
    reader_config,
    transactional_config,
)
from cdcworker.schemas.errors import CdcError

BROKERS = {"bootstrap.servers": "kafka:9092"}


def test_only_client_properties_of_the_worker_reach_the_client():
    worker = {**BROKERS, "group.id": "g", "rest.port": "8083", "sasl.username": "u", "offset.storage.topic": "o"}
    config = connection(worker, "producer")
    assert {"bootstrap.servers", "sasl.username"} <= config.keys()
    assert not {"group.id", "rest.port", "offset.storage.topic"} & config.keys()


def test_an_override_for_one_role_is_for_that_role_alone():
    worker = {**BROKERS, "producer.linger.ms": "7", "consumer.fetch.wait.max.ms": "9"}
    assert producer_config(worker, client_id="x")["linger.ms"] == "7"
    assert "linger.ms" not in reader_config(worker, client_id="x")
    assert reader_config(worker, client_id="x")["fetch.wait.max.ms"] == "9"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("producer.enable.idempotence", "false"),
        ("producer.acks", "1"),
        ("producer.max.in.flight.requests.per.connection", "5"),
        ("consumer.isolation.level", "read_uncommitted"),
        ("consumer.auto.offset.reset", "latest"),
        ("consumer.enable.auto.commit", "true"),
    ],
)
def test_what_safety_rests_on_cannot_be_overridden(name, value):
    worker = {**BROKERS, name: value}
    made = {**producer_config(worker, client_id="x"), **reader_config(worker, client_id="x")}
    assert made[name.partition(".")[2]] != value


def test_no_other_name_of_a_property_undoes_what_is_set():
    given = {
        **BROKERS,
        "producer.max.in.flight.requests.per.connection": "5",
        "producer.max.in.flight": "5",
        "producer.request.required.acks": "1",
        "producer.message.timeout.ms": "7",
    }
    config = producer_config(given, client_id="x")
    # The library takes the one name for the other: of both the last one would count.
    assert not {"max.in.flight", "request.required.acks", "message.timeout.ms"} & config.keys()
    assert (config["max.in.flight.requests.per.connection"], config["acks"]) == (1, "all")
    assert config["delivery.timeout.ms"] == "7"


def test_a_missing_bootstrap_server_is_said():
    with pytest.raises(CdcError) as caught:
        connection({}, "admin")
    assert (caught.value.code, caught.value.where) == (e.CLIENT_CONFIG, {"configPath": "/bootstrap.servers"})


def test_the_login_of_a_java_config_is_understood():
    jaas = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="al\\"ice" password="p=1;";'
    config = connection({**BROKERS, "sasl.jaas.config": jaas, "sasl.mechanism": "SCRAM-SHA-512"}, "consumer")
    assert (config["sasl.username"], config["sasl.password"]) == ('al"ice', "p=1;")
    assert "sasl.jaas.config" not in config


def test_java_names_of_pem_files_become_the_library_s(tmp_path):
    (ca := tmp_path / "ca").write_text("-----BEGIN CERTIFICATE-----")
    given = {
        **BROKERS,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(ca),
        "ssl.endpoint.identification.algorithm": "",
    }
    config = connection(given, "admin")
    assert config["ssl.ca.location"] == str(ca)
    assert config["ssl.endpoint.identification.algorithm"] == "none"
    assert not [name for name in config if "truststore" in name]


def test_java_properties_without_a_counterpart_have_no_effect_and_renamed_ones_keep_theirs():
    given = {**BROKERS, "producer.buffer.memory": "1", "producer.max.request.size": "2000000"}
    config = producer_config(given, client_id="x")
    assert config["message.max.bytes"] == "2000000"
    assert "buffer.memory" not in config
    make_producer(config)


def test_an_unknown_property_is_named_and_its_value_is_not_told():
    with pytest.raises(CdcError) as caught:
        make_producer(producer_config({**BROKERS, "producer.no.such.thing": "hunter2"}, client_id="x"))
    assert caught.value.code == e.CLIENT_CONFIG
    assert "no.such.thing" in caught.value.message
    assert "hunter2" not in str(caught.value)


def test_a_message_does_not_outlive_its_transaction():
    config = transactional_config(BROKERS, client_id="x", transactional_id="t", transaction_timeout_ms=4000)
    assert config["delivery.timeout.ms"] <= config["transaction.timeout.ms"] == 4000


def test_transactional_producers_have_no_callbacks():
    config = transactional_config(BROKERS, client_id="x", transactional_id="t")
    assert not [name for name, value in config.items() if callable(value)]


def test_a_member_is_not_static_and_does_not_steal_the_lead():
    config = member_config(BROKERS, client_id="x", group_id="g", session_timeout_s=6.0)
    assert "group.instance.id" not in config
    assert config["partition.assignment.strategy"] == "cooperative-sticky"
    assert config["group.protocol"] == "classic"
    assert (config["session.timeout.ms"], config["heartbeat.interval.ms"]) == (6000, 300)
    assert config["max.poll.interval.ms"] >= config["session.timeout.ms"]


def test_a_session_of_nothing_is_refused():
    with pytest.raises(CdcError):
        member_config(BROKERS, client_id="x", group_id="g", session_timeout_s=0.5)


def test_the_library_s_repeated_lines_are_told_once(caplog):
    logger = logging.getLogger("cdcworker.kafka")
    with caplog.at_level(logging.WARNING, logger.name):
        for attempt in range(5):
            logger.warning("KIND1 [client-%d] connection refused", attempt)
        logger.warning("KIND2 [client-0] something else")
    assert [record.getMessage().split()[0] for record in caplog.records] == ["KIND1", "KIND2"]
