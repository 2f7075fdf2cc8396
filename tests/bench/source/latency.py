"""From a commit on the server to a reader of committed records, at a thousand transactions a second."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import psycopg
from confluent_kafka import TopicPartition

from ..measure import cpu_s, tree, wait
from .floor import floor
from .records import consumer, long_at, stored
from .stage import Stage

RATE = 1_000
WRITERS = 4
WARM_S = 60.0
"""A broker that has just been started compiles its own code first."""


TIMEOUT_S = 180.0


@dataclass
class Read:
    """What a reader has met."""

    ms: list[float] = field(default_factory=list)
    cpu_s: float = 0.0


def latency(stage: Stage, seconds: int, rows: int = 1, name: str = "paced_1") -> dict[str, float]:
    """Milliseconds between just before the commit and the record in a consumer's hands. `rows`: of a transaction."""
    with stage.connect() as connection:
        connection.execute(f"create table {name} (id bigint primary key, at bigint not null)")
        connection.execute(f"create publication p_{name} for table {name}")
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
    stage.start(name, stage.config(name, name, {}))
    # In processes of their own: writers that share an interpreter with the reader would hold it up.
    argv = [sys.executable, "-m", __name__, stage.postgres.dsn("bench"), name, str(rows)]
    writers = [subprocess.Popen([*argv, str(number)], stdin=subprocess.PIPE) for number in range(WRITERS)]
    topic = f"{name}.public.{name}"
    wait("the first paced row", lambda: stored(stage.kafka.bootstrap, topic) > 0, TIMEOUT_S)
    before, found = _commits(stage, name), Read()
    _read(stage, topic, seconds, found)
    commits, commit_s = (after - first for after, first in zip(_commits(stage, name), before, strict=True))
    # The same broker, as warm, and the same writers beside it, but no source.
    stage.rest.put(f"/connectors/{name}/pause").raise_for_status()
    paced = floor(stage.kafka.bootstrap, f"floor_{name}", RATE * rows)
    stage.rest.put(f"/connectors/{name}/resume").raise_for_status()
    for writer in writers:
        writer.communicate()
    check_table(stage, topic, name)
    stage.stop(name)
    found.ms.sort()
    return {
        **paced,
        "latency_p50_ms": found.ms[len(found.ms) // 2],
        "latency_p99_ms": found.ms[int(len(found.ms) * 0.99)],
        "latency_max_ms": found.ms[-1],
        "latency_rows_per_s": len(found.ms) / seconds,
        "latency_cpu_us_per_row": found.cpu_s / len(found.ms) * 1e6,
        "kafka_commits_per_s": commits / (seconds + WARM_S),
        "kafka_commit_ms": 1000 * commit_s / max(commits, 1),
    }


def check_table(stage: Stage, topic: str, table: str) -> None:
    """Each row of the table once in its topic."""
    with stage.connect() as connection, connection.cursor() as cursor:
        left = {row for (row,) in cursor.execute(f"select id from {table}")}
    one = consumer(stage.kafka.bootstrap, "bench-check")
    one.assign([TopicPartition(topic, 0, 0)])
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while left:
            if time.monotonic() > deadline:
                sys.exit(f"{topic}: {len(left)} rows are missing")
            for message in one.consume(10_000, 0.5):
                if message.error() is None:
                    row = long_at(message.key(), 5)
                    if row not in left:
                        sys.exit(f"{topic}: row {row} was not expected, or not again")
                    left.remove(row)
        if one.consume(1, 0.5):
            sys.exit(f"{topic}: more records than rows")
    finally:
        one.close()


def _commits(stage: Stage, name: str) -> tuple[float, float]:
    """Kafka transactions of the task so far, and the seconds that their commits took."""
    lines = stage.rest.get("/metrics").text.splitlines()
    return tuple(  # type: ignore[return-value]
        next((float(line.split()[-1]) for line in lines if line.startswith(figure + "{") and name in line), 0.0)
        for figure in ("cdc_source_commits_total", "cdc_source_commit_seconds_total")
    )


def _write(dsn: str, table: str, rows: int, number: int) -> None:
    """Transactions at an even pace until the input ends; their rows hold the time just before the commit."""
    statement = f"insert into {table} select %s::bigint * {rows} + i, %s from generate_series(0, {rows - 1}) i"
    row, start = 0, time.monotonic()
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with psycopg.connect(dsn, autocommit=True) as connection:
        while not ended.is_set():
            due = start + row * WRITERS / RATE
            time.sleep(max(0.0, due - time.monotonic()))
            connection.execute(statement, (row * WRITERS + number, time.time_ns() // 1000))
            row += 1


def _read(stage: Stage, topic: str, seconds: int, found: Read) -> None:
    one = consumer(stage.kafka.bootstrap, "bench-latency")
    try:
        one.assign([TopicPartition(topic, 0, stored(stage.kafka.bootstrap, topic))])
        warm = time.monotonic() + WARM_S
        end, cpu = warm + seconds, 0.0
        while (now := time.monotonic()) < end:
            # One at a time: who asks for several waits for the last of them with the first in hand.
            message = one.poll(0.1)
            if now > warm and not cpu:
                cpu = cpu_s(tree(stage.worker.pid))
            if message is not None and message.error() is None and message.value() and now > warm:
                found.ms.append((time.time_ns() // 1000 - _written_us(message.value())) / 1000)
        found.cpu_s = cpu_s(tree(stage.worker.pid)) - cpu
    finally:
        one.close()


def _written_us(value: bytes) -> int:
    at = 7
    while value[at] & 128:
        at += 1
    return long_at(value, at + 1)


if __name__ == "__main__":
    _write(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
