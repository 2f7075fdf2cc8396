"""Somebody who answers instead of a PostgreSQL server asks for the password: he gets nothing that he could use."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import subprocess
import sys
import threading

import psycopg
import pytest
from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.config import server_authentication, worker_logins
from cdcworker.connectors.config.server_authentication import METHODS, WEAK_LOGIN
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.postgres.doctor import repair
from cdcworker.connectors.postgres.transport import authentication, connection
from cdcworker.connectors.sink_errors import from_psycopg
from cdcworker.connectors.spark.connector import SparkSink
from cdcworker.connectors.warehouses.postgres import connection as warehouse
from cdcworker.connectors.warehouses.postgres import kind
from cdcworker.connectors.warehouses.postgres.ledger_admin import PostgresLedgerAdmin
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.config.config_providers import resolve
from cdcworker.worker.config.worker_properties import parse as worker_properties
from psycopg.conninfo import conninfo_to_dict

from tests import certificates

PASSWORD = "canary-password"
SSL_REQUEST, GSS_REQUEST = 80877103, 80877104
ASKED = {
    "password": struct.pack(">cii", b"R", 8, 3),
    "md5": struct.pack(">cii4s", b"R", 12, 5, b"salt"),
}
WAIT_S = 20.0
STREAM = """
import json, sys
from cdcworker.connectors.postgres.transport.libpq_stream import ReplicationStream
from cdcworker.schemas.errors import CdcError
try:
    ReplicationStream(sys.stdin.read())
except CdcError as exc:
    print(json.dumps(exc.to_dict()))
