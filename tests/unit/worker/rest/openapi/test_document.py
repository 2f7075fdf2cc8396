"""The OpenAPI document is whole and true: the application keeps to it for thousands of generated requests."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections import Counter
from dataclasses import replace

import httpx
import pytest
import schemathesis
from cdcworker.coordinator.model import TaskSet
from cdcworker.schemas.log import RegistrationMeta, SchemaLog
from cdcworker.worker.diagnostics import doctor_child as doctor_main
from cdcworker.worker.offsets.model import ConnectorOffset
from cdcworker.worker.rest.openapi.document import document
from cdcworker.worker.rest.openapi.json_schemas import ANSWERS, SCHEMAS
from cdcworker.worker.rest.openapi.parameters import PARAMETERS
from cdcworker.worker.security.authenticate import Authenticator
from cdcworker.worker.security.credentials import hashed
from cdcworker.worker.security.gate import Gate
from cdcworker.worker.security.users import UserFile
from cdcworker.worker.server.application import ENDPOINTS
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

REQUESTS_MIN = int(os.environ.get("CDC_FUZZ_REQUESTS", "5_000"))
DOCUMENT = document(ENDPOINTS)
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations()]
MODES = {"like the document": GenerationMode.POSITIVE, "unlike the document": GenerationMode.NEGATIVE}
SHARES = {"like the document": 0.75, "unlike the document": 0.25}
"""What is unlike the document takes three times as long to make."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
NAMES = {
    "connector": ["run", "stop", "paused", "a/b%;ü"],
    "connection": ["used", "free", "none"],
    "plugin": ["fake", "drain", "com.example.FakeConnector"],
    "logger": ["root", "cdcworker.fuzzed"],
    "subject": ["p.orders-value"],
    "file": ["app.js", "htm.js"],
    "task": [0, 1, 2],
    "snapshot": ["initial", "000000000000", "ended"],
}
"""What there is: half of the requests are about that."""
EXPECTED = {501: "rest.not_available", 503: "rest.not_caught_up"}
"""Answers above 499 that are no fault: an operation that only workers need, and a read of what this worker cannot know."""


def test_every_operation_is_described_and_nothing_else():
    described = {
        (method.upper(), path) for path, item in DOCUMENT["paths"].items() for method in item if method != "parameters"
    }
    assert described == {(e.method, e.path.replace(":int", "")) for e in ENDPOINTS}
    ids = [
        item[method]["operationId"] for item in DOCUMENT["paths"].values() for method in item if method != "parameters"
    ]
    assert len(ids) == len(set(ids)) == len(ENDPOINTS)


def test_every_shape_and_parameter_is_used():
    text = json.dumps(DOCUMENT["paths"]) + json.dumps(SCHEMAS)
    assert [name for name in SCHEMAS if f'schemas/{name}"' not in text] == []
    named = {name for endpoint in ENDPOINTS for name in endpoint.query} | {"min_version"}
    assert named == set(PARAMETERS)
    keys = {f"{e.method} {e.path}" for e in ENDPOINTS}
    assert [key for key in ANSWERS if " ".join(key.split(" ")[:2]) not in keys] == []


def test_the_document_is_valid_openapi_3_1():
    SCHEMA.validate()


def test_security_is_declared_where_it_is_on_and_nowhere_else(client, connect, herder, tmp_path):
    opened = client.get("/v1/openapi.json").json()
    assert opened == json.loads(json.dumps(document(ENDPOINTS, closed=False)))
    assert "securitySchemes" not in opened["components"]
    operations = [item[method] for item in opened["paths"].values() for method in item if method != "parameters"]
    assert not any("security" in operation or "401" in operation["responses"] for operation in operations)
    users = tmp_path / "users.yaml"
    token = {"id": "a" * 12, "hash": hashed("S" * 43, log_n=10)}
    users.write_text(json.dumps({"users": [{"name": "ops", "grants": ["read"], "tokens": [token]}]}))
    with contextlib.closing(Authenticator(UserFile(users))) as authenticator:
        closed = connect(herder, gate=Gate(authenticator))
        headers = {"Authorization": f"Bearer cdc_{'a' * 12}_{'S' * 43}"}
        told = closed.get("/v1/openapi.json", headers=headers).json()
    assert told == json.loads(json.dumps(DOCUMENT))
    assert told["paths"]["/connectors"]["get"]["security"]


