"""Source to topic and topic to warehouse on real parts, beside the walsender's own limit on the same rows.

Each round fills one narrow table while the source is paused, drains a slot with `pg_recvlogical` to nowhere (the limit),
then lets the source catch up, then the sink. Every round is checked: as many records in the topic as rows in the table,
as many rows in the warehouse.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
from cdcworker.worker.devstack.kafka import EmbeddedKafka
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.devstack.postgres import EmbeddedPostgres, find_programs
from cdcworker.worker.devstack.process import Program
from confluent_kafka import Consumer, TopicPartition

from .measure import cpu_s, finish, median, rss_mb, tree, wait

ROWS_PER_TRANSACTION = 100
TABLE = "(id bigint primary key, n int not null, name text, price numeric(10,2), at timestamptz not null)"
FILL = """insert into {table} select i, i % 1000, 'name of row ' || i, (i % 100000) / 100.0, now()
          from generate_series({first}, {last}) i"""
TIMEOUT_S = 900.0


@dataclass
class Stage:
    """The running parts of a benchmark."""

    postgres: EmbeddedPostgres
    kafka: EmbeddedKafka
    worker: Program
    rest: httpx.Client

    def put(self, name: str, config: dict[str, str]) -> None:
        answer = self.rest.put(f"/connectors/{name}/config", json=config)
        if answer.status_code not in (200, 201):
            sys.exit(f"{name}: {answer.status_code} {answer.text}")

    def running(self, name: str, state: str = "RUNNING") -> bool:
        status = self.rest.get(f"/connectors/{name}/status").json()
        tasks = status.get("tasks") or []
        if any(task["state"] == "FAILED" for task in tasks):
            sys.exit(f"{name} failed: {tasks}")
        return bool(tasks) and all(task["state"] == state for task in tasks)


def connection_config(postgres: EmbeddedPostgres, prefix: str, dbname: str) -> dict[str, str]:
    info = psycopg.conninfo.conninfo_to_dict(postgres.dsn(dbname))
    names = {"hostname": "host", "port": "port", "user": "user", "password": "password", "dbname": "dbname"}
    return {f"{prefix}.{ours}": str(info[theirs]) for ours, theirs in names.items()}


def fill(connection: psycopg.Connection[Any], table: str, rows: int) -> None:
    for first in range(1, rows + 1, ROWS_PER_TRANSACTION):
        last = min(rows, first + ROWS_PER_TRANSACTION - 1)
        connection.execute(FILL.format(table=table, first=first, last=last))


def drain_limit(stage: Stage, slot: str, publication: str, end: str) -> float:
    """Seconds that `pg_recvlogical` takes to read the slot up to `end` and drop it."""
    program = find_programs() / "pg_recvlogical"
    argv = [str(program), "-d", stage.postgres.dsn("bench"), "--slot", slot, "--start", "--no-loop", "-f", "/dev/null"]
    argv += ["--endpos", end, "-F", "0", "-o", "proto_version=1", "-o", f"publication_names={publication}"]
    start = time.monotonic()
    subprocess.run(argv, check=True, capture_output=True, timeout=TIMEOUT_S)
    return time.monotonic() - start


def count_records(bootstrap: str, topic: str, expected: int) -> tuple[int, float]:
    """Records that a read_committed reader sees, and the seconds between the first's and the last's timestamps."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "isolation.level": "read_committed"})
    count, first, last = 0, 0, 0
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        deadline = time.monotonic() + TIMEOUT_S
        while count < expected and time.monotonic() < deadline:
            for message in consumer.consume(10_000, 1.0):
                if message.error() is None and message.value() is not None:
                    stamp = message.timestamp()[1]
                    first, last = first or stamp, max(last, stamp)
                    count += 1
    finally:
        consumer.close()
    return count, max(last - first, 1) / 1000


