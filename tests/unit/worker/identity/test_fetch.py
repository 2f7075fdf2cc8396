"""A provider that answers badly costs a bounded time and a bounded amount of memory, and leads nobody elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import threading

import pytest
from cdcworker.worker.identity.fetch import BYTES_MAX, Fetcher, NoAnswer, Question, parsed

LIMIT_S = 0.5
HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def listening():
    """`listening(answer)`: the address of a provider; `answer` writes to a connection until it is closed. `listening.heard` is what
    it has got."""
    with contextlib.ExitStack() as servers:

        def begin(answer):
            server = servers.enter_context(socket.create_server(("127.0.0.1", 0)))

            def serve():
                with contextlib.suppress(OSError), server.accept()[0] as connection:
                    begin.heard.append(connection.recv(65_536))
                    answer(connection)

            threading.Thread(target=serve, daemon=True).start()
            return f"http://127.0.0.1:{server.getsockname()[1]}/"

        begin.heard = []
        yield begin


def body_of(content, more=b""):
    return lambda connection: connection.sendall(HEAD + more + b"Content-Length: %d\r\n\r\n" % len(content) + content)


def byte_by_byte(connection):
    for byte in HEAD + b"x-long: " + b"y" * 10_000:
        connection.send(bytes([byte]))
        threading.Event().wait(LIMIT_S / 10)


def without_an_end(connection):
    connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")


def silent(connection):
    connection.recv(1)


def torn(connection):
    connection.sendall(HEAD + b"Content-Length: 100\r\n\r\nabc")


def asked(url, **question):
    return asyncio.run(Fetcher(limit_s=LIMIT_S).body(Question(url, **question)))


@pytest.mark.parametrize(
    ("answer", "told", "away"),
    [
        (byte_by_byte, "TimeoutError", True),
        (silent, "Timeout", True),
        (torn, "RemoteProtocolError", True),
        (without_an_end, "more than", False),
        (body_of(b"x" * (BYTES_MAX + 1)), "more than", False),
    ],
)
def test_an_answer_is_bounded_in_size_and_time(listening, answer, told, away):
    with pytest.raises(NoAnswer, match=told) as caught:
        asked(listening(answer))
    assert caught.value.is_away is away


def test_nobody_is_led_elsewhere(listening):
    other = listening(body_of(b"{}"))
    led = b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % other.encode()
    assert asked(listening(lambda connection: connection.sendall(led)))[0] == 302
    assert len(listening.heard) == 1


def test_what_is_packed_is_not_unpacked(listening):
    packed = gzip.compress(b"x" * BYTES_MAX)
    assert asked(listening(body_of(packed, b"Content-Encoding: gzip\r\n"))) == (200, packed)
    assert b"Accept-Encoding: identity" in listening.heard[0]


def test_a_form_is_posted(listening):
    def answer(connection):
        while not b"".join(listening.heard).endswith(b"code=a+b"):
            listening.heard.append(connection.recv(65_536))
        body_of(b"{}")(connection)

    url = listening(answer)
    assert asked(url, form={"code": "a b"}, headers={"Authorization": "Basic x"}) == (200, b"{}")
    assert listening.heard[0].startswith(b"POST / ")


@pytest.mark.parametrize(
    "url",
    ["http://login.test/", "http://169.254.169.254/", "http://10.0.0.1/", "file:///etc/passwd", "https://", "https://a:b@x.test/", "http://127.0.0.1.nip.test/"],
)  # fmt: skip
def test_only_https_and_this_machine_are_asked(url):
    with pytest.raises(NoAnswer, match="its address") as caught:
        asked(url)
    assert not caught.value.is_away


def test_a_provider_that_is_not_there_is_away():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(NoAnswer, match="ConnectError") as caught:
        asked(f"http://127.0.0.1:{port}/")
    assert caught.value.is_away


@pytest.mark.parametrize(
    ("status", "body", "away"),
    [(200, b"[]", False), (200, b"x", False), (404, b"{}", False), (400, b"{}", False), (500, b"{}", True), (429, b"", True)],
)  # fmt: skip
def test_what_is_no_object_with_200_is_no_answer(status, body, away):
    with pytest.raises(NoAnswer) as caught:
        parsed(status, body)
    assert caught.value.is_away is away
