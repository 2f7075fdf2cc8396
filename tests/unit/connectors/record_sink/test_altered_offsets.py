"""Which partitions are altered when a sink's offsets are."""

from __future__ import annotations

import pytest
from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.record_sink import group_offsets
from cdcworker.connectors.sink_engine.kafka import brokers
from cdcworker.connectors.targets.http.connector import HttpSink

CONFIG = {"connector.class": "http-sink", "topics.regex": ".*", "http.url": "https://a/"}


class Brokers:
    def __init__(self, kafka):
        pass

    def all_topics(self):
        return ["mine", "of-others"]

    def partitions(self, topics):
        return dict.fromkeys(topics, 1)

    def firsts(self, places):
        return dict.fromkeys(places, 2)


@pytest.mark.parametrize(
    ("changes", "committed"),
    [
        (None, {("mine", 0): 2}),
        ({("mine", 0): None}, {("mine", 0): 2}),
        ({("mine", 1): None}, {("mine", 1): 2}),
        ({("mine", 0): 7}, {("mine", 0): 7}),
    ],
)
def test_topics_that_a_pattern_matches_and_the_sink_has_not_read_are_left_alone(monkeypatch, changes, committed):
    taken, made = [], []

    class Group:
        def __init__(self, *_):
            pass

        def take_over(self, partitions):
            taken.extend(partitions)

        def commit(self, offsets, letters):
            made.append(dict(offsets))

        def close(self):
            pass

    monkeypatch.setattr(brokers, "SinkBrokers", Brokers)
    monkeypatch.setattr(group_offsets, "GroupOffsets", Group)
    sink = HttpSink(CONFIG)
    monkeypatch.setattr(sink, "offsets", lambda place: {("mine", 0): 5})
    sink.alter_offsets(LedgerAccess("c", (1, 0)), changes)
    assert made == [committed]
    assert set(taken) == {("mine", 0), *committed}
