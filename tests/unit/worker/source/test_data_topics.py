"""What a source remembers of its topics."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.source import data_topics as source_topics
from cdcworker.worker.source.data_topics import DataTopics, TopicConfig, TopicCreation


@pytest.fixture
def book(monkeypatch):
    monkeypatch.setattr(source_topics, "LEADERS_STEP_S", 0.0)
    monkeypatch.setattr(source_topics, "_topic_configs", lambda _admin, topics: dict.fromkeys(topics, TopicConfig(100)))
    made = DataTopics({"bootstrap.servers": "k:1"}, client_id="c", plan=lambda _topic: TopicCreation())
    made.lend(object())
    return made


def told(monkeypatch, *partitions: int) -> None:
    """How many partitions with leaders a topic has, at one look after the other."""
    answers = list(partitions)
    monkeypatch.setattr(
        source_topics, "_partitions", lambda _admin, topics: {topic: answers.pop(0) for topic in topics}
    )


def test_a_topic_that_has_no_leaders_yet_is_waited_for(book, monkeypatch):
    """As at the second try of one whose leaders did not come in time at the first."""
    told(monkeypatch, 0, 0, 3)
    assert book("t").partitions == 3


def test_a_record_has_to_fit_into_the_topic_and_into_the_clients_queue(book, monkeypatch):
    told(monkeypatch, 1)
    facts = book("t")
    assert (facts.record_bytes_max, facts.client_bytes_max, facts.known_bytes_max) == (100, 32 * 1024 * 1024, 100)
    assert replace(facts, record_bytes_max=None).known_bytes_max == 32 * 1024 * 1024
    assert replace(facts, client_bytes_max=99).known_bytes_max == 99


def test_a_topic_whose_leaders_do_not_come_is_not_remembered(book, monkeypatch):
    monkeypatch.setattr(source_topics, "LEADERS_TIMEOUT_S", 0.0)
    told(monkeypatch, 0)
    with pytest.raises(CdcError, match="no leaders"):
        book("t")
    monkeypatch.undo()
    monkeypatch.setattr(source_topics, "_topic_configs", lambda _admin, topics: dict.fromkeys(topics, TopicConfig(100)))
    told(monkeypatch, 2)
    assert book("t").partitions == 2
