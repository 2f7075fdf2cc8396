"""Hostile HTTP: what one client sends, holds or guesses hinders no other, and says nothing twice."""

import asyncio
import contextlib
import os
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import h11
import pytest
import yaml
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.config.worker_properties import parse
from cdcworker.worker.http.framing import problem_of
from cdcworker.worker.rest.settings import ApiSettings, Protection
from cdcworker.worker.security import users
from cdcworker.worker.security.anonymous_denials import ADDRESSES_MAX, TOLD_MAX, AnonymousDenials
from cdcworker.worker.security.audit import Audit
from cdcworker.worker.security.authenticate import Authenticator
from cdcworker.worker.security.caller_shares import CallerShares, ConnectionOwner
from cdcworker.worker.security.credentials import hashed
from cdcworker.worker.security.gate import PEER, PROBE_HOLD_S, Gate
from cdcworker.worker.security.rate_limit import RateLimiter, RequestRate, TokenBuckets
from cdcworker.worker.security.tls import TlsFiles, peer_context
from cdcworker.worker.security.users import UserFile
from cdcworker.worker.server.protocol import ConnectionLimits, _Connection
from cdcworker.worker.server.server import RestServer
from cdcworker.worker.server.wiring import gate_of, limits_of

from tests import certificates
from tests.app_in_memory import ask, create_app, operations, path_of, registry_routes
from tests.unit.worker.conftest import Cluster, FakeHerder

SECRET = "S" * 43
HASH = hashed(SECRET, log_n=10)
NAMES = ("a", "b")
PROBES = ("/health", "/healthz", "/readyz", "/v1/live")
FLOOD, ALLOWED = "127.0.0.2", "127.0.0.3"
HEAD = b"Host: localhost\r\nContent-Type: application/json\r\n"


def token(name, secret=SECRET):
    return f"Bearer cdc_{name * 12}_{secret}"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "users.yaml"
    entries = [{"name": name, "grants": ["admin"], "tokens": [{"id": name * 12, "hash": HASH}]} for name in NAMES]
    path.write_text(yaml.safe_dump({"users": entries}))
    path.chmod(0o600)
    return path


@pytest.fixture
def authenticator(file):
    made = Authenticator(UserFile(file), decoy_hash=HASH)
    yield made
    made.close()


def app_of(gate=None, audit=None):
    cluster = Cluster()
    cluster.add("c", {"topic.prefix": "c"})
    protection = Protection(gate=gate or Gate(), audit=audit or Audit())
    settings = ApiSettings(protection=protection, live_checks=False)
    return create_app(FakeHerder(cluster), settings=settings, registry_routes=registry_routes())


@pytest.fixture
def serve():
    running = []

    def make(gate=None, **limits):
        server = RestServer(app_of(gate), "127.0.0.1", 0, limits=ConnectionLimits(**limits))
        server.start()
        running.append(server)
        return server

    yield make
    for server in running:
        server.stop()


def connect(server, address="127.0.0.1"):
    return socket.create_connection(("127.0.0.1", server.port), timeout=10.0, source_address=(address, 0))


def sent(server, data, address="127.0.0.1"):
    """Everything that comes until the server closes."""
    connection, answers = connect(server, address), b""
    try:
        connection.sendall(data)
        while chunk := connection.recv(65536):
            answers += chunk
    except ConnectionError:
        pass
    connection.close()
    return answers


def get(server, path="/connectors", address="127.0.0.1", headers=b""):
    request = b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s\r\n" % (path.encode(), headers)
    found = sent(server, request, address)
    return int(found.split()[1]) if found else 0


# -- requests that can be read in two ways ----------------------------------------------------------------------------

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
AMBIGUOUS = {
    "length and chunks": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": b"Transfer-Encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
    "the same length twice": b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "two lengths": b"Content-Length: 2\r\nContent-Length: 45\r\n\r\n{}",
    "a list of lengths": b"Content-Length: 2, 2\r\n\r\n{}",
    "chunks twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "another coding": b"Transfer-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}",
    "bare line feeds": b"Content-Length: 2\nTransfer-Encoding: chunked\n\n0\r\n\r\n",
}


