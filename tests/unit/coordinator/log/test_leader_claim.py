"""Claims without a broker's proof, and whose log it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cdcworker.coordinator.api import LogRecord, Term
from cdcworker.coordinator.core import events, state_machine
from cdcworker.coordinator.core.herd_state import HerdSettings
from cdcworker.coordinator.errors import ENSEMBLE_CHANGED, OTHER_CLUSTER
from cdcworker.coordinator.log.leader_claim import (
    CLUSTER,
    ClusterIdentity,
    identity_conflict,
    identity_of,
    newest_claim,
    reason_not_to_claim,
)
from cdcworker.coordinator.log.status_fold import lease_record, presence_record
from cdcworker.coordinator.memory import MemoryTopic
from cdcworker.coordinator.model import DeleteConnector, Presence, PutConnector, Restart

OURS = ClusterIdentity("k1", "g", ("g.configs", "g.status"), "zookeeper")
TERM = Term(None, 12, "e1")
CREATE = PutConnector("c", {"tasks.max": "1"}, kind="source")


def claim(hint, epoch=1, ensemble="e1", boot="b2"):
    value = {"ensemble": ensemble, "epoch": epoch, "worker_id": "other", "boot_id": boot}
    return LogRecord(f"claim/{hint}", value, {"e": str(epoch), "w": "other"})


class Herd:
    """One herd fed by hand; what it writes goes to the log when the test says so."""

    def __init__(self, topic, boot="b1", identity=OURS, accepted=""):
        self.topic, self.now, self.read = topic, 100.0, 0
        me = Presence(f"w-{boot}", boot, "http://me", "1", "p")
        settings = HerdSettings(identity=identity, accepted_identity=accepted)
        self.state = state_machine.initial(me, settings)
        self.feed(events.ConfigRecords(self.unread(), replay=True))
        self.feed(events.StatusRecords((presence_record(me), lease_record(me.worker_id, boot, 1))))
        self.feed(events.Started())

    def unread(self):
        records, self.read = tuple(self.topic.since(self.read)), self.topic.end
        return records

    def feed(self, event):
        self.now += 0.01
        self.state, commands = state_machine.step(self.state, event, events.Now(self.now, round(self.now * 1000)))
        return list(commands)

    def elected(self, term):
        return self.feed(events.TermChanged(term))

    def read_log(self):
        return self.feed(events.ConfigRecords(self.unread()))

    def claimed(self):
        return self.read_log() + self.feed(events.Claimed())

    def commit(self, commands):
        (write,) = writes(commands)
        self.topic.append(write.records)
        return self.read_log()

    def lead(self, term):
        assert claims(self.elected(term))
        commands = self.commit(self.claimed())
        while writes(commands):
            commands = self.commit(commands)
        return self

    @property
    def role(self):
        return self.state.lead.role


def writes(commands):
    return [command for command in commands if isinstance(command, events.WriteLog)]


def claims(commands):
    return [command for command in commands if isinstance(command, events.Claim)]


def answers(commands):
    return [command.reply.outcome for command in commands if isinstance(command, events.AnswerRequest)]


def keys(commands):
    return [record.key for write in writes(commands) for record in write.records]


@pytest.fixture
def topic():
    return MemoryTopic()


# --- claims ---------------------------------------------------------------------------------------------------------


def test_the_claim_is_written_alone_and_the_lead_follows_when_it_was_read_back(topic):
    herd_ = Herd(topic)
    herd_.elected(TERM)
    first = herd_.claimed()
    assert keys(first) == ["claim/12"]
    second = herd_.commit(first)
    assert herd_.role == "claimed"
    assert keys(second) == ["leader", CLUSTER]
    herd_.commit(second)
    assert herd_.role == "leading"
    epochs = [record.headers["e"] for record in topic.records]
    assert epochs == ["1", "1", "1"]


def test_nothing_is_decided_before_the_claim_was_read_back(topic):
    herd_ = Herd(topic)
    herd_.elected(TERM)
    herd_.claimed()
    (answer,) = [c for c in herd_.feed(events.RequestArrived("r", CREATE)) if isinstance(c, events.AnswerRequest)]
    assert answer.reply.outcome == "no_leader"


def test_a_lock_node_older_than_a_claim_in_the_log_never_claims(topic):
    herd_ = Herd(topic)
    topic.append([claim(13)])
    herd_.read_log()
    assert claims(herd_.elected(TERM)) == []
    herd_.now += 3600
    assert claims(herd_.feed(events.Tick())) == []


def test_a_claim_that_appears_while_the_writer_opens_ends_the_attempt_before_anything_is_written(topic):
    herd_ = Herd(topic)
    herd_.elected(TERM)
    topic.append([claim(13)])
    assert writes(herd_.claimed()) == []
    assert herd_.role == "follower"


def test_a_newer_claim_read_back_with_the_own_one_ends_the_lead_before_it_began(topic):
    herd_ = Herd(topic)
    herd_.elected(TERM)
    first = herd_.claimed()
    topic.append([*writes(first)[0].records, claim(13, epoch=2)])
    assert writes(herd_.read_log()) == []
    assert herd_.role == "follower"


def test_a_writer_that_was_fenced_means_a_new_claim_with_a_new_epoch(topic):
    herd_ = Herd(topic).lead(TERM)
    herd_.feed(events.RequestArrived("r", CREATE))
    herd_.feed(events.WriteFailed(herd_.state.lead.inflight, "fenced"))
    herd_.now += 5
    assert claims(herd_.feed(events.Tick()))
    assert keys(herd_.claimed()) == ["claim/12"]
    assert herd_.state.lead.epoch == 2


def test_the_next_leader_claims_by_its_own_node_and_removes_older_claims(topic):
    Herd(topic).lead(TERM)
    second = Herd(topic, "b9").lead(Term(None, 20, "e1"))
    assert second.role == "leading"
    assert {key for key in second.state.cluster.settings if key.startswith("claim/")} == {"claim/20"}
    assert newest_claim(second.state.cluster, "e1") == 20


def test_a_zombie_that_opens_a_writer_after_the_next_claim_writes_nothing(topic):
    zombie = Herd(topic).lead(TERM)
    Herd(topic, "b9").lead(Term(None, 20, "e1"))
    zombie.feed(events.RequestArrived("r", CREATE))
    zombie.feed(events.WriteFailed(zombie.state.lead.inflight, "fenced"))
    zombie.now += 5
    zombie.feed(events.Tick())
    assert zombie.role == "claiming"  # it has not read the newer claim yet
    assert writes(zombie.claimed()) == []
    assert zombie.role == "follower"


def test_claims_of_another_ensemble_are_another_count(topic):
    herd_ = Herd(topic, identity=None)
    topic.append([claim(9_000, ensemble="old")])
    herd_.read_log()
    assert herd_.lead(TERM).role == "leading"
    assert newest_claim(herd_.state.cluster, "old") == -1


def test_a_compacted_log_gives_the_same_newest_claim(topic):
    Herd(topic).lead(TERM)
    Herd(topic, "b9").lead(Term(None, 20, "e1"))
    topic.compact(drop_tombstones=True)
    reader = Herd(topic, "b7")
    assert newest_claim(reader.state.cluster, "e1") == 20
    assert reason_not_to_claim(reader.state.cluster, TERM, None) is not None


def test_a_term_with_a_proof_needs_no_claim(topic):
    herd_ = Herd(topic, identity=None)
    herd_.elected(Term(b"proof", 1))
    assert keys(herd_.claimed()) == ["leader"]


# --- identity -------------------------------------------------------------------------------------------------------


def test_the_identity_is_written_once_and_read_as_it_was_written(topic):
    herd_ = Herd(topic).lead(TERM)
    found = identity_of(herd_.state.cluster.settings[CLUSTER])
    assert found == replace(OURS, ensemble="e1")
    again = Herd(topic, "b9").lead(Term(None, 20, "e1"))
    assert again.role == "leading"
    assert [record.key for record in topic.records].count(CLUSTER) == 1


@pytest.mark.parametrize(
    ("mine", "term", "code"),
    [
        (replace(OURS, kafka="k2"), TERM, OTHER_CLUSTER),
        (replace(OURS, topics=("other.configs", "g.status")), TERM, OTHER_CLUSTER),
        (replace(OURS, backend="kafka"), Term(b"proof", 1), OTHER_CLUSTER),
        (OURS, Term(None, 99, "rebuilt"), ENSEMBLE_CHANGED),
    ],
)
def test_a_worker_of_another_identity_makes_no_claim_until_the_log_may_go_over_to_it(topic, mine, term, code):
    known = identity_of(Herd(topic).lead(TERM).state.cluster.settings[CLUSTER])
    own = replace(mine, ensemble=term.ensemble)
    error = identity_conflict(known, own)
    assert error.code == code
    assert own.fingerprint in error.hint
    stranger = Herd(topic, "b9", identity=mine)
    assert claims(stranger.elected(term)) == []
    moved = Herd(topic, "b8", identity=mine, accepted=own.fingerprint).lead(term)
    assert moved.role == "leading"
    assert identity_of(moved.state.cluster.settings[CLUSTER]) == own


def test_a_leader_of_the_old_identity_does_not_come_back_after_the_log_went_over(topic):
    old = Herd(topic).lead(TERM)
    own = replace(OURS, ensemble="rebuilt")
    Herd(topic, "b8", accepted=own.fingerprint).lead(Term(None, 1, "rebuilt"))
    old.read_log()
    old.now += 3600
    assert claims(old.feed(events.Tick())) == []
    assert claims(old.elected(Term(None, 900, "e1"))) == []
    old.elected(None)
    assert claims(old.elected(Term(None, 2, "rebuilt")))


def test_a_log_without_an_identity_is_anybodys(topic):
    assert identity_conflict(None, OURS) is None
    assert identity_conflict(OURS, None) is None
    assert identity_of({"kafka": "k1"}) is None


def test_the_flag_is_shared_by_all_workers_that_may_share_a_group():
    assert OURS.flag == replace(OURS, ensemble="x", kafka="y").flag
    assert OURS.flag != replace(OURS, backend="kafka").flag
    assert OURS.flag != replace(OURS, topics=("a",)).flag


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "outcome"),
    [
        (PutConnector("c", {"a": "2"}, kind="source", create_only=True), "exists"),
        (PutConnector("c", {"a": "2"}, kind="source", if_version=7), "version_mismatch"),
        (DeleteConnector("d"), "not_found"),
        (Restart("d"), "not_found"),
    ],
    ids=str,
)
def test_a_refusal_that_rests_on_the_leaders_picture_waits_for_a_write_that_proves_it(topic, request_, outcome):
    """A leader that slept would say of a connector that others changed meanwhile what it was before."""
    herd_ = Herd(topic).lead(Term(b"proof", 3))
    commands = herd_.feed(events.RequestArrived("r1", CREATE))
    while writes(commands):
        commands = herd_.commit(commands)
    for end in ("written", "refused"):
        commands = herd_.feed(events.RequestArrived(end, request_))
        assert keys(commands) == ["leader"]
        assert not answers(commands)
        if end == "written":
            assert answers(herd_.commit(commands)) == [outcome]
    (write,) = writes(commands)
    assert answers(herd_.feed(events.WriteFailed(write.write_id, "stale"))) == ["no_leader"]
