"""What a source benchmark reads back: how far a topic is, and whether it holds every row once."""

from __future__ import annotations

import sys
import time
from functools import cache
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

TIMEOUT_S = 300.0
SAMPLE = 1_000


@cache
def _reader(bootstrap: str) -> Consumer:
    return consumer(bootstrap, "bench-offsets")


def consumer(bootstrap: str, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 5,
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": False,
            "log_level": 2,
        }
    )


def stored(bootstrap: str, topic: str) -> int:
    """Records in the topic's only partition, of open transactions too."""
    try:
        return int(_reader(bootstrap).get_watermark_offsets(TopicPartition(topic, 0), timeout=5)[1])
    except KafkaException:
        # A client that has asked for a topic before it was there may go on saying so.
        _reader.cache_clear()
        return 0


def long_at(data: bytes, at: int) -> int:
    """An Avro long."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value >> 1 ^ -(value & 1)


def check_topic(bootstrap: str, topic: str, rows: int, *, exact: bool) -> float:
    """Every row from 1 to `rows` once and in order, as a reader of committed records sees it; not exact: at least those.
    The seconds between the broker's time stamps of the first and the last of them."""
    one = consumer(bootstrap, "bench-check")
    expected, first, last = 1, 0, 0
    deadline = time.monotonic() + TIMEOUT_S
    try:
        one.assign([TopicPartition(topic, 0, 0)])
        while expected <= rows:
            if time.monotonic() > deadline:
                sys.exit(f"{topic}: {expected - 1} of {rows} rows")
            for message in one.consume(10_000, 1.0):
                if message.error() is not None or expected > rows:
                    continue
                if long_at(message.key(), 5) != expected:
                    sys.exit(f"{topic}: row {long_at(message.key(), 5)} where {expected} was expected")
                check_value(message.value(), expected)
                stamp = message.timestamp()[1]
                first, last = first or stamp, max(last, stamp)
                expected += 1
        if exact and one.consume(1, 0.5):
            sys.exit(f"{topic}: more than {rows} rows")
    finally:
        one.close()
    return max(last - first, 1) / 1000


def check_value(value: Any, row: int) -> None:
    """The frame, no `before`, and `after` that begins with the row's key."""
    if value[0] != 0 or value[5] != 0 or value[6] != 2 or long_at(value, 7) != row:
        sys.exit(f"the record of row {row} holds another one")
