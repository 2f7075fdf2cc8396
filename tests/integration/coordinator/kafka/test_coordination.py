"""Coordination on a real broker: logs read to their true end, proofs that prove, fail-over in time, calm joins."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
from cdcworker.coordinator.api import LogRecord, Term, TermOver, WriterFenced
from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.kafka.clients import (
    make_admin,
    make_consumer,
    make_producer,
    member_config,
    producer_config,
    transactional_config,
)
from cdcworker.coordinator.kafka.compacted_log import KafkaCompactedLog
from cdcworker.coordinator.kafka.internal_topics import TopicNames, TopicSpec, ensure_topics, internal_topics
from cdcworker.coordinator.kafka.leader_writer import KafkaLeaderWriter, fence
from cdcworker.coordinator.kafka.leadership import KafkaLeadership
from cdcworker.coordinator.model import DeleteConnector, PutConnector, TaskId
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.herder.herder import IDLE_WAIT_S
from confluent_kafka import KafkaException
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests import herders
from tests.herders import SESSION_S, StubLauncher, accepted, eventually, placement

pytestmark = pytest.mark.kafka


@pytest.fixture
def group():
    return f"g-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def properties(kafka):
    return {"bootstrap.servers": kafka.bootstrap}


@pytest.fixture
def names(group, properties):
    found = TopicNames.of_group(group)
    ensure_topics(properties, internal_topics(found, offsets_partitions=3), client_id="test")
    return found


@pytest.fixture
def closing():
    with contextlib.ExitStack() as stack:
        yield lambda thing: stack.enter_context(contextlib.closing(thing))


@pytest.fixture
def configs(properties, names, closing):
    return closing(KafkaCompactedLog(properties, names.configs, client_id="reader"))


@pytest.fixture
def member(properties, group, names, closing):
    def make(client_id: str) -> KafkaLeadership:
        return closing(
            KafkaLeadership(
                properties,
                topic=names.coordination,
                group_id=group,
                client_id=client_id,
                session_timeout_s=SESSION_S,
            )
        )

    return make


@pytest.fixture
def claim(properties, group, names, closing):
    def make() -> KafkaLeaderWriter:
        return closing(
            KafkaLeaderWriter(
                properties,
                group_id=group,
                topic=names.configs,
                coordination_topic=names.coordination,
                client_id="writer",
            )
        )

    return make


def elected(*members: KafkaLeadership) -> KafkaLeadership:
    def owner():
        for one in members:
            one.tick(0.02)
        return next((one for one in members if one.term()), None)

    return eventually(owner, what="an owner of the coordination partition")


def keys(log: KafkaCompactedLog) -> list[str]:
    return [record.key for record in log.read_to_end(10)]


# --- topics ---------------------------------------------------------------------------------------------------------


def test_internal_topics_are_made_once_and_taken_as_they_are_afterwards(properties, group):
    names = TopicNames.of_group(group)
    first = ensure_topics(properties, internal_topics(names, offsets_partitions=3), client_id="test")
    again = ensure_topics(properties, internal_topics(names, offsets_partitions=9), client_id="test")
    assert first == again
    assert (first[names.configs], first[names.offsets], first[names.coordination]) == (1, 3, 1)


def test_a_config_topic_with_two_partitions_is_refused(properties, group):
    names = TopicNames.of_group(group)
    ensure_topics(properties, [TopicSpec(names.configs, 2, {"cleanup.policy": "compact"})], client_id="test")
    with pytest.raises(CdcError, match="must have exactly 1") as caught:
        ensure_topics(properties, internal_topics(names), client_id="test")
    assert caught.value.code == e.TOPIC_MISCONFIGURED
    assert caught.value.where == {"topic": names.configs}


def test_a_topic_that_forgets_by_age_is_refused(properties, names):
    admin = make_admin(properties, client_id="test")
    entry = ConfigEntry("cleanup.policy", "compact,delete", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, names.offsets, incremental_configs=[entry])
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result(60)

    def refused():
        try:
            ensure_topics(properties, internal_topics(names), client_id="test")
        except CdcError as error:
            return error
        return None

    error = eventually(refused, what="the refusal")
    assert (error.code, error.where) == (e.TOPIC_MISCONFIGURED, {"topic": names.offsets})


def test_a_coordination_topic_with_a_record_is_refused(properties, names):
    producer = make_producer(producer_config(properties, client_id="stranger"))
    producer.produce(names.coordination, b"hello")
    assert producer.flush(10) == 0
    with pytest.raises(CdcError, match="must stay empty") as caught:
        ensure_topics(properties, internal_topics(names), client_id="test")
    assert caught.value.where == {"topic": names.coordination}


# --- the log --------------------------------------------------------------------------------------------------------


def test_the_end_of_the_log_is_behind_the_open_transaction_of_somebody_else(properties, names, configs):
    """A reader that stops at the last stable offset would call the log read, without the committed record."""
    configs.append([LogRecord("before", {"n": 0})], 10)
    assert keys(configs) == ["before"]
    slow = make_producer(transactional_config(properties, client_id="slow", transactional_id=f"slow-{names.configs}"))
    slow.init_transactions(10)
    slow.begin_transaction()
    slow.produce(names.configs, key=b"never", value=b"{}")
    slow.flush(10)
    configs.append([LogRecord("after", {"n": 1})], 10)
    with pytest.raises(CdcError) as caught:
        configs.read_to_end(1.0)
    assert caught.value.code == e.TIMEOUT
    slow.abort_transaction(10)
    assert keys(configs) == ["after"]


def test_the_end_is_reached_when_only_a_commit_marker_is_there(properties, names, configs, member, claim):
    leadership = elected(member("w1"))
    claim().write([LogRecord("a", {"n": 1})], leadership.term())
    assert keys(configs) == ["a"]
    assert configs.read_to_end(5) == []
    assert configs.ends(5) == {0: 2}


def test_a_log_is_read_from_its_first_offset_again_after_a_rewind(configs):
    configs.append([LogRecord("a", {"n": 1}), LogRecord("b", None)], 10)
    assert keys(configs) == ["a", "b"]
    configs.rewind()
    assert keys(configs) == ["a", "b"]


def test_a_foreign_record_is_handed_on_as_refused_or_stops_a_strict_log(properties, names, configs, closing):
    producer = make_producer(producer_config(properties, client_id="stranger"))
    producer.produce(names.configs, key=b"connector/x", value=b"not json")
    producer.flush(10)
    configs.append([LogRecord("a", {"n": 1})], 10)
    assert [(record.key, bool(record.refused)) for record in configs.read_to_end(10)] == [
        ("connector/x", True),
        ("a", False),
    ]
    strict = closing(KafkaCompactedLog(properties, names.configs, client_id="strict", strict=True))
    with pytest.raises(CdcError) as caught:
        strict.read_to_end(10)
    assert caught.value.code == e.MALFORMED_RECORD
    assert "not json" not in str(caught.value)


# --- the leader's writer --------------------------------------------------------------------------------------------


def test_a_paused_writer_that_wakes_after_another_claim_is_fenced_and_its_write_is_invisible(configs, member, claim):
    leadership = elected(member("w1"))
    paused = claim()
    claim().write([LogRecord("new", {"n": 1})], leadership.term())
    with pytest.raises(WriterFenced):
        paused.write([LogRecord("zombie", {"n": 2})], leadership.term())
    with pytest.raises(WriterFenced):
        paused.write([LogRecord("zombie", {"n": 3})], leadership.term())
    assert keys(configs) == ["new"]


def test_a_zombie_that_claims_with_the_proof_of_an_old_term_is_refused(configs, member, claim):
    """It is still a member and its claim is the newest: the generation that it captured is all that stops it."""
    first = member("w1")
    old_term = elected(first).term()
    second = member("w2")
    eventually(lambda: (first.tick(0.02), second.tick(0.02), first.term() != old_term)[2], what="a new generation")
    good = claim()
    good.write([LogRecord("good", {"n": 1})], first.term())
    zombie = claim()
    with pytest.raises(TermOver):
        zombie.write([LogRecord("zombie", {"n": 2})], old_term)
    with pytest.raises(WriterFenced):
        good.write([LogRecord("late", {"n": 3})], first.term())
    claim().write([LogRecord("good again", {"n": 4})], first.term())
    assert keys(configs) == ["good", "good again"]


def test_after_a_refused_proof_the_next_claim_writes_at_once(configs, member, claim):
    first = member("w1")
    old_term = elected(first).term()
    second = member("w2")
    eventually(lambda: (first.tick(0.02), second.tick(0.02), first.term() != old_term)[2], what="a new generation")
    writer = claim()
    with pytest.raises(TermOver):
        writer.write([LogRecord("stale", {"n": 1})], old_term)
    with pytest.raises(WriterFenced):
        writer.write([LogRecord("spent", {"n": 2})], first.term())
    claim().write([LogRecord("fresh", {"n": 3})], first.term())
    assert keys(configs) == ["fresh"]


def test_metadata_of_a_consumer_that_never_joined_is_no_proof(properties, group, names, configs, member, claim):
    """The broker takes it without any check, as the first half shows; so the writer must not send it."""
    elected(member("w1"))
    config = member_config(properties, client_id="outsider", group_id=group, session_timeout_s=SESSION_S)
    outsider = make_consumer(config)
    metadata = outsider.consumer_group_metadata()
    outsider.close()
    with pytest.raises(TermOver, match="has not joined"):
        claim().write([LogRecord("void", {"n": 1})], Term(metadata, -1))
    with pytest.raises(TermOver):
        claim().write([LogRecord("void", {"n": 1})], Term(None, 1))
    assert keys(configs) == []


@pytest.mark.sampled(2, "workers")
def test_the_lead_stays_where_it_is_when_others_join_and_moves_when_its_owner_leaves(member):
    first = member("w2")
    elected(first)
    generation = first.term().hint
    others = [member("w1"), member("w3")]
    everybody = [first, *others]

    def settled():
        for one in everybody:
            one.tick(0.02)
        return first.term() is not None and first.term().hint > generation

    eventually(settled, what="a generation with the newcomers")
    assert [one.term() is not None for one in everybody] == [True, False, False]
    first.close()
    left = time.monotonic()
    elected(*others)
    assert time.monotonic() - left < SESSION_S, "as one that is lost"


def test_fencing_ends_the_open_transaction_of_a_dead_task(properties, names, closing):
    offsets = closing(KafkaCompactedLog(properties, names.offsets, client_id="offsets", partition_of=lambda _key: 0))
    task = f"task-{names.offsets}"
    dead = make_producer(transactional_config(properties, client_id="dead", transactional_id=task))
    dead.init_transactions(10)
    dead.begin_transaction()
    dead.produce(names.offsets, key=b"[]", value=b"{}", partition=0)
    dead.flush(10)
    offsets.append([LogRecord("alive", {"n": 1})], 10)
    began = time.monotonic()
    ids = [task, f"{task}:other", f"{task}:schema"]
    assert fence(properties, ids, client_id="test") == dict.fromkeys(ids)
    assert [record.key for record in offsets.read_to_end(10)] == ["alive"]
    assert time.monotonic() - began < 20, "the transaction would end by itself"
    with pytest.raises(KafkaException):
        dead.commit_transaction(10)


# --- herders --------------------------------------------------------------------------------------------------------


@pytest.fixture
def start(kafka, group):
    with herders.starting(kafka.bootstrap, group) as make:
        yield make


def leader_of(*all_herders):
    return eventually(lambda: next((one for one in all_herders if one.view().is_leader), None), what="a leader")


@pytest.mark.sampled(2, "workers")
def test_kafka_that_does_not_answer_is_said_clearly_and_soon():
    began = time.monotonic()
    one = herders.herder("127.0.0.1:9", "nobody", "w1")
    with pytest.raises(CdcError) as caught:
        one.wait_started(60)
    assert caught.value.code == e.UNREACHABLE
    assert "127.0.0.1:9" in str(caught.value)
    assert "bootstrap.servers" in caught.value.hint
    assert time.monotonic() - began < 30
    one.join(60)
    assert one.submit(DeleteConnector("x")).result(60).outcome == "no_leader"


@pytest.mark.sampled(2, "workers")
def test_what_was_answered_is_in_the_view_and_reaches_the_others(start):
    first, second = start("w1"), start("w2")
    leader = leader_of(first, second)
    other = second if leader is first else first
    reply = accepted(leader, PutConnector("c", {"tasks.max": "2"}, kind="source", create_only=True))
    assert reply.created
    assert "c" in leader.view().state.connectors
    eventually(lambda: "c" in other.view().state.connectors, what="the connector in the other's view")
    eventually(
        lambda: leader.config.worker_id in other.view().workers, what="the leader's presence in the other's view"
    )
    refused = other.submit(DeleteConnector("c")).result(60)
    assert (refused.outcome, refused.leader_url) == ("not_leader", leader.config.url), refused.detail


def test_a_worker_that_joins_takes_its_part_and_no_other_task_restarts(start):
    one, two = StubLauncher(), StubLauncher()
    first = start("w1", one)
    leader_of(first)
    accepted(first, PutConnector("c", {"tasks.max": "6"}, kind="source"))
    eventually(lambda: len(placement(first.view())) == 6, what="six running tasks")
    second = start("w2", two)
    eventually(lambda: len(two.running) == 3 and len(placement(second.view())) == 6, what="an even split")
    moved = {task for what, task in one.history if what == "stop"}
    assert len(moved) == 3
    assert sorted(one.starts()) == [TaskId("c", n) for n in range(6)]
    assert set(two.starts()) == moved
    eventually(lambda: set(placement(first.view()).values()) == {"w1", "w2"}, what="the split in the first's view")


@pytest.mark.sampled(2, "workers")
def test_a_drained_leader_hands_everything_over_in_a_moment(start):
    first = start("w1")
    leader_of(first)
    accepted(first, PutConnector("c", {"tasks.max": "4"}, kind="source"))
    second = start("w2")
    eventually(lambda: set(placement(second.view()).values()) == {"w1", "w2"}, what="a split")
    began = time.monotonic()
    assert first.drain()
    eventually(lambda: list(placement(second.view()).values()) == ["w2"] * 4, what="all tasks on the other")
    assert leader_of(second) is second
    assert time.monotonic() - began < SESSION_S, "as one that is lost"


@pytest.mark.sampled(2, "workers")
def test_tasks_are_told_how_long_the_lease_is_good(start):
    launcher = StubLauncher()
    start("w1", launcher)
    leases = eventually(lambda: len(launcher.leases) >= 3 and launcher.leases, what="leases")
    assert all(0 < valid_s <= 0.6 * SESSION_S for valid_s in leases)


class Outside:
    """A herder in a process of its own, which can die or freeze. It makes the connectors that it is told."""

    def __init__(self, bootstrap: str, group: str, worker: str) -> None:
        program = Path(herders.__file__)
        self.process = subprocess.Popen(
            [sys.executable, str(program), bootstrap, group, worker], stdin=subprocess.PIPE, text=True
        )

    def put(self, name: str, tasks: int) -> None:
        self.process.stdin.write(f"{name} {tasks}\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def close(self) -> None:
        self.process.kill()
        self.process.stdin.close()
        self.process.wait(60)


@pytest.fixture
def leader_outside(kafka, group, names, closing, start):
    """A leader in another process and a follower here, each with two running tasks."""
    log = closing(KafkaCompactedLog({"bootstrap.servers": kafka.bootstrap}, names.configs, client_id="watch"))
    outside = closing(Outside(kafka.bootstrap, group, "w1"))
    eventually(lambda: "leader" in [record.key for record in log.poll(0.1)], 30, "the first claim")
    follower = start("w2")
    eventually(lambda: set(follower.view().workers) == {"w1", "w2"}, what="both workers")
    outside.put("c", 4)
    eventually(lambda: sorted(placement(follower.view()).values()) == ["w1", "w1", "w2", "w2"], what="a split")
    assert not follower.view().is_leader
    return outside, follower


@pytest.mark.sampled(2, "workers")
def test_a_leader_killed_while_a_dead_member_is_in_the_group_is_followed_in_the_same_time(kafka, group, leader_outside):
    """Whoever joins before the dead one's session is over makes the group wait, and the wait prolongs all sessions."""
    dying, follower = leader_outside
    with contextlib.closing(Outside(kafka.bootstrap, group, "w3")) as crashing:
        eventually(lambda: "w3" in placement(follower.view()).values(), 30, "tasks on a third worker")
        crashing.signal(signal.SIGKILL)
    with contextlib.closing(Outside(kafka.bootstrap, group, "w3")):
        boot = follower.view().workers["w3"].boot_id
        eventually(lambda: follower.view().workers["w3"].boot_id != boot, 30, "its successor")
        threading.Event().wait(1.0)  # it would be in the group by now
        dying.signal(signal.SIGKILL)
        killed = time.monotonic()
        eventually(lambda: follower.view().is_leader, SESSION_S + 2, "the follower's lead")
        assert time.monotonic() - killed < SESSION_S + 2


