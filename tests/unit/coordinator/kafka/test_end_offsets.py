"""Which partitions have records that nobody ends."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from cdcworker.coordinator.kafka import end_offsets
from cdcworker.coordinator.kafka.end_offsets import OpenTransaction, abort_open_transactions, left_open
from confluent_kafka import IsolationLevel, KafkaError, KafkaException

PLACE = ("t", 0)


class Admin:
    """A topic of one partition: its end, and its last stable offset at one look after the other."""

    def __init__(self, end: int, *stable: int) -> None:
        self.end, self.stable = end, list(stable)
        self.looks = 0

    def list_offsets(self, asked, isolation_level, request_timeout):
        return {place: self._answer(isolation_level) for place in asked}

    def _answer(self, isolation_level):
        answer: Future = Future()
        if isolation_level == IsolationLevel.READ_UNCOMMITTED:
            answer.set_result(SimpleNamespace(offset=self.end))
        else:
            self.looks += 1
            answer.set_result(SimpleNamespace(offset=self.stable.pop(0) if len(self.stable) > 1 else self.stable[0]))
        return answer


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    now = [0.0]
    fake = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s))
    monkeypatch.setattr(end_offsets, "time", fake)


def test_a_partition_that_is_read_to_its_end_is_not_told():
    admin = Admin(9, 9)
    assert left_open(admin, [PLACE], 1.0) == []
    assert admin.looks == 1


def test_a_transaction_that_ends_meanwhile_is_not_told():
    admin = Admin(9, 5, 5, 12)
    assert left_open(admin, [PLACE], 1.0) == []
    assert admin.looks == 3


def test_what_stays_open_is_told_with_its_records():
    assert left_open(Admin(9, 5), [PLACE], 1.0) == [OpenTransaction("t", 0, 5, 9)]


def test_nothing_is_asked_about_nothing():
    assert left_open(None, [], 1.0) == []


class Producer:
    """Takes records and loses some of them."""

    def __init__(self, lost: KafkaError | None = None, left: int = 0) -> None:
        self.lost, self.left = lost, left
        self.calls: list[str] = []
        self._told: list = []

    def begin_transaction(self):
        self.calls.append("begin")

    def produce(self, topic, value, key, partition, on_delivery):
        self._told.append(on_delivery)

    def poll(self, timeout_s):
        pass

    def flush(self, timeout_s):
        for tell in self._told:
            tell(self.lost, None)
        return self.left

    def abort_transaction(self, timeout_s):
        self.calls.append("abort")


def test_an_aborted_transaction_with_a_record_in_each_partition_ends_what_is_open():
    producer = Producer()
    abort_open_transactions(producer, [OpenTransaction("t", 0, 5, 9)], 1.0)
    assert producer.calls == ["begin", "abort"]


@pytest.mark.parametrize("producer", [Producer(lost=KafkaError(KafkaError._MSG_TIMED_OUT)), Producer(left=1)])
def test_a_record_that_does_not_arrive_has_ended_nothing(producer):
    with pytest.raises(KafkaException):
        abort_open_transactions(producer, [OpenTransaction("t", 0, 5, 9)], 1.0)
    assert producer.calls[-1] == "abort"
