"""A schema registry of Confluent's kind in memory, with ids from one on, as far as clients of ours ask it: for its faults."""

from __future__ import annotations

import base64
import json
import re
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from cdcworker.schemas.compat import incompatibilities

_SUBJECT: Final = re.compile(r"/subjects/([^/]+)(/versions(?:/(latest))?)?")


class RegistryServer:
    """Answers on a port of its own until it is closed. `faults` are statuses that the next requests get; 0 breaks them off."""

    def __init__(self, *, login: str = "", token: str = "", tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.schemas: dict[int, tuple[str, str]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.levels: dict[str, str] = {}
        self.faults: list[int] = []
        self.fault_body = b'{"error_code": 50001, "message": "fault"}'
        self.requests: list[str] = []
        self._login = (
            f"Basic {base64.b64encode(login.encode()).decode()}" if login else f"Bearer {token}" if token else ""
        )
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        scheme = "https" if tls is not None else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> RegistryServer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def stored(self, subject: str) -> list[dict[str, Any]]:
        """Returns the Avro schemas of a subject."""
        return [json.loads(self.schemas[id][1]) for id in self.subjects.get(subject, ())]

    def answer(self, method: str, target: str, login: str, body: bytes) -> tuple[int, Any]:
        with self._lock:
            self.requests.append(f"{method} {target}")
            if self._login and login != self._login:
                return 401, {"error_code": 40101, "message": "Unauthorized"}
            if self.faults:
                return self.faults.pop(0), self.fault_body
            return self._answer(method, urlsplit(target).path, json.loads(body) if body else {})

    def _answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path.startswith("/schemas/ids/"):
            found = self.schemas.get(int(path.rpartition("/")[2]))
            return (200, _shown(*found)) if found else (404, {"error_code": 40403, "message": "Schema not found"})
        match = _SUBJECT.fullmatch(path)
        if match is None:
            return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        subject, versions = unquote(match[1]), self.subjects.get(unquote(match[1]), [])
        if method == "GET":
            if not versions:
                return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
            return 200, {"subject": subject, "id": versions[-1], **_shown(*self.schemas[versions[-1]])}
        schema = (body.get("schemaType", "AVRO"), body["schema"])
        known = next((id for id in versions if _same(self.schemas[id], schema)), None)
        if match[2] is None:
            return (200, {"id": known}) if known else (404, {"error_code": 40403, "message": "Schema not found"})
        return self._registered(subject, versions, schema, known)

    def _registered(
        self, subject: str, versions: list[int], schema: tuple[str, str], known: int | None
    ) -> tuple[int, Any]:
        if known is not None:
            return 200, {"id": known}
        level = self.levels.get(subject, "NONE")
        if level != "NONE" and schema[0] == "AVRO":
            former = [json.loads(self.schemas[id][1]) for id in versions]
            if incompatibilities(level, json.loads(schema[1]), former):
                return 409, {"error_code": 409, "message": "Schema being registered is incompatible: secret-5f1c"}
        id = next((id for id, other in self.schemas.items() if _same(other, schema)), len(self.schemas) + 1)
        self.schemas[id] = schema
        self.subjects.setdefault(subject, []).append(id)
        return 200, {"id": id}


def _shown(type: str, text: str) -> dict[str, Any]:
    return {"schema": text, **({} if type == "AVRO" else {"schemaType": type})}


def _same(one: tuple[str, str], other: tuple[str, str]) -> bool:
    if one[0] != other[0] or one[0] == "PROTOBUF":
        return one == other
    return bool(json.loads(one[1]) == json.loads(other[1]))


def _handler(server: RegistryServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, content = server.answer(self.command, self.path, self.headers.get("Authorization", ""), body)
            if not status:
                self.close_connection = True
                return
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _answer

        def log_message(self, *_: Any) -> None: ...

    return Handler
