from types import SimpleNamespace

import pytest
from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.kafka import compacted_log
from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.kafka.compacted_log import KafkaCompactedLog, decode, encode
from cdcworker.schemas.errors import CdcError
from confluent_kafka import KafkaError, KafkaException, TopicPartition


class FakeMessage:
    def __init__(self, offset, key=b"k", value=b"{}", headers=None, error=None, partition=0):
        self._fields = {"offset": offset, "key": key, "value": value, "headers": headers, "error": error}
        self._partition = partition

    def __getattr__(self, name):
        return lambda: self._fields[name]

    def partition(self):
        return self._partition

    def timestamp(self):
        return (1, 1234)


def end_at(offset, partition=0):
    return FakeMessage(offset, error=KafkaError(KafkaError._PARTITION_EOF), partition=partition)


class FakeConsumer:
    def __init__(self):
        self.messages = []
        self.positions = {}
        self.assigned = None

    def list_topics(self, topic, timeout):
        assert self.assigned is None, "the leaders are learnt before the partitions are assigned"

    def assign(self, places):
        self.assigned = [(place.partition, place.offset) for place in places]

    def unassign(self):
        self.assigned = None

    def poll(self, timeout):
        return self.messages.pop(0) if self.messages else None

    def consume(self, number, timeout):
        assert timeout == 0, "a batch is never waited for"
        taken, self.messages = self.messages[:number], self.messages[number:]
        return taken

    def position(self, places):
        return [TopicPartition(p.topic, p.partition, self.positions.get(p.partition, -1001)) for p in places]

    def close(self):
        pass


class FakeProducer:
    def __init__(self):
        self.produced = []
        self.deliver = True
        self.error = None

    def produce(self, topic, value, key, headers, partition, on_delivery):
        self.produced.append((key, value, partition, on_delivery))

    def poll(self, timeout):
        if not self.deliver:
            return
        waiting, self.produced = self.produced, []
        for *_, done in waiting:
            done(self.error, None)

    def flush(self, timeout):
        self.poll(timeout)

    def purge(self):
        pass


class FakeAdmin:
    def poll(self, timeout):
        pass


@pytest.fixture
def parts(monkeypatch):
    fakes = SimpleNamespace(consumer=FakeConsumer(), producer=FakeProducer(), ends={0: 0})
    monkeypatch.setattr(compacted_log, "make_consumer", lambda config: fakes.consumer)
    monkeypatch.setattr(compacted_log, "make_producer", lambda config: fakes.producer)
    monkeypatch.setattr(compacted_log, "make_admin", lambda *args, **kwargs: FakeAdmin())
    monkeypatch.setattr(compacted_log, "end_offsets", lambda *args: fakes.ends)
    return fakes


def make(parts, partitions=(0,), **options):
    return KafkaCompactedLog({"bootstrap.servers": "x:1"}, "t", client_id="c", partitions=partitions, **options)


def test_a_record_comes_back_as_it_was_written():
    record = LogRecord("connector/ä", {"n": [1, None, "ü"]}, {"e": "3", "w": "w1"})
    key, value, headers = encode(record)
    message = FakeMessage(5, key, value, [(name, text.encode()) for name, text in headers])
    assert decode(message) == LogRecord("connector/ä", {"n": [1, None, "ü"]}, {"e": "3", "w": "w1"}, 5, 0, 1234)


def test_a_tombstone_comes_back_as_a_tombstone():
    assert encode(LogRecord("a", None))[1] is None
    assert decode(FakeMessage(0, value=None)).value is None


@pytest.mark.parametrize("wrong", [b"x", b"[]", b"\xff", b"5", b"NaN"])
def test_a_value_that_is_not_ours_is_refused_and_no_tombstone(wrong):
    record = decode(FakeMessage(0, value=wrong))
    assert record.refused
    assert record.value == {}


@pytest.mark.parametrize("wrong", [{"key": None}, {"key": b"\xff"}])
def test_a_message_that_is_not_ours_is_a_value_error(wrong):
    with pytest.raises(ValueError):
        decode(FakeMessage(0, **wrong))


def test_every_partition_is_read_from_its_first_offset(parts):
    make(parts, (0, 1))
    assert parts.consumer.assigned == [(0, -2), (1, -2)]


def test_a_log_is_at_its_end_when_every_partition_is(parts):
    parts.ends = {0: 1, 1: 7}
    log = make(parts, (0, 1))
    parts.consumer.messages = [FakeMessage(0), end_at(7, partition=1)]
    assert len(log.read_to_end(5)) == 1


