"""Connections over REST: kept once, masked, named by connectors, and used only by who may."""

import json

import httpx
import pytest
import yaml
from cdcworker.connectors.api.context import CheckFinding
from cdcworker.coordinator.model import Presence
from cdcworker.worker.security.authenticate import Authenticator
from cdcworker.worker.security.credentials import hashed
from cdcworker.worker.security.gate import Gate
from cdcworker.worker.security.users import UserFile

from tests.unit.worker.conftest import FOLLOWER_URL, SECRET

CONFIG = {"connector.class": "fake", "host": "db1", "password": SECRET}
PATH = "/v1/connections/pg"
TOKEN = "S" * 43
HASH = hashed(TOKEN, log_n=10)
USERS = {
    "a" * 12: ["admin:shop-"],
    "b" * 12: ["admin:other-"],
    "c" * 12: ["admin:shop-", "operate:pg"],
    "d" * 12: ["read"],
    "e" * 12: ["admin"],
}


def using(connection="pg", name="c", **more):
    return {"name": name, "config": {"connector.class": "fake", "connection": connection, **more}}


def test_a_connection_is_created_shown_masked_changed_and_deleted(client):
    made = client.put(PATH, json=CONFIG)
    assert (made.status_code, made.headers["etag"], made.headers["location"]) == (201, '"1"', PATH)
    assert made.json()["config"] == {**CONFIG, "password": "****"}
    assert client.put(PATH, json=CONFIG).headers["etag"] == '"1"'
    changed = client.put(PATH, json={**CONFIG, "host": "db2"}, headers={"If-Match": '"1"'})
    assert (changed.status_code, changed.headers["etag"]) == (200, '"2"')
    assert client.put(PATH, json=CONFIG, headers={"If-Match": '"1"'}).status_code == 412
    shown = client.get(PATH).json()
    assert shown["config"]["host"] == "db2"
    assert shown["provides"] == {"fake": ["host", "password"]}
    assert SECRET not in json.dumps([shown, client.get("/v1/connections").json()])
    assert client.delete(PATH).status_code == 204
    assert client.get(PATH).status_code == 404


def test_a_masked_secret_keeps_the_stored_one(client, herder):
    client.put(PATH, json=CONFIG)
    client.put(PATH, json={**CONFIG, "password": "****", "port": "6432"})
    assert herder.view().state.connections["pg"].config == {**CONFIG, "port": "6432"}
    assert (
        client.put("/v1/connections/new", json={**CONFIG, "password": "****"}).json()["code"] == "config.masked_value"
    )


@pytest.mark.parametrize(
    ("config", "code", "place"),
    [
        ({"host": "db"}, "config.no_connector_class", "/config/connector.class"),
        ({"connector.class": "nobody"}, "config.unknown_connector", None),
        ({"connector.class": "fake"}, "config.not_of_connection", "/config/connector.class"),
        ({**CONFIG, "tasks.max": "2"}, "config.not_of_connection", "/config/tasks.max"),
        ({**CONFIG, "connection": "pg"}, "config.not_of_connection", "/config/connection"),
        ({**CONFIG, "port": "many"}, "config.invalid_value", "/config/port"),
    ],
)
def test_what_no_connection_may_hold_is_refused_with_its_place(client, herder, config, code, place):
    answer = client.put(PATH, json=config)
    assert answer.status_code in (400, 404)
    found = answer.json()
    assert code in (found["code"], *(item["code"] for item in found.get("errors", ())))
    if place:
        assert found["configPath"] == place
    assert SECRET not in answer.text
    assert herder.view().state.connections == {}


@pytest.mark.parametrize("name", ["a b", "x" * 250, ".hidden", "a:b"])
def test_a_name_that_no_config_could_hold_is_refused(client, name):
    assert client.put(f"/v1/connections/{name}", json=CONFIG).status_code == 400


def test_a_connector_names_a_connection_and_its_config_stays_as_it_was_given(client, herder, checks):
    client.put(PATH, json=CONFIG)
    assert client.post("/connectors", json=using()).status_code == 201
    assert client.get("/connectors/c/config").json() == {"name": "c", **using()["config"]}
    (asked,) = checks.asked
    assert (asked["host"], asked["password"]) == ("db1", SECRET)
    assert client.get(PATH).json()["connectors"] == ["c"]


