"""Requests between workers: what a signature holds together, how keys change, and what an unsigned one may not do."""

import asyncio
from dataclasses import replace

import httpx
import pytest
import yaml
from cdcworker.coordinator.model import PutSetting, Reply
from cdcworker.worker.rest.errors import RestError
from cdcworker.worker.security.access import Caller, Grant
from cdcworker.worker.security.authenticate import Authenticator
from cdcworker.worker.security.credentials import hashed
from cdcworker.worker.security.gate import Gate
from cdcworker.worker.security.session import kept, renew
from cdcworker.worker.security.signing import (
    ALGORITHM_HEADER,
    MAC_HEADER,
    SESSION_KEY,
    SIGNED_HEADER,
    Signed,
    Signer,
    keys_of,
    next_value,
)
from cdcworker.worker.security.users import UserFile

OPS = Caller("ops", (Grant("admin", "shop-"), Grant("schemas")), "token")
REQUEST = Signed("PUT", "/connectors/a/pause?forward=true", b"{}")
NOW = 1_700_000_000.0


@pytest.fixture
def log():
    return {SESSION_KEY: next_value((), 1)}


@pytest.fixture
def signer(log):
    return Signer(lambda: log, lambda: NOW)


def status(signer, request, headers):
    with pytest.raises(RestError) as caught:
        signer.verified(request, headers)
    return caught.value.status


def test_a_signed_request_names_its_caller(signer):
    assert signer.verified(REQUEST, signer.sign(REQUEST, OPS)) == OPS


@pytest.mark.parametrize(
    "other",
    [
        replace(REQUEST, method="POST"),
        replace(REQUEST, target="/connectors/b/pause?forward=true"),
        replace(REQUEST, target="/connectors/a/pause"),
        replace(REQUEST, body=b"{} "),
        Signed("PU", "T/connectors/a/pause?forward=true", b"{}"),
    ],
)
def test_a_signature_is_good_for_its_own_request_only(signer, other):
    assert status(signer, other, signer.sign(REQUEST, OPS)) == 403


def test_what_is_said_of_the_caller_is_signed_too(signer):
    mine = signer.sign(REQUEST, OPS)
    theirs = signer.sign(REQUEST, Caller("root", (Grant("admin"),), "worker"))
    assert status(signer, REQUEST, {**mine, SIGNED_HEADER: theirs[SIGNED_HEADER]}) == 403
    for torn in ("", "a b c d", " ".join(mine[SIGNED_HEADER].split(" ")[:3]), mine[SIGNED_HEADER] + " x"):
        assert status(signer, REQUEST, {**mine, SIGNED_HEADER: torn}) == 403
    assert status(signer, REQUEST, {**mine, MAC_HEADER: "%%%"}) == 403


def test_a_request_is_taken_once_and_in_time(log):
    now = [NOW]
    signer = Signer(lambda: log, lambda: now[0])
    for late in (-200.0, 200.0):
        headers = signer.sign(REQUEST, OPS)
        now[0] += late
        assert status(signer, REQUEST, headers) == 403
    headers = signer.sign(REQUEST, OPS)
    assert signer.verified(REQUEST, headers) == OPS
    assert status(signer, REQUEST, headers) == 403, "replayed"


def test_unsigned_other_algorithms_and_no_key_are_told_apart(signer):
    assert status(signer, REQUEST, {}) == 400
    assert status(signer, REQUEST, {**signer.sign(REQUEST, OPS), ALGORITHM_HEADER: "none"}) == 400
    empty = Signer(dict, lambda: NOW)
    assert empty.sign(REQUEST, OPS) == {}
    assert status(empty, REQUEST, signer.sign(REQUEST, OPS)) == 503


