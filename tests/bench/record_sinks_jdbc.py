"""The sink into PostgreSQL beside bare clients that write the same rows to the same server, in the same run.

Three contenders, in turn, each round: a real task of the sink; a client that has the rows in memory and brings them into the table by COPY
into a temporary table and one INSERT ... ON CONFLICT per batch; and one that reads and decodes them from Kafka too. All write
batches of the same size over one connection per partition, and a round in which a row is missing fails.

Then records come at an even rate: how long it takes from the time at which the broker has a record until a reader of the table sees its row.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import psycopg
from cdcworker.schemas.decode import RecordDecoder
from cdcworker.schemas.log import SchemaLog
from cdcworker.worker.devstack.ports import HOST
from cdcworker.worker.devstack.postgres import EmbeddedPostgres
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from psycopg.conninfo import conninfo_to_dict

from tests.record_sinks import TaskProcess, Topics

from .measure import wait

BATCH: Final = 1_000
WARM: Final = 500
TABLE: Final = "create table if not exists orders (id bigint primary key, n integer, a text, d double precision)"
_STAGE: Final = (
    "create temporary table if not exists s (id bigint, n integer, a text, d double precision) on commit delete rows"
)
_MERGE: Final = """insert into orders select * from s
    on conflict (id) do update set n = excluded.n, a = excluded.a, d = excluded.d"""


def config_of(dsn: str) -> Mapping[str, str]:
    found = conninfo_to_dict(dsn)
    return {
        "connector.class": "jdbc-sink",
        "connection.url": f"jdbc:postgresql://{HOST}:{found['port']}/{found['dbname']}",
        "connection.username": str(found["user"]),
        "connection.password": str(found.get("password", "")),
        "collection.name.format": "orders",
        "batch.size": str(BATCH),
    }


def write_rows(connection: Any, rows: Sequence[Any]) -> None:
    with connection.transaction():
        with connection.cursor() as cursor, cursor.copy("copy s from stdin") as copy:
            for row in rows:
                copy.write_row((row["id"], row["n"], row["a"], row["d"]))
        connection.execute(_MERGE)


def write_all(dsn: str, lanes: Sequence[Sequence[Any]]) -> float:
    """Writes decoded rows in batches, each list over a connection of its own; returns the seconds."""

    def lane(rows: Sequence[Any]) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(_STAGE)
            for at in range(0, len(rows), BATCH):
                write_rows(connection, [row["after"] for row in rows[at : at + BATCH]])

    began = time.monotonic()
    threads = [threading.Thread(target=lane, args=(rows,)) for rows in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - began


def count_of(connection: Any) -> int:
    return int(connection.execute("select count(*) from orders").fetchone()[0])


def sink_s(topics: Topics, dsn: str, count: int, folder: Path, name: str) -> tuple[float, float]:
    """The seconds of a task from its first row to its last, and its memory in MB."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        task = TaskProcess(topics, config_of(dsn), (1, 0), folder, name=name)
        try:
            wait("the first row", lambda: count_of(connection) > 0, 60, 0.005)
            began, already = time.monotonic(), count_of(connection)
            wait("all rows", lambda: count_of(connection) >= count, 300, 0.02)
            seconds = (time.monotonic() - began) * count / max(1, count - already)
            wait("a report of it all", lambda: task.numbers.get("changes", 0) >= count, 30)
            task.stop()
        finally:
            task.kill()
        if count_of(connection) != count:
            sys.exit(f"{count_of(connection)} rows came, not {count}")
    return seconds, max(one["rss_mb"] for one in task.reports)


def follow(bootstrap: str, topic: str, schemas: Sequence[Any], dsn: str) -> None:
    """A process that writes what comes into a topic as soon as it comes, by nothing but the libraries."""
    decoder = RecordDecoder(SchemaLog((record.key, record.value) for record in schemas))
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bare", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(4)])
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_STAGE)
        while True:
            first = consumer.poll(0.1)
            found = [] if first is None else [first, *consumer.consume(BATCH - 1, 0)]
            rows = [decoder.decode(one.value())["after"] for one in found if not one.error()]
            if rows:
                write_rows(connection, rows)