def source_round(stage: Stage, number: int, rows: int) -> dict[str, float]:
    table, name = f"narrow_{number}", f"source-{number}"
    with psycopg.connect(stage.postgres.dsn("bench"), autocommit=True) as connection:
        connection.execute(f"create table {table} {TABLE}")
        connection.execute(f"create publication limit_{number} for table {table}")
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (f"limit_{number}",))
        stage.put(
            name,
            {
                "connector.class": "postgres",
                **connection_config(stage.postgres, "database", "bench"),
                "topic.prefix": f"bench{number}",
                "slot.name": f"source_{number}",
                "publication.name": f"source_{number}",
                "table.include.list": f"public.{table}",
            },
        )
        wait(f"{name} runs", lambda: stage.running(name), 60)
        stage.rest.put(f"/connectors/{name}/pause")
        wait(f"{name} is paused", lambda: stage.running(name, "PAUSED"), 60)
        fill(connection, table, rows)
        end = connection.execute("select pg_current_wal_lsn()").fetchone()[0]  # type: ignore[index]
        limit_s = drain_limit(stage, f"limit_{number}", f"limit_{number}", end)
        connection.execute("select pg_drop_replication_slot(%s)", (f"limit_{number}",))
    before = cpu_s(tree(stage.worker.pid))
    stage.rest.put(f"/connectors/{name}/resume")
    count, seconds = count_records(stage.kafka.bootstrap, f"bench{number}.public.{table}", rows)
    used = cpu_s(tree(stage.worker.pid)) - before
    if count != rows:
        sys.exit(f"{count} records in the topic, {rows} rows in the table")
    memory = rss_mb(tree(stage.worker.pid))
    stage.rest.put(f"/connectors/{name}/stop")
    return {
        "limit_events_per_s": rows / limit_s,
        "source_events_per_s": rows / seconds,
        "source_vs_limit_ratio": limit_s / seconds,
        "source_cpu_s_per_million_events": used / rows * 1e6,
        "source_worker_tree_rss_mb": memory,
    }


def sink_round(stage: Stage, number: int, rows: int) -> dict[str, float]:
    table, name = f"narrow_{number}", f"sink-{number}"
    before = cpu_s(tree(stage.worker.pid))
    start = time.monotonic()
    stage.put(
        name,
        {
            "connector.class": "spark",
            "topics": f"bench{number}.public.{table}",
            "warehouse": "postgres",
            **connection_config(stage.postgres, "warehouse", "warehouse"),
        },
    )
    first = 0.0
    with psycopg.connect(stage.postgres.dsn("warehouse"), autocommit=True) as connection:

        def applied() -> int:
            nonlocal first
            exists = connection.execute("select to_regclass(%s)", (f"public.{table}",)).fetchone()
            if not exists or exists[0] is None:
                return 0
            first = first or time.monotonic()
            found = connection.execute(f"select count(*) from public.{table}").fetchone()
            return int(found[0]) if found else 0

        wait(f"{name} has {rows} rows", lambda: applied() >= rows, TIMEOUT_S, 0.1)
        seconds = time.monotonic() - start
        count = applied()
    used = cpu_s(tree(stage.worker.pid)) - before
    if count != rows:
        sys.exit(f"{count} rows in the warehouse, {rows} in the source")
    stage.rest.delete(f"/connectors/{name}")
    stage.rest.delete(f"/connectors/source-{number}")
    return {
        "sink_changes_per_s_with_start": rows / seconds,
        "sink_first_batch_visible_s": first - start,
        "sink_cpu_s_per_million_changes_with_start": used / rows * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as folder:
        root = Path(folder)
        root.chmod(0o711)
        postgres, kafka = EmbeddedPostgres(root / "postgres"), EmbeddedKafka(root / "kafka")
        with postgres, kafka:
            postgres.create_database("bench")
            postgres.create_database("warehouse")
            (port,) = free_ports(1)
            properties = root / "worker.properties"
            properties.write_text(
                f"bootstrap.servers={kafka.bootstrap}\ngroup.id=bench\nlisteners=http://127.0.0.1:{port}\n"
                f"state.dir={root / 'state'}\n"
            )
            argv = [str(Path(sys.executable).parent / "cdcworker"), "start", "--config", str(properties)]
            worker = Program("worker", argv, root / "worker.log")
            try:
                rest = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
                stage = Stage(postgres, kafka, worker, rest)
                wait("the worker is ready", lambda: healthy(rest), 60, 0.1)
                rows = []
                for number in range(options.rounds):
                    figures = source_round(stage, number, options.rows) | sink_round(stage, number, options.rows)
                    print(f"round {number + 1}: " + " ".join(f"{k}={v:,.2f}" for k, v in figures.items()), flush=True)
                    rows.append(figures)
                rest.close()
            finally:
                worker.stop(timeout_s=25)
    finish({"rows": options.rows, "rounds": options.rounds, **median(rows)})


def healthy(rest: httpx.Client) -> bool:
    try:
        return rest.get("/health").status_code == 200
    except httpx.TransportError:
        return False


if __name__ == "__main__":
    main()
