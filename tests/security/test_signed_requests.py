"""Requests between workers: whoever reads the config topic, repeats a request or alters one on its way gets nothing done."""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from cdcworker.coordinator.model import ClusterState, Presence, Reply, View
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.config.worker_properties import parse
from cdcworker.worker.rest import forward
from cdcworker.worker.security import gate as gates
from cdcworker.worker.security.access import Caller, Grant
from cdcworker.worker.security.audit import Audit
from cdcworker.worker.security.authenticate import Authenticator
from cdcworker.worker.security.credentials import hashed
from cdcworker.worker.security.gate import Gate
from cdcworker.worker.security.signature_forms import encoded_caller, mac_text, version_1_text
from cdcworker.worker.security.signing import SESSION_KEY, SignedRequest, Signer, keys_of, next_value
from cdcworker.worker.security.users import UserFile
from cdcworker.worker.security.worker_secrets import SecretFile
from cdcworker.worker.server.wiring import gate_of, secrets_of

from tests.unit.worker import conftest as rest
from tests.unit.worker.conftest import Client, Cluster

runner, cluster, make_herder = rest.runner, rest.cluster, rest.make_herder
checks, connect = rest.checks, rest.connect

ROOT = Path(__file__).resolve().parents[2]
ADMIN = Caller("root", (Grant("admin"),), "token")
SECRET = b"s" * 48
TOKEN = {"Authorization": f"Bearer cdc_{'0' * 12}_{'S' * 43}", "X-Request-Id": "r-1"}
CONFIG = {"connector.class": "fake", "host": "elsewhere", "password": "x"}
Alter = Callable[[httpx.Request, bytes], httpx.Request]


def unaltered(request: httpx.Request, body: bytes) -> httpx.Request:
    return httpx.Request(request.method, request.url, headers=request.headers, content=body)


@dataclass
class Wire(httpx.AsyncBaseTransport):
    """The way between two workers, on which somebody listens and may alter what passes."""

    alter: Alter = unaltered
    seen: list[httpx.Request] = field(default_factory=list)
    to: Any = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        self.seen.append(request)
        return await httpx.ASGITransport(app=self.to, client=("10.0.0.7", 1)).handle_async_request(
            self.alter(request, body)
        )


@dataclass
class Workers:
    """A leader and a follower that know the user, and the way between them. `trail` is the leader's audit."""

    leader: Client
    follower: Client
    wire: Wire
    trail: list[dict[str, Any]]


@pytest.fixture
def gate(tmp_path):
    secret = hashed("S" * 43, log_n=10)
    entry = {"name": "shop", "grants": ["admin:shop-"], "tokens": [{"id": "0" * 12, "hash": secret}]}
    (tmp_path / "users.yaml").write_text(yaml.safe_dump({"users": [entry]}))
    authenticator = Authenticator(UserFile(tmp_path / "users.yaml"), decoy_hash=secret)
    yield Gate(authenticator)
    authenticator.close()


def with_key(cluster: Cluster) -> None:
    settings = {**cluster.state.settings, SESSION_KEY: next_value(keys_of(cluster.state.settings), 1)}
    cluster.state = replace(cluster.state, settings=settings)


@pytest.fixture
def workers(connect, make_herder, cluster, gate):
    with_key(cluster)
    cluster.add("shop-orders")
    trail: list[dict[str, Any]] = []
    leader = connect(make_herder(), gate=gate, audit=Audit("w-leader", trail.append))
    wire = Wire(to=leader.app)
    return Workers(leader, connect(make_herder(leads=False), transport=wire, gate=gate), wire, trail)


def send(client: Client, request: httpx.Request) -> httpx.Response:
    return client(
        request.method, request.url.raw_path.decode(), headers=request.headers, content=request.content or None
    )


