"""The members of the answers of Kafka Connect's routes, at every level: no more and no fewer than a genuine Kafka
Connect's, for clients that take no others; ours for those that ask for details."""

import json
from pathlib import Path

import pytest
from cdcworker.connectors.api.context import CheckFinding
from cdcworker.worker.offsets.model import ConnectorOffset
from cdcworker.worker.server.application import ENDPOINTS

GENUINE = json.loads((Path(__file__).parent / "data" / "connect_members.json").read_text())
ROUTES = [route for route in GENUINE if route != "source"]
RETRYING = {"code": "postgres.unreachable", "count": 2, "since_ms": 1}


def deviations(expected, found, at=""):
    """Where an answer has members that the expected one has not, or lacks members that it has."""
    if isinstance(expected, dict) and "*" in expected:
        assert isinstance(found, dict), at
        return [one for name, value in found.items() for one in deviations(expected["*"], value, f"{at}/{name}")]
    if isinstance(expected, dict):
        assert isinstance(found, dict), at
        known = {name.removesuffix("?"): value for name, value in expected.items()}
        needed = {name for name in expected if not name.endswith("?")}
        own = [f"{at}/{name}" for name in sorted((set(found) - set(known)) | (needed - set(found)))]
        return own + [
            one for name in set(known) & set(found) for one in deviations(known[name], found[name], f"{at}/{name}")
        ]
    if isinstance(expected, list):
        assert isinstance(found, list), at
        return [one for item in found for one in deviations(expected[0], item, f"{at}/[]")]
    return []


@pytest.fixture
def client(connect, herder, kept):
    """A worker whose errors have what clients ask for, as it is by default."""
    plan = [{"table": "t0"}, {"table": "t1"}]
    return connect(herder, offsets=kept, plan=lambda connector: plan, error_details=False)


@pytest.fixture
def asked(client, cluster, checks, config, kept, stopped):
    """Asks everything of a cluster in which each of our own members would have a reason to be there."""
    checks.findings = [CheckFinding("host", "warning", "postgres.pooler", "a pooler answers")]
    cluster.add("c")
    cluster.plan("c", "RUNNING", "FAILED")
    cluster.report("c", 0, "RUNNING", metrics={"tables_held": 2, "retrying": RETRYING})
    cluster.topics["c"] = frozenset(["t"])
    kept.found = [ConnectorOffset({"server": "p"}, {"lsn": 1})]
    kept_sets = cluster.state
    stopped(name="stopped")
    assert kept_sets.connectors.keys() < cluster.state.connectors.keys()
    bodies = {
        "POST /connectors": {"name": "new", "config": {**config, "tasks.max.enforce": "true"}},
        "PUT /connectors/c/config": {**config, "tasks.max.enforce": "true"},
        "PATCH /connectors/c/config": {"port": "1"},
        "PATCH /connectors/stopped/offsets": {"offsets": [{"partition": {"server": "p"}, "offset": {"lsn": 2}}]},
        "PUT /connector-plugins/fake/config/validate": {**config, "name": "c"},
        "PUT /admin/loggers/members": {"level": "INFO"},
    }

    def ask(route, details=False):
        method, _, path = route.partition(" ")
        if route.startswith("PUT /admin/loggers"):
            bodies[route] = {"level": "DEBUG" if details else "TRACE"}  # a level that is set already changes nothing
        if details:
            path += "&details=true" if "?" in path else "?details=true"
        answer = client(method, path, **({"json": bodies[route]} if route in bodies else {}))
        assert answer.status_code in (200, 201, 202), answer.text
        return answer.json()

    return ask


@pytest.mark.parametrize("route", ROUTES)
def test_the_members_are_those_of_a_genuine_answer(asked, route):
    found = asked(route)
    assert found
    assert deviations(GENUINE[route], found) == []


@pytest.mark.parametrize(
    ("route", "members"),
    [
        (
            "GET /connectors/c/status",
            {"/health", "/reason", "/tasks/[]/error", "/tasks/[]/held_tables", "/tasks/[]/retrying"},
        ),
        ("GET /connectors/c/tasks/0/status", {"/held_tables", "/retrying"}),
        ("GET /connectors/c/tasks/1/status", {"/error"}),
        (
            "POST /connectors/c/restart?includeTasks=true",
            {"/health", "/reason", "/tasks/[]/error", "/tasks/[]/held_tables", "/tasks/[]/retrying"},
        ),
        (
            "GET /connectors?expand=status&expand=info",
            {f"/c/status/{name}" for name in ("health", "reason")}
            | {f"/c/status/tasks/[]/{name}" for name in ("error", "held_tables", "retrying")}
            | {"/stopped/status/health"},
        ),
        ("POST /connectors", {"/notes"}),
        ("PUT /connectors/c/config", {"/notes"}),
        ("PUT /connector-plugins/fake/config/validate", {"/findings", "/configs/[]/definition/order"}),
        ("GET /connector-plugins/fake/config", {"/[]/order"}),
    ],
)
def test_who_asks_for_details_gets_ours_beside_them(asked, route, members):
    assert set(deviations(GENUINE[route], asked(route, details=True))) == members


def test_every_route_of_kafka_connect_with_an_answer_is_compared():
    shapes = {
        path.replace("{connector}", "c").replace("{task:int}", "0").replace("{plugin}", "fake")
        for endpoint in ENDPOINTS
        if not (path := endpoint.path).startswith(("/v1", "/ui", "/metrics", "/healthz", "/readyz"))
        and endpoint.role != "internal"
        and endpoint.method == "GET"
    }
    # `/tasks-config` has the configs of `/tasks` and is no longer in Kafka Connect.
    compared = {
        route.partition(" ")[2].partition("?")[0].replace("loggers/root", "loggers/{logger}") for route in ROUTES
    }
    assert shapes - {"/connectors/c/tasks-config"} <= compared
