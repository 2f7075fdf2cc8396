"""Bearer tokens of a provider over REST: who gets in, with which roles, what the audit says, and what is told of a refusal."""

from dataclasses import replace

import httpx
import pytest
import yaml
from cdcworker.worker.security.audit import Audit
from cdcworker.worker.security.authenticate import Authenticator
from cdcworker.worker.security.credentials import hashed
from cdcworker.worker.security.gate import Gate
from cdcworker.worker.security.rate_limit import RateLimiter, RequestRate
from cdcworker.worker.security.signing import SESSION_KEY, next_value
from cdcworker.worker.security.users import UserFile

from tests.unit.worker.identity.issuer import NOW_S, World, key_of, part, signed

SECRET = "S" * 43
HASH = hashed(SECRET, log_n=10)
OURS = {"Authorization": f"Bearer cdc_{'a' * 12}_{SECRET}"}


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture
def trail():
    return []


@pytest.fixture
def users(tmp_path):
    path = tmp_path / "users.yaml"
    entry = {"name": "ops", "grants": ["admin"], "tokens": [{"id": "a" * 12, "hash": HASH}], "certificates": ["ops"]}
    path.write_text(yaml.safe_dump({"users": [{**entry, "password": hashed("pw", log_n=10)}]}))
    path.chmod(0o600)
    found = Authenticator(UserFile(path), decoy_hash=HASH)
    yield found
    found.close()


@pytest.fixture
def client(connect, herder, cluster, world, trail):
    for name in ("shop-orders", "other-orders"):
        cluster.add(name)
    return connect(herder, gate=Gate(tokens=world.tokens), audit=Audit("w1", trail.append, lambda: 0.0))


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def judged(client, token, method="GET", path="/v1/caller"):
    answer = client(method, path, headers=bearer(token))
    return answer.status_code, answer.json() if answer.content else {}


def test_who_has_a_token_has_the_roles_that_the_file_gives(client, world):
    status, found = judged(client, world.issuer.token(roles=["shop", "everybody", "cdc-readers"]))
    assert status == 200
    assert found["name"] == "u-1"
    assert found["by"] == "oidc"
    assert [(grant["role"], grant["prefix"]) for grant in found["grants"]] == [
        ("operate", "shop-"),
        ("schemas", ""),
        ("read", ""),
    ]
    shop = world.issuer.token(roles=["shop"])
    assert judged(client, shop, "PUT", "/connectors/shop-orders/pause")[0] == 202
    assert judged(client, shop, "PUT", "/connectors/other-orders/pause")[0] == 403
    assert judged(client, shop, "DELETE", "/connectors/shop-orders")[0] == 403


@pytest.mark.parametrize(
    "roles", [[], None, ["everybody"], ["CDC-READERS"], "admin", {"cdc-admins": True}, ["cdc-admins "]]
)
def test_a_role_that_the_file_does_not_name_may_do_nothing(client, world, roles):
    status, found = judged(client, world.issuer.token(roles=roles))
    assert (status, found["code"]) == (403, "rest.not_permitted")


@pytest.mark.parametrize(
    ("claims", "told"),
    [
        ({"exp": NOW_S - 31}, "has expired"),
        ({"exp": None}, "when it expires"),
        ({"nbf": NOW_S + 60}, "not good yet"),
        ({"iss": "https://evil.test"}, "another issuer"),
        ({"aud": "https://shop.test/rest"}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"sub": None}, "no subject"),
        ({"typ": "ID"}, "no access token"),
        ({"at_hash": "x"}, "no access token"),
    ],
)
def test_a_token_that_does_not_count_is_refused_and_told_why(client, world, claims, told):
    answer = client("GET", "/v1/caller", headers=bearer(world.issuer.token(**claims)))
    assert (answer.status_code, answer.json()["code"]) == (401, "oidc.token_refused")
    assert told in answer.json()["message"]
    assert answer.headers["www-authenticate"].startswith('Bearer error="invalid_token"')


def test_who_may_use_a_token_is_the_operators_choice(tmp_path, connect, herder):
    world = World(tmp_path, parties=frozenset({"robot"}))
    client = connect(herder, gate=Gate(tokens=world.tokens))
    assert judged(client, world.issuer.token())[0] == 200
    assert judged(client, world.issuer.token(azp="other"))[1]["code"] == "oidc.token_refused"


