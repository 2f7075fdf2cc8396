"""How far the dead letters of a sink are done with: offsets in its group, which requests move and its task keeps from being forgotten."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Mapping
from typing import Final

from cdcworker.connectors.record_sink.group_offsets import (
    ANSWER_S,
    Committed,
    GroupClients,
    Owner,
    Partition,
    committed,
    failed,
)
from cdcworker.connectors.record_sink.letter_topic import partitions_of
from cdcworker.connectors.sink_engine.kafka.brokers import SinkBrokers
from confluent_kafka import KafkaException, TopicPartition

NOTES: Final = "letters:"
"""What notes begin with, so that a task that reads the topic is not shut out by them."""


def letters_owner_id(clients: GroupClients) -> str:
    """Returns the transactional id of whoever moves the offsets."""
    return f"{clients.group}:redrive"


def next_owner(clients: GroupClients, found: Mapping[Partition, Committed]) -> Owner:
    """Returns an owner behind all who have left notes, whatever a clock says. Of two at a time the one that began later goes on."""
    highest = max((one.epoch[0] for one in found.values()), default=0)
    return Owner((max(0, highest) + 1, time.time_ns()), letters_owner_id(clients), NOTES)


def record_ids(topic_id: str, connector: str) -> str:
    """Returns what ids of records begin with that are known by their letters. Connectors that share a topic of letters, and
    targets, have ids of their own; no topic has a name or an id like it."""
    return f"{NOTES}{topic_id}:{hashlib.sha256(connector.encode()).hexdigest()[:16]}"


def are_of_letters(ids: str) -> bool:
    return ids.startswith(NOTES)


def renew(clients: GroupClients, brokers: SinkBrokers, topic: str) -> None:
    """Commits the offsets once more as they are: a broker forgets what was committed long ago. Raises CdcError."""
    places = partitions_of(topic, brokers.partitions([topic]).get(topic, 0))
    with contextlib.closing(clients.open_consumer()) as consumer:
        if not committed(consumer, places):
            return
        # Who takes the id over after this lets nothing be committed here; a request that has lost it takes it back.
        producer = clients.open_producer(letters_owner_id(clients))
        found = committed(consumer, places)
        parts = [TopicPartition(topic, number, one.offset, one.note) for (topic, number), one in found.items()]
        try:
            producer.begin_transaction()
            producer.send_offsets_to_transaction(parts, consumer.consumer_group_metadata(), ANSWER_S)
            producer.commit_transaction(ANSWER_S)
        except KafkaException as exc:
            raise failed(exc.args[0], "the offsets of dead letters cannot be committed") from exc
