"""Sinks of records under test: topics with a random workload, task processes that can be killed and stopped, and a web service that
takes each event once."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cdcworker.schemas.log import encode_record
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests import hostile
from tests.change_streams import ID, Stream, column, table
from tests.waiting import pause

WAIT_S = 60.0
POISON = "poison"
BEFORE = table(ID, column("n", "int", "integer"), column("a", "string", "text"))
AFTER = table(
    ID,
    column("n", "int", "integer"),
    column("a", "string", "text"),
    column("b", "bytes", "bytea"),
    column("f", "double", "x"),
)
"""The same table before and after a change of its schema."""


def wait(condition: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
    began = time.monotonic()
    while not (found := condition()):
        assert time.monotonic() - began < timeout_s, f"not in time: {what}"
        pause(began)
    return found


class Topics:
    """One table's topic, the schema log beside it, and what has been written to them."""

    def __init__(self, kafka: Any, partitions: int = 3, **config: str) -> None:
        """`config` is of the table's topic, with underscores for dots."""
        self.kafka = kafka
        self.name = f"rs{uuid.uuid4().hex[:10]}"
        self.stream = Stream(partitions, self.name)
        self.topic, self.schemas, self.letters = f"{self.name}.public.orders", f"{self.name}-log", f"{self.name}-dead"
        self.admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 2})
        own = {name.replace("_", "."): value for name, value in config.items()}
        made = [NewTopic(self.topic, partitions, 1, config=own), NewTopic(self.schemas, 1, 1)]
        for future in self.admin.create_topics(made).values():
            future.result(30)
        settings = {"bootstrap.servers": kafka.bootstrap, "transactional.id": self.name, "log_level": 2}
        self.producer = Producer(settings)
        self.producer.init_transactions(30)
        self._sent = self._registered = 0

    def flush(self, *, abort: bool = False) -> None:
        """Writes what the stream has made since, in one transaction."""
        self.producer.begin_transaction()
        for record in self.stream.schemas.records[self._registered :]:
            key, value = encode_record(record)
            self.producer.produce(self.schemas, value, key, 0)
        self._registered = len(self.stream.schemas.records)
        for record in self.stream.records[self._sent :]:
            headers = [(each["key"], each["value"]) for each in record["headers"] or []]
            self.producer.produce(record["topic"], record["value"], record["key"], record["partition"], headers=headers)
        self._sent = len(self.stream.records)
        if abort:
            self.producer.flush(30)
            self.producer.abort_transaction(30)
        else:
            self.producer.commit_transaction(30)

    def forget(self) -> None:
        """Keeps nothing of what is written."""
        self.stream.records.clear()
        self._sent = 0

    def produce(self, *records: tuple[bytes | None, bytes | None, int]) -> None:
        """Writes records as they are: key, value, partition."""
        self.producer.begin_transaction()
        for key, value, partition in records:
            self.producer.produce(self.topic, value, key, partition)
        self.producer.commit_transaction(30)

    def read(self, topic: str) -> list[Any]:
        """Every committed record of a topic."""
        settings = {"bootstrap.servers": self.kafka.bootstrap, "group.id": "t", "enable.partition.eof": True}
        consumer = Consumer({**settings, "isolation.level": "read_committed", "log_level": 2})
        with contextlib.closing(consumer):
            found = consumer.list_topics(topic, 10.0).topics[topic]
            numbers = set(found.partitions)
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
            out = []
            while numbers:
                for message in consumer.consume(1000, 0.2):
                    if message.error():
                        numbers.discard(message.partition())
                    else:
                        out.append(message)
        return out

    def committed(self, connector: str) -> dict[int, tuple[int, str]]:
        """Offset and note of each partition in the sink's group."""
        settings = {"bootstrap.servers": self.kafka.bootstrap, "group.id": f"cdcworker-sink-{connector}"}
        with contextlib.closing(
            Consumer({**settings, "isolation.level": "read_committed", "log_level": 2})
        ) as consumer:
            parts = [TopicPartition(self.topic, number) for number in range(self.stream.partitions)]
            return {part.partition: (part.offset, part.metadata or "") for part in consumer.committed(parts, 20.0)}