"""


class Impostor(threading.Thread):
    """Asks whoever connects for a password, and keeps what it is answered."""

    def __init__(self, asked, context=None):
        super().__init__(daemon=True)
        self._asked, self._context = asked, context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(WAIT_S)
        self.port = self._listener.getsockname()[1]
        self.logins, self.answers, self.shown = 0, [], []
        self.start()

    def run(self):
        while True:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return
            one.settimeout(WAIT_S)
            with contextlib.suppress(OSError), one:
                self._talk(one)

    def _talk(self, one):
        size, code = struct.unpack(">ii", read(one, 8))
        if code == SSL_REQUEST and self._context is not None:
            one.sendall(b"S")
            with self._context.wrap_socket(one, server_side=True) as wrapped:
                self.shown.append(bool(wrapped.getpeercert()))
                self._talk(wrapped)
            return
        if code in (SSL_REQUEST, GSS_REQUEST):
            one.sendall(b"N")
            self._talk(one)
            return
        read(one, size - 8)
        self.logins += 1
        one.sendall(self._asked)
        if answer := one.recv(1000):
            self.answers.append(answer)

    def close(self):
        self._listener.close()


def read(one, size):
    data = b""
    while len(data) < size:
        more = one.recv(size - len(data))
        if not more:
            raise ConnectionError
        data += more
    return data


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return certificates.Authority(tmp_path_factory.mktemp("pki"), "nobody's").issue("db")


@pytest.fixture(params=["plain", "unverified TLS"])
def impostor(request, certificate):
    made = []

    def make(asked):
        context = None
        if request.param != "plain":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
        made.append(Impostor(ASKED[asked], context))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(autouse=True)
def afterwards():
    yield
    server_authentication.use(METHODS[0])
    worker_logins.use(are_open=False)


def source_settings(port, password=PASSWORD):
    return parse({
        "connector.class": "postgres", "topic.prefix": "p", "database.hostname": "127.0.0.1", "database.port": str(port),
        "database.user": "u", "database.dbname": "d", **({"database.password": password} if password else {}),
    })  # fmt: skip


def sink_config(port, password=PASSWORD):
    given = {
        "connector.class": "spark", "topics": "t", "warehouse": "postgres", "warehouse.hostname": "127.0.0.1",
        "warehouse.port": str(port), "warehouse.user": "u", "warehouse.dbname": "d",
        **({"warehouse.password": password} if password else {}),
    }  # fmt: skip
    return SparkSink.config_def.parse(given)


def by_catalog(port):
    connection.connect(source_settings(port), "x")


def by_stream(port):
    """In a process of its own: libpq keeps this one's other threads waiting."""
    info = connection.conninfo(source_settings(port), "x", replication=True)
    done = subprocess.run([sys.executable, "-c", STREAM], input=info, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    raise CdcError(found["code"], found["message"])


def by_writer(port):
    try:
        warehouse.opened(warehouse.judged(kind.conninfo(sink_config(port))))
    except psycopg.Error as exc:
        raise from_psycopg(exc) from exc


def by_probe(port):
    (found,) = kind.probe(sink_config(port))
    raise CdcError(found.code, found.message, hint=found.hint)


def by_ledger(port):
    PostgresLedgerAdmin(kind.conninfo(sink_config(port)), LedgerAccess("c")).offsets()


def by_comparison(port):
    with kind.open_verify_side(sink_config(port), LedgerAccess("c"), None):
        pass


def by_administrator(port):
    repair.apply_statements(source_settings(port), ["select 1"], f"postgresql://u:{PASSWORD}@127.0.0.1:{port}/d")


WAYS = (by_catalog, by_stream, by_writer, by_probe, by_ledger, by_comparison, by_administrator)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("way", WAYS)
def test_who_is_not_proved_to_be_the_server_gets_no_password(way, asked, impostor):
    server = impostor(asked)
    with pytest.raises(CdcError) as caught:
        way(server.port)
    assert server.logins >= 1, "nobody has asked"
    assert server.answers == []
    assert caught.value.code == WEAK_LOGIN
    assert "connector.auth.weakest" in caught.value.hint
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("asked", ASKED)
def test_the_second_connection_of_a_stream_answers_no_weak_question_either(asked, certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = Impostor(ASKED[asked], context)
    info = connection.conninfo(source_settings(server.port), "x", replication=True)
    options = {name: str(value) for name, value in conninfo_to_dict(info).items()}
    way = authentication.ServerAddress(
        "127.0.0.1", "127.0.0.1", server.port, "u", PASSWORD, {"user": "u"}, options, (b"1",) * 4
    )
    with pytest.raises(authentication.NotSupported, match="not allowed"):
        authentication.login(way)
    assert (server.logins, server.answers) == (1, [])
    server.close()


@pytest.mark.parametrize(("weakest", "answered"), [("md5", ["md5"]), ("password", ["md5", "password"])])
def test_an_operator_who_trusts_the_network_may_allow_more(weakest, answered, impostor):
    properties = {"bootstrap.servers": "k:1", "group.id": "g", "connector.auth.weakest": weakest}
    resolve({}, worker_properties(properties)[0].providers)
    for asked in ASKED:
        server = impostor(asked)
        for way in (by_catalog, by_ledger):
            with pytest.raises(CdcError):
                way(server.port)
        assert bool(server.answers) == (asked in answered)


def test_a_server_that_proves_who_it_is_may_ask_for_what_it_likes():
    base = {"host": "db", "user": "u"}
    for mode in ("verify-ca", "verify-full"):
        assert server_authentication.required({**base, "sslmode": mode}) is None
    for mode in ("", "disable", "allow", "prefer", "require"):
        assert server_authentication.required({**base, "sslmode": mode}) == "!password,!md5"


def test_what_the_operators_environment_asks_for_stays(monkeypatch):
    monkeypatch.setenv("PGREQUIREAUTH", "scram-sha-256")
    assert server_authentication.required({"sslmode": "prefer"}) is None


def test_a_libpq_that_cannot_refuse_does_not_connect(monkeypatch):
    monkeypatch.setattr(server_authentication, "libpq_version", lambda: 150_004)
    with pytest.raises(CdcError) as caught:
        server_authentication.required({"sslmode": "prefer"})
    assert caught.value.code == WEAK_LOGIN
    assert server_authentication.required({"sslmode": "verify-full"}) is None
    server_authentication.use("password")
    assert server_authentication.required({"sslmode": "prefer"}) is None


# -- logins of the worker's user ----------------------------------------------------------------------------------------

OWN = "canary-of-the-worker"
SOURCE_RULES = {"bootstrap.servers": "k:1", "group.id": "g", "connector.auth.weakest": "password"}


@pytest.fixture
def home(tmp_path, monkeypatch, certificate):
    """The home of whoever runs the worker: a password for every server, and a certificate."""
    (tmp_path / ".pgpass").write_text(f"*:*:*:*:{OWN}\n")
    (tmp_path / ".pgpass").chmod(0o600)
    own = tmp_path / ".postgresql"
    own.mkdir()
    for name in ("postgresql.crt", "postgresql.key"):
        (own / name).write_bytes(certificate.read_bytes())
        (own / name).chmod(0o600)
    (tmp_path / "services").write_text(f"[own]\npassword={OWN}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def of_variable(home, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", OWN)
    (home / ".pgpass").unlink()


def of_named_file(home, monkeypatch):
    (home / ".pgpass").rename(home / "another")
    monkeypatch.setenv("PGPASSFILE", str(home / "another"))


def of_service(home, monkeypatch):
    (home / ".pgpass").unlink()
    monkeypatch.setenv("PGSERVICEFILE", str(home / "services"))
    monkeypatch.setenv("PGSERVICE", "own")


LOGINS = (lambda home, monkeypatch: None, of_variable, of_named_file, of_service)


def infos_of(port):
    """The connection strings of a source and of a sink without a password, as tasks and comparisons make them."""
    source = connection.conninfo(source_settings(port, None), "x")
    return (source, warehouse.judged(kind.conninfo(sink_config(port, None))))


def rules_of(**properties):
    return worker_properties({**SOURCE_RULES, **properties})[0].providers


@pytest.mark.parametrize("login", LOGINS)
@pytest.mark.parametrize("is_open", [False, True])
def test_a_config_without_a_login_gets_that_of_the_worker_only_where_the_operator_says(
    login, is_open, home, monkeypatch
):
    login(home, monkeypatch)
    resolve({}, rules_of(**({worker_logins.PROPERTY: "true"} if is_open else {})))
    server = Impostor(ASKED["password"])
    for info in infos_of(server.port):
        with pytest.raises(psycopg.OperationalError) as caught:
            psycopg.connect(info, connect_timeout=5)
        assert OWN not in str(caught.value)
    server.close()
    assert server.logins == 2
    assert any(OWN.encode() in answer for answer in server.answers) == is_open


@pytest.mark.parametrize("is_open", [False, True])
def test_no_certificate_of_the_worker_is_shown_to_a_server(is_open, home, certificate):
    """Neither by libpq nor by the socket that reads a source's stream."""
    resolve({}, rules_of(**({worker_logins.PROPERTY: "true"} if is_open else {})))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(certificate.parent / "nobody's.pem")
    server = Impostor(ASKED["password"], context)
    infos = infos_of(server.port)
    for info in infos:
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(info, connect_timeout=5)
    options = {name: str(value) for name, value in conninfo_to_dict(infos[0]).items()}
    where = ("127.0.0.1", "127.0.0.1", server.port, "u", "", {"user": "u"})
    with contextlib.suppress(authentication.NotSupported):
        authentication.login(authentication.ServerAddress(*where, options, (b"1",) * 4))
    server.close()
    assert server.shown == [is_open] * 3


def test_a_person_who_examines_a_source_uses_files_of_his_own(home):
    resolve({})
    assert worker_logins.withheld({}) == {}
    resolve({}, rules_of())
    assert worker_logins.withheld({"password": "p", "sslcert": "c", "sslkey": "k"}).keys() == {"passfile"}


def test_java_finds_no_password_file_either():
    resolve({}, rules_of())
    assert worker_logins.of_java() == {"PGPASSFILE": worker_logins.NOWHERE}
    resolve({}, rules_of(**{worker_logins.PROPERTY: "true"}))
    assert worker_logins.of_java() == {}
