"""Requests between workers: what a signature holds together, how keys change, and what an unsigned one may not do."""

import asyncio
import base64
import time
from dataclasses import replace

import httpx
import pytest
import yaml
from cdcworker.coordinator.model import ClusterState, Presence, PutSetting, Reply, View
from cdcworker.worker.http.errors import RestError
from cdcworker.worker.security.access import Caller, Grant
from cdcworker.worker.security.authenticate import Authenticator
from cdcworker.worker.security.credentials import hashed
from cdcworker.worker.security.gate import Gate
from cdcworker.worker.security.session_key import renew, renewed
from cdcworker.worker.security.signature_forms import (
    ALGORITHM_HEADER,
    MAC_HEADER,
    SIGNED_HEADER,
    decoded_caller,
    encoded_caller,
    mac_text,
    version_1_text,
)
from cdcworker.worker.security.signing import (
    SESSION_KEY,
    SIGNATURE_HEADER,
    SignedRequest,
    Signer,
    keys_of,
    next_value,
)
from cdcworker.worker.security.users import UserFile

OPS = Caller("ops", (Grant("admin", "shop-"), Grant("schemas")), "token")
URL = "http://leader:8083"
HEADERS = (("accept", "application/json"), ("if-match", '"7"'))
REQUEST = SignedRequest("PUT", "/connectors/a/pause?forward=true", b"{}", URL, HEADERS)
NOW = 1_700_000_000.0


def view_of(settings, *protocols, url=URL):
    """A worker's view of a cluster of workers with these protocols; the first one is the worker itself."""
    present = {
        f"w{n}": Presence(f"w{n}", "b", url if n == 0 else f"http://w{n}:8083", "1", "h", protocol=protocol)
        for n, protocol in enumerate(protocols or (4,))
    }
    return View("w0", "b", url, "k", True, True, ClusterState(settings=settings), present, {}, {})


def signer_of(settings, clock=lambda: NOW, secrets=(b"",), *protocols, url=URL):
    return Signer(lambda: view_of(settings, *protocols, url=url), lambda: secrets, clock)


@pytest.fixture
def log():
    return {SESSION_KEY: next_value((), 1)}


@pytest.fixture
def signer(log):
    return signer_of(log)


def status(signer, request, headers):
    with pytest.raises(RestError) as caught:
        signer.verified(request, headers)
    return caught.value.status


def test_a_signed_request_names_its_caller(signer):
    signature = signer.verified(REQUEST, signer.sign(REQUEST, OPS, "10.0.0.9"))
    assert (signature.caller, signature.worker, signature.address) == (OPS, "w0", "10.0.0.9")
    assert signature.headers == {"accept", "if-match"}


@pytest.mark.parametrize(
    "other",
    [
        replace(REQUEST, method="POST"),
        replace(REQUEST, target="/connectors/b/pause?forward=true"),
        replace(REQUEST, target="/connectors/a/pause"),
        replace(REQUEST, body=b"{} "),
        replace(REQUEST, method="PU", target="T/connectors/a/pause?forward=true"),
        replace(REQUEST, headers=HEADERS[:1]),
        replace(REQUEST, headers=(*HEADERS, HEADERS[1])),
        replace(REQUEST, headers=(HEADERS[0], ("if-match", '"8"'))),
        replace(REQUEST, headers=(("accep", "tapplication/json"), HEADERS[1])),
    ],
)
def test_a_signature_is_good_for_its_own_request_only(signer, other):
    assert status(signer, other, signer.sign(REQUEST, OPS)) == 403


def test_a_header_that_is_not_covered_changes_nothing_of_the_signature(signer):
    other = replace(REQUEST, headers=(*HEADERS, ("x-odd", "1")))
    assert "x-odd" not in signer.verified(other, signer.sign(REQUEST, OPS)).headers


def test_a_signature_is_good_at_its_receiver_only(signer, log):
    """Whatever a request says of its receiver, the worker takes its own URL."""
    headers = signer.sign(REQUEST, OPS)
    second = signer_of(log, url="http://second:8083")
    assert status(second, REQUEST, headers) == 403
    assert status(second, replace(REQUEST, receiver="http://second:8083"), headers) == 403
    assert signer_of(log, url=URL + "/").verified(REQUEST, headers).caller == OPS


