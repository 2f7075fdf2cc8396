"""The REST server on a real socket: what only the wire shows."""

import json
import socket
import threading
from concurrent.futures import Future

import httpx
import pytest
from cdcworker.coordinator.model import ClusterState, Connector, Leader, Reply, View
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.server.application import create_app
from cdcworker.worker.server.server import RestServer

from tests import plain_http


class Herder:
    """Knows one connector, and answers every request with ok from another thread."""

    def view(self):
        config = {"connector.class": "postgres", "database.password": "s3cr3t"}
        connector = Connector("a/b;c", "inc", 1, config, "RUNNING", "source")
        state = ClusterState(leader=Leader(1, "w:1", "b", "http://w:1"), connectors={"a/b;c": connector})
        return View("w:1", "b", "http://w:1", "k", True, True, state, {}, {}, {})

    def submit(self, request):
        future = Future()
        threading.Thread(target=future.set_result, args=(Reply("ok"),)).start()
        return future


@pytest.fixture
def server():
    server = RestServer(create_app(Herder()), "127.0.0.1", 0)
    server.start()
    yield server
    server.stop()


def raw(server, text):
    """One request as bytes; the answer's status line and body."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(text.encode())
        data = b""
        while chunk := connection.recv(65536):
            data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/connectors", 200),
        ("/connectors/", 200),
        ("/connectors?expand=status", 200),
        ("/connectors/a%2Fb%3Bc", 200),
        ("/connectors/a%2fb;c/status/", 200),
        ("/connectors/a/b;c", 404),
        ("//connectors", 404),
        ("/connectors/%", 404),
        ("/connectors/%zz/status", 404),
        ("/connectors/%ff", 404),
        ("/connectors/..", 404),
        ("http://w:1/connectors", 200),
    ],
)
def test_the_raw_path_decides(server, path, status):
    request = f"GET {path} HTTP/1.1\r\nHost: w\r\nConnection: close\r\n\r\n"
    assert raw(server, request)[0] == status


def test_head_sends_no_body(server):
    assert raw(server, "HEAD /connectors HTTP/1.1\r\nHost: w\r\nConnection: close\r\n\r\n") == (200, b"")


def test_a_declared_size_is_refused_before_the_body_arrives(server):
    head = "POST /connectors HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\nContent-Length: 9999999\r\n\r\n"
    status, body = raw(server, head)
    assert (status, json.loads(body)["error_code"]) == (413, 413)


def test_a_chunked_body_is_refused_at_the_limit(server):
    chunk = "10000\r\n" + " " * 65536 + "\r\n"
    head = (
        "POST /connectors HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    assert raw(server, head + chunk * 17)[0] == 413


def test_answers_of_other_threads_wake_the_loop(server):
    url = f"http://127.0.0.1:{server.port}/connectors/a%2Fb%3Bc/pause"
    with httpx.Client(trust_env=False) as client:
        assert [client.put(url).status_code for _ in range(20)] == [202] * 20


def test_a_port_in_use_is_told_before_anything_starts(server):
    with pytest.raises(CdcError) as caught:
        RestServer(create_app(Herder()), "127.0.0.1", server.port)
    assert caught.value.code == "rest.port_unavailable"
    assert caught.value.where["port"] == server.port


def test_an_unknown_host_is_told(server):
    with pytest.raises(CdcError, match="Cannot listen"):
        RestServer(create_app(Herder()), "203.0.113.7", 0)


def test_stop_frees_the_port_also_with_an_open_connection():
    server = RestServer(create_app(Herder()), "127.0.0.1", 0)
    server.start()
    with httpx.Client(trust_env=False) as client:
        assert client.get(f"http://127.0.0.1:{server.port}/").status_code == 200
        server.stop()
    RestServer(create_app(Herder()), "127.0.0.1", server.port).stop()


def test_every_address_is_listened_on_by_default():
    server = RestServer(create_app(Herder()), "", 0)
    server.start()
    try:
        assert plain_http.get(f"http://127.0.0.1:{server.port}/healthz").status_code == 200
    finally:
        server.stop()
