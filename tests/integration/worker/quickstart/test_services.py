"""The load of the compose file as a process of its own, against a real source and workers that answer late."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psycopg
import pytest
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.quickstart.connectors import SINK
from cdcworker.worker.quickstart.shop import SOURCE

pytestmark = pytest.mark.postgres


class Rest(ThreadingHTTPServer):
    """Has no leader at first, and refuses the first submission as a cluster that elects does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.looked = 0
        self.submitted: list[tuple[str, dict[str, str]]] = []
        self.refusals = 1


class Handler(BaseHTTPRequestHandler):
    server: Rest

    def do_GET(self) -> None:
        self.server.looked += 1
        leader = {"id": "w1", "url": "", "epoch": 1} if self.server.looked > 2 else None
        self.answer(200, {"leader": leader, "workers": [], "tasks": [], "version": 1})

    def do_PUT(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.refusals:
            self.server.refusals -= 1
            self.answer(409, {"message": "no known leader"})
            return
        self.server.submitted.append((self.path, body))
        self.answer(201, {})

    def answer(self, status: int, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def rest() -> Iterator[Rest]:
    with Rest() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


def wait(what: str, condition: Callable[[], object]) -> None:
    poll, deadline = threading.Event(), time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        poll.wait(0.05)


def service(**env: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "cdcworker.worker.quickstart.services"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CDC_DEMO_")}
    return subprocess.Popen(argv, env={**inherited, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_the_load_waits_for_workers_submits_both_connectors_and_works_until_stopped(postgres, rest: Rest) -> None:
    names = [postgres.create_database(), postgres.create_database()]
    source, warehouse = map(postgres.dsn, names)
    (nobody,) = free_ports(1)
    process = service(
        CDC_DEMO_WORKERS=f"http://127.0.0.1:{nobody}, http://127.0.0.1:{rest.server_port}/",
        CDC_DEMO_KAFKA="127.0.0.1:1",
        CDC_DEMO_POSTGRES=source,
        CDC_DEMO_WAREHOUSE=warehouse,
    )
    with process, psycopg.connect(source, autocommit=True) as connection:
        try:
            wait("both connectors are submitted", lambda: len(rest.submitted) == 2 or process.poll() is not None)
            # The first rows come before the connectors, orders above them from the load.
            query = "SELECT count(*) FROM orders WHERE id > 200"
            wait("the load works", lambda: connection.execute(query).fetchone()[0] > 20)
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, output
    assert "the load has stopped" in output
    (source_path, source_body), (sink_path, sink_body) = rest.submitted
    assert (source_path, sink_path) == (f"/connectors/{SOURCE}/config", f"/connectors/{SINK}/config")
    assert source_body["database.dbname"] == names[0]
    assert sink_body["warehouse.dbname"] == names[1]
    assert source_body["database.password"]
    assert source_body["database.password"] not in output
    for name in names:
        postgres.drop_database(name)


def test_without_its_settings_the_load_says_which_are_missing() -> None:
    with service(CDC_DEMO_WORKERS="http://127.0.0.1:1") as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "quickstart.settings" in output
    assert "CDC_DEMO_KAFKA, CDC_DEMO_POSTGRES, CDC_DEMO_WAREHOUSE" in output
    assert "Traceback" not in output
