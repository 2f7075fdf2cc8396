import threading
import time
from dataclasses import replace

import pytest
from cdcworker.coordinator.api import LogRecord, Term
from cdcworker.coordinator.core.events import (
    Claimed,
    ConfigRecords,
    LeaseAcked,
    StatusRecords,
    StopProducing,
    TaskExited,
    TaskReport,
    TaskTopics,
    TermChanged,
    WriteDone,
)
from cdcworker.coordinator.kafka.internal_topics import TopicNames
from cdcworker.coordinator.model import AssignedTask, Presence, PutConnector
from cdcworker.schemas.errors import INTERNAL, CdcError
from cdcworker.worker.herder import herder as module
from cdcworker.worker.herder.config import HerderConfig
from cdcworker.worker.herder.herder import STOPPED, Herder


class LoopKafka:
    """A Kafka side without Kafka: always elected, every write is committed and read back."""

    def __init__(self, config, post):
        self.names = config.topics
        self.cluster_id = "cluster"
        self.identity = None
        self.partitions = {config.topics.offsets: 7}
        self.busy = False
        self.term = Term(b"p", 1)
        self.told = False
        self.events = []
        self.offset = 0
        self.error = None
        self.closed = False
        self.fail_open = None

    def open(self):
        if self.fail_open:
            raise self.fail_open
        return [], []

    def poll(self):
        if self.error:
            raise self.error
        if not self.told:
            self.told = True
            yield TermChanged(self.term)
        events, self.events = self.events, []
        yield from events

    def _stored(self, records):
        stored = []
        for record in records:
            stored.append(LogRecord(record.key, record.value, record.headers, self.offset))
            self.offset += 1
        return tuple(stored)

    def claim(self):
        self.events.append(Claimed())

    def write(self, command):
        self.events += [WriteDone(command.write_id), ConfigRecords(self._stored(command.records))]

    def append_status(self, records):
        self.events.append(StatusRecords(self._stored(records)))

    def renew_lease(self, record):
        self.events += [StatusRecords(self._stored([record])), LeaseAcked(time.monotonic())]

    def fence(self, tasks):
        pass

    def topics(self):
        return frozenset()

    def leave(self):
        pass

    def close(self):
        self.closed = True


class Tasks:
    failure = None

    def __init__(self):
        self.specs = {}
        self.said = []
        self.closed = threading.Event()

    def open(self, post):
        self.post = post

    def start(self, task, spec):
        self.specs[task] = spec
        self.post(TaskReport(task, "RUNNING"))

    def send(self, task, message):
        self.said.append((task, message))

    def broadcast(self, message):
        self.said.append((None, message))

    def stop(self, task):
        if self.specs.pop(task, None):
            self.post(TaskExited(task, 0))

    kill = stop

    def close(self, timeout_s):
        self.closed.set()


@pytest.fixture
def tasks():
    return Tasks()


@pytest.fixture
def one(monkeypatch, tasks):
    monkeypatch.setattr(module, "ClusterIo", LoopKafka)
    config = HerderConfig(
        {"bootstrap.servers": "x:1"}, "g", "w1", "http://w1", TopicNames.of_group("g"), state_dir="/state"
    )
    made = Herder(config, lambda connector, topics: [{"share": "0"}], tasks)
    yield made
    made.stop()