def test_tokens_that_nobody_has_signed_are_refused(client, world):
    good = world.issuer.token()
    body = good.split(".")[1]
    unsigned = [f"{part({'alg': alg, 'kid': 'first'})}.{body}." for alg in ("none", "NONE", "HS256")]
    strangers = [
        signed(world.issuer.claims(), key_of("stranger"), kid="first"),
        good[:-6] + "AAAAAA",
        f"{good.split('.')[0]}.{part(world.issuer.claims(roles=['cdc-admins']))}.{good.split('.')[2]}",
    ]
    for token in (*unsigned, *strangers):
        assert judged(client, token)[1]["code"] == "oidc.token_refused"
    assert judged(client, signed(world.issuer.claims(), key_of("stranger")))[1]["code"] == "oidc.key_unknown"


def test_a_token_with_a_role_claim_of_another_kind_of_provider(tmp_path, connect, herder):
    world = World(tmp_path, roles_claim="realm_access.roles", username_claim="preferred_username")
    client = connect(herder, gate=Gate(tokens=world.tokens))
    token = world.issuer.token(roles=["cdc-admins"], realm_access={"roles": ["cdc-readers"]}, preferred_username="ada")
    found = judged(client, token)[1]
    assert (found["name"], [grant["role"] for grant in found["grants"]]) == ("ada", ["read"])


@pytest.mark.parametrize(
    "entry",
    [
        {"subject": "u-1"},
        {"token": "t-1"},
        {"session": "s-1"},
        {"issued_before": "2100-01-01T00:00:00Z"},
        {"subject": "u-1", "issued_before": "2100-01-01T00:00:00Z"},
    ],
)
def test_what_is_revoked_is_refused_without_a_restart(client, world, entry):
    token = world.issuer.token(sid="s-1")
    assert judged(client, token)[0] == 200
    world.write({"roles": {"cdc-readers": ["read"]}, "revoked": [entry]})
    world.clock.now_s += 2
    assert judged(client, token)[1]["code"] == "oidc.revoked"
    world.write({"roles": {"cdc-readers": ["read"]}, "revoked": [{"subject": "u-2"}]})
    world.clock.now_s += 2
    assert judged(client, token)[0] == 200


def test_what_a_role_may_do_changes_without_a_restart(client, world):
    token = world.issuer.token()
    assert judged(client, token, "PUT", "/connectors/shop-orders/pause")[0] == 403
    world.write({"roles": {"cdc-readers": ["operate:shop-"]}})
    world.clock.now_s += 2
    assert judged(client, token, "PUT", "/connectors/shop-orders/pause")[0] == 202
    world.write({"roles": {}})
    world.clock.now_s += 2
    assert judged(client, token)[0] == 403


def test_the_audit_names_the_subject_besides_the_name(tmp_path, connect, herder, cluster, trail):
    world = World(tmp_path, username_claim="preferred_username")
    cluster.add("shop-orders")
    client = connect(herder, gate=Gate(tokens=world.tokens), audit=Audit("w1", trail.append))
    token = world.issuer.token(preferred_username="ada", roles=["cdc-admins"])
    assert judged(client, token, "PUT", "/connectors/shop-orders/pause")[0] == 202
    assert (trail[0]["who"], trail[0]["by"], trail[0]["subject"]) == ("ada", "oidc", "u-1")


def test_the_worker_that_acts_has_the_subject_too(tmp_path, connect, make_herder, cluster):
    world = World(tmp_path)
    cluster.add("shop-orders")
    cluster.state = replace(cluster.state, settings={SESSION_KEY: next_value((), 1)})
    trails = {"leader": [], "follower": []}
    leader = connect(make_herder(), gate=Gate(tokens=world.tokens), audit=Audit("leader", trails["leader"].append))
    follower = connect(
        make_herder(leads=False),
        transport=httpx.ASGITransport(app=leader.app),
        gate=Gate(tokens=world.tokens),
        audit=Audit("follower", trails["follower"].append),
    )
    headers = bearer(world.issuer.token(roles=["cdc-admins"]))
    assert follower.put("/connectors/shop-orders/pause", headers=headers).status_code == 202
    (acted,), (asked,) = trails.values()
    assert acted["forwarded_by"] == "follower:8083"
    assert acted["subject"] == asked["subject"] == "u-1"


