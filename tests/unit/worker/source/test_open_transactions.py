"""Which way a task ends what its broker left open, and with which record."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cdcworker.coordinator.kafka.end_offsets import OpenTransaction
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.source import open_transactions as source_left_open
from cdcworker.worker.source.open_transactions import UNDECIDED, OpenTransactionSettler
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME

PLACE = ("t", 0)
FIRST = 10


class Broker:
    """One partition; `written_ms` of its open records, the first at offset `FIRST`. Producer `owner` has them open."""

    def __init__(self, *written_ms: int, owner: int = 0, kind: int = TIMESTAMP_CREATE_TIME) -> None:
        self.written_ms, self.owner, self.kind = written_ms, owner, kind
        self.is_open = True
        self.ends: list[tuple[str, int, list[bytes]]] = []
        """How each transaction ended, whose it was, and the values that it wrote."""

    def left_open(self, _admin, places, _timeout_s):
        return (
            [OpenTransaction(*PLACE, FIRST, FIRST + len(self.written_ms))] if self.is_open and PLACE in places else []
        )

    def read(self, ranges):
        for first, stop in ranges.values():
            for offset in range(first, stop):
                yield self._message(offset)

    def _message(self, offset):
        return SimpleNamespace(
            topic=lambda: PLACE[0],
            partition=lambda: PLACE[1],
            offset=lambda: offset,
            timestamp=lambda: (self.kind, self.written_ms[offset - FIRST]),
            key=lambda: b"k",
            value=lambda: b"%d" % offset,
            headers=lambda: None,
        )

    def end(self, way: str, who: int, values: list[bytes]) -> None:
        self.ends.append((way, who, values))
        if who == self.owner:
            self.is_open = False


class Producer:
    def __init__(self, broker: Broker, number: int) -> None:
        self._broker, self._number = broker, number
        self._values: list[bytes] = []

    def void(self, _places):
        self._broker.end("abort", self._number, [])

    def begin(self):
        self._values = []

    def produce(self, _topic, _key, value, _partition, _headers):
        self._values.append(value)

    def commit(self):
        self._broker.end("commit", self._number, self._values)


@pytest.fixture
def settle(monkeypatch):
    settler = OpenTransactionSettler({}, client_id="c")

    def run(broker: Broker, stored_at_ms: int | None) -> OpenTransactionSettler:
        monkeypatch.setattr(source_left_open, "left_open", broker.left_open)
        monkeypatch.setattr(settler, "_read", broker.read)
        settler.settle_data(None, [PLACE], (Producer(broker, 0), Producer(broker, 1)), stored_at_ms)
        return settler

    return run


@pytest.mark.parametrize("stored_at_ms", [None, 99])
def test_what_is_younger_than_the_position_is_aborted_by_both(settle, stored_at_ms):
    broker = Broker(100, 101, owner=1)
    settle(broker, stored_at_ms)
    assert broker.ends == [("abort", 0, []), ("abort", 1, [])]


def test_what_is_older_is_committed_with_its_last_record_once_more(settle):
    broker = Broker(100, 101, 102)
    settle(broker, 101)
    assert broker.ends == [("commit", 0, [b"11"])], "what came after the position is not shown by it"


def test_the_last_record_is_found_however_much_is_open(settle, monkeypatch):
    monkeypatch.setattr(source_left_open, "LAST_WINDOW", 2)
    broker = Broker(*range(100, 110))
    settle(broker, 105)
    assert broker.ends == [("commit", 0, [b"15"])], "not the first, which would put an old state behind a newer one"
    broker = Broker(*range(100, 110))
    settle(broker, 109)
    assert broker.ends == [("commit", 0, [b"19"])]


def test_what_neither_has_open_is_somebody_elses_and_is_not_tried_again(settle):
    broker = Broker(100, owner=2)
    assert settle(broker, None).foreign == {("t", 0, FIRST)}
    before = list(broker.ends)
    settle(broker, None)
    assert broker.ends == before


def test_times_of_the_broker_do_not_decide(settle):
    broker = Broker(100, kind=TIMESTAMP_LOG_APPEND_TIME)
    with pytest.raises(CdcError) as caught:
        settle(broker, 200)
    assert caught.value.code == UNDECIDED
    assert broker.ends == []
