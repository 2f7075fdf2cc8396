"""Asks a cluster everything and keeps what it answered: `python -m tests.genuine.recording` writes `answers.json` anew.

What differs from run to run is told by a name: places, ids, times, versions, stacks of calls.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from cdcworker.worker.devstack.kafka import EmbeddedKafka
from confluent_kafka.admin import AdminClient, NewTopic

from tests.genuine.connect import GenuineConnect
from tests.genuine.parts import libraries
from tests.genuine.requests import Request, requests

ANSWERS = Path(__file__).with_name("answers.json")
UNAVAILABLE = 503
"""While a leader is elected; none of the requests asks for that."""
DEADLINE_S = 60.0
HEADERS = ("content-type", "location", "allow")
Send = Callable[..., httpx.Response]
LINES = "one\ntwo\n"


@dataclass(frozen=True)
class Cluster:
    """`send(method, path, **options)` as httpx has them."""

    send: Send
    folder: str
    url: str

    def answered(self, request: Request) -> dict[str, Any]:
        self._wait(request)
        headers = dict(request.headers)
        options: dict[str, Any] = {"headers": headers}
        if request.raw is not None:
            options["content"] = request.raw.encode()
            if headers.get("content-type") == "":
                del headers["content-type"]
        elif request.body is not None:
            options["json"] = self._filled(request.body)
        deadline = time.monotonic() + DEADLINE_S
        while (answer := self.send(request.method, request.path, **options)).status_code == UNAVAILABLE:
            assert time.monotonic() < deadline, f"{request.name} not in time: {answer.text}"
            time.sleep(0.5)
        found: dict[str, Any] = {"status": answer.status_code}
        found["headers"] = {name: self._headers(answer.headers[name]) for name in HEADERS if name in answer.headers}
        if answer.content:
            found["body"] = self._body(request, answer)
        return found

    def _body(self, request: Request, answer: httpx.Response) -> Any:
        text = answer.text.replace(self.folder, "{folder}")
        try:
            return shortened(request, neutral(json.loads(text)))
        except ValueError:
            return text

    def _headers(self, value: str) -> str:
        return value.replace(self.url, "")

    def _filled(self, body: Any) -> Any:
        return json.loads(json.dumps(body).replace("{folder}", self.folder))

    def _wait(self, request: Request) -> None:
        if request.after is not None:
            name, state, tasks = request.after
            self._until(f"/connectors/{name}/status", lambda found: in_states(found, state, tasks))
        if request.where is not None:
            path, text = request.where
            self._until(path, lambda found: text in json.dumps(found))

    def _until(self, path: str, holds: Callable[[Any], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            answer = self.send("GET", path)
            if answer.status_code == 200 and holds(answer.json()):
                return
            assert time.monotonic() < deadline, f"{path} not in time: {answer.text}"
            time.sleep(0.02)


def in_states(found: Mapping[str, Any], state: str, tasks: tuple[str, ...]) -> bool:
    return found["connector"]["state"] == state and tuple(task["state"] for task in found["tasks"]) == tasks


TEXTS = {
    "worker_id": "a worker",
    "version": "a version",
    "commit": "a commit",
    "kafka_cluster_id": "an id",
    "last_modified": 0,
    "trace": "a stack of calls",
    "documentation": "a text",
}
"""What stands for values that differ from run to run."""


def neutral(value: Any) -> Any:
    """The answer without what differs from run to run; members stay."""
    if isinstance(value, dict):
        return {
            name: TEXTS[name] if name in TEXTS and isinstance(item, str | int) and item else neutral(item)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [neutral(item) for item in value]
    return value


LISTED = re.compile(r", available (connectors are|versions): .*", re.DOTALL)


def shortened(request: Request, body: Any) -> Any:
    """The answer without what is there many times: keys without a mistake, loggers of Java's classes, other plugins."""
    if isinstance(body, dict) and "message" in body:
        return {**body, "message": LISTED.sub(", available …", body["message"])}
    if isinstance(body, dict) and "configs" in body and request.why != "fine":
        wrong = [{"value": item["value"]} for item in body["configs"] if item["value"]["errors"]]
        return {**body, "configs": [short_values(item) for item in wrong], "groups": body["groups"][:1]}
    if request.path == "/admin/loggers":
        return {name: item for name, item in body.items() if name == "root"}
    if request.path.startswith("/admin/loggers") and isinstance(body, list):
        name = request.path.partition("?")[0].rpartition("/")[2]
        return [name] if name in body and name != "root" else ["a logger"]
    if request.path == "/connectors" and isinstance(body, list):
        return sorted(body)
    if request.path.startswith("/connector-plugins") and isinstance(body, list) and "class" in body[0]:
        return [item for item in body if item["class"].endswith(KEPT_PLUGINS)]
    return body


KEPT_PLUGINS = ("FileStreamSourceConnector", "FileStreamSinkConnector", "JsonConverter", "RegexRouter")


def short_values(item: dict[str, Any]) -> dict[str, Any]:
    """Without the names of all classes that could stand there."""
    return {"value": {**item["value"], "recommended_values": item["value"]["recommended_values"][:1]}}


def ask_everything(cluster: Cluster) -> dict[str, Any]:
    return {request.name: cluster.answered(request) for request in requests()}


def prepared(folder: Path, bootstrap: str) -> None:
    """The file that is read, and the empty topic: brokers of tests make none by themselves."""
    (folder / "in").write_text(LINES)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    if "lines" in admin.list_topics(timeout=30.0).topics:
        for deleted in admin.delete_topics(["lines"]).values():
            deleted.result(30.0)
    for made in admin.create_topics([NewTopic("lines", 1, 1)]).values():
        made.result(30.0)


def record(folder: Path, bootstrap: str, url: str) -> dict[str, Any]:
    """Of a cluster that holds nothing, at this URL."""
    prepared(folder, bootstrap)
    limits = httpx.Limits(max_keepalive_connections=0)  # Jetty ends a connection whose body it has not read
    with httpx.Client(base_url=url, timeout=60.0, limits=limits) as client:
        return ask_everything(Cluster(client.request, str(folder), url))


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        broker = EmbeddedKafka(folder / "kafka")
        try:
            with broker, GenuineConnect(folder / "connect", broker.bootstrap, libraries("connect")) as connect:
                found = record(folder, broker.bootstrap, connect.url)
        finally:
            broker.remove()
    ANSWERS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
