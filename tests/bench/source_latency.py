"""From a commit on the server to a reader of committed records, at a thousand transactions a second."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import psycopg
from confluent_kafka import TopicPartition
from measure import wait
from source_records import consumer, long_at, stored

RATE = 1_000
WRITERS = 4
WARM_S = 15.0
"""A broker that has just been started compiles its own code first."""


def latency(stage: Any, seconds: int) -> dict[str, float]:
    """Milliseconds between the commit's time stamp and the record in a consumer's hands."""
    with stage.connect() as connection:
        connection.execute("create table paced (id bigint primary key, at bigint not null)")
        connection.execute("create publication p_paced for table paced")
        connection.execute("select pg_create_logical_replication_slot('paced', 'pgoutput')")
    stage.start("paced", stage.config("paced", "paced", {}))
    # In processes of their own: writers that share an interpreter with the reader would hold it up.
    argv = [sys.executable, __file__, stage.postgres.dsn("bench")]
    writers = [subprocess.Popen([*argv, str(number)], stdin=subprocess.PIPE) for number in range(WRITERS)]
    topic = "paced.public.paced"
    wait("the first paced row", lambda: stored(stage.kafka.bootstrap, topic) > 0, 60)
    before = _commits(stage)
    found = _read(stage, topic, seconds)
    commits, commit_s = (after - first for after, first in zip(_commits(stage), before, strict=True))
    for writer in writers:
        writer.communicate()
    stage.stop("paced")
    found.sort()
    return {
        "latency_p50_ms": found[len(found) // 2],
        "latency_p99_ms": found[int(len(found) * 0.99)],
        "latency_max_ms": found[-1],
        "latency_transactions_per_s": len(found) / seconds,
        "kafka_commits_per_s": commits / (seconds + WARM_S),
        "kafka_commit_ms": 1000 * commit_s / max(commits, 1),
    }


def _commits(stage: Any) -> tuple[float, float]:
    """Kafka transactions of the task so far, and the seconds that their commits took."""
    lines = stage.rest.get("/metrics").text.splitlines()
    return tuple(  # type: ignore[return-value]
        next((float(line.split()[-1]) for line in lines if line.startswith(name + "{") and "paced" in line), 0.0)
        for name in ("cdc_source_commits_total", "cdc_source_commit_seconds_total")
    )


def _write(dsn: str, number: int) -> None:
    """One-row transactions at an even pace until the input ends; the row holds the time just before its commit."""
    row, start = 0, time.monotonic()
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with psycopg.connect(dsn, autocommit=True) as connection:
        while not ended.is_set():
            due = start + row * WRITERS / RATE
            time.sleep(max(0.0, due - time.monotonic()))
            connection.execute("insert into paced values (%s, %s)", (row * WRITERS + number, time.time_ns() // 1000))
            row += 1


def _read(stage: Any, topic: str, seconds: int) -> list[float]:
    found: list[float] = []
    one = consumer(stage.kafka.bootstrap, "bench-latency")
    try:
        one.assign([TopicPartition(topic, 0, stored(stage.kafka.bootstrap, topic))])
        warm = time.monotonic() + WARM_S
        end = warm + seconds
        while time.monotonic() < end:
            for message in one.consume(1_000, 0.005):
                if message.error() is None and message.value() and time.monotonic() > warm:
                    found.append((time.time_ns() // 1000 - _written_us(message.value())) / 1000)
    finally:
        one.close()
    return found


def _written_us(value: bytes) -> int:
    at = 7
    while value[at] & 128:
        at += 1
    return long_at(value, at + 1)


if __name__ == "__main__":
    _write(sys.argv[1], int(sys.argv[2]))
