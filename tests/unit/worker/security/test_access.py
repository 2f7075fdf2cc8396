"""Who may call what: every endpoint by every kind of credential and every role."""

import base64
import itertools
import logging
import re

import httpx
import pytest
import yaml
from cdcworker.schemas.log import SchemaLog
from cdcworker.worker.rest.settings import ApiSettings, Protection
from cdcworker.worker.schema_registry import api as registry_api
from cdcworker.worker.security import access
from cdcworker.worker.security.authenticate import Authenticator
from cdcworker.worker.security.credentials import hashed
from cdcworker.worker.security.gate import CONSOLE, Gate
from cdcworker.worker.security.users import UserFile
from cdcworker.worker.server.application import ENDPOINTS, create_app

SECRET = "S" * 43
PASSWORD = "correct horse"
HASH = hashed(SECRET, log_n=10)
GRANTS = {
    "root": ["admin"],
    "reader": ["read"],
    "operator": ["operate"],
    "shop-reader": ["read:shop-"],
    "shop-operator": ["operate:shop-"],
    "shop-admin": ["admin:shop-"],
    "other-admin": ["admin:other-"],
    "consumer": ["schemas"],
    "nothing": [],
}
IDS = {name: f"{number:012x}" for number, name in enumerate([*GRANTS, "late"])}
OPEN = {endpoint.path for endpoint in ENDPOINTS if endpoint.role == "open"}


def bearer(name):
    return {"Authorization": f"Bearer cdc_{IDS[name]}_{SECRET}"}


def basic(name, password):
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def content():
    users = [
        {"name": name, "grants": grants, "tokens": [{"id": IDS[name], "hash": HASH}]} for name, grants in GRANTS.items()
    ]
    users[0]["password"] = hashed(PASSWORD, log_n=10)
    users[0]["tokens"].append({"id": IDS["late"], "hash": HASH, "expires": "2020-01-01T00:00:00Z"})
    return {"users": users}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "users.yaml"
    path.write_text(yaml.safe_dump(content()))
    return path


@pytest.fixture
def authenticator(file):
    found = Authenticator(UserFile(file), decoy_hash=HASH)
    yield found
    found.close()


@pytest.fixture
def closed(connect, herder, authenticator, cluster):
    for name in ("shop-orders", "other-orders"):
        cluster.add(name)
        cluster.plan(name, "RUNNING")
    return connect(herder, gate=Gate(authenticator))


def path_of(endpoint, connector):
    return re.sub(r"\{\w+:int\}", "0", endpoint.path.replace("{connector}", connector)).replace("{plugin}", "fake")


def call(client, endpoint, connector="shop-orders", headers=None):
    body = {"connector.class": "fake", "host": "db"} if endpoint.body else None
    if endpoint.body == "CreateConnector":
        body = {"name": connector, "config": body}
    elif endpoint.body == "Config":
        body["name"] = connector
    path = path_of(endpoint, connector).replace("{logger}", "root")
    return client(endpoint.method, path, json=body, headers=headers or {})


def test_every_endpoint_declares_what_its_caller_needs():
    for endpoint in ENDPOINTS:
        assert endpoint.role in ("open", "read", "operate", "admin", "internal"), endpoint.path
        assert endpoint.whose in ("", "named", "each"), endpoint.path
        if endpoint.role == "open":
            assert endpoint.method == "GET" or endpoint.path == "/ui/logout"
        elif endpoint.method != "GET":
            assert endpoint.role != "read", f"{endpoint.method} {endpoint.path} changes something"


def test_what_is_open_is_what_the_gate_leaves_open():
    console = {path for path in OPEN if path.split("/")[1] == CONSOLE}
    files = {"/ui", "/ui/{file}", "/ui/vendor/{file}"}
    assert console == files | {"/ui/logins", "/ui/login", "/ui/callback", "/ui/logout"}
    assert Gate().open_paths == OPEN - console


