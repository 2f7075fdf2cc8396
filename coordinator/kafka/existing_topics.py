"""Which of some topics exist."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from cdcworker.coordinator.kafka.clients import make_admin
from cdcworker.coordinator.kafka.errors import translate
from confluent_kafka import KafkaException

CLIENT: Final = "cdcworker-existing-topics"
ANSWER_S: Final = 10.0


def existing(kafka: Mapping[str, str], names: Collection[str], timeout_s: float = ANSWER_S) -> frozenset[str]:
    """Returns those of the topics that exist. Asking about them does not create them."""
    try:
        found = make_admin(kafka, client_id=CLIENT).list_topics(timeout=timeout_s).topics
    except KafkaException as exc:
        raise translate(exc, "look up topics") from exc
    return frozenset(name for name in names if name in found)
