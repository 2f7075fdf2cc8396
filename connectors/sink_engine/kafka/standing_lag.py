"""How far a sink whose task does not run is behind its topics: the ledger's offsets beside the ends of the partitions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from cdcworker.connectors.api.abilities import StandingTask
from cdcworker.connectors.sink_engine.kafka.brokers import SinkBrokers, client_settings, refused
from cdcworker.connectors.sink_errors import KAFKA_UNREACHABLE
from cdcworker.connectors.telemetry.standing_lag import standing_lag
from cdcworker.connectors.telemetry.table_labels import TableLabels
from cdcworker.schemas.errors import CdcError

Place = tuple[str, int]
ENDS: Final = "the ends of the topics cannot be read"
ENDS_S: Final = 5.0
LOOK_S: Final = 3.0
MARKS_MAX: Final = 16
"""So few offsets behind the last applied record may all be the ends of transactions, which hold nothing: they are read."""


def reported_offsets(numbers: Mapping[str, Any]) -> dict[Place, int]:
    """Returns the offsets that the task has reported as applied, by topic and partition."""
    found = numbers.get("offsets")
    out: dict[Place, int] = {}
    for name, offset in found.items() if isinstance(found, Mapping) else ():
        topic, _, number = str(name).rpartition("-")
        if topic and number.isdigit() and isinstance(offset, int):
            out[topic, int(number)] = offset
    return out


def measure(
    task: StandingTask, offsets: Mapping[Place, int], topics: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the lag in records, bytes and seconds, in total and by topic, and what the next measurement is to remember.
    Raises CdcError, also for a topic that the connector may not read."""
    task.access.check_read(topics, partial(_existing, task.kafka))
    waiting = _waiting(task, offsets, topics)
    names, records = TableLabels(), dict[str, int]()
    for (topic, _), count in waiting.items():
        name = names.of(topic)
        records[name] = records.get(name, 0) + count
    total = sum(records.values())
    lag_s, memory = standing_lag(task.numbers, task.memory, task.now_s, behind=total > 0)
    size = memory["record_bytes"] = task.memory.get("record_bytes") or _record_bytes(task.numbers)
    return {
        "lag_s": lag_s,
        "lag_records": total,
        "lag_bytes": round(total * size),
        "topic_lag_records": records,
        "topic_lag_bytes": {name: round(count * size) for name, count in records.items()},
        "topic_lag_s": {name: lag_s if count else 0.0 for name, count in records.items()},
    }, memory


def _existing(kafka: Mapping[str, str], names: Collection[str]) -> Collection[str]:
    return SinkBrokers(kafka).existing(names)


def _record_bytes(numbers: Mapping[str, Any]) -> float:
    """Returns the mean size of a record as the task has last told it; 0 where it has not."""
    size, count = numbers.get("lag_bytes"), numbers.get("lag_records")
    return size / count if isinstance(size, int | float) and isinstance(count, int | float) and count else 0.0


def _waiting(task: StandingTask, offsets: Mapping[Place, int], topics: Sequence[str]) -> dict[Place, int]:
    """Returns by partition how many offsets stand between the ledger's and the end of what is committed."""
    from confluent_kafka import KafkaException

    brokers = SinkBrokers(task.kafka)
    asked = brokers.begin_ends(brokers.partitions(topics))
    try:
        ends = {place: int(future.result(ENDS_S).offset) for place, future in asked.items()}
    except KafkaException as exc:
        raise refused(exc.args[0], ENDS) from exc
    except TimeoutError as exc:
        raise CdcError(KAFKA_UNREACHABLE, ENDS) from exc
    at = {**brokers.firsts([place for place in ends if place not in offsets]), **offsets}
    waiting = {place: max(0, end - at[place]) for place, end in ends.items()}
    few = {place: at[place] for place, count in waiting.items() if 0 < count <= MARKS_MAX}
    return {**waiting, **dict.fromkeys(_only_marks(task.kafka, few), 0)}


def _only_marks(kafka: Mapping[str, str], begins: Mapping[Place, int]) -> set[Place]:
    """Returns the partitions in which no record that counts stands from there on."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    if not begins:
        return set()
    own = {
        "group.id": "cdcworker-lag",  # never joined: partitions are assigned by hand
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "log_level": 3,
    }
    left, empty = set(begins), set[Place]()
    deadline = time.monotonic() + LOOK_S
    with contextlib.closing(Consumer({**client_settings(kafka), **own})) as consumer:
        consumer.assign([TopicPartition(topic, number, offset) for (topic, number), offset in begins.items()])
        while left and time.monotonic() < deadline:
            for message in consumer.consume(100, 0.2):
                place, error = (message.topic() or "", message.partition() or 0), message.error()
                if place in left and (error is None or error.code() == KafkaError._PARTITION_EOF):
                    left.discard(place)
                    if error is not None:
                        empty.add(place)
    return empty