BAD = {
    "none": {},
    "empty": {"Authorization": ""},
    "unknown scheme": {"Authorization": "Digest x"},
    "bad token": {"Authorization": f"Bearer cdc_{IDS['root']}_{'T' * 43}"},
    "unknown token": {"Authorization": f"Bearer cdc_ffffffffffff_{SECRET}"},
    "half a token": {"Authorization": "Bearer cdc_"},
    "expired": bearer("late"),
    "bad password": basic("root", "wrong"),
    "no password": basic("reader", ""),
    "what is checked for nobody": basic("reader", SECRET),
    "unknown user": basic("nobody", PASSWORD),
    "not base64": {"Authorization": "Basic %%%"},
    "endless": {"Authorization": "Bearer " + "x" * 5000},
}


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda e: f"{e.method} {e.path}")
def test_without_a_good_credential_nothing_but_health_answers(closed, herder, endpoint):
    for kind, headers in BAD.items():
        answer = call(closed, endpoint, headers=headers)
        if endpoint.role == "open":
            assert answer.status_code != 401
            continue
        assert answer.status_code == 401, kind
        assert answer.json()["error_code"] == 401
        assert set(answer.json()) == {"error_code", "message", "code", "suggestion"}
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert herder.submitted == []


def expected(endpoint, name, connector):
    """Whether the caller's grants cover the endpoint, said a second time and another way."""
    if endpoint.role == "open":
        return True
    rank = {"read": 1, "operate": 2, "admin": 3, "internal": 9}
    for grant in GRANTS[name]:
        role, _, prefix = grant.partition(":")
        if rank.get(role, 0) < rank[endpoint.role]:
            continue
        if not prefix or endpoint.whose == "each":
            return True
        if ("{connector}" in endpoint.path or endpoint.whose == "named") and connector.startswith(prefix):
            return True
    return False


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda e: f"{e.method} {e.path}")
def test_every_role_meets_every_endpoint(closed, herder, endpoint):
    for name, connector in itertools.product(GRANTS, ("shop-orders", "other-orders", "new")):
        before = len(herder.submitted)
        answer = call(closed, endpoint, connector, bearer(name))
        if expected(endpoint, name, connector):
            assert answer.status_code not in (401, 403), (name, connector, answer.text)
        else:
            assert answer.status_code in ((403, 400) if endpoint.role == "internal" else (403,)), (name, connector)
            assert answer.json()["error_code"] == answer.status_code
            assert len(herder.submitted) == before, "a refused call asked the herd"


def test_lists_show_what_the_caller_may_see(closed):
    assert closed.get("/connectors", headers=bearer("shop-reader")).json() == ["shop-orders"]
    assert set(closed.get("/connectors?expand=info", headers=bearer("other-admin")).json()) == {"other-orders"}
    assert closed.get("/connectors", headers=bearer("reader")).json() == ["other-orders", "shop-orders"]
    tasks = closed.get("/v1/cluster", headers=bearer("shop-reader")).json()["tasks"]
    assert {task["connector"] for task in tasks} == {"shop-orders"}


def test_the_name_in_the_body_counts_as_the_one_in_the_path(closed):
    config = {"connector.class": "fake", "host": "db"}
    body = {"name": "other-new", "config": config}
    assert closed.post("/connectors", json=body, headers=bearer("shop-admin")).status_code == 403
    named = {**config, "name": "other-orders"}
    url = "/connector-plugins/fake/config/validate"
    assert closed.put(url, json=named, headers=bearer("shop-admin")).status_code == 403
    assert closed.put(url, json=config, headers=bearer("shop-admin")).status_code == 200


def test_unknown_paths_are_closed_too(closed):
    assert closed.get("/nothing").status_code == 401
    assert closed.get("/nothing", headers=bearer("reader")).status_code == 404


@pytest.mark.parametrize(
    "path", ["/health/../connectors", "/health%2F..%2Fconnectors", "//health", "/health//", "/%2Fhealth"]
)
def test_open_paths_are_exact(closed, path):
    assert closed.get(path).status_code in (401, 404)