def test_the_key_before_the_present_one_is_good_and_the_one_before_that_is_not(log):
    signer = Signer(lambda: log, lambda: NOW)
    first, second = signer.sign(REQUEST, OPS), signer.sign(REQUEST, OPS)
    log[SESSION_KEY] = next_value(keys_of(log), 2)
    assert signer.verified(REQUEST, first) == OPS
    assert signer.verified(REQUEST, signer.sign(REQUEST, OPS)) == OPS
    log[SESSION_KEY] = next_value(keys_of(log), 3)
    assert len(keys_of(log)) == 2
    assert status(signer, REQUEST, second) == 403


@pytest.mark.parametrize("value", [{}, {"keys": 1}, {"keys": [{}]}, {"keys": [{"id": 1, "key": "%", "created_ms": 1}]}])
def test_a_key_record_of_another_form_is_no_key(value):
    assert keys_of({SESSION_KEY: value}) == ()


def test_keys_do_not_print(log):
    for key in keys_of(log):
        assert str(key.secret) not in repr(key)
    assert "keys" not in repr(PutSetting(SESSION_KEY, log[SESSION_KEY]))


# --- between two applications ----------------------------------------------------------------------------------------


def with_key(cluster):
    settings = {**cluster.state.settings, SESSION_KEY: next_value(keys_of(cluster.state.settings), 1)}
    cluster.state = replace(cluster.state, settings=settings)


@pytest.fixture
def users(tmp_path):
    secret = hashed("S" * 43, log_n=10)
    entry = {"name": "shop", "grants": ["admin:shop-"], "tokens": [{"id": "0" * 12, "hash": secret}]}
    (tmp_path / "users.yaml").write_text(yaml.safe_dump({"users": [entry]}))
    (tmp_path / "nobody.yaml").write_text("users: []")
    found = {name: Authenticator(UserFile(tmp_path / f"{name}.yaml"), nobody=secret) for name in ("users", "nobody")}
    yield found
    for item in found.values():
        item.close()


TOKEN = {"Authorization": f"Bearer cdc_{'0' * 12}_{'S' * 43}"}


@pytest.fixture
def seen():
    return []


@pytest.fixture
def follower(connect, make_herder, users, seen):
    """A follower that knows the user, and a leader that does not: only the signature can carry it over."""
    leader = connect(make_herder(), gate=Gate(users["nobody"]))

    class Wire(httpx.ASGITransport):
        async def handle_async_request(self, request):
            seen.append(request)
            return await super().handle_async_request(request)

    return connect(make_herder(leads=False), transport=Wire(app=leader.app), gate=Gate(users["users"]))


def test_the_leader_does_for_a_follower_what_its_caller_may(follower, cluster, seen):
    cluster.add("shop-orders")
    cluster.add("other-orders")
    with_key(cluster)
    assert follower.put("/connectors/shop-orders/pause", headers=TOKEN).status_code == 202
    assert cluster.state.connectors["shop-orders"].target_state == "PAUSED"
    assert "authorization" not in seen[0].headers
    body = {"connector.class": "fake", "host": "db", "password": "x"}
    assert follower.put("/connectors/shop-new/config", json=body, headers=TOKEN).status_code == 201
    assert follower.put("/connectors/other-orders/pause", headers=TOKEN).status_code == 403


def test_before_there_is_a_key_the_callers_own_credential_decides(follower, cluster, seen):
    cluster.add("shop-orders")
    assert follower.put("/connectors/shop-orders/pause", headers=TOKEN).status_code == 401
    assert seen[0].headers["authorization"] == TOKEN["Authorization"]


def test_an_altered_forward_is_refused(connect, make_herder, users, cluster, seen):
    cluster.add("shop-orders")
    with_key(cluster)
    leader = connect(make_herder(), gate=Gate(users["nobody"]))

    class Meddler(httpx.ASGITransport):
        async def handle_async_request(self, request):
            seen.append(request)
            url = request.url.copy_with(raw_path=request.url.raw_path.replace(b"/pause", b"/stop"))
            changed = httpx.Request(request.method, url, headers=request.headers, content=await request.aread())
            return await super().handle_async_request(changed)

    follower = connect(make_herder(leads=False), transport=Meddler(app=leader.app), gate=Gate(users["users"]))
    answer = follower.put("/connectors/shop-orders/pause", headers=TOKEN)
    assert (answer.status_code, answer.json()["code"]) == (403, "rest.bad_signature")
    assert len(seen) == 2, "signed anew and tried once more"
    assert cluster.state.connectors["shop-orders"].target_state == "RUNNING"