@pytest.mark.parametrize("kind", AMBIGUOUS)
def test_a_request_whose_length_is_ambiguous_is_refused_and_nothing_after_it_is_read(serve, kind):
    found = sent(serve(), b"POST /connectors HTTP/1.1\r\n" + HEAD + AMBIGUOUS[kind] + SMUGGLED)
    assert found.startswith(b"HTTP/1.1 400")
    assert found.count(b"HTTP/1.1") == 1


def test_an_ambiguous_request_is_refused_in_pieces_and_behind_another_one(serve):
    server = serve()
    first = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    found = sent(
        server, first + b"\r\n\r\nPOST /connectors HTTP/1.1\r\n" + HEAD + AMBIGUOUS["length and chunks"] + SMUGGLED
    )
    assert [found.count(text) for text in (b"HTTP/1.1 200", b"HTTP/1.1 400", b"HTTP/1.1")] == [1, 1, 2]
    connection = connect(server)
    for part in (b"POST / HTTP/1.1\r\n" + HEAD, b"Content-Length: 2\r\nContent-Le", b"ngth: 2\r\n\r\n{}"):
        connection.sendall(part)
    assert connection.recv(65536).startswith(b"HTTP/1.1 400")
    connection.close()


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: w\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nContent-Length: 3\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nX-Content-Length: 3\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chu",
        b"\r\n\r\nGET / HTTP/1.1\r\n\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
    ],
)
def test_other_requests_are_not(head):
    assert problem_of(head) == ""


def test_a_body_in_thousands_of_pieces_is_refused_early():
    connection, pieces = _Connection(h11.SERVER, 65536), 0
    connection.receive_data(
        b"POST / HTTP/1.1\r\nHost: w\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 40_000
    )
    with contextlib.suppress(h11.RemoteProtocolError):
        while connection.next_event() is not h11.NEED_DATA:
            pieces += 1
    assert 1_000 <= pieces < 1_100


def test_such_a_body_gets_an_answer(serve):
    request = b"POST /connectors HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    assert sent(serve(), request + b"1\r\n \r\n" * 3_000).startswith(b"HTTP/1.1 400")
    fine = b"400\r\n" + b" " * 1024 + b"\r\n"
    assert sent(
        serve(), request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + fine * 900 + b"0\r\n\r\n"
    ).startswith(b"HTTP/1.1 400")


# -- headers of answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", operations(), ids=str)
def test_every_answer_may_not_be_kept_or_guessed_at(authenticator, operation):
    async def answers():
        path = path_of(operation.path, connector="c")
        yield await ask(app_of(), operation.method, path.replace("/v1/events", "/v1/events?limit=0"), b"{}")
        yield await ask(app_of(Gate(authenticator)), operation.method, path)
        yield await ask(app_of(), "TRACE", path)

    async def check():
        async for answer in answers():
            assert answer.headers["x-content-type-options"] == "nosniff"
            # A browser keeps files of the console, and asks each time whether they are still the same.
            assert answer.headers["cache-control"] in ("no-store", *(["no-cache"] if answer.status < 400 else []))
            assert answer.headers["cache-control"] == "no-store" or operation.path.startswith("/ui")

    asyncio.run(check())


