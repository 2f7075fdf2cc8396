"""What a source benchmark reads back: how far a topic is, and whether it holds every row once."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

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


def make_topics(bootstrap: str, topics: Sequence[str]) -> None:
    """With the broker's clock, as the source would make them when it meets their tables."""
    config = {"message.timestamp.type": "LogAppendTime"}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(topic, 1, config=config) for topic in topics]).values():
        made.result(TIMEOUT_S)


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


def check_rows(bootstrap: str, topic: str, rows: int) -> float:
    """Every row from 1 to `rows` once, in any order; gives what `check_topics` does."""
    one, met, left, first, last = consumer(bootstrap, "bench-check"), bytearray(rows + 1), rows, 0, 0
    deadline = time.monotonic() + TIMEOUT_S
    try:
        one.assign([TopicPartition(topic, 0, 0)])
        while left:
            if time.monotonic() > deadline:
                sys.exit(f"{topic}: {left} of {rows} rows are missing")
            for message in one.consume(10_000, 0.5):
                if message.error() is not None:
                    continue
                _, row = head_of(message, versions=False)
                if not 1 <= row <= rows or met[row]:
                    sys.exit(f"{topic}: row {row} was not expected, or not again")
                met[row], left = 1, left - 1
                stamp = message.timestamp()[1]
                first, last = min(first or stamp, stamp), max(last, stamp)
        if one.consume(1, 0.5):
            sys.exit(f"{topic}: more than {rows} rows")
    finally:
        one.close()
    return max(last - first, 1) / 1000


def check_topics(
    bootstrap: str,
    expected: Mapping[str, Iterator[tuple[str, int]]],
    *,
    exact: bool,
    versions: bool = True,
    sample: list[bytes] | None = None,
) -> float:
    """Every record in its place in its topic, and nothing behind the last. The seconds between the broker's time stamps
    of the first and the last of them. `versions`: the second column says what happened to the row. `sample` gets the
    values of one record in `SAMPLE`."""
    one, first, last = consumer(bootstrap, "bench-check"), 0, 0
    left = {topic: next(heads, None) for topic, heads in expected.items()}
    deadline = time.monotonic() + TIMEOUT_S
    try:
        one.assign([TopicPartition(topic, 0, 0) for topic in left])
        open_topics = sum(head is not None for head in left.values())
        while open_topics:
            if time.monotonic() > deadline:
                sys.exit(f"expected next: {[(topic, head) for topic, head in left.items() if head is not None][:3]}")
            for message in one.consume(10_000, 0.5):
                topic = message.topic()
                wanted = left.get(topic)
                if message.error() is not None or (wanted is None and not exact):
                    continue
                found = head_of(message, versions=versions)
                if found != wanted:
                    sys.exit(f"{topic}: {found} where {wanted} was expected")
                stamp = message.timestamp()[1]
                first, last = min(first or stamp, stamp), max(last, stamp)
                if sample is not None and found[1] % SAMPLE == 1:
                    sample.append(message.value())
                left[topic] = next(expected[topic], None)
                open_topics -= left[topic] is None
        if exact and (more := one.consume(1, 0.5)):
            sys.exit(f"{more[0].topic()}: more records than were expected")
    finally:
        one.close()
    return max(last - first, 1) / 1000


def head_of(message: Any, *, versions: bool = True) -> tuple[str, int]:
    """What happened to which row, by the frame, the branches of `before` and `after`, and the first two columns."""
    value, row = message.value(), long_at(message.key(), 5)
    if value is None:
        return "-", row
    if value[0] == 0 and value[5] == 2 and long_at(value, 6) == row:
        return "b", row
    if value[0] != 0 or value[5] != 0 or value[6] != 2 or long_at(value, 7) != row:
        sys.exit(f"the record of row {row} holds another one")
    if not versions:
        return "c", row
    at = 7
    while value[at] & 128:
        at += 1
    return ("c", "u")[long_at(value, at + 1)], row
