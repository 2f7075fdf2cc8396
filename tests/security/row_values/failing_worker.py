"""One worker with connectors that fail at rows: a PostgreSQL source, a Spark sink into PostgreSQL, a file source and file sinks."""

from __future__ import annotations

import os
import secrets
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import yaml
from cdcworker.worker.cli.client.remote import detailed
from cdcworker.worker.security.credentials import new_token
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests import plain_http
from tests.integration.one_worker import Worker

from .canaries import COLUMNS, Canaries, Row

AVRO = "io.confluent.connect.avro.AvroConverter"
JSON = "org.apache.kafka.connect.json.JsonConverter"
QUICK = {"task.restart.max": "0"}
COMPLAINT = """
create function complain() returns text language plpgsql as $$
begin raise exception 'no heartbeat for %', (select v from complaints) using errcode = 'C0815'; end $$
"""
HELD = {
    "public.large": "source.record_too_large",
    "public.bare": "source.record_without_key",
    "public.late": "postgres.value_unsupported",
}
LARGE_BYTES = 3_000
STARTED_S = 180.0


class FailingWorker:
    """Its users are `ops`, who may do everything, and `reader`. `answers` are those of requests that were made on the way."""

    def __init__(self, folder: Path, kafka: Any, postgres: Any, canaries: Canaries) -> None:
        self.folder, self.canaries = folder, canaries
        self.group = f"v{secrets.token_hex(3)}"
        self.tokens: dict[str, str] = {}
        self.worker = Worker(folder, kafka.bootstrap, self.group, **self._properties())
        self.frame = b""
        """The beginning of a value whose schema is known."""
        self.events: socket.socket | None = None
        self.answers: list[tuple[str, str]] = []
        self.admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 2})
        self.producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 2})
        self.postgres = postgres
        self.names = {name: postgres.create_database() for name in ("source", "target")}
        self.source, self.target = (
            psycopg.connect(postgres.dsn(name), autocommit=True) for name in self.names.values()
        )

    def _properties(self) -> dict[str, str]:
        users = []
        for name, grant in (("ops", "admin"), ("reader", "read")):
            identity, self.tokens[name], hashed = new_token()
            users.append({"name": name, "grants": [grant], "tokens": [{"id": identity, "hash": hashed}]})
        path = self.folder / "users.yaml"
        path.write_text(yaml.safe_dump({"users": users}))
        # Not where connectors may read; nobody listens there.
        alerts = self.folder.with_name(f"{self.folder.name}-alerts.yaml")
        receivers = [{"name": "nobody", "url": "http://127.0.0.1:9/"}]
        alerts.write_text(yaml.safe_dump({"receivers": receivers, "hold": "0s"}))
        return {
            "alerts.file": str(alerts),
            "rest.auth.file": str(path),
            "audit.topic": f"{self.group}.audit",
            "file.connector.paths": str(self.folder),
            "log.level": "DEBUG",
        }

    def close(self) -> None:
        if self.events is not None:
            self.events.close()
        self.worker.kill()
        for connection in (self.source, self.target):
            connection.close()
        for name in self.names.values():
            self.postgres.drop_database(name)

    # -- what a test asks -------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: Any = None, *, user: str = "ops", **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.tokens[user]}"}
        return plain_http.request(
            method, self.worker.url + detailed(path), json=body, headers=headers, timeout=90.0, **options
        )

    def listen(self) -> None:
        """Follows the events from now on; what has come is read at the end."""
        place = httpx.URL(self.worker.url)
        self.events = socket.create_connection((place.host, place.port), 30.0)
        lines = ("GET /v1/events HTTP/1.1", f"Host: {place.host}", f"Authorization: Bearer {self.tokens['reader']}")
        self.events.sendall("\r\n".join((*lines, "", "")).encode())

    def heard(self) -> str:
        """Returns the events that have come, up to a moment without one."""
        parts: list[bytes] = []
        assert self.events is not None
        while select.select([self.events], [], [], 0.5)[0] and (part := self.events.recv(65_536)):
            parts.append(part)
        return b"".join(parts).decode("utf-8", "backslashreplace")

    def task(self, connector: str) -> dict[str, Any]:
        """Of `/v1/cluster`: state, metrics, error."""
        tasks = self.ask("GET", "/v1/cluster").json()["tasks"]
        found: dict[str, Any] = next(task for task in tasks if task["connector"] == connector)
        return found

    def metrics(self, connector: str) -> dict[str, Any]:
        return self.task(connector)["metrics"] or {}

    def wait(self, condition: Callable[[], Any], what: str | Callable[[], str]) -> Any:
        return self.worker.wait(condition, what, STARTED_S)

    def wait_failed(self, connector: str, code: str) -> None:
        def error() -> Any:
            task = self.task(connector)
            return task["state"] == "FAILED" and (task["error"] or {}).get("code")

        assert self.wait(error, f"the end of {connector}") == code

    def put(self, name: str, config: dict[str, str]) -> None:
        def made() -> Any:
            answer = self.ask("PUT", f"/connectors/{name}/config", {**config, **QUICK})
            return None if answer.status_code == 409 else answer

        answer = self.wait(made, "a leader")
        assert answer.status_code in (200, 201), answer.text

    # -- the source -------------------------------------------------------------------------------------------------

    def insert(self, table: str, id: object, row: Row, **others: object) -> None:
        values = (id, *row.values(**others))
        self.source.execute(f"insert into {table} values ({', '.join(['%s'] * len(values))})", values)

    def start_source(self) -> None:
        """Captures all tables, and waits for the first rows of those that are read at the start."""
        for name in ("plain", "large", "late", "refused", "checked"):
            self.source.execute(f"create table {name} (id bigint primary key, {COLUMNS})")
        self.source.execute(f"create table bare (id bigint, {COLUMNS}); alter table bare replica identity full")
        self.source.execute(f"create table keyed (id text primary key, {COLUMNS})")
        self.source.execute("create table signals (id text primary key, type text, data text)")
        self.source.execute("create table complaints (v text)")
        self.source.execute(COMPLAINT)
        self.source.execute("insert into complaints values (%s)", (self.canaries.text("a heartbeat's statement"),))
        self.insert("plain", 1, self.canaries.row("a row that does not fail"), moment=None)
        self.insert("late", 1, self.canaries.row("a timestamp without a form"))
        for number in range(20):
            self.source.execute("insert into keyed values (%s, %s)", (self.canaries.text(f"key {number}"), "x" * 1000))
        self.insert("refused", 1, self.canaries.row("a column of another type"), moment=None)
        self.source.execute("insert into checked (id) values (7)")
        self.put("shop", {**self._source_config(), **_topics("large", "max.message.bytes", LARGE_BYTES)})
        rows = self.wait(lambda: self.worker.read(f"{self.group}.public.plain"), "the first rows")
        self.frame = rows[0].value()[:5]

    def hold_tables(self) -> None:
        """One each for a row's size, for its lack of a key and for a value without a form; and signals and heartbeats that fail."""
        row = self.canaries.row("a row too large")
        self.insert("large", 1, row, text=row.text + secrets.token_hex(LARGE_BYTES), moment=None)
        self.insert("bare", 1, self.canaries.row("a row without a key"), moment=None)
        signal = f'{{"{self.canaries.text("a signal that is no JSON")}'
        self.source.execute("insert into signals values ('a', 'execute-snapshot', %s)", (signal,))
        self.wait(lambda: self._held() == HELD, lambda: f"the tables that are held: {self._held()}")
        self.wait(lambda: self.metrics("shop")["heartbeat_action_failures"], "a heartbeat's failure")

    def _held(self) -> dict[str, str]:
        return {one["table"]: one["code"] for one in self.metrics("shop").get("quarantine") or []}

    def _source_config(self) -> dict[str, str]:
        info = self.source.info
        return {
            "connector.class": "postgres", "database.hostname": info.host, "database.port": str(info.port),
            "database.user": info.user, "database.password": info.password, "database.dbname": self.names["source"],
            "topic.prefix": self.group, "slot.name": f"s{self.group}_{os.getpid()}",
            "signal.data.collection": "public.signals",
            "table.exclude.list": "public.complaints",
            "heartbeat.interval.ms": "500", "heartbeat.action.query": "select complain()",
            # As nanoseconds a timestamp of the year 2300 has no exact form.
            "out.of.range.handling.mode": "exact", "time.precision.mode": "nanoseconds",
            "snapshot.chunk.max.bytes": "4096",
            "topic.creation.groups": "large,bare",
            **_topics("bare", "cleanup.policy", "compact"),
        }  # fmt: skip

    def ask_for_snapshots(self) -> Iterator[tuple[str, str]]:
        """One whose condition fails at a row, and one that is paused among its rows; yields what is answered."""
        path = "/v1/connectors/shop/snapshots"
        failing = {"tables": ["public.plain"], "filters": {"public.plain": "v::int > 0"}}
        answer = self.ask("POST", path, failing)
        assert answer.status_code == 202, answer.text
        yield "the answer of a snapshot", answer.text
        one = f"{path}/{answer.json()['id']}"
        self.wait(lambda: self.ask("GET", one).json()["state"] == "FAILED", "the snapshot's failure")
        slow = self.ask("POST", path, {"tables": ["public.keyed"], "rows_per_s": 1})
        assert slow.status_code == 202, slow.text
        yield "the answer of a slow snapshot", slow.text
        self.wait(self._keys_in_the_position, "a key in the position")
        yield "the answer of a pause", self.ask("PUT", f"{path}/{slow.json()['id']}/pause").text

    def _keys_in_the_position(self) -> list[Any]:
        """Returns the keys up to which tables have been read."""
        (one,) = self.ask("GET", "/connectors/shop/offsets").json()["offsets"]
        loads = (one["offset"]["snapshot"] or {}).get("loads") or ()
        return [part for load in loads for table in load["tables"] for part in table.get("parts", ()) if part[0]]

    # -- files ------------------------------------------------------------------------------------------------------

    def start_files(self) -> None:
        """A line that is not UTF-8, a value that is no JSON, and one that does not fit its schema."""
        line = self.canaries.text("a line that is not UTF-8")
        (self.folder / "lines.txt").write_bytes(line.encode() + b" \xe9\n")
        lines = {"connector.class": "file", "file": str(self.folder / "lines.txt"), "topic": f"{self.group}.lines"}
        self.put("lines", {**lines, "value.converter": JSON})
        values = {
            "notes": (JSON, f'{{"{self.canaries.text("a value that is no JSON")}'.encode()),
            "frames": (AVRO, self.frame + self.canaries.text("a value that does not fit its schema").encode()),
        }
        for name, (converter, value) in values.items():
            self.create(f"{self.group}.{name}")
            self.produce(f"{self.group}.{name}", value)
            sink = {"connector.class": "file-sink", "file": str(self.folder / f"{name}.txt")}
            self.put(name, {**sink, "topics": f"{self.group}.{name}", "value.converter": converter})

    def create(self, topic: str) -> None:
        for future in self.admin.create_topics([NewTopic(topic, 1, 1)]).values():
            future.result(30)

    def produce(self, topic: str, *values: bytes) -> None:
        for value in values:
            self.producer.produce(topic, value, self.frame + value[-20:])
        assert self.producer.flush(30) == 0

    # -- the sink ---------------------------------------------------------------------------------------------------

    def start_sink(self) -> None:
        """Its topics come while Spark starts. One table has a column of another type, one forbids a row."""
        self.target.execute("create table refused (id bigint primary key, n date)")
        self.target.execute("create table checked (id bigint primary key, v text check (length(v) < 10), n numeric)")
        self.create(f"{self.group}.public.dead")
        info, topics = self.target.info, ("plain", "refused", "checked", "dead")
        self.put("out", {
            "connector.class": "spark", "topics": ",".join(f"{self.group}.public.{name}" for name in topics),
            "warehouse.hostname": info.host, "warehouse.port": str(info.port), "warehouse.user": info.user,
            "warehouse.password": info.password, "warehouse.dbname": self.names["target"],
            "errors.tolerance": "all", "trigger.interval.ms": "100",
        })  # fmt: skip

    def send_dead_records(self) -> None:
        """One without a frame, and one that does not fit its schema."""
        values = (self.canaries.text("no frame").encode(), self.frame + self.canaries.text("no record").encode())
        self.produce(f"{self.group}.public.dead", *values)

    def wait_for_the_sink(self) -> Iterator[tuple[str, str]]:
        """Yields what is answered by what asks the target, before the whole task fails at a row."""
        self.wait(lambda: list(self.metrics("out").get("paused") or ()), "the table that is paused")
        path = "/v1/connectors/out/dead-letters"
        self.wait(lambda: self.metrics("out")["dead_letters"] == 2, "the dead letters")
        yield "a comparison", self.ask("POST", "/v1/connectors/out/verify").text
        yield "a redrive", self.ask("POST", f"{path}/redrive").text
        yield "the cluster before the failure", self.ask("GET", "/v1/cluster").text
        yield "the metrics before the failure", self.ask("GET", "/metrics").text
        self.insert("checked", 1, self.canaries.row("a row that a constraint forbids"), moment=None)
        self.wait_failed("out", "spark.target_value")
        self.wait(lambda: self.ask("GET", "/v1/connectors/out/verify").json()["state"] != "running", "the comparison")


def _topics(group: str, setting: str, value: object) -> dict[str, str]:
    """Settings of one table's topic."""
    return {
        f"topic.creation.{group}.include": rf".*\.{group}",
        f"topic.creation.{group}.{setting}": str(value),
    }