def test_of_counters_only_the_last_of_each_key_is_read_and_in_its_place(parts):
    log = make(parts, counters=b"lease/")
    parts.ends = {0: 6}
    unread = b"not json, and nobody looks"
    parts.consumer.messages = [
        FakeMessage(0, b"lease/a", unread),
        FakeMessage(1, b"worker/a"),
        FakeMessage(2, b"lease/b", b'{"n":1}'),
        FakeMessage(3, b"worker/a"),
        FakeMessage(4, b"lease/a", b'{"n":2}'),
        FakeMessage(5, b"worker/b"),
    ]
    records = log.read_to_end(5)
    assert [(r.key, r.offset) for r in records] == [
        ("worker/a", 1),
        ("lease/b", 2),
        ("worker/a", 3),
        ("lease/a", 4),
        ("worker/b", 5),
    ]
    assert records[3].value == {"n": 2}


def test_counters_are_all_handed_out_while_the_log_is_tailed(parts):
    log = make(parts, counters=b"lease/")
    parts.consumer.messages = [FakeMessage(0, b"lease/a"), FakeMessage(1, b"lease/a")]
    assert [record.offset for record in log.poll(0)] == [0, 1]


def test_a_long_log_is_read_for_as_long_as_it_comes(parts, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(compacted_log.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(compacted_log, "_FOLD_RECORDS_MAX", 1)
    log = make(parts)
    parts.ends = {0: 100}
    parts.consumer.messages = [FakeMessage(n) for n in range(100)]
    poll = parts.consumer.poll

    def slow(timeout):
        clock[0] += 4.0
        return poll(timeout)

    parts.consumer.poll = slow
    assert len(log.read_to_end(5)) == 100


def test_an_end_mark_short_of_the_end_is_not_the_end(parts):
    """The mark stands at the last stable offset: what was committed behind it is still to come."""
    parts.ends = {0: 5}
    log = make(parts)
    parts.consumer.messages = [FakeMessage(0), end_at(1)]
    with pytest.raises(CdcError) as caught:
        log.read_to_end(0.05)
    assert (caught.value.code, caught.value.where["behind"]) == (e.TIMEOUT, 4)


def test_a_position_past_markers_counts(parts):
    parts.ends = {0: 3}
    log = make(parts)
    parts.consumer.messages = [FakeMessage(0), FakeMessage(1)]
    parts.consumer.positions = {0: 3}
    assert log.reached({0: 3})


def test_a_rewound_log_has_reached_nothing(parts):
    log = make(parts)
    parts.consumer.messages = [FakeMessage(0)]
    log.poll(0)
    assert log.reached({0: 1})
    log.rewind()
    assert not log.reached({0: 1})
    assert parts.consumer.assigned == [(0, -2)]


def test_a_foreign_record_is_left_out_or_refused_and_counted_as_read(parts):
    log = make(parts)
    parts.consumer.messages = [FakeMessage(0, key=None), FakeMessage(1, value=b"x"), FakeMessage(2)]
    assert [(record.offset, bool(record.refused)) for record in log.poll(0)] == [(1, True), (2, False)]
    assert log.reached({0: 3})


def test_a_strict_log_stops_at_a_foreign_record(parts):
    log = make(parts, strict=True)
    parts.consumer.messages = [FakeMessage(3, value=b"secret")]
    with pytest.raises(CdcError) as caught:
        log.poll(0)
    assert caught.value.where == {"topic": "t", "partition": 0, "offset": 3}
    assert "secret" not in str(caught.value)


def test_a_place_that_is_gone_from_the_log_is_an_error_and_not_a_jump(parts):
    log = make(parts)
    parts.consumer.messages = [FakeMessage(0, error=KafkaError(KafkaError._AUTO_OFFSET_RESET))]
    with pytest.raises(CdcError):
        log.poll(0)


def test_a_lost_connection_while_reading_is_waited_out(parts):
    log = make(parts)
    parts.consumer.messages = [FakeMessage(0, error=KafkaError(KafkaError._ALL_BROKERS_DOWN)), FakeMessage(0)]
    assert len(log.poll(0)) == 1


def test_append_returns_when_all_records_are_stored(parts):
    log = make(parts, partition_of=lambda key: 4)
    log.append([LogRecord("a", {}), LogRecord("b", None)], 5)
    assert log.serve() == 0


def test_append_raises_what_kafka_said(parts):
    log = make(parts)
    parts.producer.error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(CdcError) as caught:
        log.append([LogRecord("a", {})], 5)
    assert caught.value.code == e.AUTHORIZATION


def test_append_without_an_answer_times_out(parts):
    log = make(parts)
    parts.producer.deliver = False
    with pytest.raises(CdcError) as caught:
        log.append([LogRecord("a", {})], 0.01)
    assert caught.value.code == e.TIMEOUT


def test_send_does_not_wait_and_tells_once(parts):
    told = []
    log = make(parts, partition_of=lambda key: 0 if key == "a" else -1)
    log.send([LogRecord("a", {}), LogRecord("b", {})], told.append)
    assert [entry[2] for entry in parts.producer.produced] == [0, -1]
    assert told == []
    log.serve()
    assert told == [None]


def test_a_full_queue_is_told_as_a_failure(parts, monkeypatch):
    def full(*args, **kwargs):
        raise BufferError

    told = []
    log = make(parts)
    monkeypatch.setattr(parts.producer, "produce", full)
    log.send([LogRecord("a", {})], told.append)
    assert [error.retriable for error in told] == [True]


@pytest.mark.parametrize(("code", "made"), [(KafkaError._MSG_TIMED_OUT, 2), (KafkaError.TOPIC_AUTHORIZATION_FAILED, 1)])
def test_a_producer_that_delivered_nothing_in_time_is_replaced_and_what_it_held_is_told(parts, monkeypatch, code, made):
    producers = [FakeProducer() for _ in range(made)]
    left = iter(producers)
    monkeypatch.setattr(compacted_log, "make_producer", lambda config: next(left))
    log, told = make(parts), []
    log.send([LogRecord("a", {})], told.append)
    producers[0].error = KafkaError(code)
    assert log.serve() == 0
    log.send([LogRecord("b", {})], told.append)
    assert log.serve() == 0
    assert told[0] is not None
    assert (told[1] is None) is (made == 2)


def test_a_producer_that_breaks_is_replaced_and_what_it_held_is_told(parts, monkeypatch):
    class Broken(FakeProducer):
        broken = True

        def poll(self, timeout):
            if self.broken:
                self.broken = False
                raise KafkaException(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "text", True))
            super().poll(timeout)

    first, second = Broken(), FakeProducer()
    first.error = KafkaError(KafkaError._PURGE_QUEUE)
    left = iter([first, second])
    monkeypatch.setattr(compacted_log, "make_producer", lambda config: next(left))
    log, told = make(parts), []
    log.send([LogRecord("a", {})], told.append)
    assert log.serve() == 0
    log.append([LogRecord("b", {})], 1.0)
    assert [error is None for error in told] == [False]


def test_a_new_consumer_goes_on_where_the_old_one_stood(parts, monkeypatch):
    log = make(parts, (0, 1))
    parts.consumer.messages = [FakeMessage(6)]
    assert [record.offset for record in log.poll(0)] == [6]
    new = FakeConsumer()
    monkeypatch.setattr(compacted_log, "make_consumer", lambda config: new)
    log.reconnect()
    assert new.assigned == [(0, 7), (1, -2)]
    new.messages = [FakeMessage(7)]
    assert [record.offset for record in log.poll(0)] == [7]


class Watched:
    def __init__(self, stalls):
        self.stalls, self.asked = stalls, []

    def is_due(self):
        return True

    def stalled(self, positions):
        self.asked.append(dict(positions))
        return self.stalls


@pytest.mark.parametrize(("stalls", "messages", "made"), [(True, [], 1), (True, [FakeMessage(3)], 0), (False, [], 0)])
def test_a_consumer_that_stands_still_before_the_end_is_replaced(parts, monkeypatch, stalls, messages, made):
    watched, new = Watched(stalls), []
    monkeypatch.setattr(compacted_log, "stalled_reader_check", lambda *args: watched)
    log = make(parts)
    monkeypatch.setattr(compacted_log, "make_consumer", lambda config: new.append(FakeConsumer()) or new[-1])
    parts.consumer.messages, parts.consumer.positions = list(messages), {0: 3}
    log.poll(0)
    assert len(new) == made
    assert watched.asked == ([] if messages else [{0: 3}])


def test_a_reader_of_the_whole_log_replaces_a_consumer_that_stands_still(parts, monkeypatch):
    monkeypatch.setattr(compacted_log, "stalled_reader_check", lambda *args: Watched(True))
    log = make(parts)
    new = FakeConsumer()
    new.messages = [FakeMessage(0)]
    monkeypatch.setattr(compacted_log, "make_consumer", lambda config: new)
    parts.ends = {0: 1}
    assert [record.offset for record in log.read_to_end(5)] == [0]