@pytest.fixture
def schemas():
    log = SchemaLog()
    row = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "long"}]}
    for record in log.plan_registration("p.orders-value", row, RegistrationMeta(7, ("public", "orders"))).records:
        log.apply(*record)
    return lambda: log


@pytest.fixture
def fuzzed(connect, cluster, herder, kept, schemas):
    """An application whose cluster is as it was before each request."""
    cluster.add("run", labels={"team": "shop"})
    cluster.add("a/b%;ü")
    cluster.add("paused", target_state="PAUSED", kind="sink")
    cluster.add("stop", target_state="STOPPED")
    cluster.connect("used")
    cluster.connect("free")
    cluster.add("names", {"connection": "used"})
    cluster.plan("run", "RUNNING", "FAILED", None)
    sets = {**cluster.state.task_sets, "stop": TaskSet("inc-1", 0, (), task_epoch=7)}
    cluster.state = replace(cluster.state, task_sets=sets)
    cluster.topics["run"] = frozenset({"t"})
    kept.found = [ConnectorOffset({"server": "s", "task": 0}, {"n": 1})]
    found = connect(herder, offsets=kept, schemas=schemas, plan=lambda connector: [{"a": "b"}], examine=examined)
    found.app.state.api.drain = lambda returns: None
    before = (cluster.state, dict(cluster.topics))

    def reset():
        cluster.state, cluster.topics = before[0], dict(before[1])
        herder.submitted.clear()
        return found

    levels = {name: item.level for name, item in logging.root.manager.loggerDict.items() if hasattr(item, "level")}
    root = logging.root.level
    yield reset
    logging.root.setLevel(root)
    for name, item in logging.root.manager.loggerDict.items():
        if isinstance(item, logging.Logger):
            item.setLevel(levels.get(name, logging.NOTSET))


def examined(question, timeout_s):
    return list(doctor_main.findings({**question, "providers": {}, "config": {"connector.class": "nothing"}}))


def request_of(case):
    """As an httpx request; what no HTTP client can send counts as sent by nobody."""
    parts = case.as_transport_kwargs(base_url="http://leader:8083")
    options = {name: parts[name] for name in ("json", "data", "params", "headers", "cookies") if parts.get(name)}
    if isinstance(options.get("data"), bytes | str):
        options["content"] = options.pop("data")
    return httpx.Request(parts["method"], parts["url"], **options)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", MODES)
def test_the_application_keeps_to_the_document(fuzzed, runner, mode):
    sent: Counter[str] = Counter()
    requests = round(REQUESTS_MIN * SHARES[mode])
    for operation in OPERATIONS:
        strategy = operation.as_strategy(generation_mode=MODES[mode])
        fuzz(lambda case: answered(fuzzed, runner, case), strategy, requests // len(OPERATIONS) + 3, sent)
    assert set(sent) == {operation.label for operation in OPERATIONS}
    assert sent.total() >= requests


def answered(fuzzed, runner, case):
    client = fuzzed()
    answer = runner.run(client._http.send(request_of(case)))
    if case.method == "GET":
        assert client.app.state.api.herder.submitted == [], "a read asked the coordinator"
    return answer


def fuzz(send, strategy, count, sent):
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy, known=st.integers(0, 63))
    def run(case, known):
        if known % 2 and case.path_parameters:
            chosen = {name: NAMES[name][known // 2 % len(NAMES[name])] for name in case.path_parameters}
            case.path_parameters = {**case.path_parameters, **chosen}
        answer = send(case)
        sent[case.operation.label] += 1
        is_expected = answer.status_code >= 500 and answer.json().get("code") == EXPECTED.get(answer.status_code)
        case.validate_response(answer, checks=CHECKS[1:] if is_expected else CHECKS)

    run()
