import queue
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from cdcworker.coordinator.kafka import stalled_reader
from cdcworker.coordinator.kafka.stalled_reader import CHECK_INTERVAL_S, StalledReaderCheck
from confluent_kafka import KafkaError, KafkaException


def answered(offset):
    answer = Future()
    answer.set_result(SimpleNamespace(offset=offset))
    return answer


def failed():
    answer = Future()
    answer.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    return answer


@pytest.mark.parametrize(
    ("before", "end", "now", "stands"),
    [(3, 7, 3, True), (3, 3, 3, False), (3, 7, 4, False), (9, 2, 9, False), (3, 7, 7, False)],
    ids=["stands before the end", "at the end", "reads on", "another log", "caught up"],
)
def test_a_stall_is_an_end_known_at_the_last_look_and_nothing_read_since(before, end, now, stands):
    watch = StalledReaderCheck(lambda: {0: answered(end)}, lambda: None)
    assert not watch.stalled({0: before})
    assert watch.stalled({0: now}) is stands


def test_one_partition_that_stands_is_a_stall_whatever_the_others_do():
    watch = StalledReaderCheck(lambda: {0: answered(5), 1: answered(5)}, lambda: None)
    assert not watch.stalled({0: 5, 1: 2})
    assert watch.stalled({0: 9, 1: 2})


def test_after_a_stall_the_next_look_begins_anew():
    watch = StalledReaderCheck(lambda: {0: answered(5)}, lambda: None)
    assert [watch.stalled({0: 2}) for _ in range(4)] == [False, True, False, True]


@pytest.mark.parametrize("answer", [failed, Future], ids=["failed", "no answer yet"])
def test_without_an_answer_nothing_is_known_and_the_leaders_are_asked_for(answer):
    learnt = queue.Queue()
    watch = StalledReaderCheck(lambda: {0: answer()}, lambda: learnt.put(1))
    assert not watch.stalled({0: 2})
    assert not watch.stalled({0: 2})
    assert learnt.get(timeout=10) == 1, "a thread of its own asks for them"
    assert learnt.empty()


def test_a_look_is_due_now_and_then(monkeypatch):
    now = 100.0
    monkeypatch.setattr(stalled_reader.time, "monotonic", lambda: now)
    watch = StalledReaderCheck(lambda: {0: answered(5)}, lambda: None)
    assert not watch.is_due()
    now += CHECK_INTERVAL_S
    assert watch.is_due()
    watch.stalled({0: 5})
    assert not watch.is_due()
