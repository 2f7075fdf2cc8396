"""ClickHouse's engine (chDB) behind the part of its HTTP interface that the sink's client uses: `engine.py PORT FOLDER`. It is the
engine of the server that runs the statements and keeps the tables; how the server listens and knows its users is not part of it."""

from __future__ import annotations

import re
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

OWN = ("query", "query_id", "database", "client_protocol_version", "wait_end_of_query", "session_id", "default_format")
INSERT = re.compile(r"\s*insert\s+into\s.*\sformat\s+arrowstream\s*$", re.IGNORECASE)


class Engine(ThreadingHTTPServer):
    """One statement at a time: the engine has one session."""

    daemon_threads = True

    def __init__(self, port: int, folder: str) -> None:
        import chdb  # type: ignore[import-not-found]

        super().__init__(("127.0.0.1", port), Request)
        self._lock = threading.Lock()
        self._engine = chdb.connect(folder)
        self._settings: dict[str, str] = {}

    def run(self, body: bytes, settings: dict[str, str]) -> bytes:
        """Executes a statement, which rows may follow, with the settings of its request."""
        head, _, rows = body.partition(b"\n")
        with self._lock:
            for name, value in settings.items():
                if self._settings.get(name) != value:
                    self._ask(f"SET {name} = '{value}'")
                    self._settings[name] = value
            if rows and INSERT.fullmatch(head.decode(errors="replace")):
                return self._insert(head.decode(), rows)
            return self._ask(body.decode())

    def _insert(self, statement: str, rows: bytes) -> bytes:
        at = statement.upper().rindex("FORMAT")
        with tempfile.NamedTemporaryFile() as file:
            file.write(rows)
            file.flush()
            return self._ask(f"{statement[:at]} FROM INFILE '{file.name}' FORMAT ArrowStream")

    def _ask(self, statement: str) -> bytes:
        found: Any = self._engine.query(statement, "TabSeparated")
        return bytes(found.bytes() or b"")


class Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Engine

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        self._answer(200, b"Ok.\n")

    def do_POST(self) -> None:
        asked = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        query = asked.get("query", "").encode()
        body = self._body()
        settings = {name: value for name, value in asked.items() if name not in OWN and not name.startswith("param_")}
        for name in ("send_progress_in_http_headers", "http_headers_progress_interval_ms"):
            settings.pop(name, None)
        try:
            self._answer(200, self.server.run(query + b"\n" * bool(query and body) + body, settings))
        except Exception as exc:  # noqa: BLE001  whatever the engine says is the answer
            number = re.search(r"Code: (\d+)", str(exc))
            self._answer(500, str(exc).encode(), number[1] if number else "1")

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        out = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            out += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return out

    def _answer(self, status: int, content: bytes, error: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if error:
            self.send_header("X-ClickHouse-Exception-Code", error)
        self.end_headers()
        self.wfile.write(content)


if __name__ == "__main__":
    Engine(int(sys.argv[1]), sys.argv[2]).serve_forever()
