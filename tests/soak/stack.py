"""What runs? Three servers, three workers and five connectors, whose data stay in one folder between the parts of a soak."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cdcworker.worker.devstack.kafka import QUICK_COMPILER_ONLY, EmbeddedKafka
from cdcworker.worker.devstack.mariadb import LOGGING
from cdcworker.worker.devstack.ports import is_free
from cdcworker.worker.devstack.postgres import EmbeddedPostgres
from cdcworker.worker.quickstart.roles import address_of, make_reader, make_writer

from tests.e2e.cluster import PASSWORD, Cluster, Names, wait
from tests.mariadb_server import HOST, USER, MariaDbServer, find_programs

from .bank import TABLES, Bank, MariaDbBank, PostgresBank
from .state import SoakError

SOURCE_DB: Final = "bank"
WAREHOUSE_DB: Final = "warehouse"
COPY_DB: Final = "copy"
MARIADB_DB: Final = "bank"
WORKERS: Final = ("a", "b", "c")
SOURCES: Final = ("postgres", "mariadb")
"""The connectors, by the servers that they read."""
SINKS: Final = ("warehouse", "lake", "copy")
SPARK_SINKS: Final = ("warehouse", "lake")
KAFKA_SETTINGS: Final = {
    # Bounded by size, so that a soak that rested for days still has what its sinks have not read.
    "log.retention.bytes": "33554432",
    "log.retention.ms": "-1",
    "log.segment.bytes": "4194304",
}
POSTGRES_SETTINGS: Final = {"max_wal_size": "128MB", "shared_buffers": "64MB"}
MARIADB_SETTINGS: Final = {
    **LOGGING,
    "max-binlog-size": "16M",
    "max-binlog-total-size": "256M",
    # What was committed is in the operating system, and outlives a server that is killed.
    "innodb-flush-log-at-trx-commit": "1",
}
PORT_S: Final = 60.0
START_S: Final = 300.0
"""How long a worker may take until it answers, on a machine that does much else."""


class KeptPostgres(EmbeddedPostgres):
    """A server that a later part starts again over its data."""

    def told(self) -> dict[str, Any]:
        return {"port": self.port, "password": self.password, "user": self._user, "bin": str(self._bin)}

    def take(self, told: Mapping[str, Any]) -> None:
        self.port, self.password, self._user = told["port"], told["password"], told["user"]
        # Programs that were copied for another user lie beside the data; others may have moved.
        self._bin = Path(told["bin"]) if Path(told["bin"]).is_relative_to(self.directory) else None
        # A server that died with its machine leaves a number that may be another process's by now.
        (self.data / "postmaster.pid").unlink(missing_ok=True)


class Stack:
    """All parts, made anew or as an earlier part left them. Every server is started by the thread that calls."""

    def __init__(self, folder: Path) -> None:
        programs = find_programs()
        if programs is None:
            raise SoakError("MariaDB's programs are not here: make servers")
        self.folder = folder
        self.kafka = EmbeddedKafka(folder / "kafka", KAFKA_SETTINGS, heap="512m", jvm_options=QUICK_COMPILER_ONLY)
        self.postgres = KeptPostgres(folder / "postgres", POSTGRES_SETTINGS)
        self.mariadb = MariaDbServer(programs, folder / "mariadb", MARIADB_SETTINGS)
        self.lake = folder / "lake"
        self._names: Names | None = None
        self._cluster: Cluster | None = None

    @property
    def cluster(self) -> Cluster:
        assert self._cluster is not None, "the stack is not started"
        return self._cluster

    @property
    def topics(self) -> list[str]:
        return [self.topic(source, table) for source in SOURCES for table in TABLES]

    def topic(self, source: str, table: str) -> str:
        return f"{self.cluster.group}-{source}.{self.schema(source)}.{table}"

    @staticmethod
    def schema(source: str) -> str:
        """The schema of a source's tables, there and in each target."""
        return {"postgres": "public", "mariadb": MARIADB_DB}[source]

    def start(self) -> None:
        """Starts servers and workers, and submits the connectors once."""
        new = not self._told.exists()
        if new:
            # A part that was killed this early has left servers that are not whole.
            for folder in (self.kafka.directory, self.postgres.directory, self.mariadb.directory, self.lake):
                shutil.rmtree(folder, ignore_errors=True)
        else:
            self._take(json.loads(self._told.read_text()))
        self.kafka.launch()
        self.postgres.start()
        self.mariadb.start()
        self.kafka.await_ready()
        if new:
            self._begin()
        (self.folder / "workers").mkdir(exist_ok=True)
        self._cluster = Cluster(self.kafka, self.postgres, self.folder / "workers", self._names)
        self._cluster.start_s = START_S
        for name in WORKERS:
            self.start_worker(name)
        if not (self.folder / "submitted").exists():
            self._submit()
            (self.folder / "submitted").touch()

    def banks(self) -> dict[str, Bank]:
        """The banks on both servers, by the connector that reads each."""
        return {"postgres": PostgresBank(self.postgres, SOURCE_DB), "mariadb": MariaDbBank(self.mariadb, MARIADB_DB)}

    def start_worker(self, name: str) -> None:
        self.cluster.start_worker(name=name, sink_standby="0", file_connector_paths=str(self.folder))

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.stop()
        self.kafka.stop()
        self.postgres.stop()
        self.mariadb.stop()

    @property
    def _told(self) -> Path:
        return self.folder / "servers.json"

    def _take(self, told: Mapping[str, Any]) -> None:
        ports = [*told["kafka"], told["postgres"]["port"], told["mariadb"]["port"]]
        wait(f"ports {ports} are free", lambda: all(is_free(port) for port in ports), PORT_S)
        self.kafka.port, self.kafka.controller_port = told["kafka"]
        self.postgres.take(told["postgres"])
        self.mariadb.port, self.mariadb.password = told["mariadb"]["port"], told["mariadb"]["password"]
        self._names = Names(told["group"], SOURCE_DB, WAREHOUSE_DB)

    def _begin(self) -> None:
        for name in (SOURCE_DB, WAREHOUSE_DB, COPY_DB):
            self.postgres.create_database(name)
        self.mariadb.ask(f"create database {MARIADB_DB}")
        for bank in self.banks().values():
            bank.create()
        self.lake.mkdir()
        self._names = Names(f"soak-{secrets.token_hex(3)}", SOURCE_DB, WAREHOUSE_DB)
        told = {
            "group": self._names.group,
            "kafka": [self.kafka.port, self.kafka.controller_port],
            "postgres": self.postgres.told(),
            "mariadb": {"port": self.mariadb.port, "password": self.mariadb.password},
        }
        partial = self._told.with_suffix(".partial")
        partial.touch(mode=0o600)
        partial.write_text(json.dumps(told))
        partial.replace(self._told)

    def _submit(self) -> None:
        """Tables are there already: a source is refused without them."""
        reader = make_reader(
            self.postgres.dsn(SOURCE_DB), "reader", PASSWORD, [("public", table) for table in TABLES], "soak"
        )
        writer = make_writer(self.postgres.dsn(WAREHOUSE_DB), "writer", PASSWORD, ["public", MARIADB_DB])
        topics = ",".join(self.topics)
        for name, config in {
            "postgres": self._postgres_source(reader),
            "mariadb": self._mariadb_source(),
            "warehouse": self._warehouse(writer, topics),
            "lake": self._lake(topics),
            "copy": self._copy(topics),
        }.items():
            # Kills are no reason to give a task up here.
            answer = self.cluster.rest("PUT", f"/connectors/{name}/config", {**config, "task.restart.max": "100"})
            if answer.status_code not in (200, 201):
                raise SoakError(f"{name}: {answer.status_code} {answer.text}")

    def _postgres_source(self, reader: str) -> dict[str, str]:
        return {
            "connector.class": "postgres",
            **address_of("database", reader, PASSWORD),
            "topic.prefix": f"{self.cluster.group}-postgres",
            "slot.name": "soak",
            "publication.name": "soak",
            "table.include.list": ",".join(f"public.{table}" for table in TABLES),
        }

    def _mariadb_source(self) -> dict[str, str]:
        return {
            "connector.class": "mariadb",
            "database.hostname": HOST,
            "database.port": str(self.mariadb.port),
            "database.user": USER,
            "database.password": self.mariadb.password,
            "database.server.id": "4711",
            "topic.prefix": f"{self.cluster.group}-mariadb",
            "table.include.list": ",".join(f"{MARIADB_DB}.{table}" for table in TABLES),
        }

    @staticmethod
    def _warehouse(writer: str, topics: str) -> dict[str, str]:
        return {
            "connector.class": "spark",
            "topics": topics,
            "warehouse": "postgres",
            **address_of("warehouse", writer, PASSWORD),
            "consistency": "source",
            "trigger.interval.ms": "1000",
            "spark.driver.memory": "640m",
            "spark.cores": "1",
        }

    def _lake(self, topics: str) -> dict[str, str]:
        return {
            "connector.class": "spark",
            "topics": topics,
            "warehouse": "parquet",
            "warehouse.path": str(self.lake),
            "trigger.interval.ms": "5000",
            "spark.driver.memory": "640m",
            "spark.cores": "1",
        }

    def _copy(self, topics: str) -> dict[str, str]:
        own = address_of("x", self.postgres.dsn(COPY_DB), self.postgres.password)
        return {
            "connector.class": "jdbc-sink",
            "topics": topics,
            "connection.url": f"jdbc:postgresql://{HOST}:{self.postgres.port}/{COPY_DB}",
            "connection.username": own["x.user"],
            "connection.password": self.postgres.password,
            "collection.name.format": "${schema}_${table}",
            "schema.evolution": "basic",
        }
