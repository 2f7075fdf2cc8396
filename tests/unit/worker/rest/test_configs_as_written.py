"""What a tool reads is what it has written: references everywhere, and the secrets themselves where the operator lets
admins read them."""

import pytest
import yaml
from cdcworker.worker.config.worker_properties import WORKER_DEF
from cdcworker.worker.security.audit import Audit
from cdcworker.worker.security.authenticate import Authenticator
from cdcworker.worker.security.credentials import hashed
from cdcworker.worker.security.gate import Gate
from cdcworker.worker.security.users import UserFile

TOKEN = "S" * 43
HASH = hashed(TOKEN, log_n=10)
GRANTS = {"admin": ["admin"], "shop": ["admin:shop-"], "operator": ["operate"], "reader": ["read"]}
IDS = {name: f"{number:012x}" for number, name in enumerate(GRANTS)}
REFERENCES = {
    "password": "${env:SHOP_PASSWORD}",
    "user": "${file:/run/secrets/shop.properties:user}",
    "ssl.key.password": "${file:/run/secrets/shop.properties:key password}",
    "header.token": "${dir:/run/secrets:token}",
    "database.url": "postgresql://u:${env:SHOP_PASSWORD}@db/shop",
}
READS = ("/connectors/shop-c", "/connectors/shop-c/config", "/connectors?expand=info", "/connectors/shop-c/tasks")


@pytest.fixture
def trail():
    return []


@pytest.fixture
def authenticator(tmp_path):
    path = tmp_path / "users.yaml"
    users = [
        {"name": name, "grants": grants, "tokens": [{"id": IDS[name], "hash": HASH}]} for name, grants in GRANTS.items()
    ]
    path.write_text(yaml.safe_dump({"users": users}))
    found = Authenticator(UserFile(path), decoy_hash=HASH)
    yield found
    found.close()


@pytest.fixture
def as_written(connect, herder, trail, authenticator, cluster):
    cluster.add("shop-c")
    cluster.plan("shop-c", "RUNNING")
    cluster.add("other")
    gate, audit = Gate(authenticator), Audit("w1", trail.append, lambda: 0.0)
    return connect(herder, gate=gate, audit=audit, configs_as_written=True)


def as_user(name):
    return {"headers": {"Authorization": f"Bearer cdc_{IDS[name]}_{TOKEN}"}}


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_references_are_read_as_they_were_written(client, config, monkeypatch, method):
    monkeypatch.setattr(type(client.app.state.api), "validate", _unjudged)
    sent = {**config, "name": "c", **REFERENCES}
    path, body = ("/connectors", {"name": "c", "config": sent}) if method == "POST" else ("/connectors/c/config", sent)
    assert client(method, path, json=body).json()["config"] == sent
    for _ in range(2):
        assert client.get("/connectors/c/config").json() == sent
        assert client.get("/connectors/c").json()["config"] == sent
        assert client.get("/connectors?expand=info").json()["c"]["info"]["config"] == sent
        # Written again as it was read, it stays what it is.
        assert client.put("/connectors/c/config", json=client.get("/connectors/c/config").json()).status_code == 200


async def _unjudged(api, config, *, live, prefixes=()):
    """The report of a config whose keys are all known."""
    from cdcworker.worker.validation.validate import ValidationReport

    plugin = api.catalog.plugin_of(config)
    return ValidationReport(plugin, api.catalog.definition(plugin), ())


@pytest.mark.parametrize("path", READS)
@pytest.mark.parametrize(("who", "reads"), [("admin", True), ("shop", True), ("operator", False), ("reader", False)])
def test_only_admins_of_the_connector_read_its_secrets_and_the_audit_tells(as_written, trail, words, path, who, reads):
    answer = as_written.get(path, **as_user(who))
    assert answer.status_code == 200
    assert (words.secret in answer.text) is reads
    told = [(entry["who"], entry["method"], entry["as_written"], entry["result"]) for entry in trail]
    assert told == ([(who, "GET", True, "done")] if reads else [])
    assert words.secret not in str(trail)


def test_an_admin_of_others_reads_none(as_written, cluster, words):
    answer = as_written.get("/connectors?expand=info", **as_user("admin")).json()
    assert answer["other"]["info"]["config"]["password"] == words.secret
    answer = as_written.get("/connectors/other/config", **as_user("shop"))
    assert answer.status_code == 403
    assert "other" not in as_written.get("/connectors?expand=info", **as_user("shop")).json()


def test_what_was_put_is_what_the_answer_and_the_next_get_hold(as_written, config, trail):
    sent = {**config, "name": "shop-c", "password": "another-hunter2"}
    answer = as_written.put("/connectors/shop-c/config", json=sent, **as_user("admin"))
    assert answer.json()["config"] == sent
    assert as_written.get("/connectors/shop-c/config", **as_user("admin")).json() == sent
    assert [entry.get("as_written") for entry in trail] == [True, True]
    assert "another-hunter2" not in str(trail)


def test_a_config_without_secrets_leaves_no_entry(as_written, cluster, trail):
    cluster.add("plain", {"password": "${env:PW}"})
    assert as_written.get("/connectors/plain/config", **as_user("admin")).json()["password"] == "${env:PW}"
    assert trail == []


def test_without_authentication_nobody_reads_them(connect, herder, cluster, words):
    cluster.add("c")
    client = connect(herder, configs_as_written=True)
    for path in ("/connectors/c", "/connectors/c/config", "/connectors?expand=info"):
        assert words.secret not in client.get(path).text


def test_it_is_off_unless_the_operator_says_so(as_written, connect, herder, authenticator, words):
    client = connect(herder, gate=Gate(authenticator))
    assert words.secret not in client.get("/connectors/shop-c/config", **as_user("admin")).text
    key = WORKER_DEF.keys["rest.configs.as.written"]
    assert key.default == "nobody"
    assert key.validator("operate") is not None
