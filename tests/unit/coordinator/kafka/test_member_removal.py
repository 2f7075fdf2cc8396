"""The requests that librdkafka has no call for: nothing goes out less guarded than through it, and no answer is trusted."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import pytest
from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.kafka.broker_connection import BrokerConnection, BrokerLogin, broker_login
from cdcworker.coordinator.kafka.member_removal import remove_member
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.ports import free_ports

BROKERS = {"bootstrap.servers": "one:9092, SSL://[::1]:9093"}
LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "cdc", "sasl.password": "s3cret-value"}


def test_brokers_and_no_login():
    login = broker_login(BROKERS, client_id="c")
    assert login.servers == (("one", 9092), ("::1", 9093))
    assert (login.client_id, login.mechanism, login.tls) == ("c", "", None)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "scram-sha-512"])
def test_a_login_by_password_is_taken_over_and_never_printed(mechanism):
    login = broker_login({**BROKERS, **LOGIN, "sasl.mechanism": mechanism}, client_id="c")
    assert (login.mechanism, login.username, login.password) == (mechanism.upper(), "cdc", "s3cret-value")
    assert "s3cret-value" not in repr(login)


@pytest.mark.parametrize(
    "more",
    [
        {"sasl.mechanism": "GSSAPI"},
        {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc"},
        {"sasl.mechanism": "PLAIN", "ssl.crl.location": "/crl"},
        {"sasl.mechanism": "PLAIN", "ssl.keystore.location": "/no/such.p12"},
        {"sasl.mechanism": "PLAIN", "bootstrap.servers": "one"},
        {},
    ],
    ids=str,
)
def test_what_is_not_known_here_is_refused_and_named(more):
    with pytest.raises(CdcError) as caught:
        broker_login({**BROKERS, **LOGIN, **more}, client_id="c")
    assert caught.value.code in (e.UNSUPPORTED, e.CLIENT_CONFIG)
    assert "s3cret-value" not in f"{caught.value} {caught.value.hint}"


def test_tls_checks_the_broker_s_certificate_and_name_unless_told_otherwise():
    def made(**more: str) -> ssl.SSLContext:
        named = {name.replace("_", "."): value for name, value in more.items()}
        context = broker_login({**BROKERS, "security.protocol": "ssl", **named}, client_id="c").tls
        assert context is not None
        return context

    assert (made().verify_mode, made().check_hostname) == (ssl.CERT_REQUIRED, True)
    nameless = made(ssl_endpoint_identification_algorithm="none")
    assert (nameless.verify_mode, nameless.check_hostname) == (ssl.CERT_REQUIRED, False)
    assert made(admin_enable_ssl_certificate_verification="false").verify_mode == ssl.CERT_NONE


def test_a_certificate_that_cannot_be_read_is_said_without_its_content(tmp_path):
    (bad := tmp_path / "ca.pem").write_text("not a certificate")
    with pytest.raises(CdcError) as caught:
        broker_login({**BROKERS, "security.protocol": "SSL", "ssl.ca.location": str(bad)}, client_id="c")
    assert caught.value.code == e.UNSUPPORTED
    assert "not a certificate" not in str(caught.value)


def removal_from(port: int) -> CdcError:
    with pytest.raises(CdcError) as caught:
        remove_member({"bootstrap.servers": f"127.0.0.1:{port}"}, group_id="g", member_id="m", client_id="c")
    return caught.value


def test_a_broker_that_is_not_there_is_an_error():
    (port,) = free_ports(1)
    assert removal_from(port).code == e.UNREACHABLE


@contextmanager
def answering(*answers: bytes) -> Iterator[int]:
    """A listener that gives each connection the next of these answers, and then closes it."""

    def serve() -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\0\0",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack(">i", 2) + b"\0\0",
        struct.pack(">ii", 8, 7) + bytes(4),
        struct.pack(">iiihhih", 22, 1, 0, 0, -1, 0, 500) + bytes(2),
    ],
    ids=["closed", "torn", "another protocol", "too short", "another request", "a text beyond the end"],
)
def test_an_answer_that_is_none_is_an_error_and_nothing_else(answer):
    with answering(answer) as port:
        assert removal_from(port).code == e.UNREACHABLE


def test_an_error_of_the_broker_is_told_as_the_other_clients_errors_are():
    refused = struct.pack(">iiihhihi", 22, 1, 0, 30, -1, -1, 0, 0)
    with answering(refused) as port:
        assert removal_from(port).code == e.AUTHORIZATION


@pytest.mark.parametrize("host", [b"a" * 64, b"a..b", b"\xff"], ids=["too long", "an empty part", "no text"])
def test_a_coordinator_at_an_address_that_is_none_is_an_error_and_nothing_else(host):
    found = struct.pack(">ihhi", 0, 0, -1, 1) + struct.pack(">h", len(host)) + host + struct.pack(">i", 9092)
    with answering(struct.pack(">ii", len(found) + 4, 1) + found) as port:
        assert removal_from(port).code == e.UNREACHABLE


def test_a_password_that_scram_cannot_prepare_is_an_error_that_does_not_show_it():
    login = {**LOGIN, "sasl.mechanism": "SCRAM-SHA-256", "sasl.password": "s3cret\u0007value"}
    with answering(struct.pack(">iihi", 10, 1, 0, 0)) as port, pytest.raises(CdcError) as caught:
        remove_member({**login, "bootstrap.servers": f"127.0.0.1:{port}"}, group_id="g", member_id="m", client_id="c")
    assert caught.value.code == e.AUTHENTICATION
    assert "s3cret" not in str(caught.value)


def test_an_answer_that_comes_byte_by_byte_takes_no_longer_than_the_limit():
    def serve() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.recv(4096)
            for byte in struct.pack(">ii", 100, 1) + bytes(96):
                connection.sendall(bytes([byte]))
                if ended.wait(0.05):
                    return

    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        address = listener.getsockname()
        with closing(BrokerConnection(BrokerLogin((address,), "c"), address, 0.2)) as connection:
            with pytest.raises(TimeoutError):
                connection.ask((10, 1), b"")
            ended.set()
        thread.join(10)