def test_health_can_be_closed(connect, herder, authenticator):
    client = connect(herder, gate=Gate(authenticator, health_is_open=False))
    assert client.get("/health").status_code == 401
    assert client.get("/v1/live").status_code == 200
    assert client.get("/health", headers=bearer("reader")).status_code == 200


def test_passwords_and_both_of_two_tokens_are_good(closed, file):
    assert closed.get("/connectors", headers=basic("root", PASSWORD)).status_code == 200
    assert closed.get("/connectors", headers=basic("root", PASSWORD)).status_code == 200
    assert closed.get("/connectors", headers=bearer("root")).status_code == 200


def test_the_file_is_read_again_when_it_changes(connect, herder, file, caplog):
    now = [0.0]
    authenticator = Authenticator(UserFile(file, clock=lambda: now[0]))
    client = connect(herder, gate=Gate(authenticator))

    def status(name):
        now[0] += 2.0
        return client.get("/connectors", headers=bearer(name)).status_code

    assert (status("reader"), status("operator")) == (200, 200)
    changed = content()
    changed["users"] = [user for user in changed["users"] if user["name"] != "reader"]
    file.write_text(yaml.safe_dump(changed))
    assert (status("reader"), status("operator")) == (401, 200)
    file.write_text("users: [")
    with caplog.at_level(logging.ERROR):
        assert (status("reader"), status("operator")) == (401, 200)
    assert "the earlier ones count on" in caplog.text
    file.write_text(yaml.safe_dump(content()))
    assert status("reader") == 200
    authenticator.close()


def test_the_registry_needs_the_grant_for_schemas_and_writes_need_an_admin(runner, herder, authenticator):
    routes = registry_api.routes(SchemaLog)
    app = create_app(
        herder, registry_routes=routes, settings=ApiSettings(protection=Protection(gate=Gate(authenticator)))
    )
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://w")

    def status(method, path, name=None):
        headers = bearer(name) if name else {}
        return runner.run(http.request(method, path, headers=headers, json={"compatibility": "NONE"})).status_code

    for route in routes:
        path = re.sub(r"\{\w+\}", "1", route.path)
        for method in route.methods - {"HEAD"}:
            assert status(method, path) == 401
            assert status(method, path, "shop-admin") == 403
            assert status(method, path, "root") not in (401, 403)
            reads = method == "GET" or route.path.startswith("/compat") or route.path == "/subjects/{subject}"
            allowed = reads and method != "DELETE"
            assert (status(method, path, "consumer") != 403) == allowed, (method, path)
            assert (status(method, path, "reader") != 403) == allowed
    runner.run(http.aclose())


def test_answers_carry_the_id_of_their_request(closed):
    given = closed.get("/health", headers={"X-Request-Id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    forged = closed.get("/connectors", headers={"X-Request-Id": "a b\tc"})
    assert re.fullmatch("[0-9a-f]{32}", forged.headers["x-request-id"])


def test_no_credential_reaches_the_log(closed, caplog):
    with caplog.at_level(logging.DEBUG):
        for headers in (*BAD.values(), bearer("root"), basic("root", PASSWORD)):
            closed.get("/connectors", headers=headers)
    for secret in (SECRET, PASSWORD, HASH):
        assert secret not in caplog.text


@pytest.mark.parametrize("text", ["", "root", "read:", "schemas:x", "ADMIN", "admin :x"])
def test_grants_that_mean_nothing_are_refused(text):
    with pytest.raises(ValueError, match=r"grant|schemas"):
        access.parse_grant(text)


def test_a_name_chosen_at_the_provider_takes_nothing_of_a_local_users_share():
    local, foreign = access.Caller("admin", (), "token"), access.Caller("admin", (), "oidc", "u-1")
    assert local.share != foreign.share
    assert access.Caller("u-1", (), "token").share != foreign.share
    assert foreign.share == access.Caller("other", (), "session", "u-1").share
