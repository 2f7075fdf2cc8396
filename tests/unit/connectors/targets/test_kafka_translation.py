"""Offsets of groups in a copy: never behind a record that was not read, and close to it."""

from __future__ import annotations

import random
from concurrent.futures import Future

import pytest
from cdcworker.connectors.targets.kafka import errors
from cdcworker.connectors.targets.kafka.checkpoints import Checkpoint, encoded
from cdcworker.connectors.targets.kafka.config import CONFIG_DEF
from cdcworker.connectors.targets.kafka.ledger import FIRST_SLOT, Copied, CopyOwner, Entry, Ledger, slot_of
from cdcworker.connectors.targets.kafka.naming import TopicNames
from cdcworker.connectors.targets.kafka.translation import translated
from confluent_kafka import KafkaException


class Mirror:
    """A source with gaps and its copy: batches of random sizes, markers of transactions, offsets that are set back."""

    def __init__(self, dice, *, foreign=False, unknown=False):
        self.dice, self.ledger, self.state = dice, Ledger("c"), None
        self.source, offset = [], 0
        for _ in range(400):
            offset += 1 + (dice.randrange(20) if dice.random() < 0.1 else 0)
            self.source.append(offset)
        self.copy = []
        """(offset of the source, offset of the copy) in the order of the copy."""
        self.end = 0
        self.foreign, self.unknown = foreign, unknown

    def run(self, batches):
        for _ in range(batches):
            state = self.ledger.of("p")
            left = [at for at in self.source if at >= state.next_offset]
            taken = left[: 1 + self.dice.randrange(8)]
            if not taken:
                return
            first = self.end
            for at in taken:
                if self.foreign and self.dice.random() < 0.2:
                    self.end += 1
                self.copy.append((at, self.end))
                self.end += 1
            told = self.unknown and self.dice.random() < 0.3
            span = (-1, -1) if told else (self.copy[-len(taken)][1], self.end - 1)
            assert first <= self.end
            self.end += 1
            since = state.since("copy", 0, span[0])
            entry = Entry(state.next_batch, taken[0], taken[-1], "copy", 0, *span, len(taken), since)
            self.ledger.read(*self.ledger.entry_record("p", entry))

    def set_back(self, offset):
        state = self.ledger.of("p")
        entry = Entry(state.next_batch, offset, offset - 1, since=state.newest.since)
        self.ledger.read(*self.ledger.entry_record("p", entry))

    def create_again(self):
        """The copy is deleted, and made anew."""
        self.copy, self.end = [], 0


@pytest.mark.parametrize("kind", ["alone", "foreign", "unknown"])
@pytest.mark.parametrize("seed", range(15))
def test_no_record_is_left_out_and_few_are_read_again(seed, kind):
    dice = random.Random(seed)
    mirror = Mirror(dice, foreign=kind == "foreign", unknown=kind == "unknown")
    for step in range(30):
        mirror.run(1 + dice.randrange(6))
        if step == 20 and seed % 3 == 0:
            mirror.set_back(dice.choice(mirror.source[:100]))
        newest = dict(mirror.copy)
        state = mirror.ledger.of("p")
        for group in [*dice.choices(mirror.source, k=10), mirror.source[-1] + 1, state.next_offset]:
            place = translated(state, group)
            if place is None:
                assert kind == "unknown"
                continue
            # What lies behind an offset that was set back is copied again.
            missed = [at for at, to in newest.items() if group <= at < state.next_offset and to < place.offset]
            assert missed == [], "the newest copy of each record that was not read lies at the place or behind it"
            if kind == "alone" and seed % 3:
                again = sum(place.offset <= to and at < group for at, to in newest.items())
                lag = sum(at >= group for at in newest)
                assert again <= 8 * lag + 8, "as many as the group is behind, times a few"
        if kind == "alone" and seed % 3:
            assert translated(state, state.next_offset).offset == max(newest.values()) + 1, (
                "a group at the end reads nothing again"
            )


@pytest.mark.parametrize("seed", range(15))
def test_no_record_is_left_out_of_a_copy_that_was_created_again(seed):
    dice = random.Random(seed)
    mirror = Mirror(dice)
    for step in range(20):
        mirror.run(1 + dice.randrange(6))
        if step in (5, 8):
            mirror.create_again()
            mirror.run(1)
        state = mirror.ledger.of("p")
        for group in [*dice.choices(mirror.source, k=10), mirror.source[0], state.next_offset]:
            place = translated(state, group)
            assert place is None or all(to >= place.offset for at, to in mirror.copy if at >= group)
        assert translated(state, state.next_offset).offset == mirror.copy[-1][1] + 1


