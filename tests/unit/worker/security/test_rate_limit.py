"""How often one client may ask, and how often it may guess."""

import pytest
import yaml
from cdcworker.worker.security.authenticate import Authenticator
from cdcworker.worker.security.credentials import hashed
from cdcworker.worker.security.gate import Gate
from cdcworker.worker.security.rate_limit import RateLimiter, RequestRate, TokenBuckets, client_of
from cdcworker.worker.security.users import UserFile

SECRET = "S" * 43
HASH = hashed(SECRET, log_n=10)


@pytest.fixture(autouse=True)
def _answers_come_at_once(monkeypatch):
    monkeypatch.setattr("cdcworker.worker.security.gate.HOLD_S", 0.0)
    monkeypatch.setattr("cdcworker.worker.security.gate.PROBE_HOLD_S", 0.0)


@pytest.fixture
def now():
    return [0.0]


def test_a_bucket_fills_up_with_time_and_not_above_its_size(now):
    buckets = TokenBuckets(RequestRate(2.0, 3.0), lambda: now[0])
    assert [buckets.take("a") for _ in range(4)] == [True, True, True, False]
    assert buckets.take("b")
    now[0] = 0.5
    assert [buckets.take("a"), buckets.take("a")] == [True, False]
    now[0] = 100.0
    assert [buckets.take("a") for _ in range(4)] == [True, True, True, False]


def test_few_clients_are_remembered():
    buckets = TokenBuckets(RequestRate(0.0, 1.0), lambda: 0.0, clients_max=2)
    for client in "abc":
        assert buckets.take(client)
    assert not buckets.take("c")
    assert buckets.take("a"), "forgotten, since others came after it"


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("a:b", "a:b"),
    ],
)
def test_a_client_is_an_address_or_the_network_of_a_place(host, client):
    assert client_of(host) == client


@pytest.fixture
def closed(connect, herder, tmp_path, now):
    path = tmp_path / "users.yaml"
    users = [
        {"name": name, "grants": ["read"], "tokens": [{"id": name * 12, "hash": HASH}]} for name in ("a", "b", "c")
    ]
    path.write_text(yaml.safe_dump({"users": users}))
    authenticator = Authenticator(UserFile(path), decoy_hash=HASH)
    limiter = RateLimiter(RequestRate(1.0, 3.0), RequestRate(1.0, 2.0), clock=lambda: now[0])
    yield connect(herder, gate=Gate(authenticator, limiter=limiter))
    authenticator.close()


def status(client, name="", secret=SECRET, path="/connectors"):
    headers = {"Authorization": f"Bearer cdc_{name * 12}_{secret}"} if name else {}
    return client.get(path, headers=headers).status_code


def test_each_user_has_a_rate_of_its_own(closed, now):
    assert [status(closed, "a") for _ in range(4)] == [200, 200, 200, 429]
    assert status(closed, "b") == 200
    refused = closed.get("/connectors", headers={"Authorization": f"Bearer cdc_{'a' * 12}_{SECRET}"})
    assert (refused.json()["code"], refused.headers["retry-after"]) == ("rest.too_often", "1")
    now[0] = 1.0
    assert status(closed, "a") == 200


def test_guessing_is_slowed_down_without_hindering_who_is_known(closed, now):
    assert status(closed, "a") == 200
    assert [status(closed, "b", "T" * 43) for _ in range(4)] == [401, 401, 429, 429]
    assert status(closed, "a") == 200
    assert status(closed, "c") == 429, "nobody who is not known yet is checked now"
    now[0] = 1.0
    assert status(closed, "c") == 200


def test_who_is_refused_is_counted_too(closed, connect, herder, now):
    assert [status(closed) for _ in range(4)] == [401, 401, 401, 429]
    assert status(closed, "a") == 200
    local = connect(
        herder, gate=Gate(limiter=RateLimiter(RequestRate(1.0, 2.0), clock=lambda: now[0]), local_only=True)
    )
    foreign = [local.get("/connectors", headers={"Host": "evil"}).status_code for _ in range(3)]
    assert foreign == [403, 403, 429]


def test_health_answers_while_a_user_is_over_its_rate(closed):
    assert [status(closed, "a") for _ in range(4)][-1] == 429
    assert status(closed, path="/health") == 200
    assert [status(closed, path="/health") for _ in range(10)] == [200] * 10


def test_without_users_addresses_are_counted(connect, herder, now):
    limiter = RateLimiter(RequestRate(1.0, 2.0), clock=lambda: now[0])
    client = connect(herder, gate=Gate(limiter=limiter))
    assert [status(client) for _ in range(3)] == [200, 200, 429]
