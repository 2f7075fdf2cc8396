"""The MariaDB source beside the server's own limit and beside Debezium: every contender reads the same part of the binary log.

A C program (drain.c, compiled here) asks for the log as a replica does and throws it away, blocking and napping after short
reads: the faster of both is the limit of reading. A bare producer writes the records that came of it again, from its memory (bare.py):
the limit of writing. Ours writes Avro in Debezium's envelope, exactly once with the position, by a real
worker into a real broker. Debezium's own connector writes the same Avro by a genuine Kafka Connect, tuned, without Kafka
Connect's exactly-once mode, which is slower. Each of both stands in the log in front of the load before the load is written.
Each round checks every row. CPU is user + system of the process tree between the first and the last record.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from cdcworker.worker.devstack.mariadb import EmbeddedMariaDb, find_programs

from ..measure import finish, wait
from ..source.latency import latency
from ..source.stage import TIMEOUT_S, Contender, Runner, Stage, inserted, measured, running
from . import debezium
from .bare import written_again
from .server import SETTINGS, MariaDbBenchServer

NAP_US = 500
ROWS_PER_TRANSACTION = 100
ONE_ROW = "one_row_tx"
OURS, DEBEZIUM = "ours", "debezium"
TABLES = {
    "narrow": (
        "id bigint primary key, n int not null, name text, price decimal(10,2), at timestamp(6) not null",
        "i, i % 1000, concat('name of row ', i), (i % 100000) / 100.0, now(6)",
    ),
    "wide": (
        "id bigint primary key, a int not null, b int, c smallint, d text, e text, f varchar(40), g decimal(12,2),"
        " h decimal(18,4), i boolean not null, j boolean, k double, l timestamp(6) null, m datetime(6), n date,"
        " o char(36), p json, q varbinary(40), r text, s bigint",
        "i, i, i % 77, i % 100, concat('some text of row ', i), repeat('x', i % 60), concat('v', i), (i % 1000000) / 100.0,"
        " i * 1.0001, i % 2 = 0, null, i * 1.5, now(6), now(6), current_date, uuid(),"
        " json_object('id', i, 'tags', json_array('a', 'b'), 'nested', json_object('x', i % 10)),"
        " unhex(md5(i)), null, i * 1000",
    ),
}

TABLES[ONE_ROW] = TABLES["narrow"]
"""A row in each transaction, as applications write them."""

BenchStage = Stage[MariaDbBenchServer]


def fill(stage: BenchStage, connect: Runner | None, table: str, rows: int, rounds: int) -> None:
    """One table, and in front of its rows the contenders of all rounds, stopped."""
    columns, values = TABLES[table]
    stage.server.make(table, columns)
    for number in range(rounds):
        ours = named(OURS, table, number)
        stage.runner.start(ours, stage.server.config(ours, table, {}))
        wait(f"a position of {ours}", lambda ours=ours: bool(stage.runner.offsets(ours)), TIMEOUT_S)
        stage.runner.halt(ours)
        if connect is not None:
            debezium.stand_by(stage, connect, named(DEBEZIUM, table, number), table)
    stage.server.load(table, values, rows, 1 if table == ONE_ROW else ROWS_PER_TRANSACTION)
    stage.rows[table] = rows


def named(way: str, table: str, number: int) -> str:
    return f"{way}_{table}_{number}"


def one_round(stage: BenchStage, connect: Runner | None, table: str, number: int) -> dict[str, float]:
    rows, found = stage.rows[table], {}
    blocking, napping = (rows / stage.server.discard(table, nap_us) for nap_us in (0, NAP_US))
    limit = max(blocking, napping)
    runners = [(OURS, stage.runner)] + ([] if connect is None else [(DEBEZIUM, connect)])
    # Whoever comes first meets other pages in memory: each second round goes the other way round.
    for way, runner in runners[:: -1 if number % 2 else 1]:
        name = named(way, table, number)
        contender = Contender(name, runner, partial(runner.ask, name, "resume"))
        found[way] = measured(stage, inserted(table, rows), contender)
    ours = found[OURS]
    bare, bare_cpu_us = written_again(
        stage.kafka.bootstrap, stage.server.topic(named(OURS, table, number), table), rows
    )
    stage.memory.append(ours["rss_mb"])
    figures = {f"discard_blocking_{table}": blocking, f"discard_napping_{table}": napping}
    figures |= {f"eos_vs_discard_ratio_{table}": ours["events_per_s"] / limit}
    figures |= {f"bare_producer_per_s_{table}": bare, f"bare_producer_cpu_us_{table}": bare_cpu_us}
    figures |= {f"eos_vs_bare_producer_ratio_{table}": ours["events_per_s"] / bare}
    figures |= {f"{figure}_{table}": ours[figure] for figure in ("events_per_s", "cpu_us_per_event")}
    if theirs := found.get(DEBEZIUM):
        figures |= {f"debezium_{figure}_{table}": value for figure, value in theirs.items()}
        figures[f"vs_debezium_ratio_{table}"] = ours["events_per_s"] / theirs["events_per_s"]
    print(f"{table} {number}: " + " ".join(f"{k}={v:,.2f}" for k, v in figures.items()), flush=True)
    return figures


def loaded(stage: BenchStage, number: int, threads: int = 1) -> dict[str, float]:
    """The narrow table read from its first row by a connector with so many connections for it, between a C program that throws the rows
    of the same chunks away, as texts, and as binary values."""
    rows, runner, server = stage.rows["narrow"], stage.runner, stage.server
    name = f"snapshot_{threads}_{number}"
    texts = server.read_chunks("narrow", rows, binary=False)
    options = {"snapshot.mode": "initial", "snapshot.max.threads": str(threads)}
    config = server.config(name, "narrow", options)
    before = server.cpu_s
    work = replace(inserted("narrow", rows), ordered=threads == 1)
    found = measured(stage, work, Contender(name, runner, partial(runner.start, name, config)))
    server_us = (server.cpu_s - before) / rows * 1e6
    stage.memory.append(found["rss_mb"])
    figures = {"rows_per_s": found["events_per_s"], "cpu_us_per_row": found["cpu_us_per_event"]}
    figures |= {"server_cpu_us_per_row": server_us, "vs_bare_ratio": found["events_per_s"] / texts.rows_per_s}
    if threads == 1:
        binary = server.read_chunks("narrow", rows, binary=True)
        figures |= {"bare_rows_per_s": texts.rows_per_s, "bare_binary_rows_per_s": binary.rows_per_s}
        figures |= {"bare_cpu_us_per_row": texts.cpu_us, "bare_server_cpu_us_per_row": texts.server_cpu_us}
        figures |= {"bare_binary_server_cpu_us_per_row": binary.server_cpu_us}
    kind = "snapshot" if threads == 1 else f"snapshot_{threads}_threads"
    figures = {f"{kind}_{figure}": value for figure, value in figures.items()}
    print(f"snapshot {number}: " + " ".join(f"{k}={v:,.2f}" for k, v in figures.items()), flush=True)
    return figures


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(figures[name] for figures in rounds) for name in rounds[0]} if rounds else {}


def measure(stage: BenchStage, connect: Runner | None, options: argparse.Namespace) -> dict[str, float]:
    found: dict[str, float] = {}
    for table, rows in (("narrow", options.rows), ("wide", options.wide_rows), (ONE_ROW, options.one_row)):
        if rows:
            fill(stage, connect, table, rows, options.rounds)
            found |= medians([one_round(stage, connect, table, number) for number in range(options.rounds)])
    if options.rows:
        for threads in (1, 2):
            found |= medians([loaded(stage, number, threads) for number in range(options.snapshot_rounds)])
    if options.latency_s:
        found |= latency(stage, options.latency_s)
    return {**found, "rss_mb_max": max(stage.memory, default=0.0)}


@contextmanager
def stage_of(root: Path, *, with_debezium: bool) -> Iterator[tuple[BenchStage, Runner | None]]:
    programs = find_programs()
    if programs is None:
        sys.exit("MariaDB is not here: make servers")
    server = EmbeddedMariaDb(programs, root / "mariadb", SETTINGS)
    with server, running(root, MariaDbBenchServer(server, root)) as stage:
        if not with_debezium:
            yield stage, None
            return
        with debezium.connect(root / "connect", stage.kafka.bootstrap) as connect:
            yield stage, connect


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--wide-rows", type=int, default=300_000)
    parser.add_argument("--one-row", type=int, default=300_000, help="transactions of one row; 0: none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--snapshot-rounds", type=int, default=3, help="of reading the narrow table; 0: none")
    parser.add_argument("--latency-s", type=int, default=20, help="seconds of 1,000 transactions per second; 0: none")
    parser.add_argument("--without-debezium", action="store_true")
    options = parser.parse_args()
    if options.rows % ROWS_PER_TRANSACTION or options.wide_rows % ROWS_PER_TRANSACTION:
        sys.exit(f"rows come in transactions of {ROWS_PER_TRANSACTION}")
    with (
        tempfile.TemporaryDirectory(prefix="cdc-bench-") as folder,
        stage_of(Path(folder), with_debezium=not options.without_debezium) as (stage, connect),
    ):
        found = measure(stage, connect, options)
    figures = {f"mysql_{name}": round(value, 3) for name, value in found.items()}
    finish({"rows": options.rows, "rounds": options.rounds, **figures})


if __name__ == "__main__":
    main()
