"""Who may do what: every operation of the API and of the schema registry, by every kind of caller, as a table that was
written by hand. An operation that is not in the table fails until somebody has said who may do it."""

import asyncio
import json

import pytest
import yaml
from cdcworker.worker.rest.openapi.document import cached
from cdcworker.worker.rest.settings import ApiSettings, Protection, RequestLimits
from cdcworker.worker.security.authenticate import Authenticator
from cdcworker.worker.security.credentials import hashed
from cdcworker.worker.security.gate import Gate
from cdcworker.worker.security.users import UserFile
from cdcworker.worker.server.application import ENDPOINTS

from tests.app_in_memory import ask, create_app, operations, path_of, registry_routes
from tests.unit.worker.conftest import Cluster, FakeCatalog, FakeHerder

SECRET = "S" * 43
HASH = hashed(SECRET, log_n=10)
GRANTS = {
    "read": ["read"],
    "read:shop-": ["read:shop-"],
    "operate": ["operate"],
    "operate:shop-": ["operate:shop-"],
    "admin": ["admin"],
    "admin:shop-": ["admin:shop-"],
    "schemas": ["schemas"],
}
CALLERS = ("anonymous", *GRANTS, "expired", "revoked", "wrong")
INSIDE, OUTSIDE = "shop-orders", "other-orders"

# One letter for each caller, in the order of CALLERS:
# y: may do it, n: 403, u: 401, i: 400, since only workers sign requests.
#
#  a  r  r: o  o: A  A: s  e  v  w          a nonymous, r ead, o perate, A dmin (: with the prefix), s chemas,
#                                           e xpired, re v oked, w rong
OPEN = "y  y  y  y  y  y  y  y  y  y  y"
SEE_SOME = "u  y  y  y  y  y  y  n  u  u  u"
SEE_OWN = "u  y  y  y  y  y  y  n  u  u  u", "u  y  n  y  n  y  n  n  u  u  u"
RUN_OWN = "u  n  n  y  y  y  y  n  u  u  u", "u  n  n  y  n  y  n  n  u  u  u"
CHANGE_OWN = "u  n  n  n  n  y  y  n  u  u  u", "u  n  n  n  n  y  n  n  u  u  u"
SEE_CLUSTER = "u  y  n  y  n  y  n  n  u  u  u"
CHANGE_CLUSTER = "u  n  n  n  n  y  n  n  u  u  u"
SCHEMAS = "u  y  n  y  n  y  n  y  u  u  u"
WORKERS = "u  i  i  i  i  i  i  i  u  u  u"

