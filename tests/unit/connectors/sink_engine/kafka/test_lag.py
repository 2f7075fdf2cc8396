"""How far a sink is behind: nothing once all is applied, and what waits otherwise, by topic."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from cdcworker.connectors.api.table_batch import SinkBatch
from cdcworker.connectors.sink_engine.kafka.lag import ASK_EVERY_S, SinkLag

from tests.change_streams import arrow

T, U = ("t", 0), ("u", 0)


class World:
    """A Kafka whose ends are said, and two clocks."""

    def __init__(self, **topics: int) -> None:
        self.now, self.asked, self.ends, self.away = 100.0, 0, {}, False
        self.behind = SinkLag(self.ask, wall=lambda: self.now, clock=lambda: self.now)
        self.behind.begin(topics or {"t": 1, "u": 1})

    def ask(self, partitions):
        self.asked += 1
        out = {}
        for place in [(topic, n) for topic, count in partitions.items() for n in range(count)]:
            out[place] = Future()
            if self.away:
                out[place].set_exception(OSError("away"))
            else:
                out[place].set_result(SimpleNamespace(offset=self.ends.get(place, 0)))
        return out

    def numbers(self, ledger):
        """Once what is asked for now has been answered."""
        for _ in range(2):
            self.behind.numbers(ledger)
            self.now += ASK_EVERY_S
        return self.behind.numbers(ledger)

    def read(self, place, offsets, end, size=10):
        records = [
            {"topic": place[0], "partition": place[1], "offset": n, "key": b"k" * 2, "value": b"v" * (size - 2)}
            for n in offsets
        ]
        self.behind.read(arrow([{**record, "headers": None} for record in records]), {place: end})


def test_records_that_are_not_applied_count_with_the_size_of_those_that_were_read():
    world = World()
    world.ends = {T: 100, U: 40}
    world.read(T, range(10), 10)
    world.read(U, range(40), 40, size=1_000)
    found = world.numbers({T: 10, U: 40})
    assert found["topic_lag_records"] == {"t": 90, "u": 0}
    assert found["topic_lag_bytes"] == {"t": 900, "u": 0}
    assert (found["lag_records"], found["lag_bytes"]) == (90, 900)


def test_the_marks_of_ended_transactions_are_no_records():
    world = World(t=1)
    world.ends = {T: 20}
    # Records at 0, 2, …, each with the mark of its own transaction behind it.
    world.read(T, range(0, 20, 2), 20)
    assert world.numbers({T: 19})["lag_records"] == 0, "behind the last record there is but its mark"
    world.ends = {T: 220}
    found = world.numbers({T: 19})
    assert 100 <= found["lag_records"] <= 106
    assert 1_000 <= found["lag_bytes"] <= 1_060


def test_what_was_read_but_not_applied_is_behind():
    world = World(t=1)
    world.ends = {T: 50}
    world.read(T, range(50), 50)
    assert world.numbers({T: 20})["topic_lag_records"] == {"t": 30}
    assert world.numbers({T: 50})["topic_lag_records"] == {"t": 0}


def test_it_grows_while_nothing_is_applied_and_a_quiet_topic_that_gets_a_record_is_not_old():
    world = World()
    world.read(T, range(10), 10)
    world.behind.applied(SinkBatch((), {}, 1, {T: (b"", 95_000)}))
    world.ends = {T: 10}
    world.numbers({T: 10, U: 0})
    world.now += 3_600
    calm = world.numbers({T: 10, U: 0})
    assert calm["topic_lag_s"] == {"t": 0.0, "u": 0.0}
    world.ends = {T: 11}
    first = world.numbers({T: 10, U: 0})["topic_lag_s"]
    assert 0 < first["t"] < 10, "it waits since it came, not since the change before"
    world.now += 60
    later = world.numbers({T: 10, U: 0})["topic_lag_s"]
    assert 60 <= later["t"] < 70
    assert later["u"] == 0.0


def test_what_comes_in_order_is_as_old_as_the_newest_applied():
    world = World(t=1)
    world.now, world.ends = 20_000.0, {T: 100}
    world.read(T, range(10), 10)
    world.numbers({T: 0})
    world.behind.applied(SinkBatch((), {}, 1, {T: (b"", 1_000_000)}))
    found = world.numbers({T: 10})["topic_lag_s"]["t"]
    assert found == pytest.approx(world.now - 1_000), "the backlog is older than the task"
    world.behind.applied(SinkBatch((), {}, 2, {T: (b"", 900_000)}))
    assert world.numbers({T: 20})["topic_lag_s"]["t"] == pytest.approx(world.now - 1_000)


def test_how_old_a_backlog_is_stays_unsaid_until_something_of_it_is_applied():
    world = World()
    world.ends = {T: 100, U: 3}
    for _ in range(3):
        found = world.numbers({T: 10, U: 3})
        assert found["topic_lag_records"] == {"t": 90, "u": 0}
        assert found["topic_lag_s"] == {"u": 0.0}
    many = World(**{f"t{n}": 1 for n in range(150)})
    many.ends = {(f"t{n}", 0): 2 for n in range(150)}
    at = {(f"t{n}", 0): 0 if n == 140 else 2 for n in range(150)}
    assert "other" not in many.numbers(at)["topic_lag_s"], "one of those is not known"


def test_nothing_is_said_of_what_is_not_known():
    world = World()
    assert SinkLag(world.ask).numbers({}) == {}
    world.ends = {T: 5}
    found = world.numbers({})
    assert found["topic_lag_records"] == {"u": 0}, "where the first record stands is not known yet"
    assert "lag_records" not in found, "a sum without what is not known would be too small"
    assert world.numbers({T: 5})["lag_records"] == 0


def test_a_broker_that_is_away_leaves_what_was_known_and_is_not_asked_without_end():
    world = World(t=1)
    world.ends = {T: 7}
    world.numbers({T: 5})
    world.away, asked = True, world.asked
    assert world.numbers({T: 5})["topic_lag_records"] == {"t": 2}
    for _ in range(10):
        world.behind.numbers({T: 5})
    assert world.asked <= asked + 2


def test_topics_beyond_the_bound_are_one():
    world = World(**{f"t{n}": 1 for n in range(150)})
    world.ends = {(f"t{n}", 0): 2 for n in range(150)}
    found = world.numbers({(f"t{n}", 0): 0 for n in range(150)})
    assert len(found["topic_lag_records"]) == 101
    assert found["topic_lag_records"]["other"] == 100
    assert found["lag_records"] == 300
