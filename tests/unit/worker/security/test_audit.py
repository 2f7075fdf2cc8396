"""The trail of who changed what: one entry for each change and denial, no secret in it, nothing to forge."""

import json
import logging
import re
from dataclasses import replace
from urllib.parse import quote

import httpx
import pytest
import yaml
from cdcworker.worker.security.audit import Audit
from cdcworker.worker.security.authenticate import Authenticator
from cdcworker.worker.security.credentials import hashed
from cdcworker.worker.security.gate import Gate
from cdcworker.worker.security.signing import SESSION_KEY, next_value
from cdcworker.worker.security.users import UserFile
from cdcworker.worker.server.application import ENDPOINTS

SECRET = "S" * 43
HASH = hashed(SECRET, log_n=10)
TOKEN = {"Authorization": f"Bearer cdc_{'a' * 12}_{SECRET}"}
CHANGES = [endpoint for endpoint in ENDPOINTS if endpoint.method != "GET" and endpoint.path != "/ui/logout"]
"""A logout is told of whoever the session names: tests/unit/worker/identity."""


@pytest.fixture
def trail():
    return []


@pytest.fixture
def authenticator(tmp_path):
    path = tmp_path / "users.yaml"
    entry = {"name": "ops", "grants": ["admin:shop-"], "tokens": [{"id": "a" * 12, "hash": HASH}]}
    path.write_text(yaml.safe_dump({"users": [entry]}))
    found = Authenticator(UserFile(path), decoy_hash=HASH)
    yield found
    found.close()


@pytest.fixture
def client(connect, herder, trail, authenticator):
    return connect(herder, gate=Gate(authenticator), audit=Audit("w1", trail.append, lambda: 0.0))


@pytest.mark.parametrize("endpoint", CHANGES, ids=lambda e: f"{e.method} {e.path}")
def test_each_changing_call_leaves_one_entry(client, trail, endpoint):
    path = re.sub(r"\{\w+:int\}", "0", endpoint.path).replace("{connector}", "shop-orders")
    path = re.sub(r"\{\w+\}", "x", path)
    for headers in (TOKEN, {}):
        answer = client(endpoint.method, path, headers={**headers, "X-Request-Id": "r-1"}, json={})
        (entry,) = trail
        trail.clear()
        assert (entry["method"], entry["status"], entry["request_id"]) == (endpoint.method, answer.status_code, "r-1")
        assert entry["worker"] == "w1"
        assert (entry["who"], entry["by"]) == (("ops", "token") if headers else (None, None))
        if headers:
            assert entry["path"] == endpoint.path
            assert entry["connector"] == ("shop-orders" if "{connector}" in endpoint.path else entry["connector"])
        else:
            assert entry["result"] == "denied"


def test_reading_leaves_none_and_a_denial_one(client, trail):
    assert client.get("/connectors", headers=TOKEN).status_code == 200
    assert trail == []
    assert client.get("/connectors").status_code == 401
    assert [(entry["result"], entry["who"], entry["path"]) for entry in trail] == [("denied", None, "/connectors")]
    trail.clear()
    assert client.get("/connectors/other/config", headers=TOKEN).status_code == 403
    assert client.get("/connectors", headers={"Authorization": "Bearer x"}).status_code == 401
    assert [(entry["result"], entry["connector"]) for entry in trail] == [("denied", "other"), ("denied", None)]


def test_names_of_connectors_in_bodies_are_told_and_values_are_not(client, trail, config, caplog):
    logging.getLogger("cdcworker.audit").setLevel(60)
    with caplog.at_level(logging.INFO):
        answer = client.post("/connectors", json={"name": "shop-new", "config": config}, headers=TOKEN)
    logging.getLogger("cdcworker.audit").setLevel(logging.NOTSET)
    assert answer.status_code == 201
    (entry,) = trail
    assert (entry["connector"], entry["result"], entry["dry_run"]) == ("shop-new", "done", False)
    assert entry["ts"] == "1970-01-01T00:00:00.000+00:00"
    for text in (json.dumps(entry), caplog.text):
        assert "shop-new" in text
        for secret in (SECRET, config["password"], HASH):
            assert secret not in text
    assert client.post("/connectors?dry_run=true", json={"name": "shop-2", "config": config}, headers=TOKEN)
    assert trail[-1]["dry_run"] is True


