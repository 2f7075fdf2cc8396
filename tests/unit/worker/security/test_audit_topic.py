"""Audit entries on their way to a topic: one that cannot go is told, and the next ones go on."""

from __future__ import annotations

import pytest
from cdcworker.worker.security import audit
from cdcworker.worker.security.audit import AuditTopic
from confluent_kafka import KafkaError, KafkaException

KAFKA = {"bootstrap.servers": "k:1"}


class Client:
    def __init__(self, *refusals: Exception) -> None:
        self.refusals, self.sent = list(refusals), []

    def produce(self, topic, value, key, on_delivery) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.sent.append(key)

    def poll(self, timeout_s) -> int:
        return 0

    def flush(self, timeout_s) -> int:
        return 0

    def purge(self) -> None:
        pass


def kafka(code: int, *, fatal: bool = False) -> KafkaException:
    return KafkaException(KafkaError(code, "text", fatal))


@pytest.mark.parametrize(
    ("refusal", "clients"),
    [
        (BufferError(), 1),
        (kafka(KafkaError.MSG_SIZE_TOO_LARGE), 1),
        (kafka(KafkaError._UNKNOWN_TOPIC), 2),
        (kafka(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, fatal=True), 2),
    ],
)
def test_one_that_is_refused_is_told_and_the_next_one_goes(monkeypatch, caplog, refusal, clients):
    left = [Client(refusal), Client()]
    made: list[Client] = []

    def make(config):
        made.append(left.pop(0))
        return made[-1]

    monkeypatch.setattr(audit, "make_producer", make)
    monkeypatch.setattr(audit, "ensure_topics", lambda *args, **kwargs: None)
    topic = AuditTopic(KAFKA, "audit", "c")
    for name in ("a", "b"):
        topic({"connector": name, "request_id": f"of {name}"})
    topic.start()
    topic.close()
    assert not topic.is_alive()
    assert made[-1].sent == [b"b"]
    assert len(made) == clients
    assert [record.getMessage() for record in caplog.records if "only in the log" in record.getMessage()] == [
        "audit record only in the log topic=audit request=of a"
    ]