def test_a_request_to_one_worker_is_refused_by_another(workers, connect, make_herder, cluster, gate):
    assert workers.follower.put("/connectors/shop-orders/pause", headers=TOKEN).status_code == 202
    (heard,) = workers.wire.seen
    second = connect(
        make_herder(changes={"url": "http://second:8083", "worker_id": "second:8083", "is_leader": True}), gate=gate
    )
    assert workers.follower.put("/connectors/shop-orders/resume", headers=TOKEN).status_code == 202
    answer = send(second, heard)
    assert (answer.status_code, answer.json()["code"]) == (403, "rest.bad_signature")
    assert send(workers.leader, heard).status_code == 403, "nor is it repeated at the same one"
    assert cluster.state.connectors["shop-orders"].target_state == "RUNNING"


def test_a_worker_that_has_restarted_repeats_nothing(workers, connect, make_herder, cluster, gate):
    """It has forgotten which requests it has seen; whoever leads after its restart leads in another epoch."""
    assert workers.follower.put("/connectors/shop-orders/pause", headers=TOKEN).status_code == 202
    assert workers.follower.put("/connectors/shop-orders/resume", headers=TOKEN).status_code == 202
    assert cluster.state.leader is not None
    cluster.state = replace(cluster.state, leader=replace(cluster.state.leader, epoch=cluster.state.leader.epoch + 1))
    answer = send(connect(make_herder(), gate=gate), workers.wire.seen[0])
    assert answer.status_code == 409
    assert cluster.state.connectors["shop-orders"].target_state == "RUNNING"


def with_header(name: str, value: str | None) -> Alter:
    def alter(request: httpx.Request, body: bytes) -> httpx.Request:
        headers = [(key, text) for key, text in request.headers.items() if key != name]
        more = [] if value is None else [(name, value)]
        return httpx.Request(request.method, request.url, headers=[*headers, *more], content=body)

    return alter


def with_body(request: httpx.Request, body: bytes) -> httpx.Request:
    headers = [(key, text) for key, text in request.headers.items() if key != "content-length"]
    return httpx.Request(request.method, request.url, headers=headers, content=body.replace(b"elsewhere", b"evil.host"))


def with_path(request: httpx.Request, body: bytes) -> httpx.Request:
    url = request.url.copy_with(raw_path=request.url.raw_path.replace(b"shop-orders", b"shop-others"))
    return httpx.Request(request.method, url, headers=request.headers, content=body)


def with_query(request: httpx.Request, body: bytes) -> httpx.Request:
    url = request.url.copy_with(raw_path=request.url.raw_path + b"&dry_run=false")
    return httpx.Request(request.method, url, headers=request.headers, content=body)


ALTERED = {
    "If-Match gone": with_header("if-match", None),
    "If-Match of another version": with_header("if-match", '"1"'),
    "epoch gone": with_header("x-cdc-leader-epoch", None),
    "another epoch": with_header("x-cdc-leader-epoch", "2"),
    "type of the body": with_header("content-type", "text/plain"),
    "another request id": with_header("x-request-id", "r-2"),
    "body": with_body,
    "path": with_path,
    "query": with_query,
}


@pytest.mark.parametrize("what", ALTERED)
def test_nothing_of_a_request_can_be_altered_on_its_way(workers, cluster, what):
    cluster.add("shop-others")
    before = cluster.state.connectors
    workers.wire.alter = ALTERED[what]
    headers = {**TOKEN, "If-Match": '"9"'}
    answer = workers.follower.put("/connectors/shop-orders/config", json=CONFIG, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "rest.bad_signature")
    assert cluster.state.connectors == before


@pytest.mark.parametrize("value", [None, "other-key"])
def test_an_idempotency_key_cannot_be_altered_on_its_way(workers, cluster, value):
    workers.wire.alter = with_header("idempotency-key", value)
    headers = {**TOKEN, "Idempotency-Key": "my-key"}
    body = {"name": "shop-new", "config": CONFIG}
    answer = workers.follower.post("/connectors", json=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "rest.bad_signature")
    assert "shop-new" not in cluster.state.connectors


