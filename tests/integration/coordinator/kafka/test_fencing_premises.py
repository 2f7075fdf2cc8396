"""What the fences rest on, seen on a real broker: what it takes without a check, and so must never be sent to it."""

from __future__ import annotations

import contextlib
import time
import uuid

import pytest
from cdcworker.coordinator.api import LogRecord, Term, WriterFenced, WriteUnknown
from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.kafka.clients import make_consumer, make_producer, member_config, transactional_config
from cdcworker.coordinator.kafka.compacted_log import KafkaCompactedLog
from cdcworker.coordinator.kafka.internal_topics import TopicNames, ensure_topics, internal_topics
from cdcworker.coordinator.kafka.leader_writer import KafkaLeaderWriter
from cdcworker.coordinator.kafka.leadership import KafkaLeadership, parse_metadata
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.protocol.task_spec import ClusterTopics, TaskSpec
from cdcworker.worker.source import start_reader as source_opening
from confluent_kafka import KafkaException, TopicPartition

pytestmark = pytest.mark.kafka

SESSION_S = 6.0


class Place:
    """One group's topics and clients, closed at the end."""

    def __init__(self, bootstrap: str, closing: contextlib.ExitStack) -> None:
        self.group = f"g-{uuid.uuid4().hex[:8]}"
        self.properties = {"bootstrap.servers": bootstrap}
        self.names = TopicNames.of_group(self.group)
        self._closing = closing
        ensure_topics(self.properties, internal_topics(self.names, offsets_partitions=1), client_id="test")

    def _close(self, thing):
        return self._closing.enter_context(contextlib.closing(thing))

    def reader(self) -> KafkaCompactedLog:
        return self._close(KafkaCompactedLog(self.properties, self.names.configs, client_id="reader"))

    def member(self, name: str) -> KafkaLeadership:
        member = KafkaLeadership(
            self.properties,
            topic=self.names.coordination,
            group_id=self.group,
            client_id=name,
            session_timeout_s=SESSION_S,
        )
        return self._close(member)

    def claim(self) -> KafkaLeaderWriter:
        writer = KafkaLeaderWriter(
            self.properties,
            group_id=self.group,
            topic=self.names.configs,
            coordination_topic=self.names.coordination,
            client_id="writer",
        )
        return self._close(writer)

    def transactional(self, name: str):
        config = transactional_config(
            self.properties, client_id=name, transactional_id=f"{self.group}-{name}", transaction_timeout_ms=60_000
        )
        producer = make_producer(config)
        producer.init_transactions(10)
        return producer

    def commits_with(self, metadata) -> bool:
        """Whether the broker takes a transaction with this proof."""
        producer = self.transactional("raw")
        producer.begin_transaction()
        producer.produce(self.names.configs, key=b"raw", value=b"{}")
        try:
            producer.send_offsets_to_transaction([TopicPartition(self.names.coordination, 0, 0)], metadata, 10)
            producer.commit_transaction(10)
        except KafkaException:
            producer.abort_transaction(10)
            return False
        return True


@pytest.fixture
def place(kafka):
    with contextlib.ExitStack() as closing:
        yield Place(kafka.bootstrap, closing)


def elected(first: KafkaLeadership, *others: KafkaLeadership, generation: int = 0) -> None:
    deadline = time.monotonic() + 30
    while first.term() is None or first.term().hint <= generation:
        for member in (first, *others):
            member.tick(0.02)
        assert time.monotonic() < deadline, "no generation with all members"


def test_the_broker_takes_fresh_metadata_of_a_member_that_owns_nothing_and_such_a_member_has_no_term(place):
    """So a proof is what was captured when the partition was assigned: there is no other way to one in the code."""
    owner = place.member("owner")
    elected(owner)
    generation, other = owner.term().hint, place.member("other")
    elected(owner, other, generation=generation)
    metadata = other._consumer.consumer_group_metadata()
    assert parse_metadata(metadata)[0] > generation
    assert place.commits_with(metadata), "the broker now checks who owns the partition"
    assert other.term() is None


