"""What every source of a sink's batches has to do, as tests over fixtures `source`, `stages` and `topics`; each source runs them."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
from cdcworker.connectors.sink_engine.batch_source import ReadPlan, SourceEnded
from cdcworker.connectors.sink_engine.metrics import SinkMetrics
from cdcworker.connectors.sink_engine.pump import SinkTelemetry
from cdcworker.connectors.sink_engine.stage_progress import READING, StageProgress
from cdcworker.schemas.errors import CdcError
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

WAIT_S_MAX = 120
MOMENT_S = 1.0
"""Time enough for what must not come."""
COLUMNS = ["topic", "partition", "offset", "key", "value", "headers"]
ALL = 100_000
FEW = 40
_numbers = itertools.count()


class Stages:
    """What a source's task reports, with the number of reads that have begun."""

    def __init__(self):
        self.reads = 0
        self.telemetry = SinkTelemetry(StageProgress(self._beat), SinkMetrics())
        self._under_way = 0

    def _beat(self, doing, _allow_s):
        under_way = doing.split(", ").count(READING)
        self.reads += max(0, under_way - self._under_way)
        self._under_way = under_way


class Topics:
    """Two topics with transactions, one of them aborted; records without key or value, with headers, and large ones."""

    def __init__(self, kafka):
        self.kafka, number = kafka, next(_numbers)
        self.counts = {f"batches{number}.a": 3, f"batches{number}.b": 1}
        self.admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 2})
        made = [NewTopic(name, count, 1) for name, count in self.counts.items()]
        for future in self.admin.create_topics(made).values():
            future.result(30)
        settings = {"bootstrap.servers": kafka.bootstrap, "transactional.id": f"batches{number}", "log_level": 2}
        self.producer = Producer(settings)
        self.producer.init_transactions(30)
        self.sent = []
        """Committed records, as a batch has them, but for their offsets."""

    def send(self, transactions=12, aborted=4):
        for number in range(transactions):
            self.producer.begin_transaction()
            records = [self._record(number, at) for at in range(30)]
            for topic, partition, key, value, headers in records:
                self.producer.produce(topic, value, key, partition, headers=headers)
            if number == aborted:
                # Where none of a transaction's records has come yet, the broker knows of none that could be aborted.
                self.producer.flush(30)
                self.producer.abort_transaction(30)
            else:
                self.producer.commit_transaction(30)
                self.sent += records

    def _record(self, number, at):
        topic, count = sorted(self.counts.items())[at % 2]
        value = None if at % 7 == 0 else bytes([number, at]) * (at * 40)
        headers = [("one", b"1"), ("none", None), ("\N{SNOWMAN}", b"\x00")] if at % 11 == 0 else []
        return topic, at % count, None if at % 5 == 0 else b"k%d" % at, value, headers

    def ends(self):
        """Behind the last record of each partition, markers of transactions included."""
        parts = [TopicPartition(topic, number) for topic, count in self.counts.items() for number in range(count)]
        found = self.admin.list_offsets({part: OffsetSpec.latest() for part in parts})
        return {(part.topic, part.partition): future.result(30).offset for part, future in found.items()}

    def delete_before(self, partition, offset):
        for future in self.admin.delete_records([TopicPartition(*partition, offset)]).values():
            future.result(30)

    def plan(self, offsets=None, records_max=ALL):
        return ReadPlan(self.counts, offsets or {}, records_max)


def rows_of(batch):
    """Records of a batch: topic, partition, key, value, headers; and the offsets of each partition."""
    table = batch.take()
    assert table.column_names == COLUMNS
    rows, offsets = [], {}
    for row in table.to_pylist():
        headers = [(item["key"], item["value"]) for item in row["headers"] or []]
        rows.append((row["topic"], row["partition"], row["key"], row["value"], headers))
        offsets.setdefault((row["topic"], row["partition"]), []).append(row["offset"])
    assert len(rows) == batch.rows
    return rows, offsets


def by_partition(rows):
    out = {}
    for topic, partition, *rest in rows:
        out.setdefault((topic, partition), []).append(rest)
    return out


def next_of(source):
    """The next batch that has records."""
    deadline = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < deadline:
        batch = source.next(0.1)
        if batch is not None and batch.rows:
            return batch
    raise AssertionError("no batch came in time")


def read_until(source, ends):
    """All batches until they have come to these ends."""
    batches, deadline = [], time.monotonic() + WAIT_S_MAX
    while not batches or any(batches[-1].read_to.get(place, 0) < end for place, end in ends.items() if end):
        assert time.monotonic() < deadline, "the ends were not reached in time"
        batch = source.next(0.1)
        if batch is not None:
            batches.append(batch)
    return batches


