"""Debezium's own JDBC sink, on a genuine Kafka Connect, writes what our source reads: in the end all rows are the same."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests import plain_http
from tests.genuine import parts
from tests.genuine.connect import GenuineConnect
from tests.genuine.sources import formats, source_config
from tests.integration.one_worker import Worker

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.long, pytest.mark.timeout(900)]

AVRO = "io.confluent.connect.avro.AvroConverter"
COLUMNS = {
    "id": "int",
    "part": "text",
    "many": "bigint",
    "price": "numeric(10,2)",
    "ratio": "double precision",
    "what": "text",
    "is_new": "boolean",
    "day": "date",
    "at": "timestamp",
    "at_zone": "timestamptz",
    "data": "bytea",
    "ident": "uuid",
    "doc": "jsonb",
}
ROW = (
    "values ({id}, '{part}', {id} * 10000000000, {id}.25, {id} / 3.0, 'wörd {id}', {id} % 2 = 0, '2024-02-29',"
    " '2024-01-01 01:02:03.456789', '2024-01-01 01:02:03.456789+01', '\\x00ff', gen_random_uuid(), '{{\"a\": {id}}}')"
)
CHANGES = (
    "update items set what = 'changed', price = 9.99 where id = 2",
    "update items set data = null, doc = null, price = null, at = null where id = 3",
    "delete from items where id = 4",
    "update items set part = 'moved' where id = 5",
    "update items set id = 60 where id = 6",
    "delete from items where id = 7; insert into items " + ROW.format(id=7, part="again"),
)


@pytest.fixture
def databases(postgres):
    """The source's and the target's."""
    names = [postgres.create_database() for _ in range(2)]
    connections = [psycopg.connect(postgres.dsn(name), autocommit=True) for name in names]
    yield connections
    for name, connection in zip(names, connections, strict=True):
        connection.close()
        postgres.drop_database(name)


def sink_config(target: psycopg.Connection, prefix: str, **converters: str) -> dict[str, str]:
    where = conninfo_to_dict(target.info.dsn)
    return {
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "connection.url": f"jdbc:postgresql://{where['host']}:{where['port']}/{where['dbname']}",
        "connection.username": str(where["user"]),
        "connection.password": target.info.password,
        "insert.mode": "upsert",
        "delete.enabled": "true",
        "primary.key.mode": "record_key",
        "schema.evolution": "basic",
        "collection.name.format": "${source.table}",
        "topics.regex": rf"{prefix}\.public\..*",
        # The headers of a new key name the columns of the other one: of keys with several types Connect's default converter
        # makes a map without a schema, which this sink takes for a failure.
        "header.converter": "org.apache.kafka.connect.storage.StringConverter",
        "consumer.override.isolation.level": "read_committed",
        "consumer.override.metadata.max.age.ms": "1000",
        **converters,
    }


def rows(db: psycopg.Connection) -> list[tuple[Any, ...]]:
    listed = ", ".join(f"{name}::{kind}" for name, kind in COLUMNS.items())
    try:
        return db.execute(f"select {listed} from items order by id").fetchall()
    except psycopg.errors.UndefinedTable:
        return []


@contextmanager
def delivering(
    kafka: Any, databases: list[psycopg.Connection], folder: Path, form: str
) -> Iterator[tuple[Worker, GenuineConnect]]:
    """Our source on a worker and Debezium's sink on a genuine Kafka Connect, in Connect's JSON or in Avro."""
    source, target = databases
    libraries = [*parts.libraries("connect"), *parts.libraries("jdbc"), *(parts.converter() if form == "avro" else ())]
    worker = Worker(folder, kafka.bootstrap, f"j{uuid.uuid4().hex[:8]}")
    # Confluent's converter does not say by a file of services what it is.
    discovery = {"plugin.discovery": "hybrid_warn" if form == "avro" else "service_load"}
    connect = GenuineConnect(folder / "connect", kafka.bootstrap, libraries, discovery)
    try:
        worker.wait_ready()
        config = source_config(source, worker.group, **formats(schemas=True))
        if form == "avro":
            config = {name: value for name, value in config.items() if ".converter" not in name}
        worker.put("shop", config)
        worker.wait_state("shop", "RUNNING")
        with connect:
            registry = {f"{side}.converter.schema.registry.url": worker.url for side in ("key", "value")}
            converters = {f"{side}.converter": AVRO for side in ("key", "value")} | registry
            made = sink_config(target, worker.group, **(formats(schemas=True) if form == "json" else converters))
            answer = plain_http.post(f"{connect.url}/connectors", json={"name": "jdbc", "config": made}, timeout=60.0)
            assert answer.status_code == 201, answer.text
            yield worker, connect
        assert worker.end() == 0
    finally:
        worker.kill()


@pytest.mark.parametrize("form", ["json", "avro"])
def test_rows_changes_deletes_and_new_keys_arrive(kafka, databases, tmp_path, form):
    source, target = databases
    source.execute(
        f"create table items ({', '.join(f'{name} {kind}' for name, kind in COLUMNS.items())}, primary key (id, part))"
    )
    for number in range(1, 5):
        source.execute("insert into items " + ROW.format(id=number, part="a"))
    with delivering(kafka, databases, tmp_path, form) as (worker, connect):
        worker.wait(lambda: rows(target) == rows(source), lambda: told(connect, source, target), 300.0)
        for number in range(5, 8):
            source.execute("insert into items " + ROW.format(id=number, part="a"))
        for change in CHANGES:
            source.execute(change)
        worker.wait(lambda: rows(target) == rows(source), lambda: told(connect, source, target), 300.0)
        assert [row[0] for row in rows(target)] == [1, 2, 3, 5, 7, 60]


EXTREMES = (
    "create table extremes (id int primary key, free numeric, always numeric not null, at timestamp, at3 timestamp(3), day date,"
    " clock time, zone timestamptz)",
    "insert into extremes values (1, 'NaN', 'NaN', 'infinity', 'infinity', 'infinity', '24:00:00', 'infinity')",
    "insert into extremes values (2, '-Infinity', '-Infinity', '-infinity', '-infinity', '-infinity', '00:00', '-infinity')",
    "insert into extremes values (3, 1.5, 1.5, '0044-03-15 BC', '0044-03-15 BC', '0044-03-15 BC', '12:00', '2024-02-29')",
    "create table keyed (day date, n numeric(8,3), what text, primary key (day, n))",
    "insert into keyed values ('2024-02-29', 1.5, 'a'), ('2024-02-29', 2.5, 'b')",
)
MOST = 1e38
"""The sink takes a number without scale for a floating-point one."""
LAST, FIRST = "9999-12-31", "0001-01-01"
EXPECTED = [
    (1, None, MOST, f"{LAST} 23:59:59.999999", f"{LAST} 23:59:59", LAST, "23:59:59.999999", "infinity"),
    (2, None, -MOST, f"{FIRST} 00:00:00", f"{FIRST} 00:00:00", FIRST, "00:00:00", "-infinity"),
]
KEYED = [("2024-02-29", "2.500", "again"), ("2024-03-01", "1.500", "a")]


def texts(db: psycopg.Connection, statement: str) -> list[tuple[Any, ...]]:
    try:
        return db.execute(statement).fetchall()
    except psycopg.errors.UndefinedTable:
        return []


@pytest.mark.parametrize("form", ["json", "avro"])
def test_values_that_readers_do_not_hold_and_keys_of_dates_and_numbers_arrive(kafka, databases, tmp_path, form):
    source, target = databases
    for statement in EXTREMES:
        source.execute(statement)
    of_extremes = "select id, free, always, at::text, at3::text, day::text, clock::text, zone::text from extremes where id < 3 order by id"
    of_keyed = "select day::text, n::text, what from keyed order by 1, 2"
    with delivering(kafka, databases, tmp_path, form) as (worker, connect):
        status = lambda: plain_http.get(f"{connect.url}/connectors/jdbc/status", timeout=10.0).text[:3000]  # noqa: E731
        worker.wait(lambda: texts(target, of_extremes) == EXPECTED, status, 300.0)
        source.execute(
            "update keyed set what = 'again' where n = 2.5; update keyed set day = '2024-03-01' where n = 1.5"
        )
        worker.wait(lambda: texts(target, of_keyed) == KEYED, status, 300.0)


def told(connect: GenuineConnect, source: psycopg.Connection, target: psycopg.Connection) -> str:
    """What is not as it should be, for whoever reads the failure."""
    status = plain_http.get(f"{connect.url}/connectors/jdbc/status", timeout=10.0).text
    differ = [pair for pair in zip(rows(source), rows(target), strict=False) if pair[0] != pair[1]]
    return f"{len(rows(target))} of {len(rows(source))} rows; {differ[:2]}\n{status[:3000]}"
