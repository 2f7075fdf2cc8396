"""What Kafka remembers of a sink's tables."""

from __future__ import annotations

import pytest
from cdcworker.connectors.sink_engine.kafka import written_tables as witness
from cdcworker.connectors.sink_engine.kafka.written_tables import WrittenTables, forget, note_of
from cdcworker.connectors.sink_errors import KAFKA_DENIED, KAFKA_UNREACHABLE
from cdcworker.schemas.errors import CdcError

NOTE = note_of("i1", "parquet /srv/lake")
TOPICS = ("shop.public.a", "shop.public.b")
A, B = ((topic, 0) for topic in TOPICS)


class Done:
    def __init__(self, broker):
        self.broker, self.failed = broker, broker.failing

    def done(self):
        return not self.broker.slow

    def error(self):
        return CdcError(self.failed, "no") if self.failed else None


class Broker:
    """Keeps what is committed, unless it fails."""

    def __init__(self):
        self.kept, self.commits, self.failing, self.slow = {}, [], "", False

    def committed(self, topics):
        if self.failing:
            raise CdcError(self.failing, "no")
        return {place: kept for place, kept in self.kept.items() if topics is None or place[0] in topics}

    def commit(self, offsets, note):
        self.commits.append(dict(offsets))
        if not self.failing:
            self.kept.update({place: (at, note) for place, at in offsets.items()})
        return Done(self)


class World:
    def __init__(self):
        self.now, self.broker = 0.0, Broker()
        self.witness = self.another()

    def another(self, note=NOTE):
        return WrittenTables(self.broker, note, TOPICS, lambda: self.now)


@pytest.fixture
def world():
    return World()


def test_what_was_written_is_known_to_the_next_task_and_to_no_other_connector_or_target(world):
    assert world.another().written() == set()
    world.witness.tell({A: 5, B: 0, ("shop.public.elsewhere", 1): 3})
    assert world.another().written() == {A[0]}
    for note in (note_of("i2", "parquet /srv/lake"), note_of("i1", "parquet /srv/other")):
        assert world.another(note).written() == set()


def test_a_table_is_told_of_at_once_and_how_far_it_is_now_and_then(world):
    world.witness.tell({A: 5})
    world.witness.tell({A: 6})
    world.witness.tell({A: 6, B: 1})
    world.now += witness.EVERY_S
    world.witness.tell({A: 7, B: 1})
    world.witness.tell({A: 7, B: 1})
    assert world.broker.commits == [{A: 5}, {A: 6, B: 1}, {A: 7}]
    # A broker forgets what is not told again.
    world.now += witness.AGAIN_S
    world.witness.tell({A: 7, B: 1})
    assert world.broker.commits[3:] == [{A: 7, B: 1}]


def test_an_error_of_the_broker_is_told_and_nothing_is_sent_again_at_once(world, caplog):
    world.broker.failing = KAFKA_UNREACHABLE
    for _ in range(60):
        world.witness.tell({A: 5})
        world.now += 1.0
    assert 3 < len(world.broker.commits) <= 7
    assert "committing the markers of written tables failed" in caplog.text


def test_topics_of_other_tasks_are_theirs_to_tell_of(world):
    world.witness.tell({A: 5, ("shop.public.other", 0): 7, ("shop.watermark", 0): 9})
    assert world.broker.commits == [{A: 5}]


def test_what_somebody_else_keeps_under_this_name_is_told_of(world, caplog):
    world.another(note_of("i2", "parquet /srv/lake")).tell({A: 5})
    assert world.witness.written() == set()
    assert "another sink of this name" in caplog.text


def test_nobody_waits_for_a_broker_and_what_it_did_not_take_comes_again_whole(world):
    world.broker.slow, world.broker.failing = True, KAFKA_UNREACHABLE
    world.witness.tell({A: 5})
    world.witness.tell({A: 5, B: 1})
    assert world.broker.commits == [{A: 5}]
    world.broker.slow, world.broker.failing = False, ""
    world.witness.tell({A: 5, B: 1})
    world.now += witness.EVERY_S
    world.witness.tell({A: 5, B: 1})
    assert world.broker.commits == [{A: 5}, {A: 5, B: 1}]
    assert world.another().written() == set(TOPICS)


def test_a_broker_that_denies_it_is_told_of_once_and_one_that_is_away_is_an_error(world, caplog):
    world.broker.failing = KAFKA_UNREACHABLE
    with pytest.raises(CdcError):
        world.witness.written()
    world.broker.failing = KAFKA_DENIED
    assert world.witness.written() == set()
    world.witness.tell({A: 5})
    assert world.broker.commits == []
    other = world.another()
    for _ in range(3):
        other.tell({A: 5})
        world.now += witness.AGAIN_S
    assert world.broker.commits == [{A: 5}]
    assert caplog.text.count("an empty target will look new") == 2


def test_offsets_that_a_person_alters_are_forgotten(world):
    world.witness.tell({A: 5, B: 1})
    forget(world.broker, {(A[0], 0): None})
    assert world.another().written() == {B[0]}
    forget(world.broker, None)
    assert world.another().written() == set()
    assert world.broker.kept == {A: (0, ""), B: (0, "")}
    forget(world.broker, None)
    assert len(world.broker.commits) == 3
    world.broker.failing = KAFKA_DENIED
    forget(world.broker, None)
    world.broker.failing = KAFKA_UNREACHABLE
    with pytest.raises(CdcError):
        forget(world.broker, None)
