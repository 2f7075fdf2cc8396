"""What writing alone costs: a bare producer that writes the records of another topic again, exactly once, and does nothing else.

They stand in its memory before. It has the settings and the pace of commits of our worker, so it is the limit of whoever writes these
bytes to this broker by this client: `python -m tests.bench.mysql.bare BOOTSTRAP TOPIC RECORDS` prints records per second and its CPU in
microseconds per record.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

from cdcworker.worker.producers.transactional import settled
from confluent_kafka import Producer, TopicPartition

from ..source.records import consumer, make_topics

TIMEOUT_S = 300.0
COMMIT_RECORDS = 100_000
RECORDS_MAX = 300_000
"""Of those that stand in memory."""


def written_again(bootstrap: str, topic: str, records: int) -> tuple[float, float]:
    """Records per second, and CPU in microseconds per record, of a process of its own."""
    words = (bootstrap, topic, min(records, RECORDS_MAX))
    argv = [sys.executable, "-m", __name__, *map(str, words)]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S)
    per_s, cpu_us = map(float, done.stdout.split())
    return per_s, cpu_us


def _read(bootstrap: str, topic: str, count: int) -> list[tuple[Any, ...]]:
    """The first records of a topic, as arguments of `produce` for another one."""
    one, found, to = consumer(bootstrap, "bench-bare"), [], f"{topic}.again"
    deadline = time.monotonic() + TIMEOUT_S
    one.assign([TopicPartition(topic, 0, 0)])
    while len(found) < count:
        if time.monotonic() > deadline:
            sys.exit(f"{topic}: {len(found)} of {count} records")
        found += [(to, one.value(), one.key(), 0) for one in one.consume(10_000, 0.5) if one.error() is None]
    one.close()
    return found[:count]


def _write(bootstrap: str, records: list[tuple[Any, ...]]) -> None:
    place = {"bootstrap.servers": bootstrap}
    producer = Producer(settled({**place, "transactional.id": records[0][0]}, place))
    producer.init_transactions()
    began, cpu = time.perf_counter(), time.process_time()
    for at in range(0, len(records), COMMIT_RECORDS):
        producer.begin_transaction()
        for record in records[at : at + COMMIT_RECORDS]:
            while True:
                try:
                    producer.produce(*record)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.commit_transaction()
    took, used = time.perf_counter() - began, time.process_time() - cpu
    print(len(records) / took, used / len(records) * 1e6)


if __name__ == "__main__":
    server, given, number = sys.argv[1:]
    make_topics(server, [f"{given}.again"])
    _write(server, _read(server, given, int(number)))
