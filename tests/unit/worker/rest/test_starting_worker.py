"""A worker that does not know the cluster yet denies nothing: every operation, while the logs are read and without a
leader."""

import asyncio
import json
from dataclasses import replace

import pytest
from cdcworker.coordinator.model import ClusterState
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.rest.settings import ApiSettings, RequestLimits, Services
from cdcworker.worker.schema_registry import api as registry_api
from cdcworker.worker.schema_registry.tail import SchemaTail
from cdcworker.worker.server.application import ENDPOINTS

from tests.app_in_memory import ask, create_app, operations, path_of
from tests.unit.worker.conftest import Cluster, FakeCatalog, FakeHerder

OF_THE_PROCESS = {
    "GET /",
    "GET /health",
    "GET /healthz",
    "GET /readyz",
    "GET /v1/live",
    "GET /v1/caller",
    "GET /ui",
    "GET /ui/logins",
    "GET /ui/login",
    "GET /ui/callback",
    "POST /ui/logout",
    "GET /ui/{file}",
    "GET /ui/vendor/{file}",
    "GET /v1/openapi.json",
    "POST /v1/drain",
    "GET /connector-plugins",
    "GET /connector-plugins/{plugin}/config",
    "GET /admin/loggers",
    "GET /admin/loggers/{logger}",
    "PUT /admin/loggers/{logger}",
    "GET /metrics",
    "GET /metrics/connect",
    "GET /v1/support",
}
"""What a worker tells of itself, so that it can be asked at any time."""
WORKERS_ONLY = {"POST /connectors/{connector}/tasks", "PUT /connectors/{connector}/fence"}
"""Refused to everybody else before anything is looked up."""
WITHOUT_SCHEMAS = {"GET /schemas/types", "GET /contexts", "DELETE /subjects/{subject}", "PUT /mode/{subject}"} | {
    "DELETE /subjects/{subject}/versions/{version}",
    "PUT /mode",
    "PUT /config",
    "PUT /config/{subject}",
}
"""Operations of the schema registry whose answer is the same whatever schemas there are."""
CLUSTER = [each for each in operations() if not each.is_registry and str(each) not in OF_THE_PROCESS | WORKERS_ONLY]
REGISTRY = [each for each in operations() if each.is_registry and str(each) not in WITHOUT_SCHEMAS]


def body_of(operation):
    config = {"connector.class": "fake", "host": "db", "name": "c"}
    if operation.body == "CreateConnector":
        return json.dumps({"name": "c", "config": config}).encode()
    if operation.is_registry and operation.body:
        return b'{"schema": "\\"string\\"", "compatibility": "NONE"}'
    return json.dumps(config).encode() if operation.body else b""


def answered(herder, operation, body=None):
    tail = SchemaTail("schemas", {}, "t")
    limits = RequestLimits(leader_wait_s=0.0, catch_up_s=0.0, events_s_max=0.0)
    settings = ApiSettings(
        limits=limits, services=Services(schemas=tail.current), live_checks=False, error_details=True
    )
    app = create_app(
        herder, settings=settings, catalog=FakeCatalog(), registry_routes=registry_api.routes(tail.current)
    )
    sent = body_of(operation) if body is None else body
    return asyncio.run(ask(app, operation.method, path_of(operation.path, plugin="fake"), sent))


def unread():
    """A herder that has opened nothing: its picture of the cluster is empty."""
    return FakeHerder(Cluster(state=ClusterState()), leads=False, changes={"has_read_logs": False, "ready": False})


def leaderless():
    """A herder that has read logs which tell of nothing."""
    return FakeHerder(Cluster(state=ClusterState()), leads=False)


@pytest.mark.parametrize("operation", CLUSTER, ids=str)
def test_what_depends_on_the_cluster_is_not_answered_before_its_logs_are_read(operation):
    herder = unread()
    answer = answered(herder, operation)
    content = json.loads(answer.body)
    assert (answer.status, content["error_code"], content["code"]) == (503, 503, "rest.starting")
    assert answer.headers["retry-after"] == "1"
    assert not herder.submitted


