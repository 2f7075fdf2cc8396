"""Live checks through REST against a real server: what is wrong outside is said before anything is created."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import replace
from urllib.parse import unquote, urlsplit

import httpx
import psycopg
import pytest
from cdcworker.coordinator.model import ClusterState, Connector, Leader, Reply, View
from cdcworker.worker.diagnostics.doctor_child import run_child
from cdcworker.worker.rest.settings import ApiSettings, RequestLimits, Services
from cdcworker.worker.server.application import create_app
from cdcworker.worker.validation.validate import run_checks

pytestmark = pytest.mark.postgres


class Herder:
    """Takes everything, and remembers it."""

    def __init__(self):
        self.submitted = []

    def view(self):
        state = ClusterState(leader=Leader(1, "w:1", "b", "http://w:1"))
        return View("w:1", "b", "http://w:1", "k", True, True, state, {}, {}, {})

    def submit(self, request):
        self.submitted.append(request)
        future = Future()
        future.set_result(Reply("ok", created=True, version=1))
        return future


@pytest.fixture
def herder():
    return Herder()


@pytest.fixture
def post(herder):
    # A busy machine needs its time to start an interpreter; the limit has tests of its own.
    app = create_app(herder, settings=ApiSettings(limits=RequestLimits(check_timeout_s=60.0)))

    def send(config):
        async def ask():
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://w:1") as http:
                return await http.post("/connectors?details=true", json={"name": "c", "config": config})

        return asyncio.run(ask())

    return send


@pytest.fixture
def database(postgres):
    name = postgres.create_database()
    with psycopg.connect(postgres.dsn(name), autocommit=True) as connection:
        connection.execute("create table item (id int primary key)")
    yield name
    postgres.drop_database(name)


@pytest.fixture
def config(postgres, database):
    dsn = urlsplit(postgres.dsn(database))
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": "shop",
        "database.hostname": dsn.hostname,
        "database.port": str(dsn.port),
        "database.user": dsn.username,
        "database.password": unquote(dsn.password),
        "database.dbname": database,
        "slot.name": database,
        "table.include.list": "public.item",
    }


def errors(answer):
    assert answer.status_code == 400, answer.text
    return {(item["configPath"], item["code"]) for item in answer.json()["errors"]}


def test_a_good_source_is_accepted(post, config, herder):
    answer = post(config)
    assert answer.status_code == 201, answer.text
    assert len(herder.submitted) == 1
    assert config["database.password"] not in answer.text


def test_a_wrong_password_is_refused_and_never_shown(post, config, herder):
    answer = post({**config, "database.password": "Wr0ngPa55"})
    assert ("/config/database.password", "postgres.authentication_failed") in errors(answer)
    assert len(answer.json()["errors"]) == 1
    assert "Wr0ngPa55" not in answer.text
    assert herder.submitted == []


def test_a_server_that_does_not_listen_is_refused(post, config, herder):
    answer = post({**config, "database.port": "1"})
    assert ("/config/database.hostname", "postgres.unreachable") in errors(answer)
    assert answer.json()["errors"][0]["suggestion"]
    assert herder.submitted == []


def test_a_missing_database_is_refused(post, config):
    assert {path for path, _ in errors(post({**config, "database.dbname": "nowhere"}))} == {"/config/database.dbname"}


def test_a_missing_table_is_refused(post, config):
    assert {path for path, _ in errors(post({**config, "table.include.list": "public.none"}))} == {
        "/config/table.include.list"
    }


def test_a_password_by_reference_is_resolved_for_the_check_alone(post, config, herder, monkeypatch):
    monkeypatch.setenv("CDC_SECRET_DB", config["database.password"])
    answer = post({**config, "database.password": "${env:CDC_SECRET_DB}"})
    assert answer.status_code == 201, answer.text
    assert herder.submitted[0].config["database.password"] == "${env:CDC_SECRET_DB}"
    assert config["database.password"] not in answer.text


def test_a_server_that_never_answers_does_not_hold_up_creation(config):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        stuck = {**config, "name": "c", "database.port": str(silent.getsockname()[1])}
        found = run_checks(stuck, timeout_s=1.5)
    assert [finding.code for finding in found] == ["check.incomplete"]


def test_a_running_connector_is_examined_with_the_secrets_that_nobody_is_shown(config):
    class Knows(Herder):
        def view(self):
            connector = Connector("c", "i", 1, {"name": "c", **config}, "RUNNING", "source")
            view = super().view()
            return replace(view, state=replace(view.state, connectors={"c": connector}))

    def examine(question, timeout_s):
        return run_child({**question, "providers": {}}, 60.0)

    async def ask():
        transport = httpx.ASGITransport(
            app=create_app(Knows(), settings=ApiSettings(services=Services(examine=examine)))
        )
        async with httpx.AsyncClient(transport=transport, base_url="http://w:1") as http:
            return await http.get("/v1/connectors/c/doctor", params={"check": ["reach.*", "publication"]})

    answer = asyncio.run(ask())
    found = {item["check"]: item for item in answer.json()["findings"]}
    assert found["publication.exists"]["severity"] in ("error", "note", "ok")
    assert {name.partition(".")[0] for name in found} == {"reach", "publication"}
    assert all(item["why"] and item["took_ms"] >= 0 for item in found.values())
    assert config["database.password"] not in answer.text