def never(source, place):
    """Reads on; no batch may bring a record of this partition."""
    deadline = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < deadline:
        batch = source.next(0.1)
        assert batch is None or place not in rows_of(batch)[1]


@pytest.fixture
def topics(kafka):
    made = Topics(kafka)
    made.send()
    return made


@pytest.fixture
def opened(source):
    """Opens the source; its end comes with that of the test."""
    yield source.open
    source.halt()
    source.end()


class Contract:
    """The contract of `BatchSource`."""

    def test_every_committed_record_comes_once_in_the_order_of_its_partition(self, source, topics, opened):
        opened(topics.plan(records_max=FEW))
        rows, last = [], {}
        batches = read_until(source, topics.ends())
        for batch in batches:
            found, offsets = rows_of(batch)
            rows += found
            for place, numbers in offsets.items():
                assert numbers == sorted(set(numbers))
                assert numbers[0] > last.get(place, -1)
                assert numbers[-1] < batch.read_to[place]
                last[place] = numbers[-1]
        assert by_partition(rows) == by_partition([(*record[:2], *record[2:]) for record in topics.sent])

    def test_a_batch_is_no_larger_than_the_plan_says(self, source, topics, opened):
        opened(topics.plan(records_max=FEW))
        batches = read_until(source, topics.ends())
        assert len(batches) > len(topics.sent) // FEW
        # Spark deals a limit out to the partitions, rounded.
        assert max(batch.rows for batch in batches) <= FEW + sum(topics.counts.values())

    def test_a_batch_ends_behind_the_markers_of_its_transactions(self, source, topics, opened):
        opened(topics.plan())
        ends = topics.ends()
        assert read_until(source, ends)[-1].read_to == ends

    def test_reading_begins_at_the_plans_offsets_and_else_at_the_first_record(self, source, topics, opened):
        (first, *_), at = sorted(topics.counts), 7
        ends = topics.ends()
        opened(topics.plan({(first, 0): at}))
        found = {}
        for batch in read_until(source, ends):
            for place, numbers in rows_of(batch)[1].items():
                found.setdefault(place, []).extend(numbers)
        assert min(found.pop((first, 0))) >= at
        assert [min(numbers) for numbers in found.values()] == [0] * len(found)

    def test_a_further_plan_goes_on_where_the_one_before_ended(self, source, topics, opened):
        opened(topics.plan(records_max=FEW))
        batch = next_of(source)
        rows = rows_of(batch)[0]
        source.halt()
        assert source.next(0.01) is None
        source.end()
        source.end()
        opened(topics.plan(batch.read_to))
        for later in read_until(source, topics.ends()):
            rows += rows_of(later)[0]
        assert by_partition(rows) == by_partition(topics.sent)

    def test_no_batch_is_read_before_it_is_asked_for(self, source, topics, opened, stages):
        before = stages.reads
        opened(topics.plan(records_max=FEW))
        next_of(source)
        begun = stages.reads
        assert begun > before
        # The query has more to read and must not.
        threading.Event().wait(MOMENT_S)
        assert stages.reads == begun
        next_of(source)
        assert stages.reads > begun

    def test_a_source_that_has_read_everything_says_so_and_reads_what_comes_later(self, source, topics, opened):
        opened(topics.plan())
        read_until(source, topics.ends())
        deadline = time.monotonic() + WAIT_S_MAX
        while True:
            batch = source.next(0.1)
            assert batch is None or not rows_of(batch)[0], "offsets behind the ends of transactions only"
            state = source.state()
            if state is not None and state.is_caught_up:
                break
            assert time.monotonic() < deadline
        assert state.doing
        count = len(topics.sent)
        topics.send(1, aborted=-1)
        rows = [row for batch in read_until(source, topics.ends()) for row in rows_of(batch)[0]]
        assert by_partition(rows) == by_partition(topics.sent[count:])

    @pytest.mark.parametrize("gone", ["deleted", "never written"])
    def test_offsets_that_are_not_in_the_topic_are_an_error_never_a_gap(self, source, topics, opened, gone):
        place = (sorted(topics.counts)[1], 0)
        if gone == "deleted":
            topics.delete_before(place, 50)
        opened(topics.plan({place: 10 if gone == "deleted" else 1_000_000}))
        with pytest.raises((CdcError, SourceEnded)) as raised:
            never(source, place)
        error = raised.value.error if isinstance(raised.value, SourceEnded) else raised.value
        assert error.kind == "data"

    def test_a_source_whose_process_lives_is_not_lost(self, source, topics, opened):
        opened(topics.plan())
        next_of(source)
        assert source.lost() is None