TABLE = {
    "GET /": SEE_SOME,
    "GET /health": OPEN,
    "GET /healthz": OPEN,
    "GET /readyz": OPEN,
    "GET /v1/live": OPEN,
    "GET /v1/caller": SEE_SOME,
    # Files of the console, the same for everybody.
    "GET /ui": OPEN,
    "GET /ui/{file}": OPEN,
    "GET /ui/vendor/{file}": OPEN,
    # Who begins and ends a session of the console has none.
    "GET /ui/logins": OPEN,
    "GET /ui/login": OPEN,
    "GET /ui/callback": OPEN,
    "POST /ui/logout": OPEN,
    "GET /v1/cluster": SEE_SOME,
    "GET /v1/cluster/journal": SEE_SOME,
    "GET /v1/openapi.json": SEE_SOME,
    "POST /v1/drain": CHANGE_CLUSTER,
    "GET /connectors": SEE_SOME,
    "POST /connectors": CHANGE_OWN,
    "GET /connectors/{connector}": SEE_OWN,
    "DELETE /connectors/{connector}": CHANGE_OWN,
    "GET /connectors/{connector}/config": SEE_OWN,
    "PUT /connectors/{connector}/config": CHANGE_OWN,
    "PATCH /connectors/{connector}/config": CHANGE_OWN,
    "GET /connectors/{connector}/status": SEE_OWN,
    "PUT /connectors/{connector}/pause": RUN_OWN,
    "PUT /connectors/{connector}/resume": RUN_OWN,
    "PUT /connectors/{connector}/stop": RUN_OWN,
    "POST /connectors/{connector}/restart": RUN_OWN,
    "GET /connectors/{connector}/tasks": SEE_OWN,
    "GET /connectors/{connector}/tasks-config": SEE_OWN,
    "GET /connectors/{connector}/tasks/{task:int}/status": SEE_OWN,
    "POST /connectors/{connector}/tasks/{task:int}/restart": RUN_OWN,
    "GET /connectors/{connector}/topics": SEE_OWN,
    "PUT /connectors/{connector}/topics/reset": RUN_OWN,
    "GET /connectors/{connector}/offsets": SEE_OWN,
    "PATCH /connectors/{connector}/offsets": CHANGE_OWN,
    "DELETE /connectors/{connector}/offsets": CHANGE_OWN,
    "GET /connector-plugins": SEE_SOME,
    "GET /connector-plugins/{plugin}/config": SEE_SOME,
    "PUT /connector-plugins/{plugin}/config/validate": CHANGE_OWN,
    "GET /admin/loggers": SEE_CLUSTER,
    "GET /admin/loggers/{logger}": SEE_CLUSTER,
    "PUT /admin/loggers/{logger}": CHANGE_CLUSTER,
    "GET /v1/connections": SEE_SOME,
    # Connections are under the same grants as connectors: by the prefix of their names.
    "GET /v1/connections/{connection}": SEE_OWN,
    "PUT /v1/connections/{connection}": CHANGE_OWN,
    "DELETE /v1/connections/{connection}": CHANGE_OWN,
    "GET /v1/connectors": SEE_SOME,
    "GET /v1/connectors/{connector}/labels": SEE_OWN,
    "PUT /v1/connectors/{connector}/labels": CHANGE_OWN,
    "GET /v1/events": SEE_SOME,
    "GET /v1/incidents": SEE_SOME,
    "GET /v1/schemas": SEE_CLUSTER,
    "GET /v1/schemas/{subject}/history": SEE_CLUSTER,
    "GET /v1/connectors/{connector}/changes": RUN_OWN,
    "GET /v1/connectors/{connector}/explain": RUN_OWN,
    "GET /v1/connectors/{connector}/doctor": RUN_OWN,
    "POST /v1/connectors/{connector}/verify": RUN_OWN,
    "GET /v1/connectors/{connector}/verify": RUN_OWN,
    # Without dry_run, by which a caller who may read both connectors asks what would be repaired.
    "POST /v1/connectors/{connector}/verify/repair": RUN_OWN,
    "GET /v1/connectors/{connector}/dead-letters": SEE_OWN,
    "POST /v1/connectors/{connector}/dead-letters/redrive": RUN_OWN,
    "GET /v1/connectors/{connector}/maintenance": SEE_OWN,
    "POST /v1/connectors/{connector}/maintenance": RUN_OWN,
    "GET /metrics": SEE_SOME,
    "GET /metrics/connect": SEE_SOME,
    "GET /v1/connectors/{connector}/snapshots": SEE_OWN,
    "POST /v1/connectors/{connector}/snapshots": RUN_OWN,
    "GET /v1/connectors/{connector}/snapshots/{snapshot}": SEE_OWN,
    "PUT /v1/connectors/{connector}/snapshots/{snapshot}/pause": RUN_OWN,
    "PUT /v1/connectors/{connector}/snapshots/{snapshot}/resume": RUN_OWN,
    "DELETE /v1/connectors/{connector}/snapshots/{snapshot}": RUN_OWN,
    "GET /v1/support": CHANGE_CLUSTER,
    "POST /connectors/{connector}/tasks": WORKERS,
    "PUT /connectors/{connector}/fence": WORKERS,
    # The schema registry: subjects are not named after connectors, so a prefix means nothing here.
    "GET /schemas": SCHEMAS,
    "GET /schemas/types": SCHEMAS,
    "GET /schemas/ids/{id}": SCHEMAS,
    "GET /schemas/ids/{id}/schema": SCHEMAS,
    "GET /schemas/ids/{id}/subjects": SCHEMAS,
    "GET /schemas/ids/{id}/versions": SCHEMAS,
    "GET /schemas/guids/{guid}": SCHEMAS,
    "GET /schemas/guids/{guid}/ids": SCHEMAS,
    "GET /subjects": SCHEMAS,
    "POST /subjects/{subject}": SCHEMAS,
    "DELETE /subjects/{subject}": CHANGE_CLUSTER,
    "GET /subjects/{subject}/in-force": SCHEMAS,
    "GET /subjects/{subject}/metadata": SCHEMAS,
    "GET /subjects/{subject}/versions": SCHEMAS,
    "POST /subjects/{subject}/versions": CHANGE_CLUSTER,
    "GET /subjects/{subject}/versions/{version}": SCHEMAS,
    "DELETE /subjects/{subject}/versions/{version}": CHANGE_CLUSTER,
    "GET /subjects/{subject}/versions/{version}/schema": SCHEMAS,
    "GET /subjects/{subject}/versions/{version}/referencedby": SCHEMAS,
    "POST /compatibility/subjects/{subject}/versions": SCHEMAS,
    "POST /compatibility/subjects/{subject}/versions/{version}": SCHEMAS,
    "GET /config": SCHEMAS,
    "PUT /config": CHANGE_CLUSTER,
    "DELETE /config": CHANGE_CLUSTER,
    "GET /config/{subject}": SCHEMAS,
    "PUT /config/{subject}": CHANGE_CLUSTER,
    "DELETE /config/{subject}": CHANGE_CLUSTER,
    "GET /mode": SCHEMAS,
    "PUT /mode": CHANGE_CLUSTER,
    "GET /mode/{subject}": SCHEMAS,
    "PUT /mode/{subject}": CHANGE_CLUSTER,
    "GET /contexts": SCHEMAS,
}
REFUSED = {"n": 403, "u": 401, "i": 400}
IDS = {name: f"{number:012x}" for number, name in enumerate(CALLERS)}


