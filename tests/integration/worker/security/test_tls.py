"""The REST listener over TLS: who gets in, what is refused, certificates that change, workers that ask each other."""

import json
import socket
import ssl
import time
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest
import yaml
from cdcworker.connectors.config.definition import Secret
from cdcworker.coordinator.model import ClusterState, Connector, Leader, Reply, View
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.cli.main import cli
from cdcworker.worker.config.worker_properties import parse
from cdcworker.worker.herder.liveness_probe import is_gone
from cdcworker.worker.rest.settings import ApiSettings, Protection
from cdcworker.worker.security.access import Caller, Grant
from cdcworker.worker.security.credentials import hashed
from cdcworker.worker.security.signing import SESSION_KEY, SignedRequest, Signer, next_value
from cdcworker.worker.security.tls import TlsContexts, TlsFiles
from cdcworker.worker.server.application import create_app
from cdcworker.worker.server.server import RestServer
from cdcworker.worker.server.wiring import gate_of, tls_of
from click.testing import CliRunner

from tests import certificates

WORKER = {"bootstrap.servers": "k:9092", "group.id": "g", "listeners": "https://127.0.0.1:0"}
TOKEN = f"cdc_{'0' * 12}_{'S' * 43}"


class Herder:
    """One of two workers that share a folded log; the leader says yes to everything."""

    def __init__(self, leads=True):
        self.leads, self.leader_url, self.key, self.asked = leads, "https://127.0.0.1:1", next_value((), 1), []

    def view(self):
        connector = Connector("shop", "inc", 1, {"connector.class": "postgres"}, "RUNNING", "source")
        leader = Leader(1, "w:1", "b", self.leader_url)
        state = ClusterState(leader=leader, connectors={"shop": connector}, settings={SESSION_KEY: self.key})
        url = self.leader_url if self.leads else "https://follower"
        return View("w:1", "boot-1", url, "k", True, self.leads, state, {}, {}, {})

    def submit(self, request):
        self.asked.append(request)
        future = Future()
        future.set_result(Reply("ok") if self.leads else Reply("not_leader", leader_url=self.leader_url))
        return future


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pki")
    ours, theirs = certificates.Authority(folder, "ours"), certificates.Authority(folder, "theirs")
    return SimpleNamespace(
        ours=ours,
        theirs=theirs,
        server=ours.issue("worker"),
        ops=ours.issue("ops"),
        unlisted=ours.issue("unlisted"),
        stranger=theirs.issue("ops"),
    )


@pytest.fixture
def users(tmp_path):
    path = tmp_path / "users.yaml"
    tokens = [{"id": "0" * 12, "hash": hashed("S" * 43, log_n=10)}]
    entry = {"name": "ops", "grants": ["admin"], "certificates": ["ops"], "tokens": tokens}
    path.write_text(yaml.safe_dump({"users": [entry]}))
    return path


@pytest.fixture
def serve(pki, users):
    """A server by worker properties; those of TLS are given with underscores for dots."""
    running = []

    def make(herder=None, authenticated=True, workers="", grants="", **properties):
        given = {
            "rest.auth.certificate.grants": grants,
            "listeners.https.ssl.keystore.location": str(pki.server),
            "listeners.https.ssl.truststore.location": str(pki.ours.file),
            "inter.worker.certificates": workers,
            **{f"listeners.https.ssl.{name.replace('_', '.')}": str(value) for name, value in properties.items()},
        }
        config, _ = parse({**WORKER, **given, **({"rest.auth.file": str(users)} if authenticated else {})})
        tls = tls_of(config.values, config.scheme)
        settings = ApiSettings(protection=Protection(gate=gate_of(config.values, config.scheme), tls=tls))
        server = RestServer(create_app(herder or Herder(), settings=settings), "127.0.0.1", 0, tls=tls)
        server.start()
        running.append(server)
        server.url = f"https://127.0.0.1:{server.port}"
        return server

    yield make
    for server in running:
        server.stop()


def trusting(authority, certificate=None):
    context = ssl.create_default_context(cafile=str(authority.file))
    if certificate:
        context.load_cert_chain(str(certificate))
    return context


def get(server, path="/connectors", *, verify, **headers):
    return httpx.get(server.url + path, verify=verify, headers=headers, trust_env=False, timeout=60.0)


def test_a_token_comes_over_tls(serve, pki):
    server = serve()
    answer = get(server, verify=trusting(pki.ours), authorization=f"Bearer {TOKEN}")
    assert (answer.status_code, answer.json()) == (200, ["shop"])
    assert get(server, verify=trusting(pki.ours)).status_code == 401


