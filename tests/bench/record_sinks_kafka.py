"""The mirror to another Kafka beside a bare client that copies the same topic to the same cluster, in the same run.

Both are processes of their own. The bare client is the loop that everybody writes: consume committed records, produce them to the same
partition, with the offsets of a group in the same transaction, as many records at a time as there are up to the sink's batch. A reader of committed
copies counts them, and a round in which one is missing fails.

Then records come at an even rate, for both: how long it takes from the time at which the source's broker has a record until the reader has
its copy.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from cdcworker.worker.devstack.kafka import EmbeddedKafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.record_sinks import TaskProcess, Topics

from .measure import wait

BATCH: Final = 10_000
PARTITIONS: Final = 4
WARM: Final = 500


def reader_of(bootstrap: str, topic: str, group: str) -> Any:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            # An end that only rises by a commit wakes no request that waits at the broker.
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    return consumer


def count_copies(bootstrap: str, topic: str, pipe: Any) -> None:
    """A process that reads copies. Asked, it tells how many there are, and how much later than in the source each one came."""
    consumer, seen, late = reader_of(bootstrap, topic, "count"), 0, list[float]()
    while True:
        first = consumer.poll(0.002)
        found = [] if first is None else [first, *consumer.consume(BATCH, 0)]
        now = time.time() * 1000
        for message in found:
            if not message.error():
                seen += 1
                late.append(now - message.timestamp()[1])
        if pipe.poll():
            pipe.send((seen, late if pipe.recv() == "late" else []))


def copy_bare(source: str, target: str, topic: str, copy: str) -> None:
    """A process that copies, by nothing but the library."""
    consumer = reader_of(source, topic, "bare")
    producer = Producer({"bootstrap.servers": target, "transactional.id": copy, "linger.ms": 5})
    producer.init_transactions(30)
    while True:
        first = consumer.poll(0.1)
        found = [] if first is None else [first, *consumer.consume(BATCH - 1, 0)]
        messages = [one for one in found if not one.error()]
        if not messages:
            continue
        producer.begin_transaction()
        ends: dict[int, int] = {}
        for one in messages:
            while True:
                try:
                    producer.produce(
                        copy,
                        one.value(),
                        one.key(),
                        one.partition(),
                        timestamp=one.timestamp()[1],
                        headers=one.headers(),
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            ends[one.partition()] = one.offset() + 1
        offsets = [TopicPartition(copy, number, at) for number, at in ends.items()]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 30)
        producer.commit_transaction(30)


class Run:
    """One contender, which copies a topic to an empty one, and a reader of what it copies."""

    def __init__(self, topics: Topics, target: Any, folder: Path, name: str, *, bare: bool) -> None:
        self._stack, self.task = contextlib.ExitStack(), None
        context = multiprocessing.get_context("spawn")
        copy = f"{name}.{topics.topic}"
        admin = AdminClient({"bootstrap.servers": target.bootstrap})
        admin.create_topics([NewTopic(copy, PARTITIONS, 1)])[copy].result(30)
        self._pipe, other = context.Pipe()
        with contextlib.ExitStack() as stack:
            arguments: tuple[Any, ...] = (target.bootstrap, copy, other)
            counter = context.Process(target=count_copies, args=arguments, daemon=True)
            counter.start()
            stack.callback(counter.kill)
            wait("the reader", lambda: self.seen() == 0, 60)
            if bare:
                arguments = (topics.kafka.bootstrap, target.bootstrap, topics.topic, copy)
                client = context.Process(target=copy_bare, args=arguments, daemon=True)
                client.start()
                stack.callback(client.kill)
            else:
                config = {
                    "connector.class": "kafka",
                    "target.bootstrap.servers": target.bootstrap,
                    "source.cluster.alias": name,
                    "replication.factor": "1",
                }
                self.task = TaskProcess(topics, config, (1, 0), folder, name=name)
                stack.callback(self.task.kill)
            self._stack = stack.pop_all()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def seen(self) -> int:
        self._pipe.send("seen")
        return int(self._pipe.recv()[0])

    def late(self) -> list[float]:
        self._pipe.send("late")
        return list(self._pipe.recv()[1])

    def rss_mb(self) -> float:
        return max((one["rss_mb"] for one in self.task.reports), default=0.0) if self.task else 0.0

    def seconds(self, count: int) -> float:
        """How long all copies take, from the first on."""
        wait("the first copies", lambda: self.seen() > 0, 60, 0.005)
        began, already = time.monotonic(), self.seen()
        wait("all copies", lambda: self.seen() >= count, 300, 0.01)
        seconds = (time.monotonic() - began) * count / max(1, count - already)
        if self.task is not None:
            task = self.task
            wait("a report of it all", lambda: task.numbers.get("changes", 0) >= count, 30)
        if self.seen() != count:
            sys.exit(f"{self.seen()} copies came, not {count}")
        return seconds


def visible_ms(kafka: Any, target: Any, options: Any, folder: Path, shared: SimpleNamespace, *, bare: bool) -> Any:
    """How late copies were at an even rate, in ms in rising order, and the memory of the task in MB."""
    topics = Topics(kafka, PARTITIONS, message_timestamp_type="LogAppendTime")
    for number in range(int(options.rate * options.seconds) + WARM):
        topics.stream.insert(shared.row, (number, number, "x" * 20, 0.5))
    records = list(topics.stream.records)
    topics.forget()
    topics.flush()
    with Run(topics, target, folder, f"l{'b' if bare else 's'}-{topics.name}", bare=bare) as run:
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 5})
        shared.paced(producer, records[:WARM], options.rate)
        wait("the first copies", lambda: run.seen() >= WARM, 60)
        shared.paced(producer, records[WARM:], options.rate)
        wait("the last copy", lambda: run.seen() >= len(records), 60)
        return sorted(run.late()[WARM:]), run.rss_mb()


def measured(kafka: Any, options: Any, folder: Path, shared: SimpleNamespace) -> dict[str, float]:
    """`shared`: what the benchmark of the web service has too: `fill`, `paced`, `percentile`, `row`."""
    target = EmbeddedKafka(folder / "target")
    target.start()
    try:
        topics, rows, rounds = shared.fill(kafka, options.rows), options.rows, list[SimpleNamespace]()
        for number in range(options.rounds):
            with Run(topics, target, folder, f"b{number}", bare=True) as run:
                bare_s = run.seconds(rows)
            with Run(topics, target, folder, f"s{number}", bare=False) as run:
                sink_s, rss = run.seconds(rows), run.rss_mb()
            rounds.append(SimpleNamespace(sink=rows / sink_s, bare=rows / bare_s, rss=rss))
            print(f"round {number + 1}, Kafka: sink {rows / sink_s:,.0f}/s, client {rows / bare_s:,.0f}/s")
        late, rss = visible_ms(kafka, target, options, folder, shared, bare=False)
        bare_late, _ = visible_ms(kafka, target, options, folder, shared, bare=True)
    finally:
        target.remove()
    median = statistics.median
    return {
        "kafka_changes_per_s": round(median(one.sink for one in rounds)),
        "kafka_bare_client_changes_per_s": round(median(one.bare for one in rounds)),
        "kafka_vs_bare_client_ratio": round(median(one.sink / one.bare for one in rounds), 3),
        **{f"kafka_visible_p{share}_ms": shared.percentile(late, share) for share in (50, 99)},
        **{f"kafka_bare_visible_p{share}_ms": shared.percentile(bare_late, share) for share in (50, 99)},
        "kafka_rss_mb": round(max(rss, *(one.rss for one in rounds)), 1),
    }
