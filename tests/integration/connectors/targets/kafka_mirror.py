"""A second Kafka under test, and what is in its topics beside those of the first one."""

from __future__ import annotations

import base64
import contextlib
import json
import uuid
from collections.abc import Mapping
from typing import Any

from cdcworker.schemas.decode import RecordDecoder
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from tests.record_sinks import Ledger, Topics


def config_to(target: Any, alias: str, **more: str) -> dict[str, str]:
    """The config of a mirror to a Kafka; `more` with underscores for dots."""
    own = {name.replace("_", "."): value for name, value in more.items()}
    servers = {"target.bootstrap.servers": target.bootstrap, "source.cluster.alias": alias}
    return {"connector.class": "kafka", "replication.factor": "1", **servers, **own}


def read_all(kafka: Any, topic: str) -> dict[int, list[Any]]:
    """The committed records of a topic, by partition; none where the topic is not there."""
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": "t", "enable.partition.eof": True, "log_level": 2}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "fetch.wait.max.ms": 10})
    with contextlib.closing(consumer):
        numbers = set(consumer.list_topics(topic, 10.0).topics[topic].partitions)
        found: dict[int, list[Any]] = {number: [] for number in numbers}
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
        while numbers:
            for message in consumer.consume(1000, 0.2):
                if message.error():
                    numbers.discard(message.partition())
                else:
                    found[message.partition()].append(message)
    return found


def told(message: Any) -> tuple[Any, ...]:
    """All that a copy has in common with its record."""
    return message.key(), message.value(), message.headers(), message.timestamp()[1]


class MirrorReader:
    """A reader of the copy of one topic, and what it has to be."""

    def __init__(self, target: Any) -> None:
        self.target, self.alias = target, f"a{uuid.uuid4().hex[:8]}"
        self.topics: Topics | None = None
        self._ledger = Ledger()
        self._next: dict[int, int] = {}
        self._settings = {"group.id": "t", "enable.partition.eof": True, "log_level": 2, "fetch.wait.max.ms": 10}

    @property
    def config(self) -> Mapping[str, str]:
        return config_to(self.target, self.alias)

    def of(self, topics: Topics) -> MirrorReader:
        self.topics = topics
        return self

    @property
    def copy(self) -> str:
        assert self.topics is not None
        return f"{self.alias}.{self.topics.topic}"

    @property
    def ledger(self) -> Ledger:
        """What a reader of the copy that goes on where it was has seen: a record that is there twice has one id."""
        assert self.topics is not None
        decoder = RecordDecoder(self.topics.stream.schemas.log)
        try:
            found = read_all(self.target, self.copy)
        except (KafkaException, KeyError):
            return self._ledger
        for number, messages in sorted(found.items()):
            for message in messages[self._next.get(number, 0) :]:
                value = None if message.value() is None else decoder.decode(message.value())
                if value and value["after"] and value["after"].get("b") is not None:
                    value["after"]["b"] = base64.b64encode(value["after"]["b"]).decode()
                at = value["source"] if value else None
                id = (
                    json.dumps([at[each] for each in ("commit_lsn", "tx_index", "tx_sub")])
                    if at
                    else f"t{message.offset()}-{number}"
                )
                self._ledger.take({"id": id, "partition": number, "offset": message.offset(), "value": value})
            self._next[number] = len(messages)
        return self._ledger

    def stop(self) -> None:
        self.target.kill()

    def start(self) -> None:
        self.target.start()

    def close(self) -> None:
        """Everything that is there is a copy, byte for byte, in the same partition and order, once."""
        assert self.ledger.twice == 0, "a record is there twice"
        assert self.topics is not None
        source, copies = read_all(self.topics.kafka, self.topics.topic), read_all(self.target, self.copy)
        for number, messages in copies.items():
            assert list(map(told, messages)) == list(map(told, source[number][: len(messages)])), number