def test_the_broker_takes_metadata_of_generation_minus_one_and_no_term_can_be_made_of_it(place):
    owner = place.member("owner")
    elected(owner)
    config = member_config(place.properties, client_id="x", group_id=place.group, session_timeout_s=SESSION_S)
    stranger = make_consumer(config)
    metadata = stranger.consumer_group_metadata()
    stranger.close()
    assert parse_metadata(metadata)[0] == -1
    assert place.commits_with(metadata), "the broker now checks this generation"
    with pytest.raises(Exception, match="has not joined"):
        place.claim().write([LogRecord("void", {})], Term(metadata, 1))


def test_a_delivery_callback_that_raises_makes_a_commit_raise_that_has_happened(place):
    """Which is why no transactional producer of ours has one."""
    producer = place.transactional("calls")

    def broken(error, message):
        raise ZeroDivisionError

    producer.begin_transaction()
    producer.produce(place.names.configs, key=b"told", value=b"{}", on_delivery=broken)
    with pytest.raises(ZeroDivisionError):
        producer.commit_transaction(10)
    assert [record.key for record in place.reader().read_to_end(10)] == ["told"]


class SleepyBroker:
    """A producer whose commits the broker does not answer: it is stopped when they are sent."""

    def __init__(self, producer, kafka) -> None:
        self._producer, self._kafka = producer, kafka

    def __getattr__(self, name):
        return getattr(self._producer, name)

    def commit_transaction(self, timeout_s):
        self._kafka.pause()
        return self._producer.commit_transaction(2.0)


def test_after_a_commit_without_an_answer_the_log_alone_says_whether_it_happened(kafka, place):
    member = place.member("leader")
    elected(member)
    writer = place.claim()
    writer.write([LogRecord("leader", {"n": 1})], member.term())
    writer._producer = SleepyBroker(writer._producer, kafka)
    try:
        with pytest.raises(WriteUnknown):
            writer.write([LogRecord("decision", {"n": 1})], member.term())
        with pytest.raises(WriterFenced):
            writer.write([LogRecord("another", {"n": 1})], member.term())
    finally:
        kafka.resume()
    elected(member)
    again = place.claim()
    known = [record.key for record in place.reader().read_to_end(20)]
    again.write([LogRecord("after", {"n": 1})], member.term())
    final = [record.key for record in place.reader().read_to_end(20)]
    assert known in (["leader"], ["leader", "decision"])
    assert final == [*known, "after"], "the decision appeared after the next claim had read the log"


def test_a_start_waits_for_a_position_behind_the_open_transaction_of_another_task(place, monkeypatch):
    """Read to the last stable offset, the task would start before what it has committed, and write that again."""
    stranger, names = place.transactional("stranger"), place.names
    stranger.begin_transaction()
    stranger.produce(names.offsets, key=b"k", value=b"{}", partition=0)
    stranger.flush(10)
    spec = TaskSpec(
        kind="source",
        connector="shop",
        task=0,
        incarnation="i",
        task_epoch=1,
        attempt=0,
        worker_id="w",
        boot_id="b",
        paused=False,
        config={"topic.prefix": "p"},
        kafka=place.properties,
        group_id=place.group,
        topics=ClusterTopics(names.configs, names.offsets, names.status, names.schemas),
        offsets_partitions=1,
        session_timeout_s=SESSION_S,
        state_dir="",
    )
    owner = place.transactional("owner")
    owner.begin_transaction()
    value = b'{"v":1,"incarnation":"i","task_epoch":1,"position":{"lsn":7}}'
    owner.produce(names.offsets, key=source_opening.position_key(spec).encode(), value=value, partition=0)
    owner.commit_transaction(10)
    reader = source_opening.StartReader(spec)
    try:
        monkeypatch.setattr(source_opening, "READ_TIMEOUT_S", 2.0)
        with pytest.raises(CdcError) as caught:
            reader.position()
        assert caught.value.code == e.TIMEOUT
        monkeypatch.setattr(source_opening, "READ_TIMEOUT_S", 20.0)
        stranger.abort_transaction(10)
        assert reader.position().position == {"lsn": 7}
    finally:
        reader.close()
