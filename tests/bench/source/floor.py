"""What one Kafka transaction costs by itself: a bare producer that commits one after the other, on the same broker.

Alone it commits a record at a time. Paced it commits whatever fell due since its last commit, at the pace of the rows
of the latency's figure and while somebody writes these rows to the server: no reading of the log, no decoding, no
encoding, no position. What a source adds is the difference to that line.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from .records import consumer

COMMITS = 1_000
WARM = 200
SETTLE_S = 1.0
SPIN_S = 0.0005


def floor(bootstrap: str, name: str = "floor", rate: float = 0.0) -> dict[str, float]:
    """Milliseconds from the beginning of a transaction to its end, and from when a record was due (with `rate` per
    second; else when it was begun) to a reader's hands."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result()
    settings = {"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0, "log_level": 2}
    producer = Producer({**settings, "socket.nagle.disable": True, "retry.backoff.ms": 10})
    producer.init_transactions()
    seen: list[float] = []
    ended = threading.Event()
    reader = threading.Thread(target=_read, args=(bootstrap, name, seen, ended))
    reader.start()
    took = []
    batches = _paced(rate) if rate else _single()
    for _ in range(COMMITS):
        due = next(batches)
        began = time.time_ns()
        producer.begin_transaction()
        for moment in due:
            producer.produce(name, str(moment).encode())
        producer.commit_transaction()
        took.append((time.time_ns() - began) / 1e6)
    time.sleep(SETTLE_S)
    ended.set()
    reader.join()
    commits, visible = sorted(took[WARM:]), sorted(seen[len(seen) * WARM // COMMITS :])
    return {
        f"{name}_commit_p50_ms": commits[len(commits) // 2],
        f"{name}_commit_p99_ms": commits[int(len(commits) * 0.99)],
        f"{name}_visible_p50_ms": visible[len(visible) // 2],
        f"{name}_visible_p99_ms": visible[int(len(visible) * 0.99)],
    }


def _single() -> Iterator[list[int]]:
    while True:
        yield [time.time_ns()]


def _paced(rate: float) -> Iterator[list[int]]:
    """What fell due since the last time, one moment of it at least."""
    step = int(1e9 / rate)
    next_due = time.time_ns() + step
    while True:
        while (now := time.time_ns()) < next_due:
            time.sleep(SPIN_S)
        due = list(range(next_due, now + 1, step))
        next_due = due[-1] + step
        yield due


def _read(bootstrap: str, topic: str, seen: list[float], ended: threading.Event) -> None:
    one = consumer(bootstrap, "bench-floor")
    one.assign([TopicPartition(topic, 0, 0)])
    while not ended.is_set():
        message = one.poll(0.1)
        if message is not None and message.error() is None:
            seen.append((time.time_ns() - int(message.value())) / 1e6)
    one.close()