@pytest.mark.parametrize("herder", [unread, leaderless], ids=["unread", "leaderless"])
def test_a_level_for_the_whole_cluster_waits_for_the_cluster(herder):
    found = herder()
    settings = ApiSettings(
        limits=RequestLimits(leader_wait_s=0.0, catch_up_s=0.0), live_checks=False, error_details=True
    )
    app = create_app(found, settings=settings, catalog=FakeCatalog())
    sent = ask(app, "PUT", "/admin/loggers/cdcworker?scope=cluster", b'{"level": "INFO"}')
    answer = asyncio.run(sent)
    has_read = found.view().has_read_logs
    expected = (409, "rest.no_leader") if has_read else (503, "rest.starting")
    assert (answer.status, json.loads(answer.body)["code"]) == expected
    assert answer.headers["retry-after"] == "1"
    assert not found.submitted


@pytest.mark.parametrize("operation", CLUSTER, ids=str)
def test_in_a_cluster_that_has_had_no_leader_yet_a_read_is_503_and_a_change_connects_409(operation):
    answer = answered(leaderless(), operation)
    content = json.loads(answer.body)
    expected = 503 if operation.method == "GET" else 409
    assert (answer.status, content["error_code"], content["code"]) == (expected, expected, "rest.no_leader")
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize("operation", [each for each in operations() if str(each) in OF_THE_PROCESS], ids=str)
def test_what_a_worker_tells_of_itself_it_tells_while_it_starts(operation):
    body = b'{"level": "INFO"}' if operation.body else None
    answer = answered(unread(), operation, body)
    expected = {"GET /health": 503, "GET /readyz": 503, "POST /v1/drain": 501, "GET /v1/support": 501}
    # To the address below which the console's files lie; there is none of the asked name.
    expected |= {"GET /ui": 308, "GET /ui/{file}": 404, "GET /ui/vendor/{file}": 404}
    # Nobody logs in at an identity provider here.
    expected |= dict.fromkeys(("GET /ui/login", "GET /ui/callback", "POST /ui/logout"), 404)
    assert answer.status == expected.get(str(operation), 200)


@pytest.mark.parametrize("operation", REGISTRY, ids=str)
def test_no_schema_is_denied_before_the_schema_log_is_read(operation):
    answer = answered(FakeHerder(Cluster()), operation)
    assert (answer.status, json.loads(answer.body)["error_code"]) == (503, 50001)
    assert answer.headers["retry-after"] == "1"


def test_the_history_of_schemas_is_not_told_either():
    for operation in operations():
        if operation.path.startswith("/v1/schemas"):
            assert answered(FakeHerder(Cluster()), operation).status == 503


def test_a_schema_log_is_not_handed_out_before_it_was_read_to_its_end():
    with pytest.raises(CdcError, match="starting"):
        SchemaTail("schemas", {}, "t").current()


def test_an_election_keeps_nobody_from_reading(connect, herder, cluster):
    cluster.add("c")
    cluster.state = replace(cluster.state, leader=None)
    assert connect(herder).get("/connectors").json() == ["c"]


def test_a_request_waits_for_the_logs_a_little(connect, herder, cluster, runner):
    cluster.add("c")
    herder.changes["has_read_logs"] = False
    client = connect(herder, leader_wait_s=30.0)

    async def later():
        asked = asyncio.create_task(ask(client.app, "GET", "/connectors/c"))
        await asyncio.sleep(0)
        assert not asked.done()
        herder.changes["has_read_logs"] = True
        return await asked

    assert runner.run(later()).status == 200


def test_every_operation_is_in_one_of_the_tables():
    assert {str(each) for each in operations()} >= OF_THE_PROCESS | WORKERS_ONLY | WITHOUT_SCHEMAS
    declared = {f"{each.method} {each.path}" for each in ENDPOINTS if not each.needs_cluster}
    assert declared == OF_THE_PROCESS
