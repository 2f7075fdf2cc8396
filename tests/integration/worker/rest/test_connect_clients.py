"""Clients that were written for Kafka Connect, unchanged, against two real workers: each call through a follower too."""

from __future__ import annotations

import uuid

import pytest
import requests
from cdcworker.coordinator.kafka.internal_topics import TopicNames
from cdcworker.worker.app import plan
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.herder.config import HerderConfig
from cdcworker.worker.herder.herder import Herder
from cdcworker.worker.rest.settings import ApiSettings
from cdcworker.worker.server.application import create_app
from cdcworker.worker.server.server import RestServer
from kafka_connect import KafkaConnect
from kafka_connect_api import errors
from kafka_connect_api.kafka_connect_api import Api, Cluster

from tests import herders
from tests.herders import eventually

GEN = {"connector.class": "datagen", "topic.prefix": "p", "tasks.max": "2"}


@pytest.fixture(scope="module")
def urls():
    """Of the leader, and of a follower."""
    group, started = f"k-{uuid.uuid4().hex[:8]}", []
    try:
        for port in free_ports(2):
            name = f"127.0.0.1:{port}"
            names = TopicNames.of_group(group)
            config = HerderConfig({}, group, name, f"http://{name}", names, version="1", backend="memory")
            herder = Herder(config, plan, herders.StubLauncher())
            server = RestServer(create_app(herder, settings=ApiSettings(live_checks=False)), "127.0.0.1", port)
            started.append((herder, server))
            herder.start()
            server.start()
        for herder, _ in started:
            assert herder.wait_started(30)
        eventually(lambda: all(herder.view().state.leader and len(herder.view().workers) == 2 for herder, _ in started))
        yield sorted((herder.config.url for herder, _ in started), key=lambda url: url != leader(started))
    finally:
        for herder, server in started:
            server.stop()
            herder.stop()


def leader(started):
    return started[0][0].view().state.leader.url


