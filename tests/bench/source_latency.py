"""From a commit on the server to a reader of committed records, at a thousand transactions a second."""

from __future__ import annotations

import threading
import time
from typing import Any

from confluent_kafka import TopicPartition
from measure import wait
from source_records import consumer, long_at, stored

RATE = 1_000
WRITERS = 4
WARM_S = 3.0


def latency(stage: Any, seconds: int) -> dict[str, float]:
    """Milliseconds between the commit's time stamp and the record in a consumer's hands."""
    with stage.connect() as connection:
        connection.execute("create table paced (id bigint primary key, at bigint not null)")
        connection.execute("create publication p_paced for table paced")
        connection.execute("select pg_create_logical_replication_slot('paced', 'pgoutput')")
    stage.start("paced", stage.config("paced", "paced", {}))
    stop = threading.Event()
    writers = [threading.Thread(target=_write, args=(stage, n, stop)) for n in range(WRITERS)]
    for writer in writers:
        writer.start()
    topic = "paced.public.paced"
    wait("the first paced row", lambda: stored(stage.kafka.bootstrap, topic) > 0, 60)
    found = _read(stage, topic, seconds)
    stop.set()
    for writer in writers:
        writer.join()
    stage.stop("paced")
    found.sort()
    return {
        "latency_p50_ms": found[len(found) // 2],
        "latency_p99_ms": found[int(len(found) * 0.99)],
        "latency_max_ms": found[-1],
        "latency_transactions_per_s": len(found) / seconds,
    }


def _write(stage: Any, number: int, stop: threading.Event) -> None:
    """One-row transactions at an even pace; the row holds the time just before its commit."""
    row, start = 0, time.monotonic()
    with stage.connect() as connection:
        while not stop.is_set():
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