def eventually(condition, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return answer


def leading(one):
    one.start()
    assert one.wait_started(10)
    eventually(lambda: one.view().is_leader)


def test_the_view_can_be_read_before_the_start_and_is_not_ready(one):
    view = one.view()
    assert (view.ready, view.is_leader, view.worker_id) == (False, False, "w1")


def test_an_answer_comes_after_the_view_shows_what_was_done(one):
    leading(one)
    for number in range(20):
        name = f"c{number}"
        seen = []
        future = one.submit(PutConnector(name, {"a": "b"}, kind="source"))
        future.add_done_callback(lambda _done, name=name, seen=seen: seen.append(name in one.view().state.connectors))
        assert future.result(10).outcome == "ok"
        assert eventually(lambda seen=seen: seen) == [True]


def test_a_task_is_started_with_all_that_it_needs_and_the_time_that_the_lease_is_good(one, tasks):
    leading(one)
    one.submit(PutConnector("c", {"a": "b"}, kind="sink")).result(10)
    task, spec = eventually(lambda: next(iter(tasks.specs.items()), None))
    assert (spec.kind, spec.connector, spec.task, spec.boot_id) == ("sink", "c", 0, one.boot_id)
    assert spec.config == {"a": "b", "share": "0"}
    assert spec.kafka == {"bootstrap.servers": "x:1"}
    assert (spec.offsets_partitions, spec.state_dir) == (7, "/state")
    message = eventually(lambda: next((m for t, m in tasks.said if t == task), None))
    assert message["type"] == "lease"
    assert 0 < message["valid_s"] <= 6.0
    assert message["takes_turns"] is True
    eventually(lambda: [s for s in one.view().statuses.values() if s.state == "RUNNING"])


def test_topics_in_use_are_forgotten_and_told_again(one, tasks):
    leading(one)
    one.submit(PutConnector("c", {"a": "b"}, kind="source")).result(10)
    task = eventually(lambda: next(iter(tasks.specs), None))
    for _ in range(2):
        one._post_event(TaskTopics(task, ("t",)))
        assert eventually(lambda: one.view().topics) == {"c": frozenset({"t"})}
        one.forget_topics("other")
        one.forget_topics("c")
        eventually(lambda: not one.view().topics)
        assert one.view().former_topics == {"c": frozenset({"t"})}


def test_without_a_lease_tasks_are_told_to_stop_producing(one, tasks):
    one._carry_out(StopProducing())
    ((task, message),) = tasks.said
    assert (task, message["type"], message["valid_s"]) == (None, "lease", 0.0)


def test_a_lease_is_good_from_when_it_was_sent_however_late_its_answer_comes(one, tasks):
    one._feed(LeaseAcked(time.monotonic() - 4.0))
    ((_, message),) = tasks.said
    assert 0 < message["valid_s"] <= 2.0
    one._feed(LeaseAcked(time.monotonic() - 7.0))
    assert tasks.said[-1][1]["valid_s"] == 0.0


@pytest.mark.parametrize(("protocol", "may"), [(2, False), (3, True)])
def test_tasks_take_turns_only_while_nobody_is_there_who_would_fence_one_producer(one, tasks, protocol, may):
    other = Presence("w2", "b2", "http://w2", "1", "h", protocol=protocol)
    one._view = replace(one._view, workers={"w2": other})
    one._feed(LeaseAcked(time.monotonic()))
    assert tasks.said[-1][1]["takes_turns"] is may


def test_a_start_that_fails_is_raised_to_who_waits_and_nothing_is_left_open(one, tasks):
    one._cluster.fail_open = CdcError(INTERNAL, "no")
    one.start()
    with pytest.raises(CdcError):
        one.wait_started(10)
    one.join(10)
    assert tasks.closed.is_set()
    assert one._cluster.closed


def test_an_unforeseen_error_ends_the_herder_and_is_told(one, tasks):
    leading(one)
    future = one.submit(PutConnector("c", {}, kind="source"))
    one._cluster.error = RuntimeError("row value")
    one.join(10)
    assert not one.is_alive()
    assert isinstance(one.failure, CdcError)
    assert "row value" not in str(one.failure)
    assert tasks.closed.is_set()
    assert future.done()


def test_a_worker_whose_tasks_thread_has_ended_ends_too(one, tasks):
    leading(one)
    tasks.failure = RuntimeError("no descriptors")
    one.join(10)
    assert not one.is_alive()
    assert isinstance(one.failure, CdcError)


@pytest.mark.parametrize("part", ["leave", "close"])
def test_an_end_that_goes_wrong_still_ends_the_tasks_and_tells_who_waits(one, tasks, part):
    def fail():
        raise RuntimeError("the client is gone")

    one._cluster.fail_open = CdcError(INTERNAL, "no Kafka")
    setattr(one._cluster, part, fail)
    one.start()
    with pytest.raises(CdcError):
        one.wait_started(10)
    assert tasks.closed.wait(10)
    assert one.submit(PutConnector("c", {}, kind="source")).result(10).outcome == "no_leader"


def test_a_request_after_the_end_is_refused_at_once(one):
    leading(one)
    one.stop()
    assert one.submit(PutConnector("c", {}, kind="source")).result(1).outcome == "no_leader"
    assert one.failure is None


def test_a_request_that_was_taken_and_not_answered_before_the_end_is_not_said_to_be_undone(one):
    leading(one)
    one._cluster.write = lambda command: None
    future = one.submit(PutConnector("c", {}, kind="source"))
    eventually(lambda: one._state.lead.waiting)
    one.stop()
    with pytest.raises(CdcError) as caught:
        future.result(1)
    assert caught.value.code == STOPPED


def test_a_cancelled_request_does_not_disturb_the_herder(one):
    leading(one)
    one.submit(PutConnector("c", {"a": "1"}, kind="source")).cancel()
    assert one.submit(PutConnector("d", {"a": "1"}, kind="source")).result(10).outcome == "ok"


def test_the_age_of_the_last_tick_grows_when_the_thread_hangs(one):
    leading(one)
    release = threading.Event()
    one._post(lambda: release.wait(10))
    eventually(lambda: one.view().last_tick_age_s > 0.3)
    release.set()
    eventually(lambda: one.view().last_tick_age_s < 0.3)


def test_draining_hands_over_and_ends(one, tasks):
    leading(one)
    one.submit(PutConnector("c", {"a": "b"}, kind="source")).result(10)
    eventually(lambda: tasks.specs)
    assert one.drain()
    assert not one.is_alive()
    assert tasks.specs == {}


def test_the_numbers_of_running_tasks_do_not_keep_the_herder_awake(one):
    task = AssignedTask("c", "i", 0, 1)
    one._feed(TaskReport(task, metrics={"records": 1}))
    assert one._busy_until == 0.0
    one._feed(TaskReport(task, "RUNNING"))
    assert one._busy_until > 0.0