def test_a_header_that_is_added_on_the_way_has_no_effect(workers, cluster):
    workers.wire.alter = with_header("if-match", '"9"')
    assert workers.follower.put("/connectors/shop-orders/config", json=CONFIG, headers=TOKEN).status_code == 200
    workers.wire.alter = with_header("content-type", "text/plain")
    assert workers.follower.put("/connectors/shop-orders/pause", headers=TOKEN).status_code == 202


def test_the_worker_that_acts_has_the_request_in_its_audit_too(workers):
    assert workers.follower.put("/connectors/shop-orders/pause", headers=TOKEN).status_code == 202
    (entry,) = workers.trail
    told = {name: entry[name] for name in ("who", "by", "worker", "forwarded_by", "address", "asked_from", "result")}
    assert told == {
        "who": "shop",
        "by": "token",
        "worker": "w-leader",
        "forwarded_by": "follower:8083",
        "address": "10.0.0.7",
        "asked_from": "127.0.0.1",
        "result": "done",
    }
    assert entry["request_id"] == "r-1"
    assert entry["change"]["target_state"] == {"from": "RUNNING", "to": "PAUSED"}


def test_over_two_workers_the_address_is_the_users_own(connect, make_herder, cluster, gate):
    """Where the leader has just changed, the worker that was taken for it sends the request on, once."""
    with_key(cluster)
    cluster.add("shop-orders")
    trail: list[dict[str, Any]] = []
    leader = connect(make_herder(), gate=gate, audit=Audit("w-leader", trail.append))
    between = {"worker_id": "between:8083", "url": "http://between:8083"}
    relay = connect(make_herder(leads=False, changes=between), transport=Wire(to=leader.app), gate=gate)
    first = make_herder(leads=False, script=[Reply("not_leader", leader_url="http://between:8083")])
    follower = connect(first, transport=Wire(to=relay.app), gate=gate)
    assert follower.put("/connectors/shop-orders/pause", headers=TOKEN).status_code == 202
    (entry,) = trail
    assert [entry[name] for name in ("who", "forwarded_by", "asked_from")] == ["shop", "between:8083", "127.0.0.1"]


def test_a_denial_of_a_signed_request_is_in_the_audit_of_the_worker_that_denied(workers):
    assert workers.follower.put("/connectors/other-orders/pause", headers=TOKEN).status_code == 403
    assert workers.trail == [], "the worker that was asked denied it"
    workers.wire.alter = with_path
    assert workers.follower.put("/connectors/shop-orders/pause", headers=TOKEN).status_code == 403
    assert [(entry["result"], entry["who"], entry["address"]) for entry in workers.trail] == [
        ("denied", None, "10.0.0.7")
    ] * 2, "signed anew and tried once more"


# --- whoever reads the config topic ----------------------------------------------------------------------------------


def forged(cluster: Cluster, path: str, *, form: int = 2) -> dict[str, str]:
    """The headers that whoever has read the session key can make."""
    (key, *_) = keys_of(cluster.state.settings)
    if form == 2:
        view = rest.FakeHerder(cluster, leads=False).view()
        return Signer(lambda: view).sign(SignedRequest("PUT", path, b"", rest.LEADER_URL), ADMIN)
    fields = f"{key.id} {round(time.time() * 1000)} n1 {encoded_caller(ADMIN)}"
    mac = mac_text(key.secret, version_1_text("PUT", path, b"", fields))
    return {"x-connect-authorization": mac, "x-cdc-signed": fields}


def with_a_worker_of_the_build_before(cluster: Cluster) -> None:
    cluster.workers["old:8083"] = Presence("old:8083", "b", "http://old:8083", "0", "h", protocol=3)


@pytest.mark.parametrize("form", [1, 2])
@pytest.mark.parametrize("mixed", [False, True])
def test_the_key_in_the_config_topic_signs_nothing_by_itself(connect, make_herder, cluster, gate, form, mixed):
    with_key(cluster)
    cluster.add("shop-orders")
    if mixed:
        with_a_worker_of_the_build_before(cluster)
    path = "/connectors/shop-orders/pause"
    leader = connect(make_herder(), gate=gate, worker_secrets=lambda: (SECRET,))
    answer = leader.put(path, headers=forged(cluster, path, form=form))
    assert (answer.status_code, answer.json()["code"]) == (403, "rest.bad_signature")
    assert cluster.state.connectors["shop-orders"].target_state == "RUNNING"
    without = connect(make_herder(), gate=gate)
    expected = 403 if form == 1 and not mixed else 202
    assert without.put(path, headers=forged(cluster, path, form=form)).status_code == expected, (
        "the forgery is a good one"
    )


