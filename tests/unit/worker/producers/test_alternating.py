"""Two producers that take turns: one transaction after the other, and both ended with whatever fails."""

from __future__ import annotations

from typing import Any

import pytest
from cdcworker.coordinator.model import Presence
from cdcworker.coordinator.versions import may_alternate_producers
from cdcworker.worker.producers.alternating import AlternatingProducer


class Producer:
    """Says what it was asked for, in a list that both share."""

    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self.said = name, said
        self.opened_at: float | None = None
        self.failing: str | None = None

    def _do(self, what: str) -> None:
        self.said.append(f"{self.name} {what}")
        if what == self.failing:
            raise RuntimeError(what)

    def begin(self) -> None:
        self._do("begin")
        self.opened_at = 1.0

    def produce(self, *_record: Any) -> None:
        self._do("produce")

    def produce_all(self, records: Any) -> None:
        self._do(f"produce {len(records)}")

    def serve(self) -> None:
        self._do("serve")

    def flush(self, _timeout_s: float) -> None:
        self._do("flush")

    def commit(self) -> None:
        self._do("commit")
        self.opened_at = None

    def abort(self) -> None:
        self._do("abort")
        self.opened_at = None

    def close(self) -> None:
        self._do("close")


@pytest.fixture
def said():
    return []


def pair(said, *, takes_turns=True):
    one, two = Producer("1", said), Producer("2", said)
    return AlternatingProducer(one, two, takes_turns=lambda: takes_turns), one, two


def test_each_transaction_is_the_other_producers(said):
    producer, _, _ = pair(said)
    for _ in range(3):
        producer.begin()
        producer.produce("t", None, b"v", 0)
        producer.produce_all([("t",), ("t",)])
        producer.serve()
        producer.flush(1.0)
        producer.commit()
    order = [line.split()[0] for line in said]
    assert order == ["1"] * 6 + ["2"] * 6 + ["1"] * 6


def test_it_is_in_a_transaction_while_the_one_whose_turn_it_is_is(said):
    producer, _, _ = pair(said)
    assert producer.opened_at is None
    producer.begin()
    assert producer.opened_at == 1.0
    producer.commit()
    assert producer.opened_at is None


def test_where_somebody_would_not_fence_the_second_only_the_first_writes(said):
    producer, _, _ = pair(said, takes_turns=False)
    for _ in range(3):
        producer.begin()
        producer.commit()
    assert said == ["1 begin", "1 commit"] * 3


def test_the_first_writes_again_from_when_somebody_would_not_fence_the_second(said):
    may = iter([True, False, False])
    producer = AlternatingProducer(Producer("1", said), Producer("2", said), takes_turns=lambda: next(may))
    for _ in range(4):
        producer.begin()
        producer.commit()
    assert [line.split()[0] for line in said] == ["1", "1", "2", "2", "1", "1", "1", "1"]


def test_a_commit_that_fails_leaves_the_turn_where_it_was_and_the_abort_goes_there(said):
    producer, _, two = pair(said)
    producer.begin()
    producer.commit()
    two.failing = "commit"
    producer.begin()
    with pytest.raises(RuntimeError):
        producer.commit()
    producer.abort()
    assert said[-2:] == ["2 commit", "2 abort"]


def test_both_are_closed_also_when_one_cannot_be(said):
    producer, one, _ = pair(said)
    one.failing = "close"
    with pytest.raises(RuntimeError):
        producer.close()
    assert said == ["1 close", "2 close"]


@pytest.mark.parametrize(("protocols", "may"), [((), True), ((3,), True), ((3, 3), True), ((3, 2), False)])
def test_both_write_only_where_everybody_fences_both(protocols, may):
    workers = [
        Presence(f"w{n}", f"b{n}", "http://w", "1", "h", protocol=protocol) for n, protocol in enumerate(protocols)
    ]
    assert may_alternate_producers(workers) is may
