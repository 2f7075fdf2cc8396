"""DuckDB in the sink benchmark: a sink's current state, beside a plain client that brings the same rows into tables of its own."""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from cdcworker.connectors.warehouses.duckdb.writer import DuckDbWriter

from . import equal as whole
from .load import Slice, Workload
from .stage import Stage, sink, steady

DDL = """(id bigint, customer integer, status varchar, amount decimal(10,2), quantity integer, name varchar, email varchar,
          active boolean, score double, at_ timestamptz, body varchar)"""
Piece = tuple[dict[int, pa.Table], dict[int, pa.Table], int]
"""Rows and deleted keys by table, and how many changes they are."""


def part(
    stage: Stage, workload: Workload, slices: Sequence[Slice], rounds: int, told: Callable[..., Any]
) -> dict[str, float]:
    """Empty where the library is not installed."""
    if importlib.util.find_spec("duckdb") is None:
        return {}
    pieces = [
        (
            {at: whole.parsed(text) for at, text in piece.rows.items() if text},
            {at: whole.parsed_ids(text) for at, text in piece.gone.items() if text},
            piece.changes,
        )
        for piece in slices
    ]
    found = []
    for number in range(1, rounds + 1):
        row: dict[str, float] = {}
        steps = [lambda path: _limit(path, workload, pieces), lambda path: _sink(stage, path, workload)]
        for at, step in enumerate(steps if number % 2 else reversed(steps)):
            row |= step(Path(stage.root, f"duckdb-{number}-{at}.duckdb"))
        row["duckdb_vs_limit_ratio"] = row["duckdb_changes_per_s"] / row["duckdb_limit_changes_per_s"]
        found.append(told(row, f"round {number}: "))
    return {name: statistics.median(row[name] for row in found) for name in found[0]}


def _limit(path: Path, workload: Workload, pieces: Sequence[Piece]) -> dict[str, float]:
    """Changes per second of a DELETE of the keys and an INSERT of the rows, one transaction per piece, in one session."""
    import duckdb

    with closing(duckdb.connect(str(path))) as session:
        for at in range(workload.tables):
            session.execute(f"create table t{at:02d} {DDL}")
        began, used, changes = time.monotonic(), time.process_time(), 0
        for number, (rows, gone, count) in enumerate(pieces):
            if number == 1:
                began, used = time.monotonic(), time.process_time()
            session.execute("begin transaction")
            for tables in (gone, rows):
                for at, table in tables.items():
                    session.register("piece", table)
                    session.execute(f"delete from t{at:02d} where id in (select id from piece)")
                    if tables is rows:
                        session.execute(f"insert into t{at:02d} select * from piece")
                    session.unregister("piece")
            session.execute("commit")
            changes += count if number else 0
        seconds, used_s = time.monotonic() - began, time.process_time() - used
        (rows_left,) = session.execute("select count(*) from t00").fetchone() or (0,)
    if rows_left != len(workload.rows[0]):
        sys.exit(f"the plain client's table has {rows_left} rows")
    return {
        "duckdb_limit_changes_per_s": changes / seconds,
        "duckdb_limit_cpu_s_per_million": used_s / changes * 1e6,
    }


def _sink(stage: Stage, path: Path, workload: Workload) -> dict[str, float]:
    with sink(stage, workload.topics, **{"warehouse": "duckdb", "warehouse.path": str(path)}) as run:
        run.until(workload.preload)
        figures = steady(run, workload)
    with closing(DuckDbWriter(str(path), f"sink{stage.sinks}")) as writer:
        for at, topic in enumerate(workload.topics):
            whole.check(whole.read(writer.rows(topic)), workload, at, topic)
    return {f"duckdb_{name}": figures[name] for name in ("changes_per_s", "sink_cpu_s_per_million", "rss_mb")}