@pytest.fixture(scope="module")
def authenticator(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "users.yaml"
    entries = [
        {"name": name, "grants": grants, "tokens": [{"id": IDS[name], "hash": HASH}]}
        for name, grants in {**GRANTS, "expired": ["admin"], "wrong": ["admin"]}.items()
    ]
    for entry in entries:
        entry["name"] = entry["name"].replace(":", "-of-")
        if entry["name"] == "expired":
            entry["tokens"][0]["expires"] = "2020-01-01T00:00:00Z"
    path.write_text(yaml.safe_dump({"users": entries}))
    path.chmod(0o600)
    made = Authenticator(UserFile(path), decoy_hash=HASH)
    yield made
    made.close()


def credential(caller):
    secret = "T" * 43 if caller == "wrong" else SECRET
    return [] if caller == "anonymous" else [(b"authorization", f"Bearer cdc_{IDS[caller]}_{secret}".encode())]


def make(authenticator):
    cluster = Cluster()
    for name in (INSIDE, OUTSIDE):
        cluster.add(name)
        cluster.connect(name)
        cluster.plan(name, "RUNNING")
    herder = FakeHerder(cluster)
    limits = RequestLimits(leader_wait_s=0.0, catch_up_s=0.0, events_s_max=0.0)
    settings = ApiSettings(protection=Protection(gate=Gate(authenticator)), limits=limits, live_checks=False)
    return herder, create_app(herder, settings=settings, catalog=FakeCatalog(), registry_routes=registry_routes())


def body_of(operation, connector):
    config = {"connector.class": "fake", "host": "db", "name": connector}
    if operation.body == "CreateConnector":
        return json.dumps({"name": connector, "config": config}).encode()
    if operation.body in ("Config", "ConfigPatch"):
        return json.dumps(config).encode()
    if operation.is_registry and operation.body:
        return b'{"schema": "\\"string\\"", "compatibility": "NONE", "mode": "READWRITE"}'
    return b"{}" if operation.body else b""


def statuses(authenticator, operation, connector):
    """What every caller gets; a refused one has asked the cluster nothing."""

    async def run():
        found = {}
        for caller in CALLERS:
            herder, app = make(authenticator)
            before = herder.cluster.state
            path = path_of(operation.path, connector=connector, connection=connector, plugin="fake")
            body = body_of(operation, connector)
            answer = await ask(app, operation.method, path, body, headers=credential(caller))
            found[caller] = answer.status
            if answer.status in (401, 403):
                assert herder.submitted == []
                assert herder.cluster.state == before
                assert json.loads(answer.body)["error_code"] == answer.status
                assert b"db" not in answer.body
        return found

    return asyncio.run(run())


@pytest.mark.parametrize("operation", operations(), ids=str)
def test_every_caller_meets_every_operation(authenticator, operation):
    row = TABLE[str(operation)]
    expected = dict(zip((INSIDE, OUTSIDE), (row, row) if isinstance(row, str) else row, strict=True))
    for connector, letters in expected.items():
        found = statuses(authenticator, operation, connector)
        for caller, letter in zip(CALLERS, letters.split(), strict=True):
            if letter == "y":
                assert found[caller] not in (401, 403), (caller, connector)
            else:
                assert found[caller] == REFUSED[letter], (caller, connector)


def test_the_table_holds_what_there_is_and_nothing_else():
    assert set(TABLE) == {str(operation) for operation in operations()}


def test_openapi_tells_of_the_same_operations():
    document = cached(ENDPOINTS)
    told = {
        f"{method.upper()} {path}"
        for path, item in document["paths"].items()
        for method in item
        if method in ("get", "put", "post", "patch", "delete")
    }
    own = {str(operation).replace(":int}", "}") for operation in operations() if not operation.is_registry}
    assert told <= own
    missing = own - told
    assert missing <= {"POST /connectors/{connector}/tasks", "PUT /connectors/{connector}/fence"}
