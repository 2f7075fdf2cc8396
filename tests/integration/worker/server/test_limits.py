"""The REST listener under clients that are slow, loud or many: each is held to its share, and others are not hindered."""

import contextlib
import json
import re
import secrets
import select
import socket
import statistics
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace

import httpx
import pytest
from cdcworker.coordinator.model import ClusterState, Connector, Leader, Reply, View
from cdcworker.worker.rest.settings import ApiSettings, Protection
from cdcworker.worker.security.gate import Gate
from cdcworker.worker.security.rate_limit import RateLimiter, RequestRate, TokenBuckets
from cdcworker.worker.server.application import create_app
from cdcworker.worker.server.protocol import ConnectionLimits
from cdcworker.worker.server.server import RestServer

from tests.integration import one_worker

FLOOD, ALLOWED = "127.0.0.2", "127.0.0.3"
"""Addresses of the loopback interface: clients that the server tells apart."""

REQUEST = b"GET /connectors HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Herder:
    def view(self):
        connectors = {
            f"c{n}": Connector(f"c{n}", "inc", 1, {"connector.class": "postgres"}, "RUNNING", "source")
            for n in range(20)
        }
        state = ClusterState(leader=Leader(1, "w:1", "b", "http://w:1"), connectors=connectors)
        return View("w:1", "b", "http://w:1", "k", True, True, state, {}, {}, {})

    def submit(self, request):
        future = Future()
        future.set_result(Reply("ok"))
        return future


@pytest.fixture
def serve():
    running = []

    def make(gate=None, **limits):
        app = create_app(Herder(), settings=ApiSettings(protection=Protection(gate=gate or Gate())))
        server = RestServer(app, "127.0.0.1", 0, limits=ConnectionLimits(**limits))
        server.start()
        running.append(server)
        return server

    yield make
    for server in running:
        server.stop()


def connect(server, address="127.0.0.1"):
    return socket.create_connection(("127.0.0.1", server.port), timeout=10.0, source_address=(address, 0))


def rest_of(connection):
    """Everything until the server closes."""
    data = b""
    try:
        while chunk := connection.recv(65536):
            data += chunk
    except ConnectionResetError:
        pass
    connection.close()
    return data


def answer(data):
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize("begin", [b"", b"G", b"GET /connectors HTTP/1.1\r\nHost: w\r\nX-A: "])
def test_a_request_that_does_not_arrive_is_ended(serve, begin):
    server = serve(head_s=0.3)
    connection = connect(server)
    connection.sendall(begin)
    status, body = answer(rest_of(connection))
    assert (status, body["error_code"]) == (408, 408)


def test_a_byte_now_and_then_gains_no_time(serve):
    server = serve(head_s=0.5)
    connection = connect(server)
    # The first request is whole: what follows it on the connection is timed by itself.
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: w\r\n\r\n")
    first = b""
    while not first.endswith(b"}"):
        first += connection.recv(65536)
    began, ready = time.monotonic(), []
    for byte in b"GET /connectors HTTP/1.1\r\nHost: w\r\nX-A: " * 10:
        connection.sendall(bytes([byte]))
        ready, _, _ = select.select([connection], [], [], 0.05)
        if ready:
            break
    assert ready
    assert time.monotonic() - began < 15, "all bytes take longer"
    # A byte that crosses the answer on its way can make the connection end before the answer is read.
    assert rest_of(connection)[:12] in (b"", b"HTTP/1.1 408")


def test_a_body_that_does_not_arrive_is_ended(serve, monkeypatch):
    monkeypatch.setattr("cdcworker.worker.http.request_limits.RequestLimitsMiddleware.__init__.__defaults__", (0.3,))
    server = serve()
    connection = connect(server)
    connection.sendall(
        b"POST /connectors HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    assert answer(rest_of(connection))[0] == 408


def test_an_answer_that_is_not_read_does_not_stay(serve):
    server = serve(write_s=0.3)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60.0)
    connection.connect(("127.0.0.1", server.port))
    request = b"GET /connectors?expand=info&expand=status HTTP/1.1\r\nHost: w\r\n\r\n"

    def ask():
        while True:
            connection.sendall(request * 100)

    # The server waits with reading while its answers are not taken, and cuts the connection in the end.
    with connection, pytest.raises(OSError, match=r"reset|Broken pipe"):
        ask()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /connectors HTTP/1.1\r\nHost: w\r\nX-A: " + b"a" * 40_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: w\r\n\r\n", 431),
        (b"GET /connectors HTTP/1.1\r\nHost: w\r\nConnection: close\r\n" + b"X-A: a\r\n" * 101 + b"\r\n", 431),
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: w\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: w\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: w\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nxyz\r\n", 400),
    ],
)
def test_what_is_no_request_or_too_large_is_told_in_the_form_of_all_errors(serve, request_, status):
    connection = connect(serve())
    connection.sendall(request_)
    found, body = answer(rest_of(connection))
    assert (found, body["error_code"]) == (status, status)


def test_one_address_cannot_take_all_connections(serve):
    server = serve(per_client_max=5)
    held = [connect(server, FLOOD) for _ in range(5)]
    for connection in held:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: w\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    beyond = connect(server, FLOOD)
    beyond.sendall(REQUEST)
    assert answer(rest_of(beyond))[0] == 503
    other = connect(server, ALLOWED)
    other.sendall(b"GET /health HTTP/1.1\r\nHost: w\r\nConnection: close\r\n\r\n")
    assert rest_of(other).startswith(b"HTTP/1.1 200")
    held.pop().close()
    for connection in held:
        connection.close()


