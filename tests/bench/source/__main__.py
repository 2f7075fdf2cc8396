"""The PostgreSQL source beside the server's own limit: every contender drains the same WAL, each round checks every row.

A C program (drain.c, compiled here) drains a slot and throws the rows away, blocking and napping after short reads:
the napping line is the limit. Then each way of ours: decoded, Avro in Debezium's envelope, exactly once with the
position, by a real worker into a real broker. CPU is user + system of the worker's whole process tree between the first
and the last record. A round in which the napping line is below twice the blocking line is marked: it says nothing of the
limit, and the medians of ratios leave it out where there are others.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from cdcworker.connectors.postgres.decode.native_path import native

from ..measure import finish
from . import snapshot as snapshots
from .floor import floor
from .latency import latency
from .postgres import NAP_US, PostgresStage, discard, drained, postgres_stage
from .stage import inserted
from .workloads import NAMES, run

WAYS: dict[str, dict[str, str]] = {
    "native": {},
    "socket": {"database.transport": "socket"},
    "psycopg": {"database.transport": "psycopg"},
    "headed": {"database.transport": "socket", "extended.headers.enabled": "true"},
    "tls": {"database.transport": "socket", "database.sslmode": "require"},
    "tls_psycopg": {"database.transport": "psycopg", "database.sslmode": "require"},
}
TABLES = {
    "narrow": (
        "id bigint primary key, n int not null, name text, price numeric(10,2), at timestamptz not null",
        "i, i % 1000, 'name of row ' || i, (i % 100000) / 100.0, now()",
    ),
    "wide": (
        "id bigint primary key, a int not null, b int, c smallint, d text, e text, f varchar(40), g numeric(12,2),"
        " h numeric(18,4), i boolean not null, j boolean, k double precision, l timestamptz, m timestamp, n date,"
        " o uuid, p jsonb, q bytea, r text, s bigint",
        "i, i, i % 77, i % 100, 'some text of row ' || i, repeat('x', (i % 60)::int), 'v' || i, (i % 1000000) / 100.0,"
        " i * 1.0001, i % 2 = 0, null, i * 1.5, now(), now()::timestamp, current_date, md5(i::text)::uuid,"
        " jsonb_build_object('id', i, 'tags', array['a', 'b'], 'nested', jsonb_build_object('x', i % 10)),"
        " decode(md5(i::text), 'hex'), null, i * 1000",
    ),
}
ROWS_PER_TRANSACTION = 100


def fill(stage: PostgresStage, table: str, rows: int) -> None:
    """One table, its publication, a slot in front of its rows that is copied for every drain."""
    columns, values = TABLES[table]
    with stage.server.connect() as connection:
        connection.execute(f"create table {table} ({columns})")
        connection.execute(f"create publication p_{table} for table {table}")
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (f"base_{table}",))
        connection.execute("set synchronous_commit = off")
        connection.execute(
            f"""do $$ begin
            for low in 1..{rows} by {ROWS_PER_TRANSACTION} loop
              insert into {table} select {values} from generate_series(low, low + {ROWS_PER_TRANSACTION} - 1) i;
              commit;
            end loop; end $$"""
        )
        connection.execute("checkpoint")
        stage.server.ends[table] = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()[0]  # type: ignore[index]
        stage.rows[table] = rows
        connection.execute("select pg_logical_emit_message(true, 'end', '')")


def one_round(stage: PostgresStage, table: str, number: int, ways: dict[str, dict[str, str]]) -> dict[str, float]:
    blocking, napping = discard(stage, table, 0), discard(stage, table, NAP_US)
    figures = {f"discard_blocking_{table}": blocking, f"discard_{table}": napping}
    # Whoever comes first meets other pages in memory: each second round goes the other way round.
    for way, options in list(ways.items())[:: -1 if number % 2 else 1]:
        found = drained(stage, inserted(table, stage.rows[table]), f"{way}_{table}_{number}", options)
        figures[f"events_per_s_{way}_{table}"] = found["events_per_s"]
        figures[f"ratio_{way}_{table}"] = found["events_per_s"] / napping
        figures[f"cpu_us_per_event_{way}_{table}"] = found["cpu_us_per_event"]
    mark = "" if is_valid(figures, table) else "  (napping below twice the blocking line)"
    print(f"{table} {number}: " + " ".join(f"{k}={v:,.2f}" for k, v in figures.items()) + mark, flush=True)
    return figures


def is_valid(figures: Mapping[str, float], table: str) -> bool:
    """Whether a round of `table` has found the server's limit."""
    return figures[f"discard_{table}"] >= 2 * figures[f"discard_blocking_{table}"]


