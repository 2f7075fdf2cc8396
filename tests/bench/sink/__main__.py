"""The sink alone: changes that stand in Kafka into warehouses, beside what the target itself can take of the same rows.

Each round loads the workload's reduced rows by COPY and MERGE from a plain client into tables of their own (the limit),
then runs the sink into others; the order turns from round to round. What counts is the steady state: from the batch
that brings the last row that stood there before to the last one. Every round is checked: all rows equal.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg
from cdcworker.connectors.api.table_batch import IS_CURRENT, OP, POSITION, UNCHANGED
from cdcworker.connectors.warehouses.parquet.writer import ParquetWriter
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from cdcworker.worker.devstack.kafka import EmbeddedKafka
from cdcworker.worker.devstack.postgres import EmbeddedPostgres

from ..measure import cpu_s, finish, tree, wait
from . import clickhouse, duckdb_file, mysql, object_store
from . import equal as whole
from . import lakes as lakes
from . import verify as verify
from .floor import batch_of, compare_decoders, compare_readers, parquet_limit
from .load import COLUMNS, DDL, Feed, Slice, Workload
from .stage import SCHEMAS, Stage, sink, steady

POLL_S = 0.002
TABLES_CHANGES_MIN = 200_000
"""Several batches of them, or there is no steady state."""
KEYS_SHARE_MIN = 0.7
"""Distinct keys of the changes: fewer would be reduced to less work."""
HOT_TABLES, HOT_KEYS = 4, 50


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
        cursor.execute("drop schema if exists expected cascade")
        cursor.execute("create schema expected")
        for at in range(workload.tables):
            cursor.execute(f"create unlogged table expected.t{at:02d} {DDL}")
            with cursor.copy(f"copy expected.t{at:02d} from stdin") as copy:
                copy.write(workload.expected(at))


def equal(stage: Stage, workload: Workload, schema: str, chosen: str = "") -> None:
    names = ", ".join(f'"{column.name}"' for column in COLUMNS)
    with psycopg.connect(stage.dsn, autocommit=True) as connection:
        for at in range(workload.tables):
            found, wanted = f"select {names} from {schema}.t{at:02d}{chosen}", f"select {names} from expected.t{at:02d}"
            rows = connection.execute(
                f"""select (select count(*) from ({found} except all {wanted}) a),
                           (select count(*) from ({wanted} except all {found}) b)"""
            ).fetchone()
            if rows != (0, 0):
                sys.exit(f"{schema}.t{at:02d} differs from what was sent: {rows}")


def postgres_round(stage: Stage, workload: Workload, number: int, mode: str = "current") -> dict[str, float]:
    """One sink in an output mode, whose rows of today are compared."""
    schema = f"{mode}{number}"
    began = time.monotonic()
    with sink(stage, workload.topics, **{"warehouse.schema": schema, "output.mode": mode}) as run:
        figures = steady(run, workload)
        ready = run.reports[-1][1]["start_ms"]["batch"] / 1000
        batches = [row[1]["batch_ms"] for row in run.reports if row[1].get("batch_ms")]
    for name in ("read", "build", "apply"):
        figures[f"{name}_ms_per_batch"] = statistics.median(batch.get(name, 0) for batch in batches)
    equal(stage, workload, schema, f" where {IS_CURRENT}" if mode == "scd2" else "")
    with psycopg.connect(stage.dsn, autocommit=True) as connection:
        connection.execute("drop schema " + schema + " cascade")
    figures["round_s"] = time.monotonic() - began
    return {f"postgres_{name}": value for name, value in figures.items()} | {"driver_ready_s": ready}


def scd2_part(stage: Stage, workload: Workload, count: int) -> dict[str, float]:
    """Every version of a row, beside the current rows of the same changes."""
    expect(stage, workload)
    rounds = []
    for number in range(1, count + 1):
        found = {
            mode: postgres_round(stage, workload, number + count, mode)
            for mode in (("current", "scd2") if number % 2 else ("scd2", "current"))
        }
        current, versions = found["current"], found["scd2"]
        figures = {f"postgres_scd2{name.removeprefix('postgres')}": value for name, value in versions.items()}
        figures["postgres_scd2_current_changes_per_s"] = current["postgres_changes_per_s"]
        figures["postgres_scd2_vs_current_ratio"] = (
            versions["postgres_changes_per_s"] / current["postgres_changes_per_s"]
        )
        cpu = [
            sum(one[f"postgres_{part}_cpu_s_per_million"] for part in ("sink", "postgres"))
            for one in (current, versions)
        ]
        figures["postgres_scd2_vs_current_cpu_ratio"] = cpu[1] / cpu[0]
        del figures["postgres_scd2driver_ready_s"]
        rounds.append(told(figures, f"round {number}: "))
    return {name: statistics.median(row[name] for row in rounds) for name in rounds[0]}


def parquet_part(stage: Stage, workload: Workload) -> dict[str, float]:
    """Every change as a row of its own into files."""
    lake = stage.root / "lake"
    settings = {"warehouse": "parquet", "warehouse.path": str(lake), "output.mode": "log"}
    settings["max.batch.records"] = str(batch_of(workload.changes))
    with sink(stage, workload.topics, **settings) as run:
        figures = steady(run, workload)
    writer = ParquetWriter(LocalDisk(lake), f"sink{stage.sinks}")
    for at, topic in enumerate(workload.topics):
        changes = whole.read(writer.rows(topic), OP, POSITION, UNCHANGED)
        whole.check(whole.replayed(changes), workload, at, f"the log of {topic}")
    return {f"parquet_{name}": value for name, value in figures.items()}


def hot_keys(stage: Stage, changes: int) -> dict[str, float]:
    """Nearly all changes are of the same few rows, which a batch reduces to their last versions."""
    workload = Workload("hot", HOT_TABLES, changes // 5, changes, hot_keys=HOT_KEYS)
    stage.feed.load(workload)
    expect(stage, workload)
    with sink(stage, workload.topics, **{"warehouse.schema": "hot"}) as run:
        figures = steady(run, workload)
    equal(stage, workload, "hot")
    return {f"hot_keys_{name}": value for name, value in figures.items()}


def compare_staging(stage: Stage, changes: int) -> dict[str, float]:
    """The same rows to merge, in large batches of one table, staged over the driver's own connection and over one for each
    core."""
    workload = Workload("staged", 1, changes, changes)
    stage.feed.load(workload)
    expect(stage, workload)
    out: dict[str, float] = {}
    for name, least in (("driver", "0"), ("connections", "1")):
        settings = {"staging.parallel.min.bytes": least, "max.batch.records": str(changes // 2)}
        with sink(stage, workload.topics, **{"warehouse.schema": f"staged_{name}", **settings}) as run:
            figures = steady(run, workload)
            batches = [row[1]["batch_ms"]["apply"] for row in run.reports if row[1].get("batch_ms", {}).get("apply")]
        equal(stage, workload, f"staged_{name}")
        out |= {f"staged_by_{name}_{what}": value for what, value in figures.items()}
        out[f"staged_by_{name}_apply_ms_per_batch"] = statistics.median(batches)
    out["staged_by_connections_vs_driver_ratio"] = (
        out["staged_by_connections_changes_per_s"] / out["staged_by_driver_changes_per_s"]
    )
    return out


def compare_tables(stage: Stage, changes: int) -> dict[str, float]:
    """The same number of rows into one table and into a hundred."""
    took: dict[int, dict[str, float]] = {}
    for tables in (1, 100):
        workload = Workload(f"w{tables}", tables, changes // 5, changes)
        stage.feed.load(workload)
        with sink(stage, workload.topics, **{"warehouse.schema": f"wide{tables}"}) as run:
            took[tables] = steady(run, workload)
        expect(stage, workload)
        equal(stage, workload, f"wide{tables}")
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
    parser.add_argument(
        "--parts",
        default="decode,read,postgres,postgres_scd2,parquet,tables,hot,staging,visible,verify,iceberg,delta,iceberg_large,delta_large,"
        "object_store,mysql,clickhouse,duckdb",
    )
    parser.add_argument("--keep", type=Path, help="keep the sinks' logs here")
    options = parser.parse_args()
    parts = options.parts.split(",")
    figures: dict[str, float] = {}
    if "decode" in parts:
        figures |= told(compare_decoders())
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as folder:
        root = Path(folder)
        root.chmod(0o711)
        if "object_store" in parts:
            figures |= told(object_store.part(root, max(2_000, options.changes // 40)))
        if parts == ["object_store"]:
            finish({name: round(value, 3) for name, value in figures.items()})
            return
        with EmbeddedPostgres(root / "postgres") as postgres, EmbeddedKafka(root / "kafka") as kafka:
            postgres.create_database("warehouse")
            stage = Stage(root, postgres, kafka, Feed(kafka.bootstrap, SCHEMAS))
            try:
                if {"postgres", "postgres_scd2", "parquet", "read", "mysql", "clickhouse", "duckdb"} & set(parts):
                    workload = Workload("bench", options.tables, options.changes // 5, options.changes)
                    began = time.monotonic()
                    slices = stage.feed.load(workload)
                    figures |= told({"distinct_keys": workload.distinct, "load_s": time.monotonic() - began})
                    if workload.distinct < KEYS_SHARE_MIN * options.changes:
                        sys.exit("too few keys: the batches would reduce more than is meant")
                if "read" in parts:
                    spec = stage.spec("floor", workload.topics, {})
                    figures |= told(compare_readers(spec, workload.preload, workload.changes, kafka.pid))
                if "postgres" in parts:
                    figures |= postgres_part(stage, workload, slices, options.rounds)
                if "mysql" in parts:
                    figures |= mysql.part(stage, workload, slices, options.rounds, told)
                if "clickhouse" in parts:
                    figures |= clickhouse.part(stage, workload, slices, options.rounds, told)
                if "duckdb" in parts:
                    figures |= duckdb_file.part(stage, workload, slices, options.rounds, told)
                if "postgres_scd2" in parts:
                    figures |= told(scd2_part(stage, workload, options.rounds))
                if "parquet" in parts:
                    spec, sizes = stage.spec("limit", workload.topics, {}), (workload.preload, workload.changes)
                    figures |= told(parquet_limit(spec, *sizes, kafka.pid, lambda id: stage.feed.schema(id)))
                    figures |= told(parquet_part(stage, workload))
                    figures["parquet_vs_limit_ratio"] = (
                        figures["parquet_changes_per_s"] / figures["parquet_limit_per_s"]
                    )
                few = max(options.changes // 5, TABLES_CHANGES_MIN)
                if "tables" in parts:
                    figures |= told(compare_tables(stage, few))
                if "hot" in parts:
                    figures |= told(hot_keys(stage, few))
                if "staging" in parts:
                    figures |= told(compare_staging(stage, few))
                if "visible" in parts:
                    figures |= told(visible(stage, options.seconds))
                if "verify" in parts:
                    figures |= verify.part(stage, options.changes, options.rounds, told)
                for kind in filter(parts.__contains__, lakes.KINDS):
                    figures |= told(lakes.part(stage, kind, options.changes, options.tables))
                for kind in (name.removesuffix("_large") for name in lakes.LARGE if name in parts):
                    figures |= told(lakes.large(stage, kind, options.changes))
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