def client_of(server, address, **limits):
    transport = httpx.HTTPTransport(local_address=address, limits=httpx.Limits(**limits))
    return httpx.Client(transport=transport, base_url=f"http://127.0.0.1:{server.port}", trust_env=False, timeout=30.0)


def capacity(server, count=200):
    """Requests that are answered in a second when nobody else asks."""
    connection = connect(server)
    began, last = time.monotonic(), REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    connection.sendall(REQUEST * (count - 1) + last)
    assert rest_of(connection).count(b"HTTP/1.1 200") == count
    return count / (time.monotonic() - began)


class BeatingThread(threading.Thread):
    """Stands for the coordination thread: beats by the same interpreter, and says how late its beats were."""

    def __init__(self):
        super().__init__(daemon=True)
        self.late, self._over = [], threading.Event()

    def run(self):
        while not self._over.is_set():
            due = time.monotonic() + 0.05
            self._over.wait(0.05)
            self.late.append(time.monotonic() - due)

    def end(self):
        self._over.set()
        self.join()


@dataclass
class Flood:
    """What came of it: requests handed over, statuses of those that were answered, times of the other client's pairs."""

    handed: int
    statuses: list[bytes]
    times: list[float]

    @property
    def p99(self):
        return statistics.quantiles(self.times, n=100)[98]


ANSWERED_S_MAX = 5.0
"""Half of the session after which a worker counts as gone: the flood leaves little of the processor."""


def flooded(server, seconds=4.0):
    """Forty connections of one address hand over requests without waiting for answers; another client asks now and
    then, and has to be answered."""
    over, handed, statuses, times = threading.Event(), [], [], []

    def pour():
        """Requests in one piece as long as they are taken; what is answered is counted."""
        connection = connect(server, FLOOD)
        connection.setblocking(False)
        while not over.wait(0.01):
            with contextlib.suppress(BlockingIOError):
                handed.append(connection.send(REQUEST * 1000) // len(REQUEST))
            with contextlib.suppress(BlockingIOError):
                statuses.extend(re.findall(rb"HTTP/1.1 (\d+)", connection.recv(1 << 20)))
        connection.close()

    with ThreadPoolExecutor(40) as pool:
        floods = [pool.submit(pour) for _ in range(40)]
        try:
            with client_of(server, ALLOWED) as client:
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    began = time.monotonic()
                    assert client.get("/connectors").status_code == 200
                    assert client.get("/health").status_code == 200
                    times.append(time.monotonic() - began)
                    over.wait(0.05)
        finally:
            over.set()
        for flood in floods:
            flood.result()
    return Flood(sum(handed), statuses, times)


def test_a_flood_of_ten_times_the_capacity_hinders_neither_others_nor_the_heartbeat(serve):
    """Answers to the other client come at the 99th percentile, and beats of another thread, in a time that no lease ends in."""
    able, heart = capacity(serve()), BeatingThread()
    server = serve(gate=Gate(limiter=RateLimiter(RequestRate(50.0, 50.0))))
    heart.start()
    flood = flooded(server, 4.0)
    heart.end()
    print(f"able={able:.0f}/s handed={flood.handed} p99={flood.p99:.3f}s late={max(heart.late):.3f}s")
    assert flood.handed > 10 * able * 4.0
    assert set(flood.statuses) == {b"200", b"429"}
    assert flood.p99 < ANSWERED_S_MAX
    assert max(heart.late) < ANSWERED_S_MAX


@pytest.mark.kafka
def test_a_flooded_worker_keeps_its_lease_its_lead_and_its_tasks(kafka, tmp_path):
    """A real one, with the limits that it has by default."""
    worker = one_worker.Worker(tmp_path, kafka.bootstrap, f"f{secrets.token_hex(4)}")
    try:
        worker.wait_ready()
        worker.put("d", {"connector.class": "datagen", "topic.prefix": worker.group, "rows.per.second": "10"})
        before = worker.wait_state("d", "RUNNING")
        leader = worker.get("/v1/cluster")["leader"]
        flood = flooded(SimpleNamespace(port=int(worker.url.rpartition(":")[2])), 6.0)
        after = worker.wait_state("d", "RUNNING")
        done = flood.statuses.count(b"200")
        print(f"handed={flood.handed} answered={len(flood.statuses)} done={done} p99={flood.p99:.3f}s")
        assert 0 < done < 1_000 + 10 * 200
        assert flood.p99 < ANSWERED_S_MAX
        assert worker.get("/v1/cluster")["leader"] == leader
        assert after["epoch"] == before["epoch"], "the task was neither moved nor started again"
        assert len(worker.starts("d-0")) == 1
    finally:
        worker.kill()


def test_connections_that_come_and_go_are_held_to_a_rate(serve):
    server = serve(arrivals=TokenBuckets(RequestRate(1.0, 5.0)))
    answered = 0
    for _ in range(20):
        connection = connect(server, FLOOD)
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"GET /connectors HTTP/1.1\r\nHost: w\r\nConnection: close\r\n\r\n")
        answered += rest_of(connection).startswith(b"HTTP/1.1 200")
    assert 5 <= answered <= 8
    other = connect(server, ALLOWED)
    other.sendall(b"GET /health HTTP/1.1\r\nHost: w\r\nConnection: close\r\n\r\n")
    assert rest_of(other).startswith(b"HTTP/1.1 200")
