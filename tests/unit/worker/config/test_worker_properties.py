"""The worker's properties: files, environment, defaults, refusals."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.config.worker_properties import from_environment, load, parse, read_properties

BASE = {"bootstrap.servers": "k:9092", "group.id": "g"}


def refused(**extra: str) -> CdcError:
    with pytest.raises(CdcError) as caught:
        parse({**BASE, **{key.replace("_", "."): text for key, text in extra.items()}})
    return caught.value


def test_the_least_is_kafka_and_a_name():
    config, warnings = parse(BASE)
    assert (config.host, config.port, config.url) == ("127.0.0.1", 8083, "http://127.0.0.1:8083")
    assert config.worker_id == "127.0.0.1:8083"
    assert config.session_timeout_s == 10.0
    assert warnings == []
    with pytest.raises(CdcError) as caught:
        parse({})
    assert 'Missing required configuration "bootstrap.servers"' in caught.value.message
    assert 'Missing required configuration "group.id"' in caught.value.message


@pytest.mark.parametrize("listener", ["http://0.0.0.0:8083", "http://:8083", "http://10.0.0.1:1", "http://[::]:8083"])
def test_a_listener_open_to_the_network_needs_an_explicit_word(listener):
    assert refused(listeners=listener).code == "worker.insecure_bind"
    config, _ = parse({**BASE, "listeners": listener, "rest.insecure.bind": "true", "rest.advertised.host.name": "me"})
    assert config.url.startswith("http://me:")


@pytest.mark.parametrize(
    "listener", ["ftp://127.0.0.1:8083", "127.0.0.1:8083", "http://127.0.0.1:eight", "http://127.0.0.1:70000"]
)
def test_a_listener_that_cannot_be_is_named(listener):
    error = refused(listeners=listener)
    assert error.code == "config.invalid"
    assert error.where == {"key": "listeners"}


def test_connects_names_are_accepted_and_unknown_ones_warned_about_with_the_nearest():
    config, warnings = parse(
        {
            **BASE,
            "key.converter": "x",
            "plugin.path": "/x",
            "offset.flush.interval.ms": "1",
            "producer.max.request.size": "1",
            "session.timout.ms": "1",
        }
    )
    assert config.session_timeout_s == 10.0
    assert len(warnings) == 1
    assert "session.timeout.ms" in warnings[0]


def test_client_properties_reach_the_clients_and_java_only_ones_do_not():
    config, _ = parse(
        {
            **BASE,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "producer.compression.type": "zstd",
            "producer.max.request.size": "1",
            "consumer.max.poll.records": "1",
            "offset.storage.partitions": "7",
        }
    )
    assert config.kafka == {
        "bootstrap.servers": "k:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "producer.compression.type": "zstd",
    }


def test_secrets_are_not_in_the_configs_text():
    config, _ = parse({**BASE, "sasl.password": "hunter2"})
    assert "hunter2" not in repr(config)


def test_the_environment_wins_over_the_file_and_ours_over_connects(tmp_path):
    path = tmp_path / "w.properties"
    path.write_text("bootstrap.servers=file:1\ngroup.id=g\nlisteners=http://127.0.0.1:1\n")
    env = {
        "CONNECT_BOOTSTRAP_SERVERS": "connect:1",
        "CDC_BOOTSTRAP_SERVERS": "ours:1",
        "CONNECT_LISTENERS": "http://127.0.0.1:2",
        "CDC_CACHE_DIR": "/x",
        "CDC_SECRET_LISTENERS": "no",
        "CDC_NOT_A_KEY": "1",
    }
    config, warnings = load(path, env)
    assert config.bootstrap_servers == "ours:1"
    assert config.port == 2
    assert warnings == []


def test_a_double_underscore_stands_for_an_underscore():
    assert from_environment({"CDC_SASL_X__Y": "1"}) == {"sasl.x_y": "1"}


def test_properties_have_javas_format():
    text = "a=1\n# no\n! no\n b : two words \nc=x\\\n   y\nd\\:e=\\u0041\\t\nf\nq=a=b\n"
    assert read_properties(text) == {"a": "1", "b": "two words", "c": "xy", "d:e": "A\t", "f": "", "q": "a=b"}


def test_yaml_may_be_nested(tmp_path):
    path = tmp_path / "w.yaml"
    path.write_text(
        "bootstrap.servers: [k:1, k:2]\ngroup: {id: g}\nrest: {insecure.bind: true}\nsession.timeout.ms: 6000\n"
    )
    config, _ = load(path, {})
    assert config.bootstrap_servers == "k:1,k:2"
    assert config.values["rest.insecure.bind"] is True
    assert config.session_timeout_s == 6.0


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("w.yaml", "a: [", "not YAML"),
        ("w.yaml", "- a", "mapping"),
        ("w.properties", "group.id=g\nsession.timeout.ms=soon\n", "Not a number of type"),
        ("w.properties", b"\xff\xfe=", "UTF-8"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, name, content, part):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CdcError) as caught:
        load(path, {})
    assert part in caught.value.message
    assert caught.value.where["file"] == str(path)
    assert caught.value.kind == "config"


def test_a_missing_file_is_a_named_error(tmp_path):
    with pytest.raises(CdcError) as caught:
        load(tmp_path / "none.properties", {})
    assert caught.value.code == "worker.config_unreadable"


def test_the_delays_of_lost_work_are_connects_names_with_our_bounds():
    config, warnings = parse(BASE)
    assert (config.crash_delay_s, config.values["restart.rebalance.delay.ms"]) == (0.0, 60_000)
    config, warnings = parse({**BASE, "scheduled.rebalance.max.delay.ms": "300000"})
    assert config.crash_delay_s == 10.0
    assert warnings == ["scheduled.rebalance.max.delay.ms 300000 counts as 10000"]


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({"POD_NAME": "cdc-1"}, "cdc-1"),
        ({"HOSTNAME": "cdc-2", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "cdc-2"),
        ({"HOSTNAME": "cdc-5d9f7c6b8-x2x4z", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "127.0.0.1:8083"),
        ({"HOSTNAME": "laptop-1"}, "127.0.0.1:8083"),
        ({"POD_NAME": "cdc-1", "CDC_WORKER_ID": "mine"}, "mine"),
    ],
)
def test_a_pod_of_a_stateful_set_is_known_by_its_stable_name(env, name):
    config, _ = load(None, {"CDC_BOOTSTRAP_SERVERS": "k:9092", "CDC_GROUP_ID": "g", **env})
    assert config.worker_id == name


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ({}, None),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, None),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"}, None),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}, "whoever listens"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "plain"}, "whoever listens"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""}, "any certificate"),
        ({"security.protocol": "ssl", "ssl.endpoint.identification.algorithm": "none"}, "any certificate"),
    ],
)
def test_a_weak_way_to_kafka_is_warned_about(properties, told):
    _, warnings = parse({**BASE, **properties})
    assert [told in warning for warning in warnings] == ([True] if told else [])


def test_what_the_operator_asks_of_connectors_reaches_their_processes():
    given = {"bootstrap.servers": "k:1", "group.id": "g", "connector.tls": "verified"}
    assert parse(given)[0].providers["connector.tls"] == "verified"
    with pytest.raises(CdcError, match=r"connector.tls: String must be one of: any, encrypted, verified"):
        parse({**given, "connector.tls": "yes"})


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("rest.extension.classes", "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuth", "rest.auth.file"),
        ("admin.listeners", "", "role admin"),
        ("access.control.allow.origin", "*", "pages of other sites"),
        ("response.http.headers.config", "add X-A: b", "adds no headers"),
        ("listeners", "http://127.0.0.1:8083,http://127.0.0.2:8084", "only the first of listeners is opened"),
    ],
)
def test_what_its_user_would_take_for_done_is_told_at_the_start(name, value, told):
    _, warnings = parse({**BASE, name: value})
    assert [told in warning for warning in warnings] == [True]


def test_properties_are_read_before_anybody_looks_for_plugins():
    """Which plugins are allowed is one of them: who looks before finds none for the life of the process."""
    code = (
        "import cdcworker.worker.cli.main, cdcworker.worker.config.worker_properties\n"
        "from cdcworker.connectors.config.installed_plugins import installed\n"
        "print(installed.cache_info().currsize)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "0"
