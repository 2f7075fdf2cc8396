"""Debezium's connector of MariaDB on a genuine Kafka Connect, tuned for many rows, with Confluent's converter to Avro."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import Registration, RegistrationMeta, SchemaLog, register_in_memory
from cdcworker.worker.schema_registry.api import routes
from starlette.applications import Starlette

from tests.genuine import parts
from tests.genuine.connect import GenuineConnect

from ..measure import wait
from ..source.records import stored
from ..source.stage import TIMEOUT_S, Runner, Stage
from .server import DATABASE, MARKS, MariaDbBenchServer

CLASS = "io.debezium.connector.mariadb.MariaDbConnector"
AVRO = "io.confluent.connect.avro.AvroConverter"
JAVA_OPTIONS = ("-Xms1g", "-Xmx1g", "-XX:+UseParallelGC")
TUNED: Mapping[str, str] = {
    "max.batch.size": "8192",
    "max.queue.size": "32768",
    "poll.interval.ms": "10",
    "extended.headers.enabled": "false",
    "producer.override.linger.ms": "20",
    "producer.override.batch.size": "524288",
    "producer.override.buffer.memory": "134217728",
    "producer.override.max.request.size": "8388608",
}


@contextmanager
def connect(folder: Path, bootstrap: str) -> Iterator[Runner | None]:
    """A worker of Kafka Connect with a registry of its own; None, and said, where its libraries cannot be had."""
    try:
        libraries = [*parts.fetched("connect"), *parts.fetched("mariadb"), *parts.converter()]
    except (CdcError, pytest.skip.Exception) as error:
        print(f"without Debezium: {str(error).splitlines()[0]}", flush=True)
        yield None
        return
    with _registry() as url:
        # Confluent's converter does not say by a file of services what it is.
        settings = {"plugin.discovery": "hybrid_warn", **{f"{side}.converter": AVRO for side in ("key", "value")}}
        settings |= {f"{side}.converter.schema.registry.url": url for side in ("key", "value")}
        genuine = GenuineConnect(folder, bootstrap, libraries, settings, JAVA_OPTIONS)
        with genuine, httpx.Client(base_url=genuine.url, timeout=60) as rest, httpx.Client(base_url=url) as registry:
            yield Runner(rest, genuine.pid, registry, has_task_processes=False)


def config(server: MariaDbBenchServer, name: str, table: str, bootstrap: str) -> dict[str, str]:
    return {
        "connector.class": CLASS,
        "tasks.max": "1",
        **server.login(name, table),
        "table.include.list": f"{DATABASE}.{table},{DATABASE}.{MARKS}",
        "snapshot.mode": "no_data",
        "schema.history.internal.kafka.bootstrap.servers": bootstrap,
        "schema.history.internal.kafka.topic": f"{name}.history",
        **TUNED,
    }


def stand_by(stage: Stage[MariaDbBenchServer], runner: Runner, name: str, table: str) -> None:
    """A connector that has read the log up to its end and is stopped there. A row of another table shows that it has come to it."""
    runner.start(name, config(stage.server, name, table, stage.kafka.bootstrap))
    topic = stage.server.topic(name, MARKS)

    def has_read() -> bool:
        runner.check(name)
        stage.server.ask(f"insert into {DATABASE}.{MARKS} values ()")
        return stored(stage.kafka.bootstrap, topic) > 0

    wait(f"{name} reads", has_read, TIMEOUT_S, 0.5)
    runner.halt(name)


@contextmanager
def _registry() -> Iterator[str]:
    """A registry of schemas in memory that takes what it is given; our workers' takes none."""
    log = SchemaLog()
    keep = register_in_memory(log)
    made = routes(lambda: log, lambda subject, schema: keep([Registration(subject, schema, RegistrationMeta())])[0])
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=made), port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait("the registry", lambda: server.started, TIMEOUT_S)
        _, port = server.servers[0].sockets[0].getsockname()
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