@pytest.mark.parametrize("request_", [b"nonsense\r\n\r\n", b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: w\r\n\r\n"])
def test_answers_of_the_server_itself_too(serve, request_):
    head = sent(serve(), request_).partition(b"\r\n\r\n")[0].lower()
    assert b"x-content-type-options: nosniff" in head
    assert b"cache-control: no-store" in head


# -- probes -----------------------------------------------------------------------------------------------------------


def test_probes_are_answered_while_their_address_holds_all_its_connections(serve):
    server = serve(per_client_max=5)
    held = [connect(server, FLOOD) for _ in range(5)]
    for connection in held:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    idle = [connect(server, FLOOD) for _ in range(60)]
    assert [get(server, path, FLOOD) for path in PROBES] == [200] * 4
    assert get(server, "/connectors", FLOOD) == 503
    assert get(server, "/connectors", ALLOWED) == 200
    for connection in (*held, *idle):
        connection.close()


def test_probes_are_answered_while_their_address_comes_too_often(serve):
    server = serve(arrivals=TokenBuckets(RequestRate(0.0, 3.0)))
    assert [get(server, "/connectors", FLOOD) for _ in range(6)] == [200] * 3 + [503] * 3
    assert [get(server, path, FLOOD) for path in PROBES] == [200] * 4


def test_probes_are_answered_while_all_connections_are_taken(serve):
    server = serve(connections_max=10)
    held = [connect(server, f"127.0.1.{n}") for n in range(1, 11)]
    for connection in held:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    assert [get(server, path, ALLOWED) for path in PROBES] == [200] * 4
    assert get(server, "/connectors", ALLOWED) == 503
    for connection in held:
        connection.close()


def test_probes_are_answered_while_their_address_asks_too_often(serve):
    """A little later, but within the second that a probe waits."""
    server = serve(Gate(limiter=RateLimiter(RequestRate(0.0, 2.0))))
    assert [get(server, address=FLOOD) for _ in range(3)] == [200, 200, 429]
    assert [get(server, path, FLOOD) for path in PROBES] == [200] * 4
    assert PROBE_HOLD_S < 0.5


# -- shares of users --------------------------------------------------------------------------------------------------


def test_a_user_holds_its_share_of_connections_from_whatever_addresses(serve, authenticator):
    server = serve(Gate(authenticator), users=CallerShares(3))
    request = b"GET /connectors HTTP/1.1\r\nHost: localhost\r\nAuthorization: %s\r\n\r\n"

    def held(name, number):
        connection = connect(server, f"127.0.2.{number}")
        for _ in range(2):
            connection.sendall(request % token(name).encode())
            found = b""
            while not found.endswith(b"]"):
                found += connection.recv(65536)
        return connection, int(found.split()[1])

    first = [held("a", number) for number in range(1, 4)]
    assert [status for _, status in first] == [200] * 3
    beyond = connect(server, "127.0.2.9")
    beyond.sendall(request % token("a").encode())
    assert beyond.recv(65536).startswith(b"HTTP/1.1 429")
    other = held("b", 5)
    assert other[1] == 200
    for connection, _ in (*first, (beyond, 0), other):
        connection.close()
    deadline = time.monotonic() + 60.0
    while get(server, headers=b"Authorization: %s\r\n" % token("a").encode()) != 200:
        assert time.monotonic() < deadline
    assert limits_of(parse(WORKER)[0].values).users.each_max == 200


def test_a_connection_counts_for_its_last_user():
    shares = CallerShares(1)
    one, two = ConnectionOwner(shares), ConnectionOwner(shares)
    assert one.belongs_to("a")
    assert not two.belongs_to("a")
    assert one.belongs_to("b")
    assert two.belongs_to("a")
    one.release()
    two.release()
    assert shares.held == {}


def test_shares_hold_for_each_and_for_all():
    shares = CallerShares(2, 3)
    assert [shares.take("a"), shares.take("a"), shares.take("a"), shares.take("b"), shares.take("b")] == [
        True,
        True,
        False,
        True,
        False,
    ]
    shares.give_back("a")
    assert shares.take("b")


@pytest.mark.parametrize(
    ("path", "shares", "most"), [("/v1/events", "streams", 50), ("/v1/connectors/c/changes", "change_readers", 3)]
)
def test_a_user_holds_its_share_of_streams_also_when_it_asks_for_all_at_once(authenticator, path, shares, most):
    async def check():
        app = app_of(Gate(authenticator))
        api = app.state.api
        object.__setattr__(api.settings.services, "tail", Rows())
        bearers = [(b"authorization", token("a").encode())]
        streams = [asyncio.create_task(ask(app, "GET", path, headers=bearers, stays=True)) for _ in range(most + 10)]
        while sum(stream.done() for stream in streams) < 10:
            await asyncio.sleep(0.001)
        assert [stream.result().status for stream in streams if stream.done()] == [503] * 10
        assert getattr(api, shares).held == {"user:a": most}
        other = asyncio.create_task(
            ask(app, "GET", path, headers=[(b"authorization", token("b").encode())], stays=True)
        )
        while len(getattr(api, shares).held) < 2:
            assert not other.done()
            await asyncio.sleep(0.001)
        for stream in (*streams, other):
            stream.cancel()
        await asyncio.gather(*streams, other, return_exceptions=True)
        assert getattr(api, shares).held == {}, "every stream has given its place back"
        await api.event_feed.close()

    asyncio.run(asyncio.wait_for(check(), 60.0))


class Rows:
    """Readers of rows that never have any."""

    is_full = False

    def reading(self, topics, asked):
        return self

    async def __aenter__(self):
        return asyncio.StreamReader()

    async def __aexit__(self, *_):
        return None


# -- guesses ----------------------------------------------------------------------------------------------------------


def slow_check(checked):
    def check(secret, stored):
        checked.append(secret)
        threading.Event().wait(0.01)
        return secret == SECRET

    return check


def statuses(gate, credentials):
    async def all_at_once():
        app = app_of(gate)
        headers = [[(b"authorization", credential.encode())] for credential in credentials]
        answers = await asyncio.gather(*(ask(app, "GET", "/connectors", headers=each) for each in headers))
        return [answer.status for answer in answers]

    return asyncio.run(all_at_once())


def test_guesses_at_the_same_time_are_as_few_as_guesses_in_turn(file, monkeypatch):
    monkeypatch.setattr("cdcworker.worker.security.gate.HOLD_S", 0.0)
    checked = []
    authenticator = Authenticator(UserFile(file), check=slow_check(checked), decoy_hash=HASH)
    gate = Gate(authenticator, limiter=RateLimiter(RequestRate(0.0, 1_000.0), RequestRate(0.0, 5.0)))
    found = statuses(gate, [token("a", f"{n:043d}") for n in range(200)])
    assert (found.count(401), found.count(429)) == (5, 195)
    assert len(checked) == 5
    authenticator.close()


def test_who_is_right_may_come_many_times_at_once_and_is_checked_once(file):
    checked = []
    authenticator = Authenticator(UserFile(file), check=slow_check(checked), decoy_hash=HASH)
    gate = Gate(authenticator, limiter=RateLimiter(RequestRate(0.0, 1_000.0), RequestRate(0.0, 5.0)))
    assert statuses(gate, [token("a")] * 100) == [200] * 100
    assert len(checked) == 1
    assert statuses(gate, [token("b", "T" * 43)] * 100) == [401] * 100
    assert len(checked) == 2
    authenticator.close()


# -- the audit of nobody ----------------------------------------------------------------------------------------------


def test_denials_of_nobody_are_in_the_audit_and_cannot_flood_it(authenticator):
    trail, now = [], [0.0]
    audit = Audit("w", trail.append, lambda: now[0])
    app = app_of(Gate(authenticator), audit)

    async def denied(count, client, method="GET", headers=()):
        for _ in range(count):
            assert (await ask(app, method, "/connectors", headers=headers, client=client)).status == 401

    asyncio.run(denied(500, "10.0.0.1"))
    asyncio.run(denied(500, "10.0.0.1", "POST"))
    asyncio.run(denied(10, "10.0.0.2", headers=[(b"authorization", b"Bearer x")]))
    assert [entry["address"] for entry in trail] == ["10.0.0.1"] * TOLD_MAX + ["10.0.0.2"] * TOLD_MAX
    assert all(entry["result"] == "denied" and entry["who"] is None for entry in trail)
    trail.clear()
    now[0] = 61.0
    audit.tell_denials()
    assert [(entry["address"], entry["times"]) for entry in trail] == [
        ("10.0.0.1", 1_000 - TOLD_MAX),
        ("10.0.0.2", 10 - TOLD_MAX),
    ]
    assert trail[0]["since"] == "1970-01-01T00:00:00.000+00:00"
    audit.tell_denials(everything=True)
    assert len(trail) == 2


def test_many_addresses_are_bounded_and_none_is_lost():
    denials, out = AnonymousDenials(), []
    for n in range(20_000):
        out += denials.note(f"a{n % 5_000}", {"ts": "t", "address": f"a{n % 5_000}"}, 0.0)
    out += denials.due(61.0)
    assert len(out) <= ADDRESSES_MAX * (TOLD_MAX + 1) + 1
    assert sum(entry.get("times", 1) for entry in out) == 20_000
    assert out[-1]["address"] == "others" or any(entry["address"] == "others" for entry in out)


def test_the_rest_is_told_when_the_server_ends(authenticator):
    trail = []
    app = app_of(Gate(authenticator), Audit("w", trail.append, lambda: 0.0))

    async def run():
        async with app.router.lifespan_context(app):
            for _ in range(10):
                await ask(app, "GET", "/connectors")

    asyncio.run(run())
    assert sum(entry.get("times", 1) for entry in trail) == 10


# -- whom a worker trusts ---------------------------------------------------------------------------------------------

WORKER = {"bootstrap.servers": "k:9092", "group.id": "g", "rest.advertised.host.name": "me"}


def test_peers_are_trusted_by_the_truststore_and_not_by_the_systems_authorities(tmp_path, monkeypatch):
    ours, theirs = certificates.Authority(tmp_path, "ours"), certificates.Authority(tmp_path, "theirs")
    monkeypatch.setenv("SSL_CERT_FILE", str(theirs.file))
    own, stranger = ours.issue("worker"), theirs.issue("worker")

    def trusts(files, certificate):
        """Whether a handshake with a server that shows this certificate succeeds."""
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(certificate)
        ends = socket.socketpair()
        with ThreadPoolExecutor(1) as pool:
            accepting = pool.submit(_handshake, server, ends[0], True)
            fine = _handshake(peer_context(files), ends[1], False)
            accepting.result()
        return fine

    assert trusts(files_with(own, str(ours.file)), own)
    assert not trusts(files_with(own, str(ours.file)), stranger)
    assert trusts(files_with(own, ""), stranger), "without a truststore the system's count"


def files_with(issued, authorities):
    return TlsFiles(str(issued), authorities=authorities)


def _handshake(context, end, is_server):
    try:
        context.wrap_socket(end, server_side=is_server, server_hostname=None if is_server else "127.0.0.1").close()
    except OSError:
        end.close()
        return False
    return True


def test_a_certificate_of_whatever_authority_may_do_nothing_by_default():
    secured = {
        "listeners": "https://0.0.0.0:8443",
        "listeners.https.ssl.certificate.location": "/c.pem",
        "listeners.https.ssl.truststore.location": "/ca.pem",
        "listeners.https.ssl.client.auth": "required",
    }
    config, warnings = parse({**WORKER, **secured})
    assert [warning for warning in warnings if "nobody may do anything" in warning]
    gate = gate_of(config.values, "https")
    assert gate.is_closed
    caller = asyncio.run(gate.caller({"headers": [], PEER: "anybody"}))
    assert caller.grants == ()
    config, warnings = parse({**WORKER, **secured, "rest.auth.certificate.grants": "read"})
    assert not [warning for warning in warnings if "nobody may do anything" in warning]
    caller = asyncio.run(gate_of(config.values, "https").caller({"headers": [], PEER: "anybody"}))
    assert caller.may("read")
    assert not caller.may("operate")


@pytest.mark.parametrize("mode", [0o620, 0o660, 0o602, 0o666, 0o622])
def test_a_file_of_users_that_others_may_write_is_refused(file, mode):
    file.chmod(mode)
    with pytest.raises(CdcError, match="may write") as caught:
        users.read(file)
    assert caught.value.code == "auth.file_invalid"


@pytest.mark.parametrize("mode", [0o400, 0o440, 0o600, 0o644])
def test_one_that_others_may_read_is_not(file, mode):
    file.chmod(mode)
    assert set(users.read(file).by_name) == set(NAMES)


def test_a_file_of_users_of_another_user_is_refused(file, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    if file.stat().st_uid == 0:
        os.chown(file, 12_345, -1)
    with pytest.raises(CdcError, match="another user"):
        users.read(file)


def test_users_stay_as_they_were_when_the_file_becomes_writable_for_others(file, caplog):
    now = [0.0]
    read = UserFile(file, clock=lambda: now[0])
    file.write_text(yaml.safe_dump({"users": [{"name": "intruder", "grants": ["admin"]}]}))
    file.chmod(0o660)
    now[0] = 5.0
    assert set(read.content().by_name) == set(NAMES)
    assert "the earlier ones count on" in caplog.text
