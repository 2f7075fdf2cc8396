"""The first records of a topic that has just been created: its leader may refuse the one and take the next."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest
from cdcworker.coordinator.kafka.clients import make_admin, make_consumer, reader_config
from cdcworker.worker.producers.at_least_once import DataProducer
from cdcworker.worker.producers.transactional import TransactionalProducer
from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition
from confluent_kafka.admin import NewTopic

pytestmark = pytest.mark.kafka

TOPICS = 30
"""With several requests under way at once one of the first ten lacks records, in each of many runs."""
WANTED = [b"%d" % number for number in range(6)]
DEADLINE_S = 60.0


@pytest.fixture
def properties(kafka) -> dict[str, str]:
    # A request for each record: as with records that come a few milliseconds apart, or that fill their batches.
    return {"bootstrap.servers": kafka.bootstrap, "producer.batch.num.messages": "1", "producer.linger.ms": "0"}


def committed(properties: dict[str, str], topics: list[str]) -> dict[str, list[bytes]]:
    """The values of each topic's first partition, as a reader of committed records sees them."""
    consumer = make_consumer(
        {**reader_config(properties, client_id="test-reader"), "enable.partition.eof": True, "group.id": "test-reader"}
    )
    found: dict[str, list[bytes]] = {topic: [] for topic in topics}
    left, deadline = set(topics), time.monotonic() + DEADLINE_S
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in topics])
    while left:
        assert time.monotonic() < deadline, f"not read to the end: {len(left)} of {len(topics)}"
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is None:
            found[message.topic()].append(message.value())
        elif message.error().code() == KafkaError._PARTITION_EOF:
            left.discard(message.topic())
    consumer.close()
    return found


def new_topics(properties: dict[str, str]) -> Iterator[str]:
    admin, stem = make_admin(properties, client_id="test"), uuid.uuid4().hex[:8]
    for number in range(TOPICS):
        name = f"first-{stem}-{number}"
        admin.create_topics([NewTopic(name, 3, 1)])[name].result(DEADLINE_S)
        yield name


def test_no_first_record_of_a_new_topic_is_lost_in_a_transaction(properties):
    producer = TransactionalProducer(
        properties, f"g-{uuid.uuid4().hex[:8]}", client_id="test", transaction_timeout_ms=60_000
    )
    topics = []
    for topic in new_topics(properties):
        topics.append(topic)
        producer.begin()
        for value in WANTED:
            producer.produce(topic, None, value, 0)
        producer.commit()
    producer.close()
    assert committed(properties, topics) == dict.fromkeys(topics, WANTED)


def test_no_first_record_of_a_new_topic_is_lost_without_one(properties):
    producer = DataProducer(properties, client_id="test", timeout_ms=30_000)
    topics = []
    for topic in new_topics(properties):
        topics.append(topic)
        for value in WANTED:
            producer.produce(topic, None, value, 0)
        producer.drain()
    producer.close()
    assert committed(properties, topics) == dict.fromkeys(topics, WANTED)