def visible_ms(
    kafka: Any, server: Any, options: Any, folder: Path, row: Any, paced: Callable[..., None], *, bare: bool
) -> tuple[list[float], float]:
    """How late rows were at an even rate, in ms in rising order, and the memory of the task in MB."""
    dsn = server.dsn(server.create_database())
    topics = Topics(kafka, 4, message_timestamp_type="LogAppendTime")
    for number in range(int(options.rate * options.seconds) + WARM):
        topics.stream.insert(row, (number, number, "x" * 20, 0.5))
    records = list(topics.stream.records)
    topics.forget()
    topics.flush()
    seen: list[tuple[float, int]] = []
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        reader.execute(TABLE)
        if bare:
            arguments = (kafka.bootstrap, topics.topic, topics.stream.schemas.records, dsn)
            follower = multiprocessing.get_context("spawn").Process(target=follow, args=arguments, daemon=True)
            follower.start()
            stack.callback(follower.kill)
        else:
            task = TaskProcess(topics, config_of(dsn), (1, 0), folder)
            stack.callback(task.kill)
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 5})
        paced(producer, records[:WARM], options.rate)
        wait("the first rows", lambda: count_of(reader) >= WARM, 60)
        writer = threading.Thread(target=paced, args=(producer, records[WARM:], options.rate))
        writer.start()
        while not seen or seen[-1][1] < len(records):
            count = count_of(reader)
            if not seen or count > seen[-1][1]:
                seen.append((time.time() * 1000, count))
            time.sleep(0.002)
        writer.join()
        rss = 0.0 if bare else max(one["rss_mb"] for one in task.reports)
    appended = sorted(message.timestamp()[1] for message in topics.read(topics.topic))
    late, at = [], WARM
    for moment, count in seen:
        late += [moment - appended[number] for number in range(at, count)]
        at = max(at, count)
    return sorted(late), rss


def measured(kafka: Any, options: Any, folder: Path, shared: SimpleNamespace) -> dict[str, float]:
    """`shared`: what the benchmark of the web service has too: `fill`, `read_all`, `paced`, `percentile`, `row`."""
    server = EmbeddedPostgres(folder / "postgres")
    server.start()
    try:
        return _measured(kafka, server, options, folder, shared)
    finally:
        server.remove()


def _measured(kafka: Any, server: Any, options: Any, folder: Path, shared: SimpleNamespace) -> dict[str, float]:
    rows, rounds = options.rows, []
    topics = shared.fill(kafka, rows)
    decoder = RecordDecoder(topics.stream.schemas.log)
    for number in range(options.rounds):
        bare, own = (server.dsn(server.create_database()) for _ in range(2))
        began = time.monotonic()
        decoded = [[decoder.decode(value) for value in lane] for lane in shared.read_all(topics, rows)]
        read_s = time.monotonic() - began
        for dsn in (bare, own):
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(TABLE)
        bare_s = write_all(bare, decoded)
        seconds, rss = sink_s(topics, own, rows, folder, f"{topics.name}-{number}")
        rounds.append(
            SimpleNamespace(sink=rows / seconds, bare=rows / bare_s, reader=rows / (bare_s + read_s), rss=rss)
        )
        print(
            f"round {number + 1}, PostgreSQL: sink {rows / seconds:,.0f}/s, client {rows / bare_s:,.0f}/s,"
            f" with reading {rounds[-1].reader:,.0f}/s"
        )
    late, rss = visible_ms(kafka, server, options, folder, shared.row, shared.paced, bare=False)
    bare_late, _ = visible_ms(kafka, server, options, folder, shared.row, shared.paced, bare=True)
    median = statistics.median
    return {
        "jdbc_postgres_changes_per_s": round(median(one.sink for one in rounds)),
        "jdbc_postgres_bare_client_changes_per_s": round(median(one.bare for one in rounds)),
        "jdbc_postgres_vs_bare_client_ratio": round(median(one.sink / one.bare for one in rounds), 3),
        "jdbc_postgres_vs_bare_reader_ratio": round(median(one.sink / one.reader for one in rounds), 3),
        **{f"jdbc_postgres_visible_p{share}_ms": shared.percentile(late, share) for share in (50, 99)},
        **{f"jdbc_postgres_bare_visible_p{share}_ms": shared.percentile(bare_late, share) for share in (50, 99)},
        "jdbc_postgres_rss_mb": round(max(rss, *(one.rss for one in rounds)), 1),
    }