def test_nothing_of_a_token_is_told_to_logs_or_answers(client, world, trail, caplog):
    caplog.set_level(0)
    canary = "canary-9f2b"
    tokens = [
        world.issuer.token(email=canary, exp=NOW_S - 99, preferred_username=canary),
        world.issuer.token(iss=canary),
        world.issuer.token(aud=canary),
        world.issuer.token(header={"kid": canary}),
        world.issuer.token(header={"typ": canary}),
        f"{part({'alg': canary})}.{part({'sub': canary})}.AAAA",
        world.issuer.token(email=canary, roles=[canary]),
    ]
    for token in tokens:
        status, found = judged(client, token)
        assert status in (401, 403)
        assert canary not in str(found)
        assert token not in caplog.text
    assert canary not in caplog.text
    assert canary not in str(trail)


def test_tokens_of_both_kinds_passwords_and_certificates_go_together(tmp_path, connect, herder, world, users):
    client = connect(herder, gate=Gate(users, tokens=world.tokens))
    for headers, by in (
        (OURS, "token"),
        (bearer(world.issuer.token()), "oidc"),
        (httpx.Request("GET", "http://x", headers={"Authorization": "Basic b3BzOnB3"}).headers, "basic"),
    ):
        assert client("GET", "/v1/caller", headers=dict(headers)).json()["by"] == by
    assert users.by_certificate("ops").by == "certificate"
    assert judged(client, f"cdc_{'b' * 12}_{SECRET}")[1]["code"] == "rest.unauthenticated"
    # Without an audience of its own REST takes none of the provider's tokens.
    other = World(tmp_path, audience=())
    closed = connect(herder, gate=Gate(users, tokens=other.tokens))
    assert judged(closed, other.issuer.token())[1]["code"] == "rest.unauthenticated"


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer x", "Basic b3BzOnB3", "Digest x", f"Bearer cdc_{'a' * 12}_{SECRET}"]
)
def test_without_a_file_of_users_other_credentials_are_refused(client, header):
    answer = client("GET", "/v1/caller", headers={"Authorization": header} if header else {})
    assert (answer.status_code, answer.json()["code"]) == (401, "rest.unauthenticated")


def test_while_the_provider_is_away_known_keys_go_on(client, world):
    known = world.issuer.token()
    assert judged(client, known)[0] == 200
    world.issuer.away = True
    world.clock.now_s += 20
    assert judged(client, known)[0] == 200
    new = signed(world.issuer.claims(), key_of("second"))
    answer = client("GET", "/v1/caller", headers=bearer(new))
    assert (answer.status_code, answer.json()["code"]) == (503, "oidc.provider_unreachable")
    assert answer.headers["retry-after"]


def test_a_rotated_key_is_taken_at_once_and_the_old_one_no_more(client, world):
    old = world.issuer.token()
    assert judged(client, old)[0] == 200
    world.issuer.keys = [key_of("second")]
    world.clock.now_s += 20
    assert judged(client, world.issuer.token())[0] == 200
    assert judged(client, old)[1]["code"] == "oidc.key_unknown"


def test_wrong_tokens_are_limited_by_address_and_hinder_nobody_else(connect, herder, world):
    limiter = RateLimiter(RequestRate(1000.0, 1000.0), RequestRate(0.0, 3.0))
    client = connect(herder, gate=Gate(tokens=world.tokens, limiter=limiter))
    statuses = [judged(client, world.issuer.token(aud="x"))[0] for _ in range(5)]
    assert statuses == [401, 401, 401, 429, 429]
    assert judged(client, world.issuer.token())[0] == 200


def test_a_provider_that_is_away_is_no_guess(connect, herder, world):
    world.issuer.away = True
    limiter = RateLimiter(RequestRate(1000.0, 1000.0), RequestRate(0.0, 1.0))
    client = connect(herder, gate=Gate(tokens=world.tokens, limiter=limiter))
    assert [judged(client, world.issuer.token())[0] for _ in range(3)] == [503] * 3


def test_two_credentials_are_none(client, world):
    token = world.issuer.token()
    answer = client(
        "GET", "/v1/caller", headers=[("Authorization", f"Bearer {token}"), ("Authorization", f"Bearer {token}")]
    )
    assert answer.status_code == 401
