"""The conversation of a takeover: a real worker and a real PostgreSQL, and answers that a genuine Kafka Connect has given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.genuine.sources import source_config
from tests.integration.connectors.postgres.postgres_reader import drop_slot, lsn
from tests.integration.one_worker import Worker

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]
SECRET = "canary-5f0c91d2"


class RecordedConnect(ThreadingHTTPServer):
    """Answers as Kafka Connect 4.3 does for one connector, and notes what it was asked to change."""

    def __init__(self, config: dict[str, str], offset: dict[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.config, self.offset, self.state = config, offset, "RUNNING"
        self.sink: list[dict[str, Any]] = []
        """The offsets of a sink."""
        self.changes: list[str] = []
        self.broken = ""
        """A request that is answered with an error."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, asked: str, body: Any) -> tuple[int, Any]:
        if asked == self.broken:
            return 500, {"error_code": 500, "message": "Request timed out"}
        partition = {"server": self.config.get("topic.prefix", "")}
        tasks = [] if self.state == "STOPPED" else [{"id": 0, "state": self.state, "worker_id": "w:8083"}]
        reads = {
            "GET /": {"version": "4.3.0", "commit": "0", "kafka_cluster_id": "c"},
            "GET /connectors": ["shop"],
            "GET /connectors/shop/config": self.config,
            "GET /connectors/shop/status": {"name": "shop", "connector": {"state": self.state}, "tasks": tasks},
            "GET /connectors/shop/offsets": {"offsets": self.sink or [{"partition": partition, "offset": self.offset}]},
        }
        if asked in reads:
            return 200, reads[asked]
        self.changes.append(asked)
        if asked == "PATCH /connectors/shop/offsets":
            assert body["offsets"][0]["partition"] == partition
            self.offset = body["offsets"][0]["offset"]
            return 200, {"message": "The offsets for this connector have been altered successfully"}
        states = {
            "PUT /connectors/shop/pause": "PAUSED",
            "PUT /connectors/shop/stop": "STOPPED",
            "PUT /connectors/shop/resume": "RUNNING",
        }
        if asked in states:
            self.state = states[asked]
            return 202, None
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


