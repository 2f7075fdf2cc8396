"""What a start reads: the last position however its key is spelt, and calls on threads of their own."""

from __future__ import annotations

import json
import threading

import pytest
from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.log.offset_records import OffsetRecord, offset_value
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.protocol.task_spec import ClusterTopics, TaskSpec
from cdcworker.worker.source import start_reader as source_opening
from cdcworker.worker.source.start_reader import StartReader, ahead, drop
from cdcworker.worker.source.task_identity import position_key, position_partition
from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError

SPEC = TaskSpec(
    kind="source",
    connector="shop",
    task=0,
    incarnation="inc",
    task_epoch=1,
    attempt=0,
    worker_id="w",
    boot_id="boot",
    paused=False,
    config={"topic.prefix": "p"},
    kafka={"bootstrap.servers": "k:1"},
    group_id="g",
    topics=ClusterTopics("configs", "offsets", "status", "schemas"),
    offsets_partitions=25,
    session_timeout_s=10.0,
    state_dir="",
)
KEY = position_key(SPEC).encode()
NUMBER = position_partition(SPEC)
WRITTEN_MS = 1_700_000_000_123


def value(lsn: int) -> bytes:
    return json.dumps(offset_value(OffsetRecord("inc", 1, {"lsn": lsn}))).encode()


class Message:
    def __init__(self, offset: int, key: bytes | None, content: bytes | None, error: KafkaError | None = None) -> None:
        self._all = (offset, key, content, error)

    def offset(self):
        return self._all[0]

    def key(self):
        return self._all[1]

    def value(self):
        return self._all[2]

    def error(self):
        return self._all[3]

    def topic(self):
        return "offsets"

    def timestamp(self):
        return TIMESTAMP_CREATE_TIME, WRITTEN_MS


class Consumer:
    """One partition; remembers from where it was read."""

    def __init__(self, records: dict[int, tuple[bytes, bytes | None]]) -> None:
        self.records = records
        self.at = 0
        self.starts: list[int] = []
        self.errors: list[KafkaError] = []
        self.closed = False

    def list_topics(self, *_, **__):
        assert not self.starts

    def assign(self, places):
        if places[0].topic == "offsets":
            self.starts.append(places[0].offset)
            self.at = places[0].offset

    def poll(self, _timeout):
        if self.errors:
            return Message(0, None, None, self.errors.pop())
        left = [offset for offset in sorted(self.records) if offset >= self.at]
        if not left:
            self.at = max(self.at, 10_000_000)
            return None
        self.at = left[0] + 1
        return Message(left[0], *self.records[left[0]])

    def consume(self, _count, _timeout):
        return []

    def position(self, places):
        places[0].offset = self.at
        return places

    def close(self):
        self.closed = True


class Admin:
    def list_topics(self, *_, **__):
        return None


@pytest.fixture
def reader(monkeypatch):
    def make(records, end: int, first: int = 0) -> StartReader:
        offsets = iter([first, end])
        monkeypatch.setattr(source_opening, "make_admin", lambda *_, **__: Admin())
        monkeypatch.setattr(source_opening, "make_consumer", lambda _: Consumer(records))
        monkeypatch.setattr(source_opening, "list_offsets", lambda *_: {NUMBER: next(offsets)})
        monkeypatch.setattr(source_opening, "WINDOWS", (10, 100))
        return StartReader(SPEC)

    return make


def test_a_position_near_the_end_is_found_without_reading_the_rest(reader):
    found = reader({995: (KEY, value(7)), 996: (b"[]", value(9))}, 1000)
    assert found.position() == OffsetRecord("inc", 1, {"lsn": 7})
    assert found.stored_at_ms == WRITTEN_MS
    assert found._consumer.starts == [990]


def test_the_last_of_several_positions_counts(reader):
    assert reader({991: (KEY, value(1)), 999: (KEY, value(2))}, 1000).position().position == {"lsn": 2}


def test_an_old_position_is_found_further_back(reader):
    found = reader({5: (KEY, value(3)), 995: (b"other", value(4))}, 1000)
    assert found.position().position == {"lsn": 3}
    assert found._consumer.starts == [990, 900, 0]


def test_nothing_is_read_before_the_first_offset_of_the_partition(reader):
    found = reader({}, 1000, first=950)
    assert found.position() is None
    assert found._consumer.starts == [990, 950]


def test_an_empty_partition_has_no_position(reader):
    assert reader({}, 0).position() is None


def test_a_deleted_position_is_none_although_older_ones_are_there(reader):
    assert reader({3: (KEY, value(1)), 995: (KEY, None)}, 1000).position() is None


def test_a_key_may_be_spelt_differently(reader):
    other = json.dumps(json.loads(KEY), indent=1).encode()
    assert other != KEY
    assert reader({995: (other, value(5))}, 1000).position().position == {"lsn": 5}


@pytest.mark.parametrize("content", [b"no json", b"[]"])
def test_a_position_that_cannot_be_read_is_not_taken_for_none(reader, content):
    with pytest.raises(CdcError) as caught:
        reader({995: (KEY, content)}, 1000).position()
    assert caught.value.code == e.MALFORMED_RECORD
    assert caught.value.where == {"topic": "offsets", "offset": 995}


def test_an_offset_that_fell_off_the_log_ends_the_start(reader):
    found = reader({995: (KEY, value(1))}, 1000)
    found._consumer.errors.append(KafkaError(KafkaError._AUTO_OFFSET_RESET, "gone"))
    with pytest.raises(CdcError):
        found.position()


def test_a_passing_error_while_reading_is_waited_out(reader):
    found = reader({995: (KEY, value(1))}, 1000)
    found._consumer.errors.append(KafkaError(KafkaError._TRANSPORT, "lost"))
    assert found.position().position == {"lsn": 1}


def test_the_reader_is_closed_when_its_connecting_has_ended(reader, until):
    found = reader({}, 0)
    found.close()
    until(lambda: found._consumer.closed)


def test_a_dropped_result_is_closed_when_it_comes():
    go, closed = threading.Event(), threading.Event()
    future = ahead(lambda: go.wait(10), "test")
    drop(future, lambda _: closed.set())
    assert not closed.is_set()
    go.set()
    assert closed.wait(10)


def test_a_dropped_failure_is_nobodys_concern():
    def fail() -> None:
        raise CdcError(e.TIMEOUT, "late")

    future = ahead(fail, "test")
    drop(future, lambda _: pytest.fail("there is nothing to close"))
    with pytest.raises(CdcError):
        future.result(10)