def test_workers_with_the_secret_forward_and_the_secret_is_changed_one_worker_after_the_other(
    connect, make_herder, cluster, gate
):
    with_key(cluster)
    cluster.add("shop-orders")
    held = {"leader": (b"o" * 32,), "follower": (b"o" * 32,)}
    leader = connect(make_herder(), gate=gate, worker_secrets=lambda: held["leader"])
    wire = Wire(to=leader.app)
    follower = connect(make_herder(leads=False), transport=wire, gate=gate, worker_secrets=lambda: held["follower"])

    def forwards() -> bool:
        return follower.put("/connectors/shop-orders/pause", headers=TOKEN).status_code == 202

    assert forwards()
    for secrets in ((SECRET, b"o" * 32), (SECRET,)):
        for worker in ("follower", "leader"):
            held[worker] = secrets
            assert forwards(), (worker, len(secrets))
    held["follower"] = (b"o" * 32,)
    assert not forwards(), "the secret before is worth nothing"


def test_a_file_of_secrets_is_read_again_when_it_changes(tmp_path, caplog):
    now, file = [0.0], tmp_path / "secrets"
    file.write_bytes(b"# the present one\n" + SECRET + b"\n\n" + b"o" * 32 + b"\n")
    file.chmod(0o600)
    secrets = SecretFile(file, plain_accepted=True, clock=lambda: now[0])
    assert secrets() == (SECRET, b"o" * 32, b"")
    for content, expected in ((b"short", (SECRET, b"o" * 32, b"")), (b"n" * 32, (b"n" * 32, b""))):
        file.write_bytes(content)
        now[0] += 2.0
        assert secrets() == expected
    file.unlink()
    now[0] += 2.0
    assert secrets() == (b"n" * 32, b"")
    assert "n" * 32 not in caplog.text
    assert "short" not in caplog.text.replace("shorter", "")


@pytest.mark.parametrize(("content", "mode"), [(b"", 0o600), (b"x" * 31, 0o600), (SECRET, 0o620), (SECRET, 0o602)])
def test_a_file_without_a_good_secret_keeps_a_worker_from_starting(tmp_path, content, mode):
    file = tmp_path / "secrets"
    file.write_bytes(content)
    file.chmod(mode)
    with pytest.raises(CdcError) as caught:
        SecretFile(file)
    assert caught.value.code == "worker.secret_unusable"
    assert SECRET.decode() not in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_secrets_of_another_user_keeps_a_worker_from_starting(tmp_path):
    file = tmp_path / "secrets"
    file.write_bytes(SECRET)
    file.chmod(0o600)
    os.chown(file, 12345, 12345)
    with pytest.raises(CdcError, match="belongs to another user") as caught:
        SecretFile(file)
    assert caught.value.code == "worker.secret_unusable"


def test_a_file_of_secrets_that_everybody_may_read_is_warned_of(tmp_path):
    file = tmp_path / "secrets"
    file.write_bytes(SECRET)
    for mode, told_of in ((0o644, True), (0o640, False), (0o600, False)):
        file.chmod(mode)
        warnings = parse({**WORKER, "inter.worker.secret.file": str(file)})[1]
        assert any("chmod o-r" in text for text in warnings) == told_of