def test_validation_shows_what_the_connection_provides_without_its_secrets(client):
    client.put(PATH, json=CONFIG)
    answer = client.put("/connector-plugins/fake/config/validate", json=using()["config"])
    values = {item["value"]["name"]: item["value"]["value"] for item in answer.json()["configs"]}
    assert (values["host"], values["password"]) == ("db1", "****")
    assert answer.json()["error_count"] == 1  # the name of the connector is missing
    assert SECRET not in answer.text


def test_a_connector_that_names_no_connection_that_there_is_is_refused(client):
    answer = client.post("/connectors", json=using("nowhere"))
    assert (answer.status_code, answer.json()["code"]) == (400, "config.connection_unknown")
    assert client.post("/connectors", json=using("${env:NAME}")).status_code == 400


def test_a_connection_that_is_used_is_not_deleted_and_the_answer_lists_its_users(client, herder):
    client.put(PATH, json=CONFIG)
    for name in ("b", "a"):
        client.post("/connectors", json=using(name=name))
    for query in ("", "?dry_run=true"):
        answer = client.delete(f"{PATH}{query}")
        assert (answer.status_code, answer.json()["code"]) == (409, "rest.connection_in_use")
        assert answer.json()["message"] == "Connection pg is used by a, b"
    for name in ("a", "b"):
        client.delete(f"/connectors/{name}")
    assert client.delete(PATH).status_code == 204


def test_a_dry_run_tells_what_changes_and_writes_nothing(client, herder):
    answer = client.put(f"{PATH}?dry_run=true", json=CONFIG).json()
    assert (answer["effect"], answer["connection"]) == ("created", "pg")
    assert herder.view().state.connections == {}
    client.put(PATH, json=CONFIG)
    answer = client.put(f"{PATH}?dry_run=true", json={**CONFIG, "password": "other-secret"})
    assert answer.json()["changes"] == [{"key": "password", "from": "****", "to": "****"}]
    assert "other-secret" not in answer.text
    assert client.delete(f"{PATH}?dry_run=true").json()["effect"] == "deleted"
    assert herder.view().state.connections["pg"].version == 1


def test_a_change_with_which_a_connector_could_not_run_is_refused(client, herder, checks):
    client.put(PATH, json=CONFIG)
    client.post("/connectors", json=using())
    without = {name: value for name, value in CONFIG.items() if name != "host"}
    answer = client.put(PATH, json=without)
    assert (answer.status_code, answer.json()["code"]) == (400, "config.connection_breaks")
    assert answer.json()["message"].startswith("Connector c would not run with the connection: ")
    checks.findings = [CheckFinding("password", "error", "fake.login", "the server refuses the login")]
    wrong = {**CONFIG, "password": "wrong"}
    assert client.put(PATH, json=wrong).json()["code"] == "config.connection_breaks"
    assert herder.view().state.connections["pg"].version == 1
    assert client.put(f"{PATH}?validate=false", json=wrong).status_code == 200


def test_a_connector_of_a_class_that_is_not_known_here_keeps_no_change_away(client, herder, cluster):
    client.put(PATH, json=CONFIG)
    cluster.add("gone", {"connector.class": "gone", "connection": "pg"})
    assert client.put(PATH, json={**CONFIG, "password": "new"}).status_code == 200


def test_a_connection_that_was_not_there_is_only_created(client, herder):
    only = {"If-Match": '"0"'}
    assert client.put(PATH, json=CONFIG, headers=only).status_code == 201
    answer = client.put(PATH, json={**CONFIG, "host": "db9"}, headers=only)
    assert (answer.status_code, answer.json()["code"]) == (412, "rest.version_mismatch")
    assert herder.view().state.connections["pg"].config["host"] == "db1"


def test_no_connection_is_written_while_an_older_worker_is_there(client, cluster):
    cluster.workers["old"] = Presence("old", "b", "http://old", "0.1.0", "h", protocol=4)
    answer = client.put(PATH, json=CONFIG)
    assert (answer.status_code, answer.json()["code"]) == (409, "rest.older_workers")


@pytest.fixture
def closed(connect, herder, tmp_path):
    users = tmp_path / "users.yaml"
    entries = [
        {"name": number[0], "grants": grants, "tokens": [{"id": number, "hash": HASH}]}
        for number, grants in USERS.items()
    ]
    users.write_text(yaml.safe_dump({"users": entries}))
    users.chmod(0o600)
    authenticator = Authenticator(UserFile(users), decoy_hash=HASH)
    client = connect(herder, gate=Gate(authenticator))

    def ask(who, method, path, **options):
        headers = {"Authorization": f"Bearer cdc_{who * 12}_{TOKEN}", **options.pop("headers", {})}
        return client(method, path, headers=headers, **options)

    yield ask
    authenticator.close()


