import struct

import pytest
from cdcworker.coordinator.api import LogRecord, Term, TermOver, WriterFenced, WriteUnknown
from cdcworker.coordinator.kafka import leader_writer
from cdcworker.coordinator.kafka.leader_writer import KafkaLeaderWriter, fence
from cdcworker.schemas.errors import CdcError
from confluent_kafka import KafkaError, KafkaException

PROOF = b"CGMDv2:" + struct.pack("<i", 3) + b"g\0m\0"
TERM = Term(PROOF, 3)


class FakeProducer:
    """Raises what `fail` names for a call, once."""

    def __init__(self):
        self.calls = []
        self.fail = {}

    def _call(self, name, *args):
        self.calls.append((name, *args))
        error = self.fail.pop(name, None)
        if error is not None:
            raise error

    def list_topics(self, timeout):
        """Connected."""

    def init_transactions(self, timeout):
        self._call("init")

    def begin_transaction(self):
        self._call("begin")

    def produce(self, topic, value, key, headers, partition):
        self._call("produce", topic, key, partition)

    def send_offsets_to_transaction(self, places, proof, timeout):
        self._call("offsets", [(p.topic, p.partition, p.offset) for p in places], proof)

    def commit_transaction(self, timeout):
        self._call("commit")

    def abort_transaction(self, timeout):
        self._call("abort")

    def names(self):
        return [call[0] for call in self.calls]


@pytest.fixture
def producer(monkeypatch):
    fake = FakeProducer()
    monkeypatch.setattr(leader_writer, "make_producer", lambda config: fake)
    return fake


@pytest.fixture
def writer(producer):
    made = KafkaLeaderWriter(
        {"bootstrap.servers": "x:1"}, group_id="g", topic="configs", coordination_topic="coord", client_id="c"
    )
    producer.calls.clear()
    return made


def refused(number, **flags):
    return KafkaException(KafkaError(number, "x", **flags))


def test_a_write_is_one_transaction_with_the_proof_of_the_term(writer, producer):
    writer.write([LogRecord("a", {}), LogRecord("b", None)], TERM)
    assert producer.calls == [
        ("begin",),
        ("produce", "configs", b"a", 0),
        ("produce", "configs", b"b", 0),
        ("offsets", [("coord", 0, 0)], PROOF),
        ("commit",),
    ]


@pytest.mark.parametrize(
    "term", [Term(None, 1), Term(b"CGMDv2:\xff\xff\xff\xffg\0m\0", -1), Term(b"CGMDv2:\1\0\0\0g\0\0", 1), Term(b"?", 1)]
)
def test_a_term_that_proves_nothing_writes_nothing(writer, producer, term):
    with pytest.raises(TermOver):
        writer.write([LogRecord("a", {})], term)
    assert producer.calls == []


@pytest.mark.parametrize("abort", [{}, {"abort": refused(KafkaError._TIMED_OUT)}], ids=["aborted", "not aborted"])
def test_a_refused_proof_is_aborted_and_the_writer_is_spent(writer, producer, abort):
    producer.fail = {"offsets": refused(KafkaError.ILLEGAL_GENERATION, txn_requires_abort=True), **abort}
    with pytest.raises(TermOver):
        writer.write([LogRecord("a", {})], TERM)
    assert producer.names()[-1] == "abort"
    producer.calls.clear()
    with pytest.raises(WriterFenced):
        writer.write([LogRecord("a", {})], TERM)
    assert producer.calls == []


@pytest.mark.parametrize("call", ["begin", "produce", "offsets"])
def test_a_newer_claim_fences_at_every_call_and_the_writer_is_spent(writer, producer, call):
    producer.fail = {call: refused(KafkaError._FENCED, fatal=True)}
    with pytest.raises(WriterFenced):
        writer.write([LogRecord("a", {})], TERM)
    producer.calls.clear()
    with pytest.raises(WriterFenced):
        writer.write([LogRecord("a", {})], TERM)
    assert producer.calls == []


def test_a_commit_that_meets_a_newer_claim_may_have_happened_before(writer, producer):
    producer.fail = {"commit": refused(KafkaError._FENCED, fatal=True)}
    with pytest.raises(WriteUnknown):
        writer.write([LogRecord("a", {})], TERM)
    with pytest.raises(WriterFenced):
        writer.write([LogRecord("a", {})], TERM)


def test_a_commit_without_an_answer_is_unknown_and_never_repeated(writer, producer):
    producer.fail = {"commit": refused(KafkaError._TIMED_OUT, retriable=True)}
    with pytest.raises(WriteUnknown):
        writer.write([LogRecord("a", {})], TERM)
    assert producer.names().count("commit") == 1
    assert "abort" not in producer.names()
    with pytest.raises(WriterFenced):
        writer.write([LogRecord("a", {})], TERM)


def test_a_full_queue_is_unknown(writer, producer):
    producer.fail = {"produce": BufferError()}
    with pytest.raises(WriteUnknown):
        writer.write([LogRecord("a", {})], TERM)


def test_a_claim_that_fails_is_told_with_our_code(producer):
    producer.fail = {"init": refused(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)}
    with pytest.raises(CdcError) as caught:
        KafkaLeaderWriter({"bootstrap.servers": "x:1"}, group_id="g", topic="t", coordination_topic="c", client_id="c")
    assert caught.value.code == "kafka.authorization"


def test_fencing_tells_of_each_id_and_one_failure_stops_no_other(monkeypatch):
    def make(config):
        fake = FakeProducer()
        if config["transactional.id"] == "b":
            fake.fail = {"init": refused(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)}
        return fake

    monkeypatch.setattr(leader_writer, "make_producer", make)
    outcome = fence({"bootstrap.servers": "x:1"}, ["a", "b", "c"], client_id="c")
    assert {name: error and error.code for name, error in outcome.items()} == {
        "a": None,
        "b": "kafka.authorization",
        "c": None,
    }
    assert fence({}, [], client_id="c") == {}


def test_while_the_broker_ends_what_a_predecessor_left_open_a_new_client_asks_again_at_once(monkeypatch):
    made = []

    def make(config):
        fake = FakeProducer()
        if len(made) < 2:
            fake.fail = {"init": refused(KafkaError.CONCURRENT_TRANSACTIONS, retriable=True)}
        made.append(fake)
        return fake

    monkeypatch.setattr(leader_writer, "make_producer", make)
    assert leader_writer.take_over({}, 5.0) is made[2]
    assert [fake.names() for fake in made] == [["init"]] * 3