@pytest.fixture(params=["leader", "follower"])
def url(urls, request, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    return urls[request.param == "follower"]


@pytest.fixture
def name():
    return f"gen-{uuid.uuid4().hex[:8]}"


def test_kafka_connect_py_leads_a_connector_through_its_life(url, name):
    client = KafkaConnect(url)
    assert set(client.get_cluster_info()) == {"version", "commit", "kafka_cluster_id"}
    plugins = {item["class"] for item in client.list_connector_plugins()}
    assert "io.debezium.connector.postgresql.PostgresConnector" in plugins
    assert client.validate_connector_config("datagen", {**GEN, "name": name})["error_count"] == 0
    made = client.create_connector({"name": name, "config": GEN})
    assert (made["name"], made["type"]) == (name, "source")
    with pytest.raises(requests.HTTPError, match="409"):
        client.create_connector({"name": name, "config": GEN})
    assert name in client.list_connectors()
    eventually(lambda: states(client, name) == ["RUNNING", "RUNNING"])
    assert list(client.list_connectors(expand="status", pattern=f"^{name}$", state="RUNNING")) == [name]
    assert [item["id"]["task"] for item in client.list_connector_tasks(name)] == [0, 1]
    assert client.get_connector_task_status(name, 1)["state"] == "RUNNING"
    assert client.get_connector_config(name) == {"name": name, **GEN}
    assert client.update_connector(name, {**GEN, "seed": "9"})["config"]["seed"] == "9"
    assert client.get_connector(name)["config"]["seed"] == "9"
    client.pause_connector(name)
    eventually(lambda: states(client, name) == ["PAUSED", "PAUSED"])
    client.resume_connector(name)
    eventually(lambda: states(client, name) == ["RUNNING", "RUNNING"])
    client.restart_connector(name)
    client.restart_connector(name, include_tasks=True, only_failed=True)
    client.restart_connector_task(name, 0)
    assert client.list_connector_topics(name) == {name: {"topics": []}}
    client.reset_connector_topics(name)
    client.stop_connector(name)
    assert client.get_connector_status(name)["tasks"] == []
    client.delete_connector(name)
    with pytest.raises(requests.HTTPError, match="404"):
        client.get_connector(name)


def states(client, name):
    return [task["state"] for task in client.get_connector_status(name)["tasks"]]


def test_kafka_connect_api_and_the_watcher_that_stands_on_it_see_and_mend_a_cluster(url, name):
    cluster = Cluster(Api(url=url))
    assert cluster.version.split(".")[0].isdigit()
    assert cluster.kafka_cluster.startswith("memory-")
    requests.post(f"{url}/connectors", json={"name": name, "config": GEN}, timeout=30).raise_for_status()
    connector = cluster.connectors[name]
    assert connector.exists()
    eventually(lambda: [task.state for task in connector.tasks] == ["RUNNING", "RUNNING"])
    assert (connector.state, connector.connector_class) == ("RUNNING", "datagen")
    connector.config = {**connector.config, "seed": "5"}
    eventually(lambda: connector.config["seed"] == "5")
    connector.cycle_connector()
    connector.restart()
    eventually(lambda: all(task.is_running() for task in connector.tasks))
    level = cluster.root_logger["level"]
    cluster.root_logger = level if level in ("INFO", "DEBUG", "TRACE", "WARN", "ERROR") else "WARN"
    connector.delete()
    for gone in (connector.exists, lambda: connector.status):
        with pytest.raises(errors.GenericNotFound):
            gone()


def test_every_call_of_kcctl_is_answered_with_what_it_reads(url, name):
    """Its paths, queries and bodies as its client has them; what it reads is what its records hold."""
    with requests.Session() as kcctl:
        kcctl.headers.update({"Accept": "application/json", "Content-Type": "application/json"})

        def call(method, path, status=200, **sent):
            answer = kcctl.request(method, url + path, timeout=30, **sent)
            assert answer.status_code == status, (path, answer.text)
            return answer.json() if answer.content else None

        assert set(call("GET", "/")) == {"version", "commit", "kafka_cluster_id"}
        plugins = call("GET", "/connector-plugins?connectorsOnly=false")
        assert {"source", "sink", "converter", "transformation"} <= {plugin["type"] for plugin in plugins}
        for plugin in ("datagen", "org.apache.kafka.connect.json.JsonConverter"):
            keys = call("GET", f"/connector-plugins/{plugin}/config")
            assert {"name", "type", "required", "default_value", "documentation"} <= set(keys[0])
        body = {"name": name, "config": GEN}
        checked = call("PUT", "/connector-plugins/datagen/config/validate", json={"name": name, **GEN})
        assert checked["error_count"] == 0
        assert call("POST", "/connectors/", 201, json=body)["name"] == name
        call("POST", "/connectors/", 409, json=body)
        assert name in call("GET", "/connectors/")
        eventually(lambda: states(KafkaConnect(url), name) == ["RUNNING", "RUNNING"])
        both = call("GET", "/connectors?expand=info&expand=status")[name]
        assert (both["info"]["type"], both["status"]["connector"]["state"]) == ("source", "RUNNING")
        assert call("GET", f"/connectors/{name}")["config"]["name"] == name
        config = call("GET", f"/connectors/{name}/config")
        assert call("PUT", f"/connectors/{name}/config", json={**config, "seed": "4"})["config"]["seed"] == "4"
        call("GET", f"/connectors/{name}/status")
        call("GET", f"/connectors/{name}/topics")
        assert [task["id"]["task"] for task in call("GET", f"/connectors/{name}/tasks")] == [0, 1]
        call("PUT", f"/connectors/{name}/pause", 202)
        call("PUT", f"/connectors/{name}/resume", 202)
        call("POST", f"/connectors/{name}/restart", 204)
        call("POST", f"/connectors/{name}/restart?includeTasks=true&onlyFailed=false", 202)
        call("POST", f"/connectors/{name}/tasks/0/restart", 204)
        assert "level" in call("GET", "/admin/loggers")["root"]
        assert call("PUT", "/admin/loggers/kcctl.probe", json={"level": "DEBUG"}) == ["kcctl.probe"]
        assert call("GET", "/admin/loggers/kcctl.probe")["level"] == "DEBUG"
        call("PUT", "/admin/loggers/kcctl.probe?scope=cluster", 204, json={"level": "INFO"})
        call("PUT", f"/connectors/{name}/stop", 204)
        call("DELETE", f"/connectors/{name}", 204)
        assert call("GET", f"/connectors/{name}", 404)["error_code"] == 404
