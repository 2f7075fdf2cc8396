"""TLS towards a source's server: what poses as the server does not get as far as a user's name."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from cdcworker.connectors.postgres import errors as e
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.postgres.doctor import reachability
from cdcworker.connectors.postgres.transport.connection import connect
from cdcworker.schemas.errors import CdcError

from tests import certificates

SSL_REQUEST = (80877103).to_bytes(4, "big")
REFUSAL = b"SFATAL\0VFATAL\0C28000\0Mno pg_hba.conf entry\0\0"


class Server:
    """Speaks TLS as PostgreSQL does, hears out whoever gets through, and refuses him."""

    def __init__(self, certificate: Path | None) -> None:
        self.heard = b""
        self._context = None
        if certificate is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(str(certificate))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client, suppress(OSError):
                    client.settimeout(20.0)
                    self._talk(client)

    def _talk(self, client: socket.socket) -> None:
        first = client.recv(8)
        if first[4:] != SSL_REQUEST:
            self.heard += first + client.recv(4096)
        elif self._context is None:
            client.sendall(b"N")
            self.heard += client.recv(4096)
        else:
            client.sendall(b"S")
            with self._context.wrap_socket(client, server_side=True) as secure:
                self.heard += secure.recv(4096)
                secure.sendall(b"E" + (len(REFUSAL) + 4).to_bytes(4, "big") + REFUSAL)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(20.0)


@pytest.fixture
def serve():
    servers: list[Server] = []

    def start(certificate: Path | None) -> Server:
        servers.append(Server(certificate))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pki")
    return certificates.Authority(folder, "ours"), certificates.Authority(folder, "theirs")


def settings(server: Server, mode: str, authority: Path, host: str = "127.0.0.1"):
    return parse({
        "connector.class": "postgres", "topic.prefix": "t", "database.hostname": host, "database.port": str(server.port),
        "database.user": "the-user", "database.password": "p", "database.dbname": "d", "database.sslmode": mode,
        "database.sslrootcert": str(authority),
    })  # fmt: skip


def refused(server: Server, mode: str, authority: Path, host: str = "127.0.0.1") -> CdcError:
    with pytest.raises(CdcError) as caught:
        connect(settings(server, mode, authority, host), "t")
    return caught.value


def test_the_right_server_is_taken(serve, pki):
    """Its refusal is heard: so was the user's name."""
    server = serve(pki[0].issue("db"))
    assert refused(server, "verify-full", pki[0].file).code == e.AUTHENTICATION
    assert b"the-user" in server.heard


@pytest.mark.parametrize("mode", ["verify-ca", "verify-full"])
def test_a_server_of_another_authority_hears_nothing(serve, pki, mode):
    server = serve(pki[1].issue("db"))
    error = refused(server, mode, pki[0].file)
    assert (error.code, server.heard) == (e.TLS, b"")


def test_a_server_with_another_name_hears_nothing(serve, pki):
    server = serve(pki[0].issue("other", address="127.0.0.2"))
    error = refused(server, "verify-full", pki[0].file)
    assert (error.code, server.heard) == (e.TLS, b"")
    assert refused(server, "verify-ca", pki[0].file).code == e.AUTHENTICATION  # that is what verify-ca leaves open


def test_a_server_whose_certificate_has_ended_hears_nothing(serve, pki):
    server = serve(pki[0].issue("late", days=-1))
    error = refused(server, "verify-full", pki[0].file)
    assert (error.code, server.heard) == (e.TLS, b"")


def test_a_self_signed_server_hears_nothing(serve, pki, tmp_path):
    own = certificates.Authority(tmp_path, "self").issue("db")
    server = serve(own)
    error = refused(server, "verify-full", pki[0].file)
    assert (error.code, server.heard) == (e.TLS, b"")


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
def test_whoever_says_that_there_is_no_tls_hears_nothing(serve, pki, mode):
    server = serve(None)
    error = refused(server, mode, pki[0].file)
    assert (error.code, server.heard) == (e.TLS, b"")


def test_without_the_authoritys_file_nobody_is_asked(serve, pki, tmp_path):
    server = serve(pki[0].issue("db"))
    error = refused(server, "verify-full", tmp_path / "nowhere.pem")
    assert (error.code, server.heard) == (e.TLS, b"")


class ExaminedConnection:
    """A connection to somewhere else, encrypted or not."""

    def __init__(self, mode: str, encrypted: bool, host: str = "db.example") -> None:
        from types import SimpleNamespace

        self.settings = SimpleNamespace(raw={"database.sslmode": mode}, hosts=host, ports="5432")
        self.connection = SimpleNamespace(pgconn=SimpleNamespace(ssl_in_use=encrypted))


@pytest.mark.parametrize(
    ("mode", "encrypted", "host", "status"),
    [
        ("prefer", False, "db.example", "warning"),
        ("prefer", False, "127.0.0.1,db.example", "warning"),
        ("prefer", False, "127.evil.example", "warning"),
        ("prefer", False, "localhost,::1", "ok"),
        ("prefer", True, "db.example", "note"),
        ("require", True, "10.0.0.1", "note"),
        ("verify-ca", True, "db.example", "note"),
        ("verify-full", True, "db.example", "ok"),
    ],
)
def test_what_a_connection_does_not_protect_is_said_before_it_starts(mode, encrypted, host, status):
    ports = ",".join(["5432"] * len(host.split(",")))
    examined = ExaminedConnection(mode, encrypted, host)
    examined.settings.ports = ports
    (result,) = reachability._tls(examined)
    assert result.status == status
    assert result.key == ("" if status == "ok" else "database.sslmode")
    (check,) = [check for check in reachability.CHECKS if check.name == "reach.tls"]
    assert check.validates
