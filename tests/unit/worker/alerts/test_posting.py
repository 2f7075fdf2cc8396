"""Receivers that answer badly cost a bounded time, and are a problem of theirs alone."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest
from cdcworker.worker.alerts.delivery import Delivery
from cdcworker.worker.alerts.messages import AlertMessage
from cdcworker.worker.alerts.posting import Poster
from cdcworker.worker.alerts.settings import Receiver

LIMIT_S = 0.5
HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def listening():
    """`listening(answer)`: the address of a receiver; `answer` writes to a connection until it is closed."""
    with contextlib.ExitStack() as servers:

        def begin(answer):
            server = servers.enter_context(socket.create_server(("127.0.0.1", 0)))

            def serve():
                with contextlib.suppress(OSError), server.accept()[0] as connection:
                    connection.recv(65_536)
                    answer(connection)

            threading.Thread(target=serve, daemon=True).start()
            return f"http://127.0.0.1:{server.getsockname()[1]}/"

        yield begin


def byte_by_byte(connection):
    for byte in HEAD + b"x-long: " + b"y" * 10_000:
        connection.send(bytes([byte]))
        threading.Event().wait(LIMIT_S / 10)


def without_an_end(connection):
    connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")


def away(connection):
    connection.sendall(
        HEAD.replace(b"200 OK", b"302 Found") + b"Location: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    )


def sent(url):
    """Returns whether the receiver took a message, why not, and how long that took."""
    delivery, began = Delivery(Poster(LIMIT_S).post, time.monotonic), time.monotonic()
    taken = delivery.send(Receiver("ops", "webhook", url), AlertMessage(b"{}", {"Content-Type": "application/json"}))
    return taken, delivery.problems().get("ops"), time.monotonic() - began


@pytest.mark.parametrize(
    ("answer", "taken", "why"),
    [(byte_by_byte, False, "TimeoutError"), (without_an_end, True, None), (away, False, "status 302")],
)
def test_a_receiver_that_answers_badly_takes_no_longer_than_a_request_may(listening, answer, taken, why):
    *found, seconds = sent(listening(answer))
    assert found == [taken, why]
    assert seconds < 20 * LIMIT_S


@pytest.mark.parametrize("url", ["https://hooks..example.com/", "https://xn--/", f"https://x/{'a' * 70_000}"])
def test_an_address_that_cannot_be_used_is_a_problem_of_its_receiver(url):
    taken, why, _ = sent(url)
    assert not taken
    assert why in ("ConnectError", "IDNAError", "InvalidURL")