def test_a_tenant_uses_and_reads_no_connection_of_others(closed, herder):
    assert closed("e", "PUT", PATH, json=CONFIG).status_code == 201
    for name in ("pg", "nowhere"):
        # Whether there is one is not told either.
        answer = closed("a", "POST", "/connectors", json=using(name, name="shop-c"))
        assert (answer.status_code, answer.json()["code"]) == (403, "rest.not_permitted")
        asked = closed("a", "PUT", "/connector-plugins/fake/config/validate", json=using(name, name="shop-c")["config"])
        assert asked.status_code == 403
    assert closed("a", "GET", PATH).status_code == 403
    assert closed("a", "GET", "/v1/connections").json()["connections"] == []
    assert closed("a", "PUT", PATH, json=CONFIG).status_code == 403
    assert closed("d", "GET", PATH).json()["config"]["password"] == "****"
    assert closed("d", "PUT", PATH, json=CONFIG).status_code == 403
    assert closed("a", "PUT", "/v1/connections/shop-pg", json=CONFIG).status_code == 201
    assert closed("a", "POST", "/connectors", json=using("shop-pg", name="shop-c")).status_code == 201


def test_who_may_use_a_connection_does_not_send_its_secret_elsewhere(closed, herder):
    closed("e", "PUT", PATH, json=CONFIG)
    taken = closed("c", "POST", "/connectors", json=using(name="shop-c"))
    assert taken.status_code == 201
    for body in (using(name="shop-d", host="evil"), using(name="shop-d", port="1")):
        answer = closed("c", "POST", "/connectors", json=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "config.key_beside_connection")
    answer = closed("c", "PATCH", "/connectors/shop-c/config", json={"host": "evil"})
    assert answer.json()["code"] == "config.key_beside_connection"
    # An admin of the connection may; what it has set so stays when others change the connector.
    config = {**using()["config"], "port": "6432"}
    assert closed("e", "PUT", "/connectors/shop-c/config", json=config).status_code == 200
    assert closed("c", "PATCH", "/connectors/shop-c/config", json={"tasks.max": "2"}).status_code == 200
    assert closed("c", "PATCH", "/connectors/shop-c/config", json={"port": "1"}).status_code == 400


def test_what_a_tenant_set_beside_its_own_connection_does_not_stay_beside_anothers(closed):
    closed("e", "PUT", PATH, json=CONFIG)
    closed("c", "PUT", "/v1/connections/shop-own", json=CONFIG)
    assert closed("c", "POST", "/connectors", json=using("shop-own", name="shop-c", host="evil")).status_code == 201
    answer = closed("c", "PATCH", "/connectors/shop-c/config", json={"connection": "pg"})
    assert answer.json()["code"] == "config.key_beside_connection"


def test_a_stored_secret_of_a_connection_does_not_move_to_another_host(closed):
    closed("a", "PUT", "/v1/connections/shop-pg", json=CONFIG)
    answer = closed("a", "PUT", "/v1/connections/shop-pg", json={**CONFIG, "password": "****", "host": "evil"})
    assert (answer.status_code, answer.json()["code"]) == (400, "config.secret_for_another_place")


def test_connectors_that_a_caller_may_not_see_are_counted_and_not_named(closed):
    closed("e", "PUT", "/v1/connections/shop-pg", json=CONFIG)
    for name in ("shop-c", "other-c"):
        closed("e", "POST", "/connectors", json=using("shop-pg", name=name))
    answer = closed("a", "DELETE", "/v1/connections/shop-pg")
    assert answer.json()["message"] == "Connection shop-pg is used by shop-c, 1 that you may not see"
    assert closed("a", "GET", "/v1/connections/shop-pg").json()["connectors"] == ["shop-c"]


def test_a_follower_asks_the_leader(connect, make_herder):
    asked = []

    async def lead(request):
        asked.append(str(request.url))
        return httpx.Response(201, json={})

    follower = connect(make_herder(leads=False), transport=httpx.MockTransport(lead))
    assert follower.put(PATH, json=CONFIG).status_code == 201
    assert asked
    assert FOLLOWER_URL not in asked[0]