def test_what_is_said_of_the_caller_is_signed_too(signer):
    mine = signer.sign(REQUEST, OPS)[SIGNATURE_HEADER]
    theirs = signer.sign(REQUEST, Caller("root", (Grant("admin"),), "worker"))[SIGNATURE_HEADER]
    begin, mac = mine.rsplit(" ", 1)
    foreign = theirs.rsplit(" ", 1)[0]
    torn = ["", "2", "a b c d", begin, f"{mine} x", f"{begin} ", f"{begin} %%%", f"{foreign} {mac}", f"3{mine[1:]}"]
    for text in torn:
        assert status(signer, REQUEST, {SIGNATURE_HEADER: text}) == 403
    assert signer.verified(REQUEST, {SIGNATURE_HEADER: mine}).caller == OPS


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"[" * 20_000, b'{"name":1,"grants":["root"],"by":""}'])
def test_a_text_that_names_no_caller_is_told(content):
    with pytest.raises(ValueError):
        decoded_caller(base64.urlsafe_b64encode(content).decode())


def test_a_request_is_taken_once_and_in_time(log):
    now = [NOW]
    signer = signer_of(log, lambda: now[0])
    for late in (-200.0, 200.0):
        headers = signer.sign(REQUEST, OPS)
        now[0] += late
        assert status(signer, REQUEST, headers) == 403
    headers = signer.sign(REQUEST, OPS)
    assert signer.verified(REQUEST, headers).caller == OPS
    assert status(signer, REQUEST, headers) == 403, "replayed"


def test_unsigned_other_algorithms_and_no_key_are_told_apart(signer):
    assert status(signer, REQUEST, {}) == 400
    assert status(signer, REQUEST, {**signer.sign(REQUEST, OPS), ALGORITHM_HEADER: "none"}) == 400
    empty = signer_of({})
    assert empty.sign(REQUEST, OPS) == {}
    assert status(empty, REQUEST, signer.sign(REQUEST, OPS)) == 503


def test_the_key_before_the_present_one_is_good_and_the_one_before_that_is_not(log):
    signer = signer_of(log)
    first, second = signer.sign(REQUEST, OPS), signer.sign(REQUEST, OPS)
    log[SESSION_KEY] = next_value(keys_of(log), 2)
    assert signer.verified(REQUEST, first).caller == OPS
    assert signer.verified(REQUEST, signer.sign(REQUEST, OPS)).caller == OPS
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


# --- with the operator's secrets -------------------------------------------------------------------------------------

NEW, OLD = b"n" * 32, b"o" * 32
PLAIN = b""


@pytest.mark.parametrize(
    ("sends", "takes", "holds"),
    [
        ((NEW,), (NEW,), True),
        ((OLD,), (NEW,), False),
        ((PLAIN,), (NEW,), False),
        ((NEW,), (PLAIN,), False),
        # The secret is introduced: first beside the plain key, then alone.
        ((NEW, PLAIN), (PLAIN,), True),
        ((PLAIN,), (NEW, PLAIN), True),
        ((NEW, PLAIN), (NEW,), True),
        ((NEW,), (NEW, PLAIN), True),
        # It is changed: first the new one before the old one, then alone.
        ((NEW, OLD), (OLD,), True),
        ((OLD,), (NEW, OLD), True),
        ((NEW, OLD), (NEW,), True),
        ((NEW,), (NEW, OLD), True),
    ],
)
def test_a_signature_with_one_secret_of_the_receiver_holds(log, sends, takes, holds):
    headers = signer_of(log, secrets=sends).sign(REQUEST, OPS)
    receiver = signer_of(log, secrets=takes)
    if holds:
        assert receiver.verified(REQUEST, headers).caller == OPS
    else:
        assert status(receiver, REQUEST, headers) == 403


# --- with workers of an earlier build --------------------------------------------------------------------------------


def earlier(log, request, nonce="n1"):
    """The headers as builds of protocol 3 send them."""
    (key, *_) = keys_of(log)
    fields = f"{key.id} {round(NOW * 1000)} {nonce} {encoded_caller(OPS)}"
    mac = mac_text(key.secret, version_1_text(request.method, request.target, request.body, fields))
    return {MAC_HEADER: mac, ALGORITHM_HEADER: "HmacSHA256", SIGNED_HEADER: fields}


