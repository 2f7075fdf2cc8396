"""The thread that reads: ids of topics, and topics that are created again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cdcworker.connectors.record_sink import task
from cdcworker.connectors.record_sink.config import EngineSettings
from cdcworker.connectors.record_sink.task import RecordSinkTask, TaskParts
from cdcworker.schemas.errors import CdcError


class Brokers:
    """Tells ids as it is told."""

    def __init__(self, *told):
        self.told = list(told)

    def id_of(self, topic):
        return self.told.pop(0)

    def ids(self, topics):
        return dict.fromkeys(topics, self.told[0])


def made(*told, stopping=False):
    parts = TaskParts(EngineSettings(), Brokers(*told), None, None, None, None)  # type: ignore[arg-type]
    return RecordSinkTask(["t"], parts, SimpleNamespace(stopping=lambda: stopping))  # type: ignore[arg-type]


def test_a_topic_that_a_broker_does_not_know_yet_is_not_called_by_its_name():
    assert made(None, None, "an-id")._id("t") == "an-id"


def test_a_topic_without_an_id_is_called_by_its_name():
    one = made("")
    assert one._id("t") == one._id("t") == "t"


def test_a_topic_that_nobody_knows_is_a_passing_trouble():
    with pytest.raises(CdcError) as caught:
        made(None, stopping=True)._id("t")
    assert caught.value.kind == "transient"


def test_a_topic_that_was_created_again_halts_the_task(monkeypatch):
    monkeypatch.setattr(task, "LOOK_S", 0.0)
    one = made("old", "old", "new")
    one._id("t")
    one._look_for_recreated()
    one._parts.brokers.told = ["new"]
    with pytest.raises(CdcError) as caught:
        one._look_for_recreated()
    assert (caught.value.code, caught.value.where) == ("sink.offsets_gone", {"topic": "t"})


def test_a_topic_without_an_id_is_not_taken_for_another(monkeypatch):
    monkeypatch.setattr(task, "LOOK_S", 0.0)
    one = made("", "new")
    one._id("t")
    one._look_for_recreated()
