"""ClickHouse in the sink benchmark: a sink's current state, beside a plain client that inserts the same rows into tables of its own."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from cdcworker.connectors.warehouses.clickhouse.client import Client
from cdcworker.connectors.warehouses.clickhouse.writer import ClickHouseWriter

from tests.clickhouse.server import HOST, ClickHouseServer, find_engine

from ..measure import cpu_s, tree
from . import equal as whole
from .load import Slice, Workload
from .stage import Stage, sink, steady

DDL = """(id Int64, customer Nullable(Int32), status Nullable(String), amount Nullable(Decimal(10, 2)), quantity Nullable(Int32),
          name Nullable(String), email Nullable(String), active Nullable(Bool), score Nullable(Float64),
          at Nullable(DateTime64(6, 'UTC')), body Nullable(String), version UInt64, gone UInt8)
          engine = ReplacingMergeTree(version, gone) order by id"""
Piece = tuple[dict[int, pa.Table], dict[int, pa.Table], int]
"""Rows and deleted keys by table, and how many changes they are."""


def part(
    stage: Stage, workload: Workload, slices: Sequence[Slice], rounds: int, told: Callable[..., Any]
) -> dict[str, float]:
    """Empty where the engine was not installed."""
    engine = find_engine()
    if engine is None:
        return {}
    pieces = [_piece(number, piece) for number, piece in enumerate(slices)]
    found = []
    for number in range(1, rounds + 1):
        row: dict[str, float] = {}
        steps = [_limit, _sink]
        for step in steps if number % 2 else reversed(steps):
            server = ClickHouseServer(engine, Path(stage.root, f"clickhouse-{number}-{step.__name__}"))
            server.start()
            try:
                row |= step(stage, server, workload, pieces)
            finally:
                server.remove()
        row["clickhouse_vs_limit_ratio"] = row["clickhouse_changes_per_s"] / row["clickhouse_limit_changes_per_s"]
        found.append(told(row, f"round {number}: "))
    return {name: statistics.median(row[name] for row in found) for name in found[0]}


def _piece(number: int, piece: Slice) -> Piece:
    """A piece as the engine takes it: made before the clock runs."""
    rows, gone = {}, {}
    for at, text in piece.rows.items():
        if text:
            rows[at] = _versions(whole.parsed(text), number, 0)
    for at, text in piece.gone.items():
        if text:
            gone[at] = _versions(whole.parsed_ids(text), number, 1)
    return rows, gone, piece.changes


def _versions(rows: pa.Table, number: int, gone: int) -> pa.Table:
    count = rows.num_rows
    rows = rows.append_column("version", pa.array([number + 1] * count, pa.uint64()))
    return rows.append_column("gone", pa.array([gone] * count, pa.uint8()))


def _limit(_stage: Stage, server: ClickHouseServer, workload: Workload, pieces: Sequence[Piece]) -> dict[str, float]:
    """Changes per second of an INSERT of rows and one of deleted keys per table and piece."""
    server.ask("create database plain", *(f"create table plain.t{at:02d} {DDL}" for at in range(workload.tables)))
    with closing(Client(server.place())) as client:
        began, before, changes = time.monotonic(), _used(server), 0
        for number, (rows, gone, count) in enumerate(pieces):
            if number == 1:
                began, before = time.monotonic(), _used(server)
            for tables in (rows, gone):
                for at, table in tables.items():
                    client.insert(f"plain.t{at:02d}", table)
            changes += count if number else 0
        seconds, used_s = time.monotonic() - began, _used(server) - before
    ((rows_left,),) = server.rows("select count() from plain.t00 final")
    if rows_left != len(workload.rows[0]):
        sys.exit(f"the plain client's table has {rows_left} rows")
    return {
        "clickhouse_limit_changes_per_s": changes / seconds,
        "clickhouse_limit_server_cpu_s_per_million": used_s / changes * 1e6,
    }


def _sink(stage: Stage, server: ClickHouseServer, workload: Workload, _pieces: Sequence[Piece]) -> dict[str, float]:
    login = {"hostname": HOST, "port": str(server.port), "user": "default", "password": ""}
    config = {"warehouse": "clickhouse", **{f"warehouse.{name}": value for name, value in login.items()}}
    with sink(stage, workload.topics, **config) as run:
        run.until(workload.preload)
        before = _used(server)
        figures = steady(run, workload)
        figures["server_cpu_s_per_million"] = (_used(server) - before) / workload.changes * 1e6
    with closing(ClickHouseWriter(Client(server.place()), f"sink{stage.sinks}")) as writer:
        for at, topic in enumerate(workload.topics):
            whole.check(whole.read(writer.rows(topic)), workload, at, topic)
    kept = ("changes_per_s", "sink_cpu_s_per_million", "server_cpu_s_per_million", "rss_mb")
    return {f"clickhouse_{name}": figures[name] for name in kept}


def _used(server: ClickHouseServer) -> float:
    return cpu_s(tree(server.pid))
