"""Where a ClickHouse warehouse may be, what its server may learn of the password, and what errors say."""

from __future__ import annotations

import socket
import threading

import pytest
from cdcworker.connectors.config import allowed_hosts, server_authentication
from cdcworker.connectors.config.allowed_hosts import HostPolicy
from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.connectors.warehouses.clickhouse import client, kind
from cdcworker.connectors.warehouses.clickhouse.client import Client, ServerPlace
from cdcworker.connectors.warehouses.clickhouse.errors import from_client
from cdcworker.schemas.errors import CdcError

SECRET = "hunter2hunter2"
CONFIG = {"name": "sink", "topics": "t", "warehouse": "clickhouse", "warehouse.hostname": "h", "warehouse.user": "u"}


@pytest.fixture(autouse=True)
def _as_before():
    yield
    allowed_hosts.use(HostPolicy())
    server_authentication.use(server_authentication.METHODS[0])


def refusal(**more):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        place = ServerPlace("127.0.0.1", listening.getsockname()[1], "u", SECRET, **more)
        with pytest.raises(CdcError) as caught:
            Client(place).do("SELECT 1")
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert SECRET not in repr(place) + str(caught.value)
    return caught.value.code


@pytest.mark.parametrize("mode", ["disable", "allow", "prefer", "require"])
def test_a_server_that_tls_does_not_verify_is_not_even_asked_with_a_password(mode):
    assert refusal(sslmode=mode) == "spark.target_open_password"


def test_a_host_that_the_worker_does_not_open_is_not_connected_to():
    allowed_hosts.use(HostPolicy(allowed_hosts.parse_allowed(["10.0.0.0/8"]), loopback=False))
    server_authentication.use("password")
    assert refusal() == "config.host_not_allowed"


def test_a_server_that_is_away_is_tried_again():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(CdcError) as caught:
        Client(ServerPlace("127.0.0.1", port, "u", "")).do("SELECT 1")
    assert (caught.value.code, caught.value.kind) == ("spark.target_unreachable", "transient")


def test_an_answer_that_points_elsewhere_is_not_followed(monkeypatch):
    monkeypatch.setattr(client, "ANSWER_TIMEOUT_S", 5)
    with socket.create_server(("127.0.0.1", 0)) as elsewhere, socket.create_server(("127.0.0.1", 0)) as server:
        there = elsewhere.getsockname()[1]
        answer = f"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:{there}/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

        def answers():
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer.encode())

        thread = threading.Thread(target=answers, daemon=True)
        thread.start()
        with pytest.raises(CdcError) as caught:
            Client(ServerPlace("127.0.0.1", server.getsockname()[1], "u", "")).do("SELECT 1")
        thread.join(10)
        elsewhere.setblocking(False)
        with pytest.raises(BlockingIOError):
            elsewhere.accept()
    assert caught.value.code == "spark.target_unreachable"


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (516, "spark.target_auth"),
        (497, "spark.target_rights"),
        (60, "spark.target_gone"),
        (252, "spark.target_unreachable"),
        (524, "spark.schema_refused"),
        (9999, "spark.target_failed"),
    ],
)
def test_errors_have_the_number_and_nothing_of_what_the_server_says(number, code):
    found = from_client(RuntimeError(f"Code: {number}. DB::Exception: {SECRET}"))
    assert found.code == code
    assert SECRET not in str(found)


def test_the_port_follows_from_tls_unless_it_is_given():
    ports = [
        kind.client_of(CONFIG_DEF.parse({**CONFIG, **more}))._place.port
        for more in ({}, {"warehouse.sslmode": "verify-full"}, {"warehouse.port": "9"})
    ]
    assert ports == [8123, 8443, 9]


def test_what_a_server_without_transactions_does_not_do_is_said_at_its_key():
    with pytest.raises(CdcError) as caught:
        CONFIG_DEF.parse({**CONFIG, "warehouse.user": "", "consistency": "source"})
    assert '"warehouse.user"' in caught.value.message
    assert "consistency expects eventual" in caught.value.message
