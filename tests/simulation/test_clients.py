"""The simulated clients answer as the library does."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition

from .clients import Consumer
from .engine import Proc
from .stage import stage
from .workers import Setting

TOPIC = "data.c0.0"


def read(sim, isolation: str, *, wait_s: float = 1.0) -> tuple[list[int], int]:
    """Returns the offsets that a reader from the beginning gets, and its position after that."""
    got: list[int] = []
    positions: list[int] = []

    def run() -> None:
        consumer = Consumer({"isolation.level": isolation})
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        while messages := consumer.consume(100, wait_s):
            got.extend(message.offset() for message in messages)
        positions.extend(place.offset for place in consumer.position([TopicPartition(TOPIC, 0)]))
        consumer.close()

    Proc(sim.world, "reader", "w0").spawn(run)
    sim.world.run(sim.world.now + 10.0)
    assert sim.world.violations == []
    return got, positions[0]


@pytest.fixture
def sim():
    """A partition with a committed, an aborted and an open record, in this order."""
    with stage(1, Setting()) as sim:
        log = sim.cluster.broker.partition(TOPIC, 0)
        for pid, end in ((1, "commit"), (2, "abort"), (3, None)):
            log.append([(b"k", b"v", ())], pid, 0, True)
            if end is not None:
                log.mark(pid, 0, end)
        yield sim


def test_a_reader_of_committed_records_stops_before_the_open_transaction(sim):
    assert read(sim, "read_committed") == ([0], 4)


def test_a_reader_of_uncommitted_records_gets_all_of_them_and_is_behind_the_control_records(sim):
    assert read(sim, "read_uncommitted") == ([0, 2, 4], 5)


def test_a_reader_of_uncommitted_records_waits_for_the_next_ones(sim):
    log = sim.cluster.broker.partition(TOPIC, 0)
    sim.world.at(0.5, lambda: log.append([(b"k", b"v", ())], 3, 0, True))
    assert read(sim, "read_uncommitted") == ([0, 2, 4, 5], 6)
