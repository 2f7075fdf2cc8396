"""The whole application without a socket, asked as a server would ask it, and one path for each of its endpoints."""

import asyncio
import re
from dataclasses import dataclass, field

from cdcworker.schemas.log import RegistrationMeta, SchemaLog
from cdcworker.worker.schema_registry import api as registry
from cdcworker.worker.server.application import ENDPOINTS, create_app


@dataclass(frozen=True)
class Operation:
    """One operation of the API or of the schema registry."""

    method: str
    path: str
    body: str = ""
    """What the endpoint declares of its body."""
    is_registry: bool = False

    def __str__(self):
        return f"{self.method} {self.path}"


def registry_routes(log=None):
    log = log or SchemaLog()

    def register(subject, schema):
        planned = log.plan_registration(subject, schema, RegistrationMeta())
        for record in planned.records:
            log.apply(*record)
        return planned.id

    def set_level(subject, level):
        log.apply(*log.plan_level(subject, level))

    return registry.routes(lambda: log, register, set_level)


def operations():
    """Every operation that there is: a new one is among them by itself."""
    own = [Operation(each.method, each.path, each.body) for each in ENDPOINTS]
    of_registry = [
        Operation(method, route.path, "Schema" if method in ("POST", "PUT") else "", True)
        for route in registry_routes()
        for method in sorted(route.methods - {"HEAD"})
    ]
    return [*own, *of_registry]


VALUES = {
    "connector": "c",
    "plugin": "postgres",
    "task": "0",
    "logger": "root",
    "subject": "s",
    "id": "1",
    "version": "1",
}


def path_of(path, **values):
    """Returns a path with a value for each of its parameters."""
    known = {**VALUES, **values}
    return re.sub(r"\{(\w+)(?::int)?\}", lambda found: str(known.get(found[1], "x")), path)


@dataclass
class Answer:
    status: int = 0
    headers: dict = field(default_factory=dict)
    body: bytes = b""


async def ask(app, method, path, body=b"", headers=(), client="127.0.0.1", stays=False):
    """One request as the server hands it to the application. The client goes away behind it, unless it `stays`."""
    path, _, query = path.partition("?")
    sent = [(b"host", b"localhost"), (b"content-type", b"application/json"), *headers]
    if body:
        sent.append((b"content-length", str(len(body)).encode()))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "scheme": "http",
        "headers": sent,
        "client": (client, 1),
        "server": ("localhost", 1),
        "app": app,
    }
    answer, given = Answer(), False

    async def receive():
        nonlocal given
        if given:
            if stays:
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answer.body += message.get("body", b"")

    await app(scope, receive, send)
    return answer


__all__ = ["Answer", "Operation", "ask", "create_app", "operations", "path_of", "registry_routes"]
