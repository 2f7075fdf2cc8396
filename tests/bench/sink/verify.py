"""A comparison in the sink benchmark: a table of the source and of a PostgreSQL warehouse, beside COPY of both to this process.

Nothing changes meanwhile and no speed is set as a limit: what is measured is how fast a comparison reads. A plain client that
compared the two would at least have to bring the rows here, so COPY of both sides, one after the other, is the limit.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import psycopg
from cdcworker.connectors.comparison.opening import ComparedConnectors, opened
from cdcworker.connectors.verify.compare import CompareSettings, Comparison
from cdcworker.connectors.verify.databases import VerifyLimits
from cdcworker.connectors.verify.report import Tally
from cdcworker.worker.devstack.postgres import EmbeddedPostgres

from ..measure import cpu_s, tree
from .load import COLUMNS, DDL
from .stage import Stage

SOURCE = "verified"
PREFIX, TABLE, SCHEMA = "verified", "t00", "verified"
BATCH = 200_000
NAMES = ", ".join(f'"{column.name}"' for column in COLUMNS)
ROWS = """g, g % 100000, (array['new', 'paid', 'sent', 'returned'])[1 + g % 4], (g % 1000000) / 100.0, g % 50,
          'name ' || g, 'user' || g || '@example.com', g % 3 = 0, g / 7.0,
          '2024-01-01'::timestamptz + g * interval '1 second', repeat(md5(g::text), 3)"""


class Now:
    """A warehouse that nobody feeds is at every position."""

    def reached(self, ledger: Mapping[tuple[str, int], int]) -> bool:
        return True

    def lagging(self, ledger: Mapping[tuple[str, int], int]) -> str:
        return ""


def part(stage: Stage, rows: int, rounds: int, told: Callable[..., dict[str, float]]) -> dict[str, float]:
    """Medians over the rounds; a row that differs has to be found afterwards."""
    stage.postgres.create_database(SOURCE)
    dsns = {stage.postgres.dsn(SOURCE): "public", stage.dsn: SCHEMA}
    for dsn, schema in dsns.items():
        _fill(dsn, schema, rows)
    found = []
    for number in range(1, rounds + 1):
        steps = (lambda: _copied(stage.postgres, dsns, rows), lambda: _verified(stage, rows))
        figures: dict[str, float] = {}
        for step in steps if number % 2 else reversed(steps):
            figures |= step()
        figures["verify_vs_copy_ratio"] = figures["verify_rows_per_s"] / figures["verify_copy_rows_per_s"]
        found.append(told(figures, f"round {number}: "))
    _difference_is_found(stage, rows)
    return {name: statistics.median(row[name] for row in found) for name in found[0]} | {"verify_rows": rows}


def _fill(dsn: str, schema: str, rows: int) -> None:
    """In the warehouse with the column that a sink adds."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"create schema if not exists {schema}")
        connection.execute(f"create table {schema}.{TABLE} {DDL}")
        if schema == SCHEMA:
            connection.execute(f"alter table {schema}.{TABLE} add _cdc_position bytea")
        more = ", ".join(["decode(lpad(to_hex(g), 32, '0'), 'hex')"] * (schema == SCHEMA))
        for first in range(1, rows + 1, BATCH):
            last = min(first + BATCH - 1, rows)
            chosen = f"{ROWS}, {more}" if more else ROWS
            connection.execute(f"insert into {schema}.{TABLE} select {chosen} from generate_series({first}, {last}) g")
        connection.execute(f"vacuum analyze {schema}.{TABLE}")


def _copied(postgres: EmbeddedPostgres, dsns: Mapping[str, str], rows: int) -> dict[str, float]:
    """Both tables as COPY's text into this process, which drops it."""
    began, before, size = time.monotonic(), cpu_s(tree(postgres.pid)), 0
    for dsn, schema in dsns.items():
        with psycopg.connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
            with cursor.copy(f"copy (select {NAMES} from {schema}.{TABLE}) to stdout") as copy:
                size += sum(len(data) for data in copy)
            if cursor.rowcount != rows:
                sys.exit(f"COPY brought {cursor.rowcount} rows of {rows}")
    seconds, used_s = time.monotonic() - began, cpu_s(tree(postgres.pid)) - before
    return {
        "verify_copy_rows_per_s": rows / seconds,
        "verify_copy_mb": size / 1e6,
        "verify_copy_postgres_cpu_s_per_million": used_s / rows * 1e6,
    }


def _verified(stage: Stage, rows: int) -> dict[str, float]:
    began, before, ours = time.monotonic(), cpu_s(tree(stage.postgres.pid)), cpu_s([os.getpid()])
    tally = _compare(stage)
    seconds, used_s = time.monotonic() - began, cpu_s(tree(stage.postgres.pid)) - before
    (state,) = tally.tables
    if (tally.verdict, state.source_rows, state.target_rows) != ("equal", rows, rows):
        sys.exit(f"equal tables are {tally.verdict}: {state.source_rows} and {state.target_rows} rows of {rows}")
    return {
        "verify_rows_per_s": rows / seconds,
        "verify_postgres_cpu_s_per_million": used_s / rows * 1e6,
        "verify_cpu_s_per_million": (cpu_s([os.getpid()]) - ours) / rows * 1e6,
    }


def _difference_is_found(stage: Stage, rows: int) -> None:
    with psycopg.connect(stage.dsn, autocommit=True) as connection:
        connection.execute(f"update {SCHEMA}.{TABLE} set quantity = quantity + 1 where id = %s", (rows // 2,))
    (state,) = _compare(stage).tables
    if dict(state.counts) != {"different": 1}:
        sys.exit(f"of one row that differs the comparison says {dict(state.counts)}")


def _compare(stage: Stage) -> Tally:
    """As a worker's process does it, without a limit to its speed."""
    limits = VerifyLimits(rows_per_s=0)
    with opened(_wanted(stage), limits) as both:
        return Comparison(both.source, both.target, lambda *_: Now(), CompareSettings(limits)).run(both.plans)


def _wanted(stage: Stage) -> ComparedConnectors:
    def config(dsn: str, prefix: str) -> dict[str, str]:
        info: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(dsn)
        names = {"hostname": "host", "port": "port", "user": "user", "password": "password", "dbname": "dbname"}
        return {f"{prefix}.{ours}": str(info[theirs]) for ours, theirs in names.items()}

    topic = f"{PREFIX}.public.{TABLE}"
    sink = {"connector.class": "spark", "topics": topic, "warehouse.schema": SCHEMA, **config(stage.dsn, "warehouse")}
    source = {"connector.class": "postgres", "topic.prefix": PREFIX}
    return ComparedConnectors("verify", sink, {**source, **config(stage.postgres.dsn(SOURCE), "database")}, (topic,))