def test_a_worker_reads_on_for_a_key_that_it_does_not_know_yet(connect, make_herder, cluster, runner, users):
    cluster.add("shop-orders")
    with_key(cluster)
    ahead = {SESSION_KEY: next_value(keys_of(cluster.state.settings), 2)}
    headers = Signer(lambda: ahead).sign(Signed("PUT", "/connectors/shop-orders/pause", b""), OPS)
    leader = connect(make_herder(), gate=Gate(users["nobody"]))

    async def both():
        async def read_on():
            await asyncio.sleep(0)
            cluster.state = replace(cluster.state, settings=ahead)

        answer, _ = await asyncio.gather(leader._http.put("/connectors/shop-orders/pause", headers=headers), read_on())
        return answer

    assert runner.run(both()).status_code == 202


@pytest.mark.parametrize(("method", "path"), [("POST", "/connectors/c/tasks"), ("PUT", "/connectors/c/fence")])
def test_internal_endpoints_refuse_whatever_no_worker_signed(client, cluster, method, path):
    answer = client(method, path)
    assert (answer.status_code, answer.json()["message"]) == (400, "Internal request missing required signature")
    with_key(cluster)
    signer = Signer(lambda: cluster.state.settings)
    assert client(method, path, headers=signer.sign(Signed(method, path, b""), OPS)).status_code == 400
    worker = Caller("w1", (), "worker")
    assert client(method, path, headers=signer.sign(Signed(method, path, b""), worker)).status_code == 501
    wrong = Signer(lambda: {SESSION_KEY: next_value((), 1)}).sign(Signed(method, path, b""), worker)
    assert client(method, path, headers=wrong).status_code == 403


def test_a_signed_body_is_limited_too(connect, herder, cluster):
    with_key(cluster)
    client = connect(herder, body_bytes_max=10)
    signer = Signer(lambda: cluster.state.settings)
    headers = signer.sign(Signed("POST", "/connectors", b"x" * 11), OPS)
    assert client.post("/connectors", content=b"x" * 11, headers=headers).status_code == 413
    assert client.post("/connectors", content=b"x" * 11, headers={MAC_HEADER: "x"}).status_code == 400


# --- keeping the key -------------------------------------------------------------------------------------------------


def test_the_leader_makes_a_key_and_the_next_one_when_it_has_become_old(client, connect, make_herder, cluster, runner):
    leader, follower = client.app.state.api, connect(make_herder(leads=False)).app.state.api
    assert not runner.run(renew(follower, 60.0, lambda: NOW))
    assert runner.run(renew(leader, 60.0, lambda: NOW))
    (first,) = keys_of(cluster.state.settings)
    assert not runner.run(renew(leader, 60.0, lambda: NOW + 59.0))
    assert runner.run(renew(leader, 60.0, lambda: NOW + 60.0))
    assert [key.id for key in keys_of(cluster.state.settings)][1:] == [first.id]
    assert runner.run(renew(leader, 60.0, lambda: NOW - 5.0)), "a key from the future is not trusted"


def test_the_key_is_kept_while_the_server_runs(connect, herder, cluster, runner):
    herder.script = [Reply("timeout")]
    api = connect(herder, session_key_ttl_s=60.0).app.state.api

    async def serve():
        async with kept(api):
            while not keys_of(cluster.state.settings):
                await asyncio.sleep(0.01)

    runner.run(asyncio.wait_for(serve(), 10.0))