@pytest.mark.sampled(2, "workers")
def test_a_worker_that_hangs_loses_its_tasks_although_its_heartbeats_go_on(start):
    """The group cannot tell: the lease in the status log does."""
    first, second = start("w1"), start("w2")
    leader = leader_of(first, second)
    hanging = second if leader is first else first
    accepted(leader, PutConnector("c", {"tasks.max": "4"}, kind="source"))
    eventually(lambda: len(set(placement(leader.view()).values())) == 2, what="a split")
    release = threading.Event()
    hanging._post(release.wait)
    hung = time.monotonic()
    try:
        mine = [leader.config.worker_id] * 4
        eventually(lambda: list(placement(leader.view()).values()) == mine, SESSION_S + 4, "all tasks on the leader")
        assert time.monotonic() - hung < SESSION_S + 2
    finally:
        release.set()
    eventually(lambda: len(set(placement(leader.view()).values())) == 2, 30, "a split again")


@pytest.mark.sampled(2, "workers")
def test_after_a_restart_of_the_broker_a_new_leader_can_claim_and_write(start, kafka):
    """Leaders of partitions have new epochs then: a client that asks with the old ones is refused for ever."""
    first, second = start("w1"), start("w2")
    leader = leader_of(first, second)
    other = second if leader is first else first
    kafka.restart()

    def written(by, name):
        reply = by.submit(PutConnector(name, {"tasks.max": "1"}, kind="source")).result(40)
        return reply.outcome == "ok"

    eventually(lambda: written(leader_of(first, second), "a"), 90, "a write after the restart")
    leader = leader_of(first, second)
    other = second if leader is first else first
    epoch = other.view().state.epoch
    assert leader.drain()
    eventually(lambda: other.view().is_leader, 90, "a claim after the restart")
    assert other.view().state.epoch > epoch
    assert written(other, "b")
    eventually(lambda: len(placement(other.view())) == 2, what="both tasks")


@pytest.mark.sampled(2, "workers")
def test_an_idle_worker_leaves_the_processor_alone(start):
    one, turns = leader_of(start("w1")), []
    turn = one._run_once
    eventually(lambda: time.monotonic() > one._busy_until and not one._cluster.busy, what="rest")
    one._run_once = lambda: (turns.append(time.monotonic()), turn())
    eventually(lambda: turns and turns[-1] - turns[0] > 2, what="two seconds of turns")
    assert len(turns) <= 3 + 1.5 * (turns[-1] - turns[0]) / IDLE_WAIT_S