def test_clients_that_check_are_not_fooled(serve, pki, tmp_path):
    """Another authority, another name, an expired certificate: each ends before anything is said."""
    wrong_name = pki.ours.issue("elsewhere", address="127.0.0.2", into=tmp_path / "name.pem")
    expired = pki.ours.issue("old", days=-1, into=tmp_path / "old.pem")
    for server, authority in (
        (serve(), pki.theirs),
        (serve(keystore_location=wrong_name), pki.ours),
        (serve(keystore_location=expired), pki.ours),
    ):
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            get(server, verify=trusting(authority))


def test_plain_http_and_old_versions_get_nothing(serve, pki):
    server = serve()
    with pytest.raises(httpx.HTTPError):
        httpx.get(server.url.replace("https", "http"), trust_env=False)
    old = trusting(pki.ours)
    old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_connection(("127.0.0.1", server.port)) as plain, pytest.raises(ssl.SSLError):
        old.wrap_socket(plain, server_hostname="127.0.0.1")


def test_a_required_certificate_is_the_credential(serve, pki):
    server = serve(client_auth="required")
    assert get(server, verify=trusting(pki.ours, pki.ops)).status_code == 200
    assert get(server, verify=trusting(pki.ours, pki.unlisted)).status_code == 401
    for context in (trusting(pki.ours), trusting(pki.ours, pki.stranger)):
        with pytest.raises(httpx.HTTPError):
            get(server, verify=context)


def test_a_requested_certificate_may_be_missing_but_not_wrong(serve, pki):
    server = serve(client_auth="requested")
    assert get(server, verify=trusting(pki.ours, pki.ops)).status_code == 200
    assert get(server, verify=trusting(pki.ours)).status_code == 401
    assert get(server, verify=trusting(pki.ours), authorization=f"Bearer {TOKEN}").status_code == 200
    with pytest.raises(httpx.HTTPError):
        get(server, verify=trusting(pki.ours, pki.stranger))


def test_without_users_every_certificate_of_the_authority_counts(serve, pki):
    server = serve(authenticated=False, client_auth="required", grants="read")
    assert get(server, verify=trusting(pki.ours, pki.unlisted)).status_code == 200
    server = serve(authenticated=False, client_auth="required")
    assert get(server, verify=trusting(pki.ours, pki.unlisted)).status_code == 403
    assert serve(authenticated=False) is not None, "on the loopback interface nothing is needed"


def test_a_renewed_certificate_is_taken_without_a_restart(serve, pki, tmp_path):
    file = pki.ours.issue("worker", into=tmp_path / "tls.pem")
    server = serve(keystore_location=file)

    def serial():
        context = trusting(pki.ours)
        plain = socket.create_connection(("127.0.0.1", server.port), timeout=60.0)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped:
            return wrapped.getpeercert()["serialNumber"]

    first = serial()
    file.write_text("torn")
    pki.ours.issue("worker", into=file)
    deadline = time.monotonic() + 60.0
    while serial() == first:
        assert time.monotonic() < deadline


def test_files_that_do_not_fit_leave_the_earlier_certificate(pki, tmp_path):
    file = pki.ours.issue("worker", into=tmp_path / "tls.pem")
    tls = TlsContexts(TlsFiles(str(file)))
    file.write_text("torn")
    assert not tls.reload()
    file.unlink()
    assert not tls.reload()
    pki.ours.issue("worker", into=file)
    assert tls.reload()
    assert not tls.reload()


@pytest.mark.parametrize("lost", ["torn", "missing", "other key", "jks"])
def test_files_that_cannot_be_used_keep_a_worker_from_starting(pki, tmp_path, lost):
    file, key = tmp_path / "tls.pem", ""
    if lost == "torn":
        file.write_text("-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n")
    elif lost == "jks":
        file.write_bytes(b"\xfe\xed\xfe\xed\x00\x00")
    elif lost == "other key":
        file, key = pki.server, str(pki.ops)
    with pytest.raises(CdcError) as caught:
        TlsContexts(TlsFiles(str(file), key, password=Secret("hidden-password")))
    assert caught.value.code == "tls.unusable"
    assert "hidden-password" not in str(caught.value)


@pytest.mark.parametrize(
    ("properties", "key"),
    [
        ({}, "certificate.location"),
        ({"keystore.location": "x", "client.auth": "required"}, "truststore.location"),
        ({"keystore.location": "x", "keystore.type": "JKS"}, "keystore.type"),
        ({"keystore.location": "x", "enabled.protocols": "TLSv1.1"}, "enabled.protocols"),
    ],
)
def test_incomplete_properties_name_the_key(properties, key):
    given = {f"listeners.https.ssl.{name}": value for name, value in properties.items()}

    def start():
        config, _ = parse({**WORKER, **given})
        tls_of(config.values, config.scheme)

    with pytest.raises(CdcError) as caught:
        start()
    assert caught.value.where["key"] == f"listeners.https.ssl.{key}"


