import threading
import time
from types import SimpleNamespace

import pytest
from cdcworker.coordinator.api import LogRecord, Term, TermOver, WriterFenced, WriteUnknown
from cdcworker.coordinator.core.events import (
    Claimed,
    ClaimFailed,
    ConfigRecords,
    FencesDone,
    LeaseAcked,
    StatusRecords,
    TermChanged,
    WriteDone,
    WriteFailed,
    WriteLog,
)
from cdcworker.coordinator.kafka.end_offsets import OpenTransaction
from cdcworker.coordinator.kafka.internal_topics import TopicNames
from cdcworker.coordinator.model import Leader, TaskId
from cdcworker.schemas.errors import INTERNAL, CdcError
from cdcworker.worker.herder import backends, log_tail
from cdcworker.worker.herder import cluster_io as herd_kafka
from cdcworker.worker.herder.backends import status_partition
from cdcworker.worker.herder.cluster_io import ClusterIo
from cdcworker.worker.herder.config import HerderConfig
from cdcworker.worker.protocol.task_spec import TRANSACTIONAL_IDS

OLD, NEW = Term(b"old", 1), Term(b"new", 2)


class FakeLog:
    def __init__(self) -> None:
        self.records: list[LogRecord] = []
        self.at = 0
        self.end = 0
        self.sent: list = []
        self.broken = False
        self.rewinds = 0
        self.reconnected = 0

    def reconnect(self):
        self.reconnected += 1

    def read_to_end(self, timeout_s):
        return self.poll(0)

    def poll(self, timeout_s):
        if self.broken:
            raise CdcError(INTERNAL, "the place is lost")
        taken, self.records = self.records, []
        self.at += len(taken)
        return taken

    def ends(self, timeout_s):
        return {0: self.end}

    def reached(self, ends):
        return self.at >= ends[0]

    def rewind(self):
        self.rewinds += 1
        self.broken = False

    def send(self, records, done):
        self.sent.append((records, done))

    def serve(self):
        return 0

    def close(self):
        pass


class FakeWriter:
    """Calls `script` for each write; `made` counts claims."""

    def __init__(self, rig) -> None:
        self.rig = rig
        rig.made += 1
        if rig.claim_error:
            raise rig.claim_error

    def void(self, places):
        self.rig.voided += places

    def write(self, records, term):
        self.rig.writes.append((records, term))
        self.rig.script()

    def close(self):
        pass


