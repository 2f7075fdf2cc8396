"""Stored secrets stay where they were meant for, and what was read can be written back."""

import pytest
import yaml
from cdcworker.worker.security.authenticate import Authenticator
from cdcworker.worker.security.credentials import hashed
from cdcworker.worker.security.gate import Gate
from cdcworker.worker.security.users import UserFile

SECRET = "S" * 43
HASH = hashed(SECRET, log_n=10)
VALIDATE = "/connector-plugins/fake/config/validate"


def bearer(name):
    return {"Authorization": f"Bearer cdc_{name * 12}_{SECRET}"}


TENANT, ADMIN = bearer("a"), bearer("b")


@pytest.fixture
def closed(connect, herder, cluster, tmp_path):
    path = tmp_path / "users.yaml"
    grants = {"a": ["admin:shop-"], "b": ["admin"]}
    users = [
        {"name": name, "grants": given, "tokens": [{"id": name * 12, "hash": HASH}]} for name, given in grants.items()
    ]
    path.write_text(yaml.safe_dump({"users": users}))
    authenticator = Authenticator(UserFile(path), decoy_hash=HASH)
    cluster.add("shop-orders")
    yield connect(herder, gate=Gate(authenticator))
    authenticator.close()


def stored(cluster):
    return cluster.state.connectors["shop-orders"].config


def test_what_was_read_can_be_written_back(closed, cluster, words):
    read = closed.get("/connectors/shop-orders/config", headers=TENANT).json()
    assert read["password"] == "****"
    answer = closed.put("/connectors/shop-orders/config", json={**read, "tasks.max": "1"}, headers=TENANT)
    assert (answer.status_code, stored(cluster)["password"]) == (200, words.secret)
    assert words.secret not in answer.text


@pytest.mark.parametrize("change", [{"host": "evil"}, {"port": "1"}])
def test_a_tenant_cannot_have_a_kept_secret_sent_elsewhere(closed, cluster, checks, change, words):
    read = closed.get("/connectors/shop-orders/config", headers=TENANT).json()
    url = "/connectors/shop-orders/config"
    asked = len(checks.asked)
    for answer in (
        closed.put(url, json={**read, **change}, headers=TENANT),
        closed.patch(url, json=change, headers=TENANT),
        closed.patch(url, json={**change, "password": "****"}, headers=TENANT),
        closed.put(VALIDATE, json={**read, **change}, headers=TENANT),
    ):
        assert answer.status_code == 400
        assert answer.json()["code"] == "config.secret_for_another_place"
        assert words.secret not in answer.text
    assert len(checks.asked) == asked, "nothing was connected to"
    assert stored(cluster)["host"] == "db"


def test_with_the_secret_in_hand_a_tenant_may_move_and_an_admin_may_anyway(closed, cluster, words):
    url = "/connectors/shop-orders/config"
    assert closed.patch(url, json={"host": "db2", "password": words.secret}, headers=TENANT).status_code == 200
    assert closed.patch(url, json={"host": "db3"}, headers=ADMIN).status_code == 200
    assert (stored(cluster)["host"], stored(cluster)["password"]) == ("db3", words.secret)


def test_references_move_with_their_connector(closed, cluster):
    cluster.add("shop-ref", {"password": "${env:SHOP_PASSWORD}"})
    url = "/connectors/shop-ref/config"
    assert closed.get(url, headers=TENANT).json()["password"] == "${env:SHOP_PASSWORD}"
    assert closed.patch(url, json={"host": "db2"}, headers=TENANT).status_code == 200