def test_a_change_is_told_from_what_to_what_with_secrets_masked(client, trail, cluster, words):
    cluster.add("shop-orders", labels={"team": "a"})
    path = "/connectors/shop-orders"
    sent = {"host": "other", "password": "another-one", "port": "5433"}
    assert client.patch(f"{path}/config", json=sent, headers=TOKEN).status_code == 200
    version = cluster.state.connectors["shop-orders"].version
    assert trail[-1]["change"] == {
        "version": {"from": 1, "to": version},
        "target_state": None,
        "labels": None,
        "keys": [
            {"key": "host", "from": "db", "to": "other"},
            {"key": "password", "from": "****", "to": "****"},
            {"key": "port", "from": None, "to": "5433"},
        ],
        "keys_left_out": 0,
    }
    assert client.put(f"{path}/pause", headers=TOKEN).status_code == 202
    assert trail[-1]["change"]["target_state"] == {"from": "RUNNING", "to": "PAUSED"}
    assert client.put(f"{path}/pause", headers=TOKEN).status_code == 202
    assert trail[-1]["change"] is None, "nothing was different"
    assert client.put(f"{path}/pause?dry_run=true", headers=TOKEN).status_code == 200
    assert client.patch(f"{path}/config", json={"host": None}, headers=TOKEN).status_code == 400
    assert [entry["change"] for entry in trail[-2:]] == [None, None]
    assert client.delete(path, headers=TOKEN).status_code == 204
    assert trail[-1]["change"]["target_state"] == {"from": "PAUSED", "to": None}
    for secret in (words.secret, "another-one"):
        assert secret not in json.dumps(trail)


def test_a_large_change_is_told_in_part(client, trail, config):
    many = {f"topic.creation.default.x{n}": "y" * 400 for n in range(120)}
    answer = client.post("/connectors", json={"name": "shop-new", "config": {**config, **many}}, headers=TOKEN)
    assert answer.status_code == 201
    change = trail[-1]["change"]
    assert (len(change["keys"]), change["keys_left_out"]) == (100, 24)
    assert max(len(item["to"]) for item in change["keys"]) == 301


def test_a_name_cannot_forge_an_entry(client, trail, caplog):
    name = 'shop-\n2026 INFO audit {"who":"root"}\x1b[2J","who":"root'
    with caplog.at_level(logging.INFO):
        client.put(f"/connectors/{quote(name, safe='')}/pause", headers=TOKEN)
    (entry,) = trail
    assert entry["connector"] == name
    (message,) = (record.getMessage() for record in caplog.records if record.name == "cdcworker.audit")
    assert "\n" not in message
    assert "\x1b" not in message
    assert json.loads(message.removeprefix("audit ")) == entry


def test_a_forwarded_change_is_in_the_trails_of_both_workers(connect, make_herder, cluster, authenticator):
    cluster.add("shop-orders")
    cluster.state = replace(cluster.state, settings={SESSION_KEY: next_value((), 1)})
    trails = {"leader": [], "follower": []}
    leader = connect(make_herder(), gate=Gate(authenticator), audit=Audit("leader", trails["leader"].append))
    follower = connect(
        make_herder(leads=False),
        transport=httpx.ASGITransport(app=leader.app),
        gate=Gate(authenticator),
        audit=Audit("follower", trails["follower"].append),
    )
    assert follower.put("/connectors/shop-orders/pause", headers=TOKEN).status_code == 202
    (acted,), (asked,) = trails.values()
    assert acted["request_id"] == asked["request_id"]
    assert (acted["who"], acted["forwarded_by"], asked["forwarded_by"]) == ("ops", "follower:8083", None)
