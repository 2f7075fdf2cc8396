"""What one Kafka transaction costs by itself: a bare producer that commits one record after the other, on the same broker."""

from __future__ import annotations

import threading
import time

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from source_records import consumer

COMMITS = 1_000
WARM = 200
SETTLE_S = 1.0
TOPIC = "floor"


def floor(bootstrap: str) -> dict[str, float]:
    """Milliseconds from the beginning of a transaction to its end, and to its record in a reader's hands."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result()
    settings = {"bootstrap.servers": bootstrap, "transactional.id": TOPIC, "linger.ms": 0, "log_level": 2}
    producer = Producer({**settings, "socket.nagle.disable": True, "retry.backoff.ms": 10})
    producer.init_transactions()
    seen: list[float] = []
    ended = threading.Event()
    reader = threading.Thread(target=_read, args=(bootstrap, seen, ended))
    reader.start()
    took = []
    for _ in range(COMMITS):
        began = time.time_ns()
        producer.begin_transaction()
        producer.produce(TOPIC, str(began).encode())
        producer.commit_transaction()
        took.append((time.time_ns() - began) / 1e6)
    time.sleep(SETTLE_S)
    ended.set()
    reader.join()
    commits, visible = sorted(took[WARM:]), sorted(seen[WARM:])
    return {
        "floor_commit_p50_ms": commits[len(commits) // 2],
        "floor_commit_p99_ms": commits[int(len(commits) * 0.99)],
        "floor_visible_p50_ms": visible[len(visible) // 2],
        "floor_visible_p99_ms": visible[int(len(visible) * 0.99)],
    }


def _read(bootstrap: str, seen: list[float], ended: threading.Event) -> None:
    one = consumer(bootstrap, "bench-floor")
    one.assign([TopicPartition(TOPIC, 0, 0)])
    while not ended.is_set():
        message = one.poll(0.1)
        if message is not None and message.error() is None:
            seen.append((time.time_ns() - int(message.value())) / 1e6)
    one.close()