class _Handler(BaseHTTPRequestHandler):
    server: RecordedConnect

    def _serve(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        status, content = self.server.answer(f"{self.command} {self.path}", body)
        data = b"" if content is None else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_PATCH = _serve

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def worker(kafka: Any, tmp_path: Path) -> Iterator[Worker]:
    process = Worker(tmp_path, kafka.bootstrap, f"g{uuid.uuid4().hex[:8]}", **{"file.connector.paths": str(tmp_path)})
    try:
        process.wait_ready()
        process.wait(lambda: process.get("/v1/cluster")["leader"], "a leader")
        yield process
    finally:
        process.kill()


@contextmanager
def serving(server: RecordedConnect) -> Iterator[RecordedConnect]:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def connect(worker: Worker, db: Any) -> Iterator[RecordedConnect]:
    """Debezium has written the first row of a transaction of two."""
    db.execute("create table orders (id int primary key, n int); create publication dbz for table orders")
    config = source_config(
        db, f"{worker.group}.shop", **{"publication.name": "dbz", "heartbeat.action.query": f"select '{SECRET}'"}
    )
    slot = config["slot.name"]
    db.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    before = lsn(db.execute("select pg_current_wal_lsn()::text").fetchone()[0])
    db.execute("insert into orders values (1, 1), (2, 1)")
    rows = db.execute(
        "select lsn::text from pg_logical_slot_peek_binary_changes(%s, null, null, 'proto_version', '1',"
        " 'publication_names', 'dbz') where get_byte(data, 0) = ascii('I')", (slot,),
    ).fetchall()  # fmt: skip
    first = lsn(rows[0][0])
    offset = {"lsn": first, "lsn_proc": first, "lsn_commit": before, "messageType": "INSERT", "ts_usec": 1, "txId": 1}
    with serving(RecordedConnect(config, offset)) as server:
        yield server
    worker.kill()
    drop_slot(db, slot)


def executed(worker: Worker, *arguments: str, code: int = 0) -> str:
    """Returns what the command line prints; it has to end with this exit code."""
    environment = {**os.environ, "CDC_URL": worker.url}
    environment.pop("CDC_CONTEXT", None)
    argv = [str(Path(sys.executable).with_name("cdcworker")), *arguments]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, f"{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def test_a_sink_comes_with_the_offsets_of_its_topics(worker: Worker, tmp_path: Path) -> None:
    topic, back = f"lines-{worker.group}", tmp_path / "out.txt"
    admin = AdminClient({"bootstrap.servers": worker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30.0)
    producer = Producer({"bootstrap.servers": worker.bootstrap})
    for line in ("a", "b", "c"):
        producer.produce(topic, value=line.encode(), partition=0)
    assert producer.flush(30.0) == 0
    config = {"connector.class": "FileStreamSink", "file": str(back), "topics": topic, "tasks.max": "1"}
    properties = tmp_path / "connect.properties"
    properties.write_text("group.id=connect\nvalue.converter=org.apache.kafka.connect.storage.StringConverter\n")
    with serving(RecordedConnect(config, {})) as connect:
        theirs: tuple[str, ...] = ("import", "connect", "--connect", connect.url)
        connect.sink = [{"partition": {"kafka_topic": topic, "kafka_partition": 0}, "offset": None}]
        assert "cli.connect_offsets_missing" in executed(worker, *theirs, code=3), "it never ran"
        connect.sink[0]["offset"] = {"kafka_offset": 1}
        assert "--worker-config" in executed(worker, *theirs, code=2), "a converter is missing"
        theirs += ("--worker-config", str(properties))
        told = executed(worker, *theirs, "--dry-run")
        assert "shop of Kafka Connect would become shop, behind the offsets of 1 partitions" in told
        assert (connect.changes, worker.get("/connectors")) == ([], [])
        assert "shop runs" in executed(worker, *theirs)
        assert connect.state == "STOPPED"
        worker.wait(lambda: back.exists() and back.read_text() == "b\nc\n", "the lines behind the offset")
        connect.config = {"connector.class": "FileStreamSource", "file": str(back), "topic": topic}
        assert "this is no sink" in executed(worker, *theirs, "--name", "other", code=2)


def test_a_connector_comes_and_goes(worker: Worker, connect: RecordedConnect, db: Any) -> None:
    def run(*arguments: str, code: int = 0) -> str:
        told = executed(worker, *arguments, code=code)
        assert SECRET not in told
        assert connect.config["database.password"] not in told
        return told

    theirs = ("--connect", connect.url)
    rehearsal = json.loads(run("import", "debezium", *theirs, "--dry-run", "--json"))["result"]
    assert rehearsal["refused"] == 0
    assert {"key": "skipped.operations", "effect": "set"}.items() <= rehearsal["keys"][0].items()
    assert (connect.changes, worker.get("/connectors")) == ([], [])
    connect.config["slot.drop.on.stop"] = "true"
    assert "slot.drop.on.stop" in run("import", "debezium", *theirs, code=2)
    del connect.config["slot.drop.on.stop"]
    assert connect.changes == []

    connect.offset["lsn"] = None
    told = run("import", "debezium", *theirs, code=2)
    assert "shop of Debezium stands" in told
    assert f"{connect.url}/connectors/shop/resume" in told, "the way back"
    assert worker.get("/connectors") == []
    connect.offset["lsn"] = connect.offset["lsn_proc"]

    assert "shop runs" in run("import", "debezium", *theirs, "--connector", "shop")
    records = worker.wait(lambda: worker.read(f"{worker.group}.shop.public.orders"), "the second row")
    assert [json.loads(one.value())["after"]["id"] for one in records] == [2], "the first is Debezium's"

    assert "STOPPED" in run("export", "debezium", "shop", code=2), "it runs"
    before = connect.offset
    connect.broken = "PATCH /connectors/shop/offsets"
    assert "cdcworker connector resume shop" in run("export", "debezium", "shop", *theirs, code=3)
    connect.broken = ""
    assert "shop of Debezium runs" in run("export", "debezium", "shop", *theirs)
    written = connect.offset
    assert set(written) == {"lsn", "ts_usec"}
    assert written["lsn"] > before["lsn"]
    assert connect.state == "RUNNING"
    assert json.loads(run("export", "debezium", "shop"))["offsets"][0]["offset"] == written