def medians(rounds: Sequence[Mapping[str, float]], table: str) -> dict[str, float]:
    """Of all rounds of one table; of ratios those of valid rounds only, when there are any. `valid_rounds_…`: how many."""
    valid = [figures for figures in rounds if is_valid(figures, table)]
    found = {
        name: statistics.median(figures[name] for figures in (name.startswith("ratio_") and valid) or rounds)
        for name in rounds[0]
    }
    return {**found, f"valid_rounds_{table}": len(valid)}


def measure(stage: PostgresStage, options: argparse.Namespace) -> dict[str, float]:
    found: dict[str, float] = {}
    ways = {way: WAYS[way] for way in options.ways.split(",") if way}
    if any(way.startswith("tls") for way in ways):
        stage.server.encrypt()
    for table, rows in (("narrow", options.rows), ("wide", options.wide_rows)):
        if rows:
            fill(stage, table, rows)
            rounds = [one_round(stage, table, number, ways) for number in range(options.rounds)]
            found |= medians(rounds, table) if rounds else {}
    for table in TABLES:
        best = f"ratio_{options.ways.split(',')[0]}_{table}"
        if best in found:
            found[f"eos_vs_discard_ratio_{table}"] = found[best]
    if options.python_rows and options.rows:
        rows = min(options.python_rows, options.rows)
        work = inserted("narrow", rows, exact=rows == stage.rows["narrow"])
        plain = drained(stage, work, "python_narrow", {"decoder.native": "false"})
        found["cpu_us_per_event_python_narrow"] = plain["cpu_us_per_event"]
    if options.snapshot_rounds and options.rows:
        loads = [loaded(stage, number) for number in range(options.snapshot_rounds)]
        found |= {name: statistics.median(f[name] for f in loads) for name in loads[0]}
    if options.latency_s:
        found |= latency(stage, options.latency_s) | floor(stage.kafka.bootstrap)
    for name in filter(None, options.workloads.split(",")):
        found |= run(stage, name, options.scale, ways)
    found["rss_mb_max"] = max(stage.memory, default=0.0)
    return found


def loaded(stage: PostgresStage, number: int) -> dict[str, float]:
    """One table read from its first row by a connector that has one connection for it."""
    limit = snapshots.copied(stage, "narrow")
    found = drained(stage, inserted("narrow", stage.rows["narrow"]), f"snapshot_{number}", snapshots.OPTIONS)
    return snapshots.line(number, "narrow", limit, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--wide-rows", type=int, default=500_000)
    parser.add_argument("--python-rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--snapshot-rounds", type=int, default=3, help="of reading the narrow table; 0: none")
    parser.add_argument("--ways", default="socket,psycopg", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--latency-s", type=int, default=20, help="seconds of 1,000 transactions per second; 0: none")
    parser.add_argument("--workloads", default="", help=f"of {', '.join(NAMES)}, each once, after the others")
    parser.add_argument("--scale", type=float, default=1.0, help="of the rows and seconds of the workloads")
    options = parser.parse_args()
    if unknown := set(filter(None, options.workloads.split(","))) - set(NAMES):
        sys.exit(f"unknown workloads: {sorted(unknown)}")
    if unknown := set(filter(None, options.ways.split(","))) - set(WAYS):
        sys.exit(f"unknown ways: {sorted(unknown)}")
    if native() is None:
        sys.exit("the native core was not built")
    safe = {"fsync": "on", "max_wal_size": "8GB", "wal_sender_timeout": "0"}
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as folder, postgres_stage(Path(folder), safe) as stage:
        found = measure(stage, options)
    print(Path(__file__).with_name("drain.c").read_text() if options.rounds >= 5 else "", end="")
    finish({"rows": options.rows, "rounds": options.rounds, **{k: round(v, 3) for k, v in found.items()}})


if __name__ == "__main__":
    main()