def test_a_credential_stays_at_the_worker_that_was_asked_also_while_there_is_no_key(workers, cluster, monkeypatch):
    """Nobody else is asked then: unsigned, the request would be nobody's."""
    monkeypatch.setattr(forward, "KEY_WAIT_S", 0.0)
    request = {"headers": TOKEN}
    assert workers.follower.put("/connectors/shop-orders/pause", **request).status_code == 202
    settings = {name: value for name, value in cluster.state.settings.items() if name != SESSION_KEY}
    cluster.state = replace(cluster.state, settings=settings)
    answer = workers.follower.put("/connectors/shop-orders/pause", **request)
    assert (answer.status_code, answer.json()["code"]) == (503, "rest.no_session_key")
    assert answer.headers["retry-after"] == "1"
    (only,) = workers.wire.seen
    assert "authorization" not in only.headers


WORKER = {"bootstrap.servers": "k:9092", "group.id": "g", "rest.advertised.host.name": "w"}


@pytest.mark.parametrize(
    "key",
    ["file.connector.paths", "config.providers.file.param.allowed.paths", "config.providers.dir.param.allowed.paths"],
)
@pytest.mark.parametrize("link", [False, True])
def test_a_secret_that_connectors_could_read_keeps_a_worker_from_starting(tmp_path, key, link):
    folder, file = tmp_path / "open", tmp_path / "open" / "secrets"
    folder.mkdir()
    file.write_bytes(SECRET)
    file.chmod(0o600)
    named = file
    if link:
        named = tmp_path / "elsewhere"
        named.symlink_to(file)
    given = {**WORKER, "inter.worker.secret.file": str(named)}
    config, _ = parse({**given, key: str(folder)})
    with pytest.raises(CdcError, match=key):
        secrets_of(config.values, config.providers)
    config, _ = parse(given)
    assert secrets_of(config.values, config.providers)() == (SECRET,)


def test_a_worker_says_at_its_start_that_the_topic_is_enough_to_pass_for_a_worker():
    network = {**WORKER, "listeners": "https://0.0.0.0:8443", "rest.auth.file": "/users.yaml"}

    def told(**more: str) -> list[str]:
        return [warning for warning in parse({**network, **more})[1] if "pass for a worker" in warning]

    assert len(told()) == 1
    assert told(**{"inter.worker.secret.file": "/f"}) == []
    assert len(told(**{"inter.worker.secret.file": "/f", "inter.worker.plain.key.accepted": "true"})) == 1
    assert told(**{"inter.worker.certificates": "cdc-0"}) == []
    assert told(listeners="http://127.0.0.1:8083") == []
    assert len(told(**{"rest.insecure.bind": "true"})) == 1
    assert told(**{"rest.insecure.bind": "true", "rest.auth.file": ""}) == [], "there everybody may do everything"


def test_with_the_names_of_their_certificates_workers_know_each_other_by_them(connect, make_herder, cluster, gate):
    with_key(cluster)
    cluster.add("shop-orders")
    path = "/connectors/shop-orders/pause"
    leader = connect(make_herder(), gate=replace(gate, worker_certificates=frozenset({"cdc-1"})))
    for name, status in ((None, 403), ("shop", 403), ("cdc-1", 202)):

        async def over(scope: Any, receive: Any, send: Any, name: str | None = name) -> None:
            await leader.app({**scope, **({gates.PEER: name} if name else {})}, receive, send)

        follower = connect(make_herder(leads=False), transport=httpx.ASGITransport(app=over), gate=gate)
        assert follower.put(path, headers=TOKEN).status_code == status


@pytest.mark.parametrize("listener", [{}, {"listeners": "https://127.0.0.1:8443"}])
def test_names_of_certificates_need_a_listener_that_asks_for_them(listener):
    config, _ = parse({**WORKER, **listener, "inter.worker.certificates": "cdc-1"})
    with pytest.raises(CdcError, match=r"inter\.worker\.certificates"):
        gate_of(config.values, config.scheme)


# --- every header that a handler reads -------------------------------------------------------------------------------

READERS = (
    "worker/rest",
    "worker/schema_registry",
    "worker/diagnostics",
    "worker/dead_letters",
    "worker/offsets",
    "worker/http",
)
AT_THE_ASKED_WORKER = {
    "cookie": "a session of the console is a credential: it stays at the worker that was asked",
    "authorization": "stays at the worker that was asked, which names its user",
    "last-event-id": "of event streams, which are not forwarded",
    "if-none-match": "of the console's files, which each worker has",
    "content-length": "of the body, which is signed; the receiver sets it again",
    "transfer-encoding": "of the body, which is signed",
}