class Workload:
    """A random sequence of changes, and the rows that are there in the end."""

    def __init__(self, topics: Topics, seed: int) -> None:
        self.stream, self.topics = topics.stream, topics
        self.dice = random.Random(seed)
        self.rows: dict[int, dict[str, Any]] = {}
        self.table = BEFORE
        self._next = 0

    def run(self, changes: int, *, truncates: bool = True) -> None:
        for _ in range(changes):
            self._change(truncates)
        self.topics.flush()

    def evolve(self) -> None:
        self.table = AFTER

    def _row(self, id: int) -> tuple[Any, ...]:
        text = self.dice.choice([seed for seed in hostile.SEEDS if "\0" not in seed]) + "x" * self.dice.randrange(30)
        row: tuple[Any, ...] = (id, self.dice.randrange(-(1 << 31), 1 << 31), self.dice.choice([text, None]))
        if self.table is AFTER:
            row += (self.dice.randbytes(self.dice.randrange(20)), self.dice.choice([0.5, -1e300, None]))
        return row

    def _told(self, row: tuple[Any, ...]) -> dict[str, Any]:
        named = {each.name: value for each, value in zip(self.table.columns, row, strict=True)}
        if named.get("b") is not None:
            named["b"] = base64.b64encode(named["b"]).decode()
        return named

    def _change(self, truncates: bool) -> None:
        kind, ids = self.dice.random(), list(self.rows)
        if truncates and kind < 0.003:
            self.stream.truncate(self.table)
            self.rows.clear()
        elif not ids or kind < 0.4:
            self._next += 1
            row = self._row(self._next)
            self.stream.insert(self.table, row)
            self.rows[self._next] = self._told(row)
        elif kind < 0.75:
            row = self._row(self.dice.choice(ids))
            self.stream.update(self.table, row)
            self.rows[row[0]] = self._told(row)
        elif kind < 0.9:
            gone = self.dice.choice(ids)
            self.stream.delete(self.table, (gone,))
            del self.rows[gone]
        else:
            gone = self.dice.choice(ids)
            self._next += 1
            row = self._row(self._next)
            self.stream.move(self.table, (gone,), row)
            del self.rows[gone]
            self.rows[self._next] = self._told(row)


class Ledger:
    """What a receiver has that takes each id once: rows by their key. Events of a partition have to come in their order."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.twice = 0
        self.rows: dict[int, tuple[tuple[int, int, int], dict[str, Any]]] = {}
        self.disorder: list[str] = []
        self._offsets: dict[int, int] = {}
        self._floor = (0, 0, 0)

    def take(self, event: Mapping[str, Any]) -> None:
        if event["id"] in self.ids:
            self.twice += 1
            return
        self.ids.add(event["id"])
        partition, offset = event["partition"], event["offset"]
        if self._offsets.get(partition, -1) >= offset:
            self.disorder.append(event["id"])
        self._offsets[partition] = offset
        self._apply(event["value"])

    def _apply(self, value: Mapping[str, Any] | None) -> None:
        if value is None or "op" not in value:
            return
        source = value["source"]
        at = (source["commit_lsn"], source["tx_index"], source["tx_sub"])
        if value["op"] == "t":
            # Of the other partitions some come earlier, some later.
            self._floor = max(self._floor, at)
            self.rows = {key: row for key, row in self.rows.items() if row[0] > at}
        elif at > self._floor and value["op"] == "d":
            self.rows.pop(value["before"]["id"], None)
        elif at > self._floor:
            self.rows[value["after"]["id"]] = (at, value["after"])

    def held(self) -> dict[int, dict[str, Any]]:
        return {key: row for key, (_, row) in self.rows.items()}


class Webhook:
    """A real server that can be told to misbehave. `trouble` gets the number of a request and its events, and returns a status,
    a header Retry-After, `cut` (the connection), `lost` (taken, and then cut), `hang`; None: all is well."""

    def __init__(self, trouble: Callable[[int, Sequence[Any]], Any] | None = None) -> None:
        self.ledger = Ledger()
        self.trouble = trouble
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.numbers = 0
        self.events: list[Any] = []
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._open: set[socket.socket] = set()
        self.released = threading.Event()
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def start(self) -> None:
        self._server = _Server(("127.0.0.1", self.port), _handler(self))
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def secure(self, certificate: Path, authority: Path) -> None:
        """Begins again with TLS, for clients with a certificate of an authority."""
        self.stop()
        self.start()
        assert self._server is not None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority))
        context.load_cert_chain(certificate)
        context.verify_mode = ssl.CERT_REQUIRED
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def stop(self) -> None:
        """As a server that dies: connections are cut."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.released.set()
        self.stop()

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        events = _events(body)
        with self._lock:
            self.numbers += 1
            number = self.numbers
            self.requests.append((handler.command, handler.path, dict(handler.headers), body))
        said = self.trouble(number, events) if self.trouble else None
        status, retry_after = said if isinstance(said, tuple) else (said, None)
        if status == "hang":
            self.released.wait(WAIT_S)
        if status in ("cut", "hang"):
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        if status is None or status == "lost" or 200 <= status < 300:
            with self._lock:
                self.events += events
                for event in events:
                    if isinstance(event, dict) and "id" in event and "offset" in event:
                        self.ledger.take(event)
        if status == "lost":
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        handler.send_response(status or 204)
        if retry_after is not None:
            handler.send_header("Retry-After", str(retry_after))
        handler.send_header("Content-Length", "0")
        handler.end_headers()


