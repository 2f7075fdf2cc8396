"""Internal topics as they are after a long life: millions of positions and leases, compacted by the broker's cleaner.

python -m tests.bench.aging [--records 5000000] [--uncleaned]     # ages an embedded broker's topics and times what a start reads
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cdcworker.coordinator.kafka.clients import make_consumer, make_producer, producer_config, reader_config
from cdcworker.coordinator.kafka.clients import transactional_config as transactional
from cdcworker.coordinator.kafka.internal_topics import TopicNames, ensure_topics, internal_topics
from cdcworker.coordinator.log.offset_records import OffsetRecord, offset_key, offset_value, offsets_partition
from confluent_kafka import TopicPartition

WORKERS, TASKS = 5, 250
LEASES_SHARE = 0.4
BATCH = 20_000
"""Records in one transaction: the cleaner keeps each marker for a while, and nobody has time for millions of them."""
FAST: dict[str, Any] = {"linger.ms": 20, "batch.size": 1_000_000, "batch.num.messages": 50_000}
ROOM: dict[str, Any] = {"queue.buffering.max.messages": 2_000_000, "queue.buffering.max.kbytes": 262_144}
CLEANED_SHARE = 0.2
"""The cleaner has done its work when no more than this is left: the last segment of each partition is never cleaned."""


def age(bootstrap: str, topics: TopicNames, records: int, *, settle_s: float = 120.0) -> dict[str, float]:
    """Fill the status log with leases and the positions' topic with positions, then wait for the cleaner."""
    properties = {"bootstrap.servers": bootstrap}
    leases = int(records * LEASES_SHARE)
    began = time.monotonic()
    _produce_leases(properties, topics.status, leases)
    _produce_positions(properties, topics.offsets, records - leases)
    produced = time.monotonic()
    left = settle(properties, topics, records, settle_s)
    return {
        "aged_records": records,
        "aging_produce_s": round(produced - began, 1),
        "aging_settle_s": round(time.monotonic() - produced, 1),
        "aging_left_records": left,
    }


def _produce_leases(properties: dict[str, str], topic: str, count: int) -> None:
    """What `WORKERS` workers write in some weeks; they are of processes that ended long ago."""
    producer = make_producer({**producer_config(properties, client_id="aging"), **FAST, **ROOM})
    keys = [f"lease/worker-{n + 1}".encode() for n in range(WORKERS)]
    values = [f'{{"boot_id":"{n:032x}","n":' for n in range(WORKERS)]
    headers = [("w", b"worker-1"), ("ts", b"1700000000000"), ("v", b"1")]
    for number in range(count):
        who = number % WORKERS
        value = f"{values[who]}{number}}}".encode()
        _put(producer, lambda w=who, v=value: producer.produce(topic, v, keys[w], 0, headers=headers), number)
    producer.flush(120)


def _produce_positions(properties: dict[str, str], topic: str, count: int) -> None:
    partitions = len(
        make_consumer(reader_config(properties, client_id="aging")).list_topics(topic).topics[topic].partitions
    )
    config = transactional(properties, client_id="aging", transactional_id="aging", transaction_timeout_ms=60_000)
    producer = make_producer({**config, **FAST, **ROOM})
    producer.init_transactions(60)
    places = [_place(task, partitions) for task in range(TASKS)]
    for start in range(0, count, BATCH):
        producer.begin_transaction()
        for number in range(start, min(start + BATCH, count)):
            key, value, partition = places[number % TASKS]
            _put(producer, lambda k=key, v=value, p=partition: producer.produce(topic, v, k, p), number)
        producer.commit_transaction(60)


def _place(task: int, partitions: int) -> tuple[bytes, bytes, int]:
    connector = f"aged-{task}"
    position = {"commit_lsn": 10**12 + task, "tx_index": 3, "tx_sub": 0, "end_lsn": 10**12 + task, "snapshot": None}
    value = json.dumps(offset_value(OffsetRecord("0" * 36, task << 20, position)), separators=(",", ":"))
    key = offset_key(connector, {"server": connector, "task": 0})
    return key.encode(), value.encode(), offsets_partition(connector, 0, partitions)


def _put(producer: Any, produce: Callable[[], None], number: int) -> None:
    while True:
        try:
            produce()
            break
        except BufferError:
            producer.poll(0.1)
    if number % 50_000 == 0:
        producer.poll(0)


def settle(properties: dict[str, str], topics: TopicNames, records: int, timeout_s: float) -> int:
    """Wait for the cleaner; gives the number of records that are left, whoever wrote them."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = sum(size(properties, topic) for topic in (topics.status, topics.offsets))
        if left <= CLEANED_SHARE * records or time.monotonic() > deadline:
            return left
        time.sleep(5)


def size(properties: dict[str, str], topic: str) -> int:
    """Records that a reader of the whole topic gets, estimated from one read of the keys only."""
    with contextlib.closing(make_consumer(reader_config(properties, client_id="aging-size"))) as consumer:
        places = [TopicPartition(topic, number, 0) for number in consumer.list_topics(topic).topics[topic].partitions]
        consumer.assign(places)
        found, ended = 0, 0
        while ended < len(places):
            for message in consumer.consume(50_000, 0.2):
                if message.error() is None:
                    found += 1
                else:
                    ended += 1
        return found


# --- what a start reads ---------------------------------------------------------------------------------------------


def time_start(bootstrap: str, topics: TopicNames) -> dict[str, float]:
    """Seconds for a worker's fold of the status log, and for one positions' partition from its start."""
    from cdcworker.coordinator.kafka.compacted_log import KafkaCompactedLog
    from cdcworker.coordinator.log.status_fold import LeaseReader, StatusState, fold_status
    from cdcworker.worker.herder.backends import LEASES

    properties = {"bootstrap.servers": bootstrap}
    found: dict[str, float] = {}
    for name, topic, partitions in (("status", topics.status, None), ("offsets_partition", topics.offsets, [0])):
        began, cpu = time.monotonic(), time.process_time()
        log = KafkaCompactedLog(properties, topic, client_id="timed", partitions=partitions, counters=LEASES)
        with contextlib.closing(log):
            records = log.read_to_end(60)
            fold_status(StatusState(), records, LeaseReader("w", "b", 0.0, 1.0))
            found[f"{name}_read_s"] = round(time.monotonic() - began, 2)
            found[f"{name}_cpu_s"] = round(time.process_time() - cpu, 2)
            found[f"{name}_records"] = len(records)
    return found


@contextlib.contextmanager
def embedded(uncleaned: bool) -> Iterator[tuple[str, TopicNames]]:
    from cdcworker.worker.devstack.kafka import EmbeddedKafka

    with tempfile.TemporaryDirectory(prefix="cdc-aging-") as folder:
        settings = {"log.cleaner.enable": "false"} if uncleaned else {}
        kafka = EmbeddedKafka(Path(folder) / "kafka", settings)
        with kafka:
            names = TopicNames.of_group("aged")
            ensure_topics({"bootstrap.servers": kafka.bootstrap}, internal_topics(names), client_id="aging")
            yield kafka.bootstrap, names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument(
        "--uncleaned", action="store_true", help="the cleaner never ran: the worst that a start can meet"
    )
    given = parser.parse_args()
    with embedded(given.uncleaned) as (bootstrap, names):
        aged = age(bootstrap, names, given.records, settle_s=0.0 if given.uncleaned else 120.0)
        print(json.dumps(aged), flush=True)
        print(json.dumps(time_start(bootstrap, names)), flush=True)


if __name__ == "__main__":
    main()
