"""The sink alone: changes that stand in Kafka into warehouses, beside what the target itself can take of the same rows.

Each round loads the workload's reduced rows by COPY and MERGE from a plain client into tables of their own (the limit),
then runs the sink into others; the order turns from round to round. What counts is the steady state: from the batch
that brings the last row that stood there before to the last one. Every round is checked: all rows equal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from cdcworker.connectors.spark.parquet import ParquetWriter
from cdcworker.worker.devstack import jars
from cdcworker.worker.devstack.java import find_java
from cdcworker.worker.devstack.kafka import EmbeddedKafka
from cdcworker.worker.devstack.postgres import EmbeddedPostgres

sys.path.insert(0, str(Path(__file__).parent))
from measure import cpu_s, finish, rss_mb, tree, wait
from sink_floor import batch_of, compare_decoders, compare_readers, parquet_limit
from sink_load import COLUMNS, DDL, Feed, Slice, Workload

SCHEMAS = "bench.schemas"
TIMEOUT_S = 900.0
POLL_S = 0.002
TABLES_CHANGES_MIN = 200_000
"""Several batches of them, or there is no steady state."""


@dataclass
class Stage:
    root: Path
    postgres: EmbeddedPostgres
    kafka: EmbeddedKafka
    feed: Feed
    sinks: int = 0

    @property
    def dsn(self) -> str:
        return self.postgres.dsn("warehouse")

    def spec(self, name: str, topics: Sequence[str], config: Mapping[str, str]) -> dict[str, Any]:
        info = psycopg.conninfo.conninfo_to_dict(self.dsn)
        names = {"hostname": "host", "port": "port", "user": "user", "password": "password", "dbname": "dbname"}
        return {
            "connector": name,
            "task": 0,
            "incarnation": "bench",
            "epoch": [1, 0],
            "topics": list(topics),
            "kafka": {"bootstrap.servers": self.kafka.bootstrap},
            "schema_topic": SCHEMAS,
            "state_dir": str(self.root / "state"),
            "java_home": str(find_java().home),
            "jars": [str(path) for path in jars.ensure("spark")],
            "cache_dir": str(jars.cache_dir()),
            "file_roots": [str(self.root)],
            "config": {
                "connector.class": "spark",
                "topics": ",".join(topics),
                **{f"warehouse.{ours}": str(info[theirs]) for ours, theirs in names.items()},
                **config,
            },
        }


@dataclass
class Run:
    """A sink that runs; the clock, the reports and the processor seconds of everybody when they came in."""

    process: subprocess.Popen[str]
    reports: list[tuple[float, dict[str, Any], dict[str, float]]] = field(default_factory=list)

    def until(self, changes: int) -> tuple[float, dict[str, Any], dict[str, float]]:
        wait(f"{changes} changes", lambda: self.changes() >= changes or self.process.poll() is not None, TIMEOUT_S)
        if self.changes() < changes:
            sys.exit(f"the sink ended: {self.reports[-1:]}")
        return next(row for row in self.reports if row[1].get("changes", 0) >= changes)

    def changes(self) -> int:
        return int(self.reports[-1][1].get("changes", 0)) if self.reports else 0


@contextmanager
def sink(stage: Stage, topics: Sequence[str], **config: str) -> Iterator[Run]:
    stage.sinks += 1
    spec = stage.spec(f"sink{stage.sinks}", topics, config)
    with (stage.root / f"sink{stage.sinks}.log").open("w") as log:
        argv = [sys.executable, str(Path(__file__).with_name("sink_child.py"))]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    run = Run(process)
    assert process.stdin is not None
    assert process.stdout is not None
    lines = process.stdout

    def read() -> None:
        for line in lines:
            now = time.monotonic()
            run.reports.append((now, json.loads(line), used(stage, process.pid)))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        print(json.dumps(spec), file=process.stdin, flush=True)
        yield run
    finally:
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
        reader.join(5)


def used(stage: Stage, pid: int) -> dict[str, float]:
    return {
        "sink": cpu_s(tree(pid)),
        "postgres": cpu_s(tree(stage.postgres.pid)),
        "broker": cpu_s(tree(stage.kafka.pid)),
    }


# -- PostgreSQL ---------------------------------------------------------------------------------------------------------


def limit(stage: Stage, workload: Workload, slices: Sequence[Slice], schema: str) -> dict[str, float]:
    """Changes per second of COPY into a temporary table, DELETE and MERGE from it, one transaction per piece."""
    names = ", ".join(f'"{column.name}"' for column in COLUMNS)
    sets = ", ".join(f'"{column.name}" = s."{column.name}"' for column in COLUMNS[1:])
    with psycopg.connect(stage.dsn, autocommit=True) as connection:
        connection.execute(f"create schema {schema}")
        connection.execute("set synchronous_commit = off")
        for statement in ("set temp_buffers = '64MB'", "set work_mem = '64MB'"):
            connection.execute(statement)
        for at in range(workload.tables):
            connection.execute(f"create table {schema}.t{at:02d} {DDL}")
            connection.execute(f"create temp table s{at} (like {schema}.t{at:02d}) on commit delete rows")
            connection.execute(f"create temp table d{at} (id bigint) on commit delete rows")
        began, before, changes = time.monotonic(), cpu_s(tree(stage.postgres.pid)), 0
        for number, piece in enumerate(slices):
            if number == 1:
                began, before = time.monotonic(), cpu_s(tree(stage.postgres.pid))
            with connection.transaction(), connection.cursor() as cursor:
                for at in range(workload.tables):
                    with cursor.copy(f"copy d{at} from stdin") as copy:
                        copy.write(piece.gone[at])
                    with cursor.copy(f"copy s{at} from stdin") as copy:
                        copy.write(piece.rows[at])
                    table = f"{schema}.t{at:02d}"
                    connection.execute(f"delete from {table} t using d{at} d where t.id = d.id")
                    connection.execute(
                        f"""merge into {table} t using s{at} s on t.id = s.id
                            when matched then update set {sets}
                            when not matched then insert ({names}) values ({names})"""
                    )
            changes += piece.changes if number else 0
        seconds = time.monotonic() - began
        used_s = cpu_s(tree(stage.postgres.pid)) - before
    equal(stage, workload, schema)
    return {
        "limit_changes_per_s": changes / seconds,
        "limit_postgres_cpu_s_per_million": used_s / changes * 1e6,
    }


def expect(stage: Stage, workload: Workload) -> None:
    with psycopg.connect(stage.dsn, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("create schema expected")
        for at in range(workload.tables):
            cursor.execute(f"create unlogged table expected.t{at:02d} {DDL}")
            with cursor.copy(f"copy expected.t{at:02d} from stdin") as copy:
                copy.write(workload.expected(at))


def equal(stage: Stage, workload: Workload, schema: str) -> None:
    names = ", ".join(f'"{column.name}"' for column in COLUMNS)
    with psycopg.connect(stage.dsn, autocommit=True) as connection:
        for at in range(workload.tables):
            found, wanted = f"select {names} from {schema}.t{at:02d}", f"select {names} from expected.t{at:02d}"
            rows = connection.execute(
                f"""select (select count(*) from ({found} except all {wanted}) a),
                           (select count(*) from ({wanted} except all {found}) b)"""
            ).fetchone()
            if rows != (0, 0):
                sys.exit(f"{schema}.t{at:02d} differs from what was sent: {rows}")


def steady(run: Run, workload: Workload) -> dict[str, float]:
    """From the first batch past what stood there before to the last."""
    total = workload.preload + workload.changes
    start, first, cpu = run.until(workload.preload)
    end, last, cpu_end = run.until(total)
    million = (last["changes"] - first["changes"]) / 1e6
    figures = {f"{name}_cpu_s_per_million": (cpu_end[name] - cpu[name]) / million for name in cpu}
    # What two cores that nobody else uses could do at best: a figure that a busy machine disturbs least.
    ceiling = 2e6 / sum(figures.values())
    return {
        "changes_per_s": million * 1e6 / (end - start),
        "changes_per_s_by_cpu_of_2_cores": ceiling,
        "rss_mb": rss_mb(tree(run.process.pid)),
        **figures,
    }


def postgres_round(stage: Stage, workload: Workload, number: int) -> dict[str, float]:
    schema = f"sink{number}"
    began = time.monotonic()
    with sink(stage, workload.topics, **{"warehouse.schema": schema}) as run:
        figures = steady(run, workload)
        ready = run.reports[-1][1]["start_ms"].get("batch", 0) / 1000
        batches = [row[1]["batch_ms"] for row in run.reports if row[1].get("batch_ms")]
    for name in ("read", "build", "apply"):
        figures[f"{name}_ms_per_batch"] = statistics.median(batch.get(name, 0) for batch in batches)
    equal(stage, workload, schema)
    with psycopg.connect(stage.dsn, autocommit=True) as connection:
        connection.execute("drop schema " + schema + " cascade")
    figures["round_s"] = time.monotonic() - began
    return {f"postgres_{name}": value for name, value in figures.items()} | {"driver_ready_s": ready}


def parquet_part(stage: Stage, workload: Workload) -> dict[str, float]:
    """Every change as a row of its own into files."""
    lake = stage.root / "lake"
    settings = {"warehouse": "parquet", "warehouse.path": str(lake), "output.mode": "log"}
    settings["max.batch.records"] = str(batch_of(workload.changes))
    with sink(stage, workload.topics, **settings) as run:
        figures = steady(run, workload)
    writer = ParquetWriter(str(lake), f"sink{stage.sinks}")
    for at, topic in enumerate(workload.topics):
        found = writer.rows(topic)
        changes = [row for batch in found.batches for row in batch.to_pylist()] if found else []
        held: dict[int, int] = {}
        for row in sorted(changes, key=lambda row: row["_cdc_position"]):
            if row["_cdc_op"] == "d":
                del held[row["id"]]
            else:
                held[row["id"]] = row["quantity"]
        if held != {id: state.version for id, state in workload.rows[at].items()}:
            sys.exit(f"the log of {topic} does not end where the source does")
    return {f"parquet_{name}": value for name, value in figures.items()}


def compare_tables(stage: Stage, changes: int) -> dict[str, float]:
    """The same number of rows into one table and into a hundred."""
    took: dict[int, dict[str, float]] = {}
    for tables in (1, 100):
        workload = Workload(f"w{tables}", tables, changes // 5, changes)
        stage.feed.load(workload)
        with sink(stage, workload.topics, **{"warehouse.schema": f"wide{tables}"}) as run:
            took[tables] = steady(run, workload)
    cpu = {n: took[n]["sink_cpu_s_per_million"] + took[n]["postgres_cpu_s_per_million"] for n in took}
    return {
        "tables_1_changes_per_s": took[1]["changes_per_s"],
        "tables_100_changes_per_s": took[100]["changes_per_s"],
        "tables_100_vs_1_ratio": took[1]["changes_per_s"] / took[100]["changes_per_s"],
        "tables_100_vs_1_cpu_ratio": cpu[100] / cpu[1],
    }


def visible(stage: Stage, seconds: float, per_s: int = 100) -> dict[str, float]:
    """From the commit of a change in Kafka until its row is there, at a steady pace."""
    workload = Workload("seen", 1, 1, 0)
    stage.feed.load(workload)
    committed: dict[int, float] = {}
    seen: dict[int, float] = {}
    ended = threading.Event()

    def watch() -> None:
        with psycopg.connect(stage.dsn, autocommit=True) as connection:
            newest = 0
            while not ended.is_set():
                row = connection.execute("select max(id) from seen.t00", prepare=True).fetchone()
                now = time.monotonic()
                for id in range(newest + 1, (row[0] if row and row[0] else 0) + 1):
                    seen[id] = now
                newest = max(newest, row[0] if row and row[0] else 0)
                time.sleep(POLL_S)

    with sink(stage, workload.topics, **{"warehouse.schema": "seen"}) as run:
        run.until(1)
        before = run.reports[-1][2]["sink"]
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        began = time.monotonic()
        total = int(seconds * per_s)
        for number in range(1, total + 1):
            pause = began + number / per_s - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            stage.feed.write(workload.prefix, [workload._insert(0)])
            committed[number] = time.monotonic()
        wait("the last row", lambda: total in seen, 60)
        cpu = run.reports[-1][2]["sink"] - before
        ended.set()
        watcher.join(10)
    delays = sorted((seen[id] - at) * 1000 for id, at in committed.items() if id > total // 10)
    return {
        "visible_p50_ms": statistics.median(delays),
        "visible_p99_ms": delays[int(len(delays) * 0.99)],
        "visible_sink_cores": cpu / (time.monotonic() - began),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--tables", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the latency part")
    parser.add_argument("--parts", default="decode,read,postgres,parquet,tables,visible")
    parser.add_argument("--keep", type=Path, help="keep the sinks' logs here")
    options = parser.parse_args()
    parts = options.parts.split(",")
    figures: dict[str, float] = {}
    if "decode" in parts:
        figures |= told(compare_decoders())
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as folder:
        root = Path(folder)
        root.chmod(0o711)
        with EmbeddedPostgres(root / "postgres") as postgres, EmbeddedKafka(root / "kafka") as kafka:
            postgres.create_database("warehouse")
            stage = Stage(root, postgres, kafka, Feed(kafka.bootstrap, SCHEMAS))
            try:
                if {"postgres", "parquet", "read"} & set(parts):
                    workload = Workload("bench", options.tables, options.changes // 5, options.changes)
                    began = time.monotonic()
                    slices = stage.feed.load(workload)
                    figures |= told({"distinct_keys": workload.distinct, "load_s": time.monotonic() - began})
                if "read" in parts:
                    spec = stage.spec("floor", workload.topics, {})
                    figures |= told(compare_readers(spec, workload.preload, workload.changes, kafka.pid))
                if "postgres" in parts:
                    figures |= postgres_part(stage, workload, slices, options.rounds)
                if "parquet" in parts:
                    spec, sizes = stage.spec("limit", workload.topics, {}), (workload.preload, workload.changes)
                    figures |= told(parquet_limit(spec, *sizes, kafka.pid, lambda id: stage.feed.schema(id)))
                    figures |= told(parquet_part(stage, workload))
                    figures["parquet_vs_limit_ratio"] = (
                        figures["parquet_changes_per_s"] / figures["parquet_limit_per_s"]
                    )
                if "tables" in parts:
                    figures |= told(compare_tables(stage, max(options.changes // 5, TABLES_CHANGES_MIN)))
                if "visible" in parts:
                    figures |= told(visible(stage, options.seconds))
            finally:
                if options.keep:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    for log in root.glob("sink*.log"):
                        (options.keep / log.name).write_bytes(log.read_bytes())
    finish({name: round(value, 3) for name, value in figures.items()})


def postgres_part(stage: Stage, workload: Workload, slices: Sequence[Slice], count: int) -> dict[str, float]:
    expect(stage, workload)
    rounds = []
    for number in range(1, count + 1):
        steps = [
            lambda number=number: limit(stage, workload, slices, f"limit{number}"),
            lambda number=number: postgres_round(stage, workload, number),
        ]
        found: dict[str, float] = {}
        for step in steps if number % 2 else reversed(steps):
            found |= step()
        with psycopg.connect(stage.dsn, autocommit=True) as connection:
            connection.execute(f"drop schema limit{number} cascade")
        found["postgres_vs_limit_ratio"] = found["postgres_changes_per_s"] / found["limit_changes_per_s"]
        rounds.append(told(found, f"round {number}: "))
    return {name: statistics.median(row[name] for row in rounds) for name in rounds[0]} | {"changes": workload.changes}


def told(figures: dict[str, float], head: str = "") -> dict[str, float]:
    print(head + " ".join(f"{name}={value:,.2f}" for name, value in figures.items()), flush=True)
    return figures


if __name__ == "__main__":
    main()
