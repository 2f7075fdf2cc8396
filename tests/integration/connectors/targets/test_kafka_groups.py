"""Offsets of consumer groups on both clusters: a group that moves goes on where it was."""

from __future__ import annotations

import contextlib
import uuid

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.contract.record_targets import QUICK
from tests.integration.connectors.targets.kafka_mirror import config_to, read_all
from tests.record_sinks import TaskProcess, Topics, running, wait

pytestmark = pytest.mark.kafka


@contextlib.contextmanager
def member(kafka, group, **more):
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 2, **more}
    )
    with contextlib.closing(consumer):
        yield consumer


def commit(kafka, group, topic, offsets):
    with member(kafka, group) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, *each) for each in offsets.items()], asynchronous=False)


def committed(kafka, group, topic, partitions):
    with member(kafka, group) as consumer:
        found = consumer.committed([TopicPartition(topic, number) for number in range(partitions)], 20.0)
        return {part.partition: part.offset for part in found if part.offset >= 0}


def test_groups_go_on_in_the_copy_where_they_were_and_those_with_members_are_left_alone(kafka, target, tmp_path):
    alias, mark = f"a{uuid.uuid4().hex[:8]}", uuid.uuid4().hex[:8]
    topics = Topics(kafka, 2)
    copy = f"{alias}.{topics.topic}"
    for first in range(0, 100, 10):
        topics.produce(*((b"k", b"%d" % n, n % 2) for n in range(first, first + 10)))
    source = read_all(kafka, topics.topic)
    moves, busy, other = f"{mark}-moves", f"{mark}-busy", f"other-{mark}"
    middle = {0: source[0][20].offset(), 1: source[1][-1].offset() + 2}
    for group in (moves, other):
        commit(kafka, group, topics.topic, middle)
    more = {
        "groups": f"{mark}-.*",
        "sync.group.offsets.enabled": "true",
        "emit.checkpoints.interval.seconds": "1",
        "batch.max.size": "10",
    }
    task = TaskProcess(topics, config_to(target, alias) | QUICK | more, (1, 0), tmp_path)
    with running(task), member(target, busy) as active:
        wait(lambda: task.numbers.get("lag_records") == 0 and task.numbers.get("changes") == 100, "the copies")
        active.subscribe([copy])
        wait(lambda: active.poll(0.2) is not None or active.assignment(), "its place in the group")
        commit(kafka, busy, topics.topic, middle)
        copies = read_all(target, copy)

        def at_the_end():
            # Groups are looked at while records are copied too.
            there = committed(target, moves, copy, 2)
            return there if there.get(1, 0) > copies[1][-1].offset() else None

        found = wait(at_the_end, "the offsets of the group")
        rest = {number: [one.value() for one in copies[number] if one.offset() >= found[number]] for number in (0, 1)}
        wanted = [one.value() for one in source[0][20:]]
        assert rest[1] == [], "a group at the end reads nothing again"
        assert rest[0][-len(wanted) :] == wanted
        assert len(rest[0]) < len(source[0]), "it does not begin at the beginning"
        assert committed(target, other, copy, 2) == {}
        commit(kafka, moves, topics.topic, {0: source[0][0].offset()})

        def told(group):
            keys = [message.key() for message in read_all(target, f"{alias}.checkpoints.internal")[0]]
            return sum(group.encode() in key and copy.encode() in key for key in keys)

        wait(
            lambda: told(moves) > 2 and told(busy) >= 2,
            "the checkpoints of what was set back, and of a group with a member",
        )
        assert committed(target, moves, copy, 2) == found, "offsets only go forward"
        assert committed(target, busy, copy, 2) == {}, "nobody sets it while it reads"
        assert told(other) == 0
        task.stop()
