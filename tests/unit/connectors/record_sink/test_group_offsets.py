"""The notes of offsets, the age of a proof, and what waits for a commit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cdcworker.connectors.record_sink.group_offsets import GroupOffsets, Letter, Owner, note_of, parse_note
from cdcworker.connectors.record_sink.ownership import PROVEN_S, Ownership
from cdcworker.connectors.record_sink.progress import LETTER_BYTES_MAX, Done, Progress
from cdcworker.schemas.errors import CdcError
from confluent_kafka import KafkaError, KafkaException, TopicPartition


def test_a_note_is_read_as_it_was_written():
    assert parse_note(note_of(Owner((7, 2), "g:c a:0:sink"))) == ((7, 2), "g:c a:0:sink")


@pytest.mark.parametrize("text", ["", "x", "1", "1.", ".1 x", "-1.2 x", "1.2.3 x", "consumer-1"])
def test_a_note_of_somebody_else_is_nobodys(text):
    assert parse_note(text) == ((-1, -1), "")


def test_a_proof_grows_old():
    now = [100.0]
    ownership = Ownership(lambda: now[0])
    ownership.proven(100.0)
    now[0] += PROVEN_S
    assert ownership.wait()
    assert not ownership.is_wanted
    now[0] += 0.1
    ownership.end()
    assert not ownership.wait()


def test_dead_letters_that_wait_for_a_commit_are_bounded():
    progress, letter = Progress(), Letter(b"k", b"x" * LETTER_BYTES_MAX, ())
    progress.done(Done({("t", 0): 5}, [letter], 1, 4, {}, {}))
    assert (progress.is_urgent, progress.is_full) == (True, False)
    progress.done(Done({("t", 0): 6}, [Letter(None, None, ())] * (LETTER_BYTES_MAX // 1_000 + 1), 1, 4, {}, {}))
    assert progress.is_full
    progress.take()
    assert (progress.is_urgent, progress.is_full) == (False, False)


# Transactions, of a broker in memory


class Refused:
    def __init__(self, code):
        self._code = code

    def code(self):
        return self._code

    def name(self):
        return str(self._code)

    def retriable(self):
        return False


class Broker:
    """Offsets of a group, and who holds a transactional id. `before_commit` runs before each commit."""

    def __init__(self, *topics):
        self.topics = {name: SimpleNamespace(error=None, partitions={0: None}) for name in topics}
        self.offsets: dict = {}
        self.holders: dict = {}
        self.letters: list = []
        self.before_commit = lambda: None

    def offsets_of(self, epoch, **more):
        return GroupOffsets(Clients(self), Owner((epoch, 0), "id"), lambda places: dict.fromkeys(places, 0))

    # A consumer

    def committed(self, parts, _timeout):
        return [
            TopicPartition(p.topic, p.partition, *self.offsets.get((p.topic, p.partition), (-1001,))) for p in parts
        ]

    def list_topics(self, timeout):
        return SimpleNamespace(topics=self.topics)

    def consumer_group_metadata(self):
        return None

    def close(self):
        pass


class Clients:
    letters_topic = "dead"

    def __init__(self, broker):
        self.broker = broker

    def open_consumer(self):
        return self.broker

    def open_producer(self, id):
        self.broker.holders[id] = made = Transactions(self.broker, id)
        return made


class Transactions:
    def __init__(self, broker, id):
        self.broker, self.id = broker, id

    def begin_transaction(self):
        self.parts, self.sent = (), []

    def produce(self, _topic, value, _key, _partition, headers):
        self.sent.append(value)

    def send_offsets_to_transaction(self, parts, _group, _timeout):
        self.broker.before_commit()
        if self.broker.holders[self.id] is not self:
            raise KafkaException(Refused(KafkaError._FENCED))
        if any(part.topic not in self.broker.topics for part in parts):
            raise KafkaException(Refused(KafkaError.UNKNOWN_TOPIC_OR_PART))
        self.parts = parts

    def commit_transaction(self, _timeout):
        self.broker.offsets |= {(p.topic, p.partition): (p.offset, p.metadata) for p in self.parts}
        self.broker.letters += self.sent

    def purge(self):
        pass

    def abort_transaction(self, _timeout):
        pass


def test_a_former_owner_that_commits_while_the_new_one_takes_over_ends_and_the_new_one_stays():
    broker = Broker("t")
    old = broker.offsets_of(1)
    assert old.take_over([("t", 0)]) == {("t", 0): 0}
    new, calls = broker.offsets_of(2), []

    def between():
        calls.append(1)
        if len(calls) == 1:
            old.commit({("t", 0): 7}, ())

    broker.before_commit = between
    assert new.take_over([("t", 0)]) == {("t", 0): 7}
    assert broker.offsets["t", 0] == (7, "2.0 id")
    with pytest.raises(CdcError) as caught:
        old.commit({("t", 0): 8}, ())
    assert caught.value.code == "sink.fenced"
    new.commit({("t", 0): 9}, ())
    assert broker.offsets["t", 0] == (9, "2.0 id")


def test_a_topic_that_was_deleted_does_not_hold_up_the_others():
    broker = Broker("t", "gone")
    offsets = broker.offsets_of(1)
    offsets.take_over([("t", 0), ("gone", 0)])
    del broker.topics["gone"]
    wanted, letter = {("t", 0): 5, ("gone", 0): 5}, Letter(None, b"x", ())
    with pytest.raises(CdcError) as caught:
        offsets.commit(wanted, ())
    assert caught.value.code == "sink.commit_failed"
    assert set(offsets.commit(wanted, ())) == {("gone", 0)}
    assert broker.offsets["t", 0][0] == 5
    offsets._producer = None
    assert set(offsets.commit({("gone", 0): 6}, [letter])) == {("gone", 0)}
    assert broker.letters == [b"x"], "its dead letters are kept"