def constants(tree: ast.Module) -> dict[str, str]:
    found = {}
    for node in tree.body:
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            found[target.id] = value.value
    return found


def headers_read(source: str, known: dict[str, str]) -> set[str]:
    """The names with which this code looks into the headers of a request; `?` for one that cannot be told."""
    tree, names = ast.parse(source), set()
    local = {**known, **constants(tree)}

    def name_of(node: ast.expr) -> str:
        if isinstance(node, ast.Constant):
            return str(node.value).lower()
        return local.get(node.id, "?").lower() if isinstance(node, ast.Name) else "?"

    def is_headers(node: ast.expr) -> bool:
        return (
            isinstance(node, ast.Attribute) and node.attr == "headers" and ast.unparse(node.value).endswith("request")
        )

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_headers(node.func.value):
            names.add(name_of(node.args[0]) if node.args else "?")
        elif isinstance(node, ast.Subscript) and is_headers(node.value):
            names.add(name_of(node.slice))
        elif isinstance(node, ast.Compare) and any(map(is_headers, node.comparators)):
            names.add(name_of(node.left))
    return names


def test_the_search_for_headers_finds_each_way_to_read_one():
    code = (
        'A = "X-A"\nrequest.headers.get(A)\nrequest.headers["x-b"]\n"x-c" in request.headers\nrequest.headers.get(f())'
    )
    assert headers_read(code, {}) == {"x-a", "x-b", "x-c", "?"}


def test_every_header_that_a_handler_reads_is_forwarded_and_signed():
    """A new one fails here until it is sent on, or is named above with its reason."""
    known = {"EPOCH_HEADER": forward.EPOCH_HEADER}
    files = [file for folder in READERS for file in sorted((ROOT / folder).rglob("*.py")) if file.name != "forward.py"]
    found = {name for file in files for name in headers_read(file.read_text(), known)}
    assert {"if-match", "idempotency-key", forward.EPOCH_HEADER} <= found
    assert found - AT_THE_ASKED_WORKER.keys() <= {*forward.SENT_HEADERS, *forward.MADE_HEADERS}


@pytest.mark.parametrize("name", [*forward.SENT_HEADERS, *forward.MADE_HEADERS])
def test_every_header_that_is_forwarded_is_signed(workers, name):
    values = {"if-match": '"1"', "idempotency-key": "k"}
    given = {name: values[name]} if name in values else {}
    workers.wire.alter = with_header(name, "altered")
    answer = workers.follower.put("/connectors/shop-orders/config", json=CONFIG, headers={**TOKEN, **given})
    assert name in workers.wire.seen[0].headers
    assert (answer.status_code, answer.json()["code"]) == (403, "rest.bad_signature")


def test_a_handler_sees_no_header_that_was_not_signed(runner):
    view = View(
        "w", "b", rest.LEADER_URL, "k", True, True, ClusterState(settings={SESSION_KEY: next_value((), 1)}), {}, {}, {}
    )
    signer, seen = Signer(lambda: view), []
    signed = SignedRequest("PUT", "/x", b"{}", rest.LEADER_URL, (("if-match", "1"),))

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        seen.append(sorted(name for name, _ in scope["headers"]))

    headers = {
        **signer.sign(signed, ADMIN),
        "if-match": "1",
        "x-new": "2",
        "authorization": "Bearer x",
        "content-length": "2",
    }
    scope = {
        "type": "http",
        "method": "PUT",
        "path": "/x",
        "raw_path": b"/x",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    parts = [{"type": "http.request", "body": b"{}"}]

    async def receive() -> Any:
        return parts.pop()

    async def send(message: Any) -> None:
        seen.append(message)

    runner.run(gates.GateMiddleware(handler, gates.Gate(), signer, 100)(scope, receive, send))
    assert seen == [[b"content-length", b"if-match"]]