class Rig:
    """HerdKafka on fakes; jobs that other threads post are run by `settle`."""

    def __init__(self, monkeypatch) -> None:
        self.configs, self.status = FakeLog(), FakeLog()
        self.term: Term | None = OLD
        self.made, self.writes, self.claim_error = 0, [], None
        self.script = lambda: None
        self.left_open: list[OpenTransaction] = []
        self.voided: list[OpenTransaction] = []
        self.posted: list = []
        self.arrived = threading.Condition()
        logs = {"g.configs": self.configs, "g.status": self.status}
        leadership = SimpleNamespace(tick=lambda s: None, term=lambda: self.term, close=lambda: None)
        fakes = {
            "cluster_id": lambda *a, **k: "cluster",
            "ensure_topics": lambda *a, **k: {},
            "make_admin": lambda *a, **k: None,
            "members": lambda *a: [],
            "KafkaCompactedLog": lambda properties, topic, **k: logs[topic],
            "KafkaLeadership": lambda *a, **k: leadership,
            "KafkaLeaderWriter": lambda *a, **k: FakeWriter(self),
            "fence": lambda properties, ids, **k: dict.fromkeys(ids),
            "left_open": lambda admin, places, timeout_s: self.left_open,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(backends, name, fake)
        config = HerderConfig({}, "g", "w1", "http://w1", TopicNames.of_group("g"))
        self.kafka = ClusterIo(config, self.post)
        self.kafka.open()

    def post(self, job) -> None:
        with self.arrived:
            self.posted.append(job)
            self.arrived.notify()

    def settle(self) -> None:
        """Wait for one job of another thread and run it, as the herder does."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: self.posted, 10)
            job = self.posted.pop(0)
        job()

    def turn(self) -> list:
        return list(self.kafka.poll())

    def lead(self) -> None:
        self.turn()
        self.kafka.claim()
        self.turn()
        self.settle()
        assert Claimed() in self.turn()


@pytest.fixture
def rig(monkeypatch):
    return Rig(monkeypatch)


def record(key="a", offset=0):
    return LogRecord(key, {}, {"e": "1"}, offset)


def test_presence_and_leases_share_a_partition_and_the_rest_is_spread():
    assert {status_partition("worker/w1"), status_partition("lease/w1")} == {0}
    assert status_partition("task/c/0") == -1


def test_a_term_is_told_when_it_changes_and_only_then(rig):
    assert rig.turn() == [TermChanged(OLD)]
    assert rig.turn() == []
    rig.term = NEW
    assert rig.turn() == [TermChanged(NEW)]


def test_records_of_both_logs_are_told(rig):
    rig.turn()
    rig.configs.records = [record()]
    rig.status.records = [record("b")]
    assert rig.turn() == [ConfigRecords((record(),)), StatusRecords((record("b"),))]


def test_a_claim_is_told_after_the_log_was_read_to_the_end_that_it_had_when_the_writer_was_open(rig):
    rig.turn()
    rig.configs.end = 2
    rig.kafka.claim()
    rig.turn()
    rig.settle()
    assert rig.turn() == []
    rig.configs.records = [record(offset=0)]
    assert rig.turn() == [ConfigRecords((record(offset=0),))]
    rig.configs.records = [record(offset=1)]
    assert rig.turn() == [ConfigRecords((record(offset=1),)), Claimed()]


def test_a_worker_that_lost_the_term_does_not_even_open_a_writer(rig):
    rig.turn()
    rig.term = None
    rig.kafka.claim()
    assert [type(event) for event in rig.turn()] == [TermChanged, ClaimFailed]
    assert rig.made == 0


def test_what_a_predecessor_left_open_is_ended_before_the_log_is_read(rig):
    rig.left_open = [OpenTransaction("g.configs", 0, 5, 9)]
    rig.lead()
    assert rig.voided == rig.left_open


def test_a_claim_that_kafka_refuses_is_told(rig):
    rig.turn()
    rig.claim_error = CdcError(INTERNAL, "no")
    rig.kafka.claim()
    rig.turn()
    rig.settle()
    assert [type(event) for event in rig.turn()] == [ClaimFailed]


def test_a_term_lost_while_the_writer_opens_fails_the_claim(rig):
    rig.turn()
    rig.configs.end = 5
    rig.kafka.claim()
    rig.turn()
    rig.term = None
    assert [type(event) for event in rig.turn()] == [TermChanged, ClaimFailed]
    rig.settle()
    assert rig.turn() == []


def test_a_write_is_made_with_the_term_of_now_and_told_when_done(rig):
    rig.lead()
    rig.term = NEW
    rig.turn()
    rig.kafka.write(WriteLog("1", (record(),)))
    rig.settle()
    assert rig.turn() == [WriteDone("1")]
    assert rig.writes == [((record(),), NEW)]


@pytest.mark.parametrize(
    ("error", "reason"), [(TermOver, "stale"), (WriterFenced, "fenced"), (WriteUnknown, "unknown")]
)
def test_a_write_that_fails_costs_the_writer(rig, error, reason):
    def fail():
        raise error("x")

    rig.lead()
    rig.script = fail
    rig.kafka.write(WriteLog("1", (record(),)))
    rig.settle()
    assert rig.turn() == [WriteFailed("1", reason)]
    rig.kafka.write(WriteLog("2", (record(),)))
    assert rig.turn() == [WriteFailed("2", "stale")]
    assert len(rig.writes) == 1


def test_after_a_refused_proof_the_next_claim_waits_for_another(rig):
    def fail():
        raise TermOver("x")

    rig.lead()
    rig.script = fail
    rig.kafka.write(WriteLog("1", (record(),)))
    rig.settle()
    rig.turn()
    rig.kafka.claim()
    rig.turn()
    assert rig.made == 1
    rig.term = NEW
    assert rig.turn() == [TermChanged(NEW)]
    rig.settle()
    assert rig.turn() == [Claimed()]
    assert rig.made == 2


def test_a_write_that_hangs_is_given_up_as_unknown_and_a_new_claim_does_not_wait_for_it(rig, monkeypatch):
    """The client can exceed its own time-outs by far."""
    release = threading.Event()
    rig.lead()
    rig.script = lambda: release.wait(20)
    rig.kafka.write(WriteLog("1", (record(),)))
    assert rig.turn() == []
    monkeypatch.setattr(herd_kafka, "HANGS_S", 0.0)
    assert rig.turn() == [WriteFailed("1", "unknown")]
    rig.kafka.claim()
    rig.turn()
    rig.settle()
    assert rig.turn() == [Claimed()]
    release.set()
    rig.settle()
    assert rig.turn() == []


def test_a_claim_that_hangs_fails_in_time(rig, monkeypatch):
    rig.turn()
    rig.configs.end = 1
    rig.kafka.claim()
    rig.turn()
    monkeypatch.setattr(herd_kafka, "CLAIM_S", 0.0)
    assert [type(event) for event in rig.turn()] == [ClaimFailed]
    rig.settle()
    assert rig.turn() == []


def test_a_claim_that_waits_for_a_log_which_does_not_come_reads_on_with_a_new_consumer(rig, monkeypatch):
    rig.turn()
    rig.configs.end = 1
    rig.kafka.claim()
    rig.turn()
    rig.settle()
    assert rig.turn() == []
    monkeypatch.setattr(herd_kafka, "CLAIM_S", 0.0)
    assert [type(event) for event in rig.turn()] == [ClaimFailed]
    assert rig.configs.reconnected == 1


def test_a_place_in_the_log_that_is_lost_means_a_whole_fold(rig):
    rig.turn()
    rig.configs.broken = True
    assert rig.turn() == []
    rig.configs.records, rig.configs.end = [record(), record("b", 1)], 2
    rig.turn()
    rig.settle()
    assert rig.turn() == [ConfigRecords((record(), record("b", 1)), replay=True, reset=True)]
    assert rig.configs.rewinds == 1


def test_the_status_log_is_read_again_too_and_nothing_else_waits_for_it(rig):
    rig.turn()
    rig.status.broken = True
    assert rig.turn() == []
    rig.configs.records = [record("c")]
    rig.status.records, rig.status.end = [record()], 2
    assert rig.turn() == [ConfigRecords((record("c"),))]
    rig.settle()
    assert rig.turn() == [], "a part of the log is not folded"
    rig.status.records = [record("b", 1)]
    assert rig.turn() == [StatusRecords((record(), record("b", 1)), reset=True)]


def test_a_claim_waits_while_the_log_is_read_again(rig):
    rig.turn()
    rig.configs.broken = True
    rig.configs.end = 1
    rig.turn()
    rig.kafka.claim()
    rig.turn()
    rig.settle()
    rig.settle()
    assert Claimed() not in rig.turn()
    rig.configs.records = [record()]
    assert rig.turn() == [ConfigRecords((record(),), replay=True, reset=True), Claimed()]


def test_a_worker_that_was_away_for_long_folds_again(rig, monkeypatch):
    now = log_tail.boot_clock_s()
    rig.turn()
    monkeypatch.setattr(log_tail, "boot_clock_s", lambda: now + log_tail.AWAY_S_MAX + 60)
    rig.turn()
    rig.turn()
    rig.settle()
    rig.settle()
    assert rig.turn() == [ConfigRecords((), replay=True, reset=True), StatusRecords((), reset=True)]
    assert rig.turn() == []


def test_a_reader_that_makes_sure_now_and_then_is_not_away(rig, monkeypatch):
    clock, boot = [time.monotonic()], [0.0]
    monkeypatch.setattr(log_tail.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(log_tail, "boot_clock_s", lambda: boot[0])
    rig.turn()
    for _ in range(3):
        clock[0] += log_tail.CHECK_EVERY_S
        boot[0] += 0.4 * log_tail.AWAY_S_MAX
        rig.turn()
        rig.settle()
        rig.settle()
        assert rig.turn() == []
    assert (rig.configs.rewinds, rig.status.rewinds) == (0, 0)


def test_a_lease_is_told_with_the_time_of_sending_and_only_the_newest_waits(rig, monkeypatch):
    clock = [100.0]
    rig.turn()
    monkeypatch.setattr(herd_kafka.time, "monotonic", lambda: clock[0])
    for number in range(3):
        rig.kafka.renew_lease(record(f"lease/{number}"))
    assert [records[0].key for records, _ in rig.status.sent] == ["lease/0"]
    clock[0] = 103.0
    rig.status.sent.pop()[1](None)
    assert rig.turn() == [LeaseAcked(100.0)]
    assert [records[0].key for records, _ in rig.status.sent] == ["lease/2"]
    rig.status.sent.pop()[1](CdcError(INTERNAL, "not stored"))
    assert rig.turn() == []


def test_fences_are_told_when_tried(rig):
    rig.turn()
    rig.kafka.fence([TaskId("c", 0)])
    rig.settle()
    assert rig.turn() == [FencesDone((TaskId("c", 0),))]


def test_tasks_that_end_together_are_fenced_together_and_not_by_a_thread_each(rig, monkeypatch):
    free, calls = threading.Event(), []

    def slow(_properties, ids, **_options):
        calls.append(len(ids) // len(TRANSACTIONAL_IDS))
        assert free.wait(10)
        return dict.fromkeys(ids)

    monkeypatch.setattr(backends, "fence", slow)
    rig.turn()
    tasks = [TaskId("c", n) for n in range(100)]
    for task in tasks:
        rig.kafka.fence([task])
    free.set()
    for _ in range(3):
        rig.settle()
    done = rig.turn()
    assert sorted(task for event in done for task in event.tasks) == tasks
    assert sorted(calls) == [1, 1, 98]


def test_what_could_not_be_fenced_is_told(rig, monkeypatch):
    def fence(_properties, ids, **_options):
        return {name: CdcError(INTERNAL, "no") if name.endswith(":1:schema") else None for name in ids}

    monkeypatch.setattr(backends, "fence", fence)
    rig.turn()
    rig.kafka.fence([TaskId("c", 0), TaskId("c", 1)])
    rig.settle()
    assert rig.turn() == [FencesDone((TaskId("c", 0), TaskId("c", 1)), failed=(TaskId("c", 1),))]


def test_a_leader_that_is_gone_is_taken_out_by_its_member_id_one_call_at_a_time(rig, monkeypatch):
    free, calls = threading.Event(), []

    def slow(_properties, *, group_id, member_id, client_id):
        calls.append((group_id, member_id, client_id))
        assert free.wait(10)
        raise CdcError(INTERNAL, "no answer")

    monkeypatch.setattr(backends, "remove_member", slow)
    leader = Leader(1, "w2", "b2", "http://w2", 7, "m2")
    for _ in range(3):
        rig.kafka.remove_leader(leader)
    free.set()
    rig.settle()
    assert calls == [("g", "m2", "cdcworker-w1-removal")]
    rig.kafka.remove_leader(leader)
    rig.settle()
    assert len(calls) == 2
    assert rig.turn()[1:] == []


def test_a_fence_that_is_asked_for_twice_is_done_when_both_are(rig, monkeypatch):
    """One may be for what this worker's task left behind, the other the leader's: later, so for more."""
    first, second = threading.Event(), threading.Event()
    frees = [first, second]

    def slow(_properties, ids, **_options):
        assert frees.pop(0).wait(10)
        return dict.fromkeys(ids)

    monkeypatch.setattr(backends, "fence", slow)
    rig.turn()
    rig.kafka.fence([TaskId("c", 0)])
    rig.kafka.fence([TaskId("c", 0), TaskId("c", 1)])
    first.set()
    rig.settle()
    assert rig.turn() == []
    second.set()
    rig.settle()
    assert rig.turn() == [FencesDone((TaskId("c", 0), TaskId("c", 1)))]


def test_of_many_fences_those_that_stand_are_told_before_the_others(rig):
    rig.turn()
    tasks = [TaskId("c", n) for n in range(250)]
    rig.kafka.fence(tasks)
    told = []
    for _ in range(3):
        rig.settle()
        told.append([task for event in rig.turn() for task in event.tasks])
    assert sorted(map(len, told)) == [50, 100, 100]
    assert sorted(task for tasks in told for task in tasks) == tasks


def test_a_term_that_was_lost_and_won_again_needs_a_new_claim(rig):
    rig.lead()
    rig.term = None
    rig.turn()
    rig.term = NEW
    rig.turn()
    rig.kafka.write(WriteLog("1", (record(),)))
    assert rig.turn() == [WriteFailed("1", "stale")]
    assert rig.writes == []
