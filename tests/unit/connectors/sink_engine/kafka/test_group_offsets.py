"""Offsets of a group that nobody joins, when its broker is not the one that was asked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cdcworker.connectors.sink_engine.kafka import group_offsets as groups
from cdcworker.connectors.sink_engine.kafka.group_offsets import OffsetGroup
from cdcworker.schemas.errors import CdcError
from confluent_kafka import KafkaError, KafkaException

A = ("shop.public.a", 0)


class Consumer:
    """Answers with these errors first: raised, or said of a partition."""

    def __init__(self, *errors):
        self.errors, self.kept, self.closed = list(errors), {}, 0

    def list_topics(self, timeout):
        return SimpleNamespace(topics={A[0]: SimpleNamespace(error=None, partitions=[0])})

    def _answer(self, parts):
        if not self.errors:
            return parts
        code, raised = self.errors.pop(0)
        if raised:
            raise KafkaException(KafkaError(code))
        return [SimpleNamespace(topic=A[0], partition=0, offset=-1001, metadata=None, error=KafkaError(code))]

    def committed(self, asked, timeout):
        found = (self.kept.get((part.topic, part.partition), (-1001, None)) for part in asked)
        return self._answer(
            [SimpleNamespace(topic=A[0], partition=0, offset=at, metadata=note, error=None) for at, note in found]
        )

    def commit(self, offsets, asynchronous):
        done = self._answer(offsets)
        if done is offsets:
            self.kept.update({(part.topic, part.partition): (part.offset, part.metadata) for part in offsets})
        return done

    def close(self):
        self.closed += 1


@pytest.fixture
def opened():
    def make(*errors):
        group = OffsetGroup({"bootstrap.servers": "127.0.0.1:1"}, "g")
        group._consumer.close()
        group._consumer = Consumer(*errors)
        return group

    return make


def test_a_group_whose_broker_is_being_chosen_is_asked_again(opened):
    moving = [(code, raised) for code in groups.MOVING for raised in (True, False)]
    group = opened(*moving)
    assert group.commit({A: 5}, "note").error() is None
    group._consumer.errors = moving
    assert group.committed([A[0]]) == {A: (5, "note")}
    assert group._consumer.errors == []


def test_one_that_is_moving_for_long_and_one_that_is_denied_are_errors(opened, monkeypatch):
    monkeypatch.setattr(groups, "REQUEST_S_MAX", 0.2)
    for errors, code in (([(16, True)] * 1000, "spark.kafka_unreachable"), ([(30, False)], "spark.kafka_denied")):
        with pytest.raises(CdcError) as caught:
            opened(*errors).committed([A[0]])
        assert (caught.value.code, caught.value.where) == (code, {"group": "g"})
    monkeypatch.undo()
    assert opened((30, True)).commit({A: 5}, "note").error().code == "spark.kafka_denied"
