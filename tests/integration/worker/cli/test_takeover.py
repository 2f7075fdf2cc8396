"""Debezium on a genuine Kafka Connect is taken over under load and given back: no change is missing, and none comes twice."""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cdcworker.worker.devstack.ports import HOST

from tests.genuine import parts
from tests.genuine.sources import formats, source_config
from tests.integration.connectors.mysql.logged import LoggedServer, find_programs
from tests.integration.connectors.postgres.postgres_reader import drop_slot

from .handed_over import FIRST_KEYS, Writer, goes_to_and_fro, handing_over

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(1200)]
ROUNDS = 1
MADE = {"topic.creation.default.replication.factor": "1", "topic.creation.default.partitions": "1"}
DEBEZIUM = ("api", "config", "connect-plugins", "connector-common", "connector-postgres", "openlineage-api", "util")
BESIDE = ("jackson-datatype-jsr310-", "postgresql-", "protobuf-java-3", "sketches-java-")


def libraries_of_postgres() -> list[Path]:
    found = parts.converter()[0].parent
    wanted = (*(f"debezium-{name}-" for name in DEBEZIUM), *BESIDE)
    return [
        *parts.libraries("connect"),
        *(path for path in sorted(found.glob("*.jar")) if path.name.startswith(wanted)),
    ]


@pytest.mark.postgres
def test_postgres_goes_to_and_fro(kafka: Any, postgres: Any, database: str, db: Any, tmp_path: Path) -> None:
    prefix = f"p{uuid.uuid4().hex[:8]}"
    db.execute("create table orders (id int primary key, n int)")
    many = "insert into orders select {key} + g, {number} from generate_series(0, {count} - 1) g"

    def execute(statements):
        with psycopg.connect(postgres.dsn(database)) as connection:
            for statement in statements:
                connection.execute(statement)

    with handing_over(kafka, tmp_path, libraries_of_postgres(), f"{prefix}.public.orders") as both:
        config = source_config(db, prefix, **MADE, **{"publication.autocreate.mode": "filtered"})
        config |= {"table.include.list": "public.orders", "publication.name": f"dbz_{prefix}"}
        writers = [Writer(key, execute, many) for key in FIRST_KEYS]
        try:
            both.create(config, execute)
            goes_to_and_fro(both, writers, ROUNDS)
        finally:
            both.connect.stop()
            both.worker.kill()
            drop_slot(db, config["slot.name"])


@pytest.mark.mysql
def test_mariadb_goes_to_and_fro(kafka: Any, tmp_path: Path) -> None:
    prefix = f"m{uuid.uuid4().hex[:8]}"
    programs = find_programs()
    assert programs is not None
    server = LoggedServer(programs, tmp_path / "mariadb")
    server.start()
    many = "insert into orders select {key} + seq, {number} from seq_0_to_9999 where seq < {count}"

    def execute(statements):
        with closing(server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("use shop")
            connection.begin()
            for statement in statements:
                cursor.execute(statement)
            connection.commit()

    try:
        server.ask("create database shop", "create table shop.orders (id int primary key, n int)")
        libraries = [*parts.libraries("connect"), *parts.libraries("mariadb")]
        with handing_over(kafka, tmp_path, libraries, f"{prefix}.shop.orders") as both:
            config = {
                "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
                "database.hostname": HOST,
                "database.port": str(server.port),
                "database.user": "cdc",
                "database.password": server.password,
                "database.include.list": "shop",
                "database.server.id": "5001",
                "topic.prefix": prefix,
                "schema.history.internal.kafka.bootstrap.servers": kafka.bootstrap,
                "schema.history.internal.kafka.topic": f"{prefix}.history",
                **formats(schemas=False),
                **MADE,
            }
            writers = [Writer(key, execute, many) for key in FIRST_KEYS]
            both.create(config, execute)
            goes_to_and_fro(both, writers, ROUNDS)
    finally:
        server.remove()