def _events(body: bytes) -> list[Any]:
    """The records of a request: an array, or lines."""
    try:
        parsed = json.loads(body)
    except ValueError:
        return [json.loads(line) for line in body.splitlines()]
    return parsed if isinstance(parsed, list) else [parsed]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that dies, and a connection that is cut, are what the tests are about."""


def _handler(hook: Webhook) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            hook._open.add(self.connection)

        def finish(self) -> None:
            hook._open.discard(self.connection)
            with contextlib.suppress(OSError):
                super().finish()

        def do_POST(self) -> None:
            hook.handle(self)

        do_PUT = do_PATCH = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def has_poison(events: Sequence[Any]) -> bool:
    return any(POISON in json.dumps(event["value"]) for event in events)


def is_signed(secret: bytes, headers: Mapping[str, str], body: bytes) -> bool:
    """Whether a request is signed as Standard Webhooks are."""
    text = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = base64.b64encode(hmac.new(secret, text, hashlib.sha256).digest()).decode()
    return hmac.compare_digest(f"v1,{digest}", headers["webhook-signature"])


class TaskProcess:
    """One process of a sink task, as a worker would start it."""

    def __init__(
        self,
        topics: Topics,
        config: Mapping[str, str],
        epoch: tuple[int, int],
        folder: Path,
        *,
        name: str = "",
        task: int = 0,
    ) -> None:
        self.epoch, self.log = epoch, folder / f"task-{epoch[0]}-{epoch[1]}-{task}.log"
        spec = {
            "connector": name or topics.name,
            "task": task,
            "epoch": list(epoch),
            "topics": [topics.topic],
            "bootstrap": topics.kafka.bootstrap,
            "schema_topic": topics.schemas,
            "config": {"name": topics.name, "topics": topics.topic, **config},
            "state_dir": str(folder),
        }
        with self.log.open("ab") as out:
            argv = [sys.executable, "-m", "tests.record_sink_child", json.dumps(spec)]
            self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=out, text=True)
        self.reports: list[dict[str, Any]] = []
        self.error: dict[str, Any] | None = None
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            if "error" in message:
                self.error = message["error"]
            else:
                self.reports.append(message)

    @property
    def numbers(self) -> dict[str, Any]:
        return self.reports[-1] if self.reports else {}

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def ended(self, timeout_s: float = WAIT_S) -> int:
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def stop(self) -> None:
        """As a worker asks a task to stop."""
        self.signal(signal.SIGTERM)
        assert self.ended() == 0, (self.error, self.log.read_text()[-5_000:])

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.ended()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def told(self) -> str:
        return f"{self.error}\n{self.log.read_text()[-5_000:]}"


@contextlib.contextmanager
def running(*made: Any) -> Iterator[None]:
    """Ends processes and servers after a test."""
    try:
        yield
    finally:
        for each in made:
            (each.kill if isinstance(each, TaskProcess) else each.close)()


def seed() -> int:
    return int(os.environ.get("PYTEST_SEED", "1"))
