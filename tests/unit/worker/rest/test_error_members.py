"""Errors of Kafka Connect's routes have its two members and no others, as a genuine one's do; ours for who asks for them, on
our own routes, between workers, and where the operator says so."""

import asyncio
import json
from types import SimpleNamespace

import httpx
import pytest
from cdcworker.worker.http.error_members import MEMBERS, is_own
from cdcworker.worker.rest.settings import ApiSettings, Protection, RequestLimits
from cdcworker.worker.security.gate import Gate

from tests.app_in_memory import ask, create_app, operations, path_of, registry_routes
from tests.unit.worker.conftest import Cluster, FakeCatalog, FakeHerder

OPEN = ("/health", "/healthz", "/readyz", "/v1/live")
ALL = [each for each in operations() if each.path not in OPEN and not each.path.startswith("/ui")]
THEIRS = [each for each in ALL if not is_own(each.path.split("/")[1:])]
OURS = [each for each in ALL if each not in THEIRS]
INVALID = {"connector.class": "fake", "prot": "1"}


def refused(operation, query="", **settings):
    """What a worker answers to somebody whom it does not know."""
    protection = Protection(gate=Gate(certificate_grants=()))
    chosen = ApiSettings(limits=RequestLimits(leader_wait_s=0.0), protection=protection, **settings)
    app = create_app(FakeHerder(Cluster()), settings=chosen, catalog=FakeCatalog(), registry_routes=registry_routes())
    answer = asyncio.run(ask(app, operation.method, path_of(operation.path, plugin="fake") + query))
    assert answer.status == 401
    assert int(answer.headers["content-length"]) == len(answer.body)
    return json.loads(answer.body)


def test_both_kinds_of_routes_are_there():
    assert {"/", "/connectors", "/admin/loggers", "/subjects"} <= {each.path for each in THEIRS}
    assert {"/v1/cluster", "/metrics"} <= {each.path for each in OURS}


@pytest.mark.parametrize("operation", THEIRS, ids=str)
def test_an_error_of_connects_routes_has_its_members_alone(operation):
    assert tuple(refused(operation)) == MEMBERS


@pytest.mark.parametrize("operation", THEIRS, ids=str)
def test_who_asks_for_details_gets_the_code_too(operation):
    assert refused(operation, "?details=true")["code"] == "rest.unauthenticated"
    assert refused(operation, error_details=True)["code"] == "rest.unauthenticated"
    assert tuple(refused(operation, "?details=false")) == MEMBERS


@pytest.mark.parametrize("operation", OURS, ids=str)
def test_an_error_of_our_own_routes_keeps_its_members(operation):
    assert refused(operation)["code"] == "rest.unauthenticated"


@pytest.fixture
def plain(connect, herder, kept):
    return connect(herder, offsets=kept, error_details=False)


CASES = [
    ("POST", "/connectors", {"name": "c", "config": INVALID}),
    ("POST", "/connectors", {"name": "c", "config": {"connector.class": "nope"}}),
    ("POST", "/connectors", [1]),
    ("PUT", "/connectors/c/config", INVALID),
    ("PATCH", "/connectors/c/config", {"port": "many"}),
    ("GET", "/connectors/nope", None),
    ("PUT", "/connectors/nope/pause", None),
    ("PATCH", "/connectors/c/offsets", {"offsets": "x"}),
    ("DELETE", "/connectors/c?dry_run=perhaps", None),
    ("GET", "/connectors?min_version=1000000000000000", None),
    ("PUT", "/connector-plugins/fake/config/validate", {}),
    ("PUT", "/admin/loggers/root", {"level": "LOUD"}),
]


@pytest.mark.parametrize(("method", "path", "body"), CASES, ids=[f"{method} {path}" for method, path, _ in CASES])
def test_the_message_says_the_same_with_and_without_details(plain, cluster, method, path, body):
    cluster.add("c")
    more = path + ("&" if "?" in path else "?") + "details=true"
    short, whole = (plain(method, each, **({} if body is None else {"json": body})) for each in (path, more))
    assert (short.status_code, whole.status_code) == (short.json()["error_code"],) * 2
    assert tuple(short.json()) == MEMBERS
    assert short.json()["message"] == whole.json()["message"]
    assert set(MEMBERS) < set(whole.json())


def test_the_message_says_what_to_do_where_it_did(plain):
    message = plain.post("/connectors", json={"name": "c", "config": INVALID}).json()["message"]
    assert "did you mean port?" in message


def test_health_is_no_error(connect, make_herder):
    starting = connect(make_herder(changes={"has_read_logs": False, "ready": False}), error_details=False)
    assert set(starting.get("/health").json()) == {"status", "message"}


WHOLE = {"error_code": 409, "message": "no", "code": "rest.conflict", "suggestion": "wait", "configPath": "/config/é"}


class Leader:
    """Another worker, which answers what it is told."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def __call__(self, request):
        self.asked.append(request)
        return self.answers.pop(0)


@pytest.fixture
def follow(connect, make_herder):
    def make(*answers):
        leader = Leader(*answers)
        transport = httpx.MockTransport(leader)
        client = connect(make_herder(leads=False), transport=transport, error_details=False)
        return SimpleNamespace(client=client, leader=leader)

    return make


def test_what_an_earlier_worker_answers_is_handed_on_as_the_client_wants_it(follow):
    follower = follow(*(httpx.Response(409, json=WHOLE, headers={"retry-after": "1"}) for _ in range(2)))
    short = follower.client.put("/connectors/c/pause")
    assert short.json() == {name: WHOLE[name] for name in MEMBERS}
    assert (short.status_code, short.headers["retry-after"]) == (409, "1")
    assert follower.client.put("/connectors/c/pause?details=true").json() == WHOLE


def test_a_worker_that_forwards_gets_all_members_whatever_its_client_asks_for(plain):
    assert tuple(plain.put("/connectors/nope/pause").json()) == MEMBERS
    for hop in ("true", "false"):
        assert plain.put(f"/connectors/nope/pause?forward={hop}").json()["code"] == "rest.not_found"


def test_two_workers_answer_as_one(connect, cluster, make_herder):
    leader = connect(make_herder(), error_details=False)
    transport = httpx.ASGITransport(app=leader.app)
    follower = connect(make_herder(leads=False), transport=transport, error_details=False)
    for client in (leader, follower):
        assert tuple(client.put("/connectors/nope/pause").json()) == MEMBERS
        assert client.put("/connectors/nope/pause?details=true").json()["code"] == "rest.not_found"
