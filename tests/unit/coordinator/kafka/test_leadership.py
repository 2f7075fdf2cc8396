import struct

import pytest
from cdcworker.coordinator.kafka import leadership
from cdcworker.coordinator.kafka.leadership import KafkaLeadership, join_delay_s, parse_metadata, proof_of
from cdcworker.schemas.errors import CdcError
from confluent_kafka import KafkaError, KafkaException, TopicPartition


def metadata(generation: int, member: str = "w1-1") -> bytes:
    return b"CGMDv2:" + struct.pack("<i", generation) + b"g\0" + member.encode() + b"\0"


class FakeConsumer:
    """Replays scripted polls; callbacks run inside poll, as the library does it."""

    def __init__(self) -> None:
        self.script: list = []
        self.metadata: object = metadata(1)
        self.closed = False
        self.left = 0

    def unsubscribe(self):
        self.left += 1

    def subscribe(self, topics, on_assign, on_revoke, on_lost):
        self.on_assign, self.on_revoke, self.on_lost = on_assign, on_revoke, on_lost

    def poll(self, timeout):
        if not self.script:
            return None
        what = self.script.pop(0)
        return what() if callable(what) else what

    def consumer_group_metadata(self):
        if isinstance(self.metadata, Exception):
            raise self.metadata
        return self.metadata

    def assignment(self):
        return list(self.script)

    def close(self):
        self.closed = True
        self.unheard = len(self.script)

    def assign(self, *partitions):
        self.script.append(lambda: self.on_assign(self, [TopicPartition("c", p) for p in partitions]))

    def revoke(self, *partitions):
        self.script.append(lambda: self.on_revoke(self, [TopicPartition("c", p) for p in partitions]))


class FakeMessage:
    def __init__(self, error=None):
        self._error = error

    def error(self):
        return self._error

    def partition(self):
        return 0

    def offset(self):
        return 0


@pytest.fixture
def consumer(monkeypatch):
    fake = FakeConsumer()
    monkeypatch.setattr(leadership, "make_consumer", lambda config: fake)
    return fake


@pytest.fixture
def member(consumer):
    return KafkaLeadership({"bootstrap.servers": "x:1"}, topic="c", group_id="g", client_id="w1")


def test_metadata_is_read_as_the_library_writes_it():
    assert parse_metadata(metadata(7, "w1-abc")) == (7, "w1-abc")


@pytest.mark.parametrize("raw", [b"", b"CGMDv1:xxxxg\0m\0", b"CGMDv2:\1\0", b"CGMDv2:\1\0\0\0nothing"])
def test_metadata_of_another_form_is_no_proof(raw):
    with pytest.raises(ValueError):
        proof_of(raw)


@pytest.mark.parametrize("raw", [metadata(-1), metadata(3, ""), metadata(-1, "")])
def test_metadata_of_nobody_is_no_proof(raw):
    with pytest.raises(ValueError, match="has not joined"):
        proof_of(raw)


def test_the_owner_of_partition_zero_has_a_term(member, consumer):
    consumer.assign(0)
    member.tick(0)
    assert member.term() == proof_of(metadata(1))


def test_the_proof_is_the_one_captured_when_assigned_and_not_a_later_one(member, consumer):
    consumer.assign(0)
    member.tick(0)
    consumer.metadata = metadata(2)
    member.tick(0)
    assert member.term().proof == metadata(1)


def test_an_empty_assignment_refreshes_the_proof_of_the_owner(member, consumer):
    consumer.assign(0)
    member.tick(0)
    consumer.metadata = metadata(2)
    consumer.assign()
    member.tick(0)
    assert (member.term().proof, member.term().hint) == (metadata(2), 2)


def test_an_empty_assignment_makes_nobody_leader(member, consumer):
    consumer.assign()
    member.tick(0)
    assert member.term() is None


def test_a_revoked_partition_ends_the_term(member, consumer):
    consumer.assign(0)
    consumer.revoke(0)
    member.tick(0)
    member.tick(0)
    assert member.term() is None
    consumer.assign()
    member.tick(0)
    assert member.term() is None


def test_a_lost_assignment_ends_the_term(member, consumer):
    consumer.assign(0)
    member.tick(0)
    consumer.script.append(lambda: consumer.on_lost(consumer, [TopicPartition("c", 0)]))
    member.tick(0)
    assert member.term() is None


