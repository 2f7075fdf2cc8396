"""A proxy before a server of an object store whose answers get lost, are late, or say that the server is busy."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BUSY = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>'
BROKEN = b'<?xml version="1.0"?><Error><Code>InternalError</Code><Message>We are sorry.</Message></Error>'


def put_of(name: str) -> Callable[[str, str], bool]:
    """Puts of objects that have this in their path."""
    return lambda method, path: method == "PUT" and name in path


def later(count: int) -> Callable[[str, str], bool]:
    """All requests but for the first ones."""
    left = [count]

    def hits(_method: str, _path: str) -> bool:
        left[0] -= 1
        return left[0] < 0

    return hits


@dataclass
class Fault:
    """What happens to the next `times` requests that `hits` chooses by method and path.

    `busy`: 503 SlowDown, and the server sees nothing. `lost`: the server does it, and the answer is 500. `cut`: the server does it,
    and the connection ends. `held`: nothing is answered; `release` lets the server do it then. `accepted`: 200, and the
    server sees nothing. `moved`: 307 to `target`. `slow`: 408, and the server sees nothing.
    """

    what: str
    hits: Callable[[str, str], bool]
    times: int = 1
    target: str = ""
    seen: list[str] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    """Of one that was held: the server has answered."""


class FaultProxy:
    """A proxy for one server; `with` starts and ends it."""

    def __init__(self, host: str, port: int) -> None:
        self.backend = host, port
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        self.own: dict[str, tuple[int, bytes]] = {}
        """Status and JSON by the paths that the proxy answers itself."""
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def endpoint(self) -> str:
        return f"http://{self.backend[0]}:{self._server.server_port}"

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for fault in self.faults:
            fault.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def plan(self, what: str, hits: Callable[[str, str], bool], times: int = 1, target: str = "") -> Fault:
        fault = Fault(what, hits, times, target)
        self.faults.append(fault)
        return fault

    def next_fault(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.requests.append((method, path))
            for fault in self.faults:
                if len(fault.seen) < fault.times and fault.hits(method, path):
                    fault.seen.append(path)
                    return fault
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FaultProxy

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""

    def _one(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path in self.owner.own:
            status, content = self.owner.own[self.path]
            self._answer(status, {"Content-Type": "application/json"}, content)
            return
        fault = self.owner.next_fault(self.command, self.path)
        what = fault.what if fault else ""
        if what == "busy":
            self._answer(503, {}, BUSY)
        elif what == "slow":
            self._answer(408, {}, b"")
        elif what == "accepted":
            self._answer(200, {"ETag": '"0"'}, b"")
        elif what == "moved" and fault:
            self._answer(307, {"Location": fault.target}, b"")
        elif what == "held" and fault:
            fault.release.wait()
            self._forward(body)
            fault.done.set()
            self.close_connection = True
        elif what == "cut":
            self._forward(body)
            self.close_connection = True
        elif what == "lost":
            self._forward(body)
            self._answer(500, {}, BROKEN)
        else:
            self._answer(*self._forward(body))

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _one

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(*self.owner.backend, timeout=30)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("expect", "connection"):
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = {name.lower(): value for name, value in headers.items()}.get("content-length")
        self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