def test_entries_are_kept_ever_farther_apart():
    state = Copied()
    for batch in range(1_000):
        state.entries[slot_of(batch)] = Entry(batch, batch, batch)
    assert sorted(entry.batch for entry in state.entries.values()) == [
        0,
        512,
        768,
        896,
        960,
        976,
        984,
        992,
        996,
        998,
        999,
    ]
    assert state.next_batch == state.next_offset == 1_000


def test_nothing_is_known_of_a_partition_that_is_not_copied_and_of_what_was_set_by_hand():
    assert translated(Copied(), 5) is None
    assert translated(Copied(entries={FIRST_SLOT: Entry(0, 5, 4)}), 5) is None


def test_records_of_others_and_nonsense_in_the_ledger_are_passed_over():
    ledger = Ledger("c")
    ledger.read(*ledger.owner_record("p", CopyOwner((3, 1), "id")))
    for key, value in [
        (None, None),
        (b"[", b"{}"),
        (b'["x","p","owner"]', b'{"epoch":[9,9],"id":"x"}'),
        (b'["c","p","owner"]', b'{"epoch":9}'),
        (b'["c","p","slot-0"]', b'{"batch":"x","source":[1]}'),
        (b'["c","p","slot-0"]', b'{"batch":0,"source":["x",1]}'),
        (b'["c","p","owner"]', b"[" * 100_000),
        (b'["c","p","owner"]', None),
        (b"7", b"7"),
    ]:
        ledger.read(key, value)
    assert ledger.partitions == {"p": Copied(CopyOwner((3, 1), "id"), {"id"})}


def test_the_owner_of_a_partition_is_the_newest_whoever_has_claimed_it_last():
    ledger = Ledger("c")
    for owner in (CopyOwner((2, 0), "a"), CopyOwner((1, 5), "b"), CopyOwner((2, 1), "c"), CopyOwner((2, 0), "d")):
        ledger.read(*ledger.owner_record("p", owner))
    assert ledger.of("p").owner == CopyOwner((2, 1), "c")
    assert ledger.of("p").ids == {"a", "b", "c", "d"}


def test_a_checkpoint_has_the_form_of_mirrormaker():
    key, value = encoded(Checkpoint("g", "a.t", 7, 258, 1, "m"))
    assert key == b"\0\0" + b"\0\1g" + b"\0\3a.t" + b"\0\0\0\7"
    assert value == b"\0\0" + b"\0\0\0\0\0\0\1\2" + b"\0\0\0\0\0\0\0\1" + b"\0\1m"


def test_names_are_those_of_mirrormaker_and_copies_of_the_target_are_known():
    names = TopicNames("a", "b", ".")
    assert names.on_target("t") == "a.t"
    assert (names.checkpoints, names.ledger) == ("a.checkpoints.internal", "a.mirror-ledger.internal")
    assert [names.came_from_target(topic) for topic in ("b.t", "c.b.t", "t.b", "bb.t", "t")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert TopicNames("a", "b", ".", keeps=True).on_target("b.t") == "b.t"
    assert TopicNames("a", "b", ".", template="dr-${topic}").on_target("t") == "dr-t"


def test_an_admin_client_that_does_not_answer_in_time_is_an_error_of_kafka(monkeypatch):
    monkeypatch.setattr(errors, "ANSWER_S", 0.01)
    with pytest.raises(KafkaException) as caught:
        errors.answer_of(Future())
    assert errors.error_of(caught.value.args[0], "x").code == "sink.target_unavailable"


@pytest.mark.parametrize("topic", ["berlin.mirror-ledger.internal", "berlin.checkpoints.internal", "t"])
def test_a_topic_whose_copy_would_be_the_ledger_is_refused(topic):
    config = {
        "topics": topic,
        "target.bootstrap.servers": "other:9092",
        "source.cluster.alias": "berlin",
        "replication.policy.class": "IdentityReplicationPolicy",
    }
    found = [value.name for value in CONFIG_DEF.validate(config) if value.errors]
    assert found == ([] if topic == "t" else ["topics"])
