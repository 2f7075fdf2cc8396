"""MySQL in the sink benchmark: a sink's current state, beside a plain client that brings the same rows into tables of its own."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from cdcworker.connectors.warehouses.mysql.connection import opened, transaction
from cdcworker.connectors.warehouses.mysql.writer import MySqlWriter

from tests.mariadb_server import USER, MariaDbServer, find_programs

from ..measure import cpu_s, tree
from . import equal as whole
from .load import COLUMNS, Slice, Workload
from .stage import Stage, sink, steady

SETTINGS = {"innodb-buffer-pool-size": "512M", "innodb-log-file-size": "512M"}
DDL = """(id bigint primary key, customer int, status longtext, amount decimal(10,2), quantity int, name longtext, email longtext,
          active boolean, score double, at datetime(6), body longtext)"""
LOAD = r"load data local infile 'rows' into table {} character set utf8mb4 fields terminated by '\t' lines terminated by '\n'"


def part(
    stage: Stage, workload: Workload, slices: Sequence[Slice], rounds: int, told: Callable[..., Any]
) -> dict[str, float]:
    """Empty where the server was not installed."""
    programs = find_programs()
    if programs is None:
        return {}
    pieces = [
        Slice({at: _text(rows) for at, rows in piece.rows.items()}, piece.gone, piece.changes) for piece in slices
    ]
    server = MariaDbServer(programs, Path(stage.root, "mariadb"), SETTINGS)
    server.start()
    try:
        found = []
        for number in range(1, rounds + 1):
            steps = [lambda: _limit(server, workload, pieces), lambda: _sink(stage, server, workload)]
            row: dict[str, float] = {}
            for step in steps if number % 2 else reversed(steps):
                server.wipe()
                row |= step()
            row["mysql_vs_limit_ratio"] = row["mysql_changes_per_s"] / row["mysql_limit_changes_per_s"]
            found.append(told(row, f"round {number}: "))
    finally:
        server.remove()
    return {name: statistics.median(row[name] for row in found) for name in found[0]}


def _text(rows: bytes) -> bytes:
    """PostgreSQL's text of rows as MySQL reads it."""
    for ours, theirs in ((b"\tTrue\t", b"\t1\t"), (b"\tFalse\t", b"\t0\t"), (b"Z\t", b"\t")):
        rows = rows.replace(ours, theirs)
    return rows


def _limit(server: MariaDbServer, workload: Workload, pieces: Sequence[Slice]) -> dict[str, float]:
    """Changes per second of LOAD DATA into a temporary table, DELETE and INSERT ... ON DUPLICATE KEY UPDATE from it, one
    transaction per piece."""
    sets = ", ".join(f"{column.name} = values({column.name})" for column in COLUMNS[1:])
    server.ask("create database plain")
    with closing(opened(server.login(), "bench")) as connection:
        connection.select_db("plain")
        for at in range(workload.tables):
            connection.do(f"create table t{at:02d} {DDL}")
            connection.do(f"create temporary table s{at} like t{at:02d}")
            connection.do(f"create temporary table d{at} (id bigint)")
        began, before, changes = time.monotonic(), _used(server), 0
        for number, piece in enumerate(pieces):
            if number == 1:
                began, before = time.monotonic(), _used(server)
            for at in range(workload.tables):
                connection.do(f"truncate table s{at}")
                connection.do(f"truncate table d{at}")
            with transaction(connection):
                for at in range(workload.tables):
                    connection.load(LOAD.format(f"d{at}"), memoryview(piece.gone[at]))
                    connection.load(LOAD.format(f"s{at}"), memoryview(piece.rows[at]))
                    connection.do(f"delete t from d{at} d straight_join t{at:02d} t on t.id = d.id")
                    connection.do(f"insert into t{at:02d} select * from s{at} on duplicate key update {sets}")
            changes += piece.changes if number else 0
        seconds, used_s = time.monotonic() - began, _used(server) - before
        (rows,) = connection.one("select count(*) from t00") or (0,)
    if rows != len(workload.rows[0]):
        sys.exit(f"the plain client's table has {rows} rows")
    return {
        "mysql_limit_changes_per_s": changes / seconds,
        "mysql_limit_server_cpu_s_per_million": used_s / changes * 1e6,
    }


def _sink(stage: Stage, server: MariaDbServer, workload: Workload) -> dict[str, float]:
    login = {"hostname": "127.0.0.1", "port": str(server.port), "user": USER, "password": server.password}
    config = {"warehouse": "mysql", **{f"warehouse.{name}": value for name, value in login.items()}}
    with sink(stage, workload.topics, **config) as run:
        run.until(workload.preload)
        before = _used(server)
        figures = steady(run, workload)
        figures["server_cpu_s_per_million"] = (_used(server) - before) / workload.changes * 1e6
    with closing(MySqlWriter(server.login(), f"sink{stage.sinks}")) as writer:
        for at, topic in enumerate(workload.topics):
            whole.check(whole.read(writer.rows(topic)), workload, at, topic)
    kept = ("changes_per_s", "sink_cpu_s_per_million", "server_cpu_s_per_million", "rss_mb")
    return {f"mysql_{name}": figures[name] for name in kept}


def _used(server: MariaDbServer) -> float:
    return cpu_s(tree(server.pid))