def test_the_earlier_form_is_the_one_of_those_builds():
    """The MAC is one that a build of protocol 3 has made."""
    text = version_1_text("PUT", "/x?a=1", b"{}", "k1 1700000000000 n1 eyJ9")
    assert mac_text(b"k" * 32, text) == "66JcF/b3eZqJr/+I8pZc6vvjibcJyfPidBj55CqOIVc="


def test_the_earlier_form_is_taken_while_a_worker_sends_no_other(log):
    headers = earlier(log, REQUEST)
    assert status(signer_of(log, lambda: NOW, (b"",), 4, 4), REQUEST, headers) == 403
    mixed = signer_of(log, lambda: NOW, (b"",), 4, 3)
    assert mixed.verified(REQUEST, headers).caller == OPS
    assert status(mixed, REQUEST, headers) == 403, "replayed"
    assert status(mixed, replace(REQUEST, body=b""), earlier(log, REQUEST, "n2")) == 403


def test_the_earlier_form_is_refused_where_the_plain_key_is(log):
    headers = earlier(log, REQUEST)
    assert status(signer_of(log, lambda: NOW, (NEW,), 4, 3), REQUEST, headers) == 403
    assert signer_of(log, lambda: NOW, (NEW, PLAIN), 4, 3).verified(REQUEST, headers).caller == OPS


def test_both_forms_are_sent_while_the_receiver_may_understand_one_only(log):
    to_old = replace(REQUEST, receiver="http://w1:8083")
    assert MAC_HEADER not in signer_of(log, lambda: NOW, (b"",), 4, 4).sign(to_old, OPS)
    assert MAC_HEADER not in signer_of(log, lambda: NOW, (NEW,), 4, 3).sign(to_old, OPS)
    unknown = replace(REQUEST, receiver="http://unknown:8083")
    assert MAC_HEADER in signer_of(log, lambda: NOW, (b"",), 4, 4).sign(unknown, OPS)
    headers = signer_of(log, lambda: NOW, (b"",), 4, 3).sign(to_old, OPS)
    (key,) = keys_of(log)
    text = version_1_text(to_old.method, to_old.target, to_old.body, headers[SIGNED_HEADER])
    assert headers[MAC_HEADER] == mac_text(key.secret, text)
    receiver = signer_of(log, lambda: NOW, (b"",), 4, 3, url="http://w1:8083")
    assert receiver.verified(to_old, headers).headers is not None, "who understands both takes the one that says more"
    del headers[SIGNATURE_HEADER]
    assert status(receiver, to_old, headers) == 403, "one of them once, not each of them once"


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
    found = {
        name: Authenticator(UserFile(tmp_path / f"{name}.yaml"), decoy_hash=secret) for name in ("users", "nobody")
    }
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


def test_an_altered_forward_is_refused(connect, make_herder, users, cluster, seen):
    """The follower knows by the code that the key may have changed, though the leader's clients get none by default."""
    cluster.add("shop-orders")
    with_key(cluster)
    leader = connect(make_herder(), gate=Gate(users["nobody"]), error_details=False)

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
    request = SignedRequest("PUT", "/connectors/shop-orders/pause", b"", URL)
    headers = signer_of(ahead, time.time).sign(request, OPS)
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
    signer, request = signer_of(cluster.state.settings, time.time), SignedRequest(method, path, b"", URL)
    assert client(method, path, headers=signer.sign(request, OPS)).status_code == 400
    worker = Caller("w1", (), "worker")
    assert client(method, path, headers=signer.sign(request, worker)).status_code == 501
    wrong = signer_of({SESSION_KEY: next_value((), 1)}, time.time).sign(request, worker)
    assert client(method, path, headers=wrong).status_code == 403


def test_a_signed_body_is_limited_too(connect, herder, cluster):
    with_key(cluster)
    client = connect(herder, body_bytes_max=10)
    signer = signer_of(cluster.state.settings, time.time)
    headers = signer.sign(SignedRequest("POST", "/connectors", b"x" * 11, URL), OPS)
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
    api = connect(herder).app.state.api

    async def serve():
        async with renewed(api, 60.0):
            while not keys_of(cluster.state.settings):
                await asyncio.sleep(0.01)

    runner.run(asyncio.wait_for(serve(), 10.0))