@pytest.mark.parametrize("wrong", [metadata(-1), b"nonsense", RuntimeError("closed"), KafkaException(KafkaError(-1))])
def test_a_callback_without_a_proof_gives_no_term_and_does_not_raise(member, consumer, wrong):
    consumer.assign(0)
    member.tick(0)
    consumer.metadata = wrong
    consumer.assign()
    member.tick(0)
    assert member.term() is None


def test_a_poll_that_came_too_late_ends_the_term(member, consumer):
    consumer.assign(0)
    member.tick(0)
    consumer.script.append(FakeMessage(KafkaError(KafkaError._MAX_POLL_EXCEEDED)))
    member.tick(0)
    assert member.term() is None


def test_a_passing_error_keeps_the_term(member, consumer):
    consumer.assign(0)
    member.tick(0)
    consumer.script.append(FakeMessage(KafkaError(KafkaError._ALL_BROKERS_DOWN)))
    member.tick(0)
    assert member.term() is not None


def test_a_fatal_error_ends_the_membership(member, consumer):
    consumer.assign(0)
    member.tick(0)
    consumer.script.append(FakeMessage(KafkaError(KafkaError._FATAL, "x", fatal=True)))
    with pytest.raises(CdcError):
        member.tick(0)
    assert member.term() is None


def test_a_closed_leadership_has_no_term_and_polls_no_more(member, consumer):
    consumer.assign(0)
    member.tick(0)
    member.close()
    consumer.assign(0)
    member.tick(0)
    member.close()
    assert consumer.closed
    assert member.term() is None


def test_an_assignment_on_its_way_is_heard_before_the_member_closes_and_gives_no_term(member, consumer):
    consumer.assign(0)
    consumer.revoke(0)
    member.close()
    assert consumer.left == 1
    assert consumer.unheard == 0
    assert member.term() is None


def test_a_member_that_cannot_be_polled_closes_all_the_same(member, consumer):
    consumer.script.append(raising(KafkaError(KafkaError._FAIL)))
    member.close()
    assert consumer.closed


def raising(error):
    def poll():
        raise KafkaException(error)

    return poll


def test_an_owner_that_lost_its_term_by_an_error_gives_the_partition_back(member, consumer, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(leadership.time, "monotonic", lambda: clock[0])
    consumer.assign(0)
    member.tick(0)
    consumer.script.append(raising(KafkaError(KafkaError._STATE)))
    member.tick(0)
    assert member.term() is None
    member.tick(0)
    assert consumer.left == 0
    clock[0] += 2.1
    member.tick(0)
    assert consumer.left == 1
    clock[0] += 10
    member.tick(0)
    assert consumer.left == 1, "once"
    consumer.assign(0)
    member.tick(0)
    assert member.term() is not None


def test_an_owner_without_a_proof_gives_the_partition_back(member, consumer, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(leadership.time, "monotonic", lambda: clock[0])
    consumer.metadata = RuntimeError("no")
    consumer.assign(0)
    member.tick(0)
    clock[0] += 2.1
    member.tick(0)
    assert consumer.left == 1


def test_an_owner_that_is_told_of_its_loss_need_not_join_again(member, consumer, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(leadership.time, "monotonic", lambda: clock[0])
    consumer.assign(0)
    member.tick(0)
    consumer.script.append(FakeMessage(KafkaError(KafkaError._MAX_POLL_EXCEEDED)))
    consumer.script.append(lambda: consumer.on_lost(consumer, []))
    member.tick(0)
    member.tick(0)
    clock[0] += 10
    member.tick(0)
    assert consumer.left == 0


ME, OTHER = "cdcworker-w1-cluster.0123456789ab", "cdcworker-w2-cluster.0123456789ab"


@pytest.mark.parametrize(
    ("members", "delay_s"),
    [([], 0.0), ([OTHER], 0.0), ([ME], 0.0), ([ME, ME], 0.0), ([ME, OTHER], 10.0), ([OTHER, ME], 10.0)],
)
def test_only_while_a_dead_process_of_its_name_is_among_others_in_the_group_a_worker_stays_outside(members, delay_s):
    assert join_delay_s(members, ME, 10.0) == delay_s


def test_a_worker_that_stays_outside_for_a_while_joins_after_it(consumer, monkeypatch):
    now = 100.0
    monkeypatch.setattr(leadership.time, "monotonic", lambda: now)
    member = KafkaLeadership({"bootstrap.servers": "x:1"}, topic="c", group_id="g", client_id="w1", join_after_s=10)
    member.tick(0)
    assert not hasattr(consumer, "on_assign")
    now = 110.0
    member.tick(0)
    consumer.assign(0)
    member.tick(0)
    assert member.term() is not None