def test_a_certificate_is_authentication_enough_for_the_network():
    required = {
        "listeners.https.ssl.keystore.location": "x",
        "listeners.https.ssl.truststore.location": "x",
        "listeners.https.ssl.client.auth": "required",
    }
    network = {**WORKER, "listeners": "https://0.0.0.0:8443", "rest.advertised.host.name": "w"}
    assert parse({**network, **required})[0].url == "https://w:8443"
    for less in ("requested", "none"):
        with pytest.raises(CdcError, match="binds to"):
            parse({**network, **required, "listeners.https.ssl.client.auth": less})


def test_workers_forward_over_https_and_probe_each_other(serve, pki):
    leading, following = Herder(), Herder(leads=False)
    leader = serve(leading, client_auth="required")
    following.key, following.leader_url = leading.key, leader.url
    leading.leader_url = leader.url
    follower = serve(following, client_auth="requested")
    answer = httpx.put(
        f"{follower.url}/connectors/shop/pause",
        verify=trusting(pki.ours),
        headers={"authorization": f"Bearer {TOKEN}"},
        trust_env=False,
    )
    assert answer.status_code == 202
    assert len(leading.asked) == 1
    peers = TlsContexts(TlsFiles(str(pki.server), authorities=str(pki.ours.file))).peers
    assert not is_gone(leader.url, "boot-1", peers)
    assert is_gone(leader.url, "another", peers)
    assert not is_gone(leader.url, "another", trusting(pki.theirs)), "whoever has no good certificate proves nothing"


def test_a_signed_request_needs_the_certificate_of_a_worker(serve, pki):
    """Whoever has the session key and a user's certificate is no worker."""
    leading, following = Herder(), Herder(leads=False)
    leader = serve(leading, workers="worker", client_auth="requested")
    following.key, following.leader_url = leading.key, leader.url
    leading.leader_url = leader.url
    follower = serve(following)
    path, admin = "/connectors/shop/pause?details=true", Caller("root", (Grant("admin"),), "token")
    signed = Signer(following.view).sign(SignedRequest("PUT", path, b"", leader.url), admin)

    def put(server, context, **headers):
        return httpx.put(server.url + path, verify=context, headers=headers, trust_env=False, timeout=60.0)

    for context in (trusting(pki.ours), trusting(pki.ours, pki.ops)):
        answer = put(leader, context, **signed)
        assert (answer.status_code, answer.json()["code"]) == (403, "rest.bad_signature")
    assert leading.asked == []
    assert put(follower, trusting(pki.ours), authorization=f"Bearer {TOKEN}").status_code == 202
    assert put(leader, trusting(pki.ours, pki.server), **signed).status_code == 202, "the signature was a good one"


def test_the_command_line_shows_its_token_to_its_own_cluster_only(serve, pki, tmp_path, monkeypatch):
    server = serve()
    for name in ("CDC_TOKEN", "CDC_CA", "CDC_URL", "CDC_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def run(*arguments, text=""):
        done = CliRunner().invoke(cli, [*arguments, "--json"], input=text)
        return done.exit_code, done.stdout

    assert run("context", "add", "prod", server.url, "--ca", str(pki.ours.file), "--token", text=TOKEN + "\n")[0] == 0
    file = tmp_path / "cdcworker" / "contexts.json"
    assert file.stat().st_mode & 0o777 == 0o600
    code, out = run("connector", "list")
    assert (code, list(json.loads(out)["result"])) == (0, ["shop"])
    code, out = run("context", "list")
    assert TOKEN not in out
    code, _ = run("connector", "list", "--url", server.url, "--ca", str(pki.ours.file))
    assert code == 3, "the token of a context is for its addresses"
    monkeypatch.setenv("CDC_TOKEN", TOKEN)
    assert run("connector", "list", "--url", server.url, "--ca", str(pki.ours.file))[0] == 0
    file.chmod(0o640)
    assert run("connector", "list")[0] == 2


def test_the_server_takes_the_files_that_its_properties_name(pki):
    files = TlsFiles(str(pki.server))
    assert replace(files, lowest="TLSv1.3").lowest == "TLSv1.3"
    assert TlsContexts(replace(files, lowest="TLSv1.3")).server.minimum_version is ssl.TLSVersion.TLSv1_3
