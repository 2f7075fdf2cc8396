"""The sink into RabbitMQ, with a real Kafka and a real server: a queue has each change, in its order, whatever dies."""

from __future__ import annotations

import json
import uuid

import pytest

from tests.contract.letters.of_records import *  # noqa: F403 - the suite of their dead letters
from tests.contract.record_targets import *  # noqa: F403 - the suite of all targets of records
from tests.contract.record_targets import QUICK, holds
from tests.record_sinks import Ledger, TaskProcess, Topics, Workload, seed, wait

pytestmark = [pytest.mark.kafka, pytest.mark.rabbitmq]


class Receiver:
    """A consumer of one queue that takes each id once."""

    def __init__(self, server):
        self.server, self.queue = server, f"q{uuid.uuid4().hex[:8]}"
        self._ledger = Ledger()

    @property
    def config(self):
        return self.server.config(self.queue)

    @property
    def ledger(self):
        if self.server.alive():
            for message in self.server.taken(self.queue):
                self._ledger.take(json.loads(message.body))
        return self._ledger

    def stop(self):
        self.server.kill()

    def start(self):
        self.server.start()


@pytest.fixture
def receiver(rabbitmq):
    return Receiver(rabbitmq)


def test_a_server_that_hangs_is_broken_off_and_tried_again(kafka, rabbitmq, receiver, tmp_path):
    topics = Topics(kafka)
    workload, child = Workload(topics, seed()), rabbitmq._running()
    workload.run(50)
    task = TaskProcess(topics, receiver.config | QUICK | {"target.timeout.ms": "500"}, (1, 0), tmp_path)
    try:
        holds(receiver, workload, task)
        child.freeze()
        workload.run(50)
        wait(lambda: task.numbers.get("retrying"), "that the task tries again")
        child.thaw()
        holds(receiver, workload, task)
        task.stop()
    finally:
        child.thaw()
        task.kill()


def test_connections_that_are_cut_lose_nothing(kafka, rabbitmq, receiver, tmp_path):
    topics = Topics(kafka)
    workload = Workload(topics, seed())
    task = TaskProcess(topics, receiver.config | QUICK, (1, 0), tmp_path)
    try:
        for _ in range(4):
            workload.run(100)
            wait(lambda: task.numbers.get("changes"), "progress")
            rabbitmq.cut()
        holds(receiver, workload, task)
        task.stop()
    finally:
        task.kill()


def test_a_server_that_is_short_of_memory_is_waited_for_and_gets_little_twice(kafka, rabbitmq, receiver, tmp_path):
    topics = Topics(kafka)
    workload = Workload(topics, seed())
    workload.run(50)
    config = receiver.config | QUICK | {"rabbitmq.publish.ack.timeout": "1000", "max.in.flight.batches": "1"}
    task = TaskProcess(topics, config, (1, 0), tmp_path)
    try:
        holds(receiver, workload, task)
        rabbitmq.alarm(on=True)
        try:
            workload.run(200)
            wait(lambda: "connection.blocked" in task.log.read_text(), "that it is told")
            wait(lambda: task.numbers.get("retrying"), "that it is reported")
        finally:
            rabbitmq.alarm(on=False)
        holds(receiver, workload, task)
        tries = task.log.read_text().count("target does not take a batch")
        # A connection that is blocked from the first has sent one message. One that was there before, and one on which the server is slow
        # just afterwards, may have sent a batch of 40.
        assert receiver.ledger.twice <= 80 + tries
        task.stop()
    finally:
        task.kill()


def test_a_message_that_no_queue_takes_is_a_dead_letter_and_no_other_comes_twice(kafka, rabbitmq, receiver, tmp_path):
    topics = Topics(kafka)
    workload = Workload(topics, 1)
    for number in range(400):
        topics.stream.insert(workload.table, (number, number, "secretsecret" if number in (7, 300) else "taken"))
    topics.flush()
    rabbitmq.make(receiver.queue, receiver.queue, "#.taken")
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": topics.letters}
    own = {"rabbitmq.declare": "check", "rabbitmq.routing.key": "${topic}.${value.after.a}"}
    task = TaskProcess(topics, receiver.config | own | letters | QUICK, (1, 0), tmp_path)
    try:
        wait(lambda: task.numbers.get("dead_letters") == 2 and task.numbers.get("lag_records") == 0, "the dead letters")
        task.stop()
    finally:
        task.kill()
    assert len(topics.read(topics.letters)) == 2
    assert (len(receiver.ledger.ids), receiver.ledger.twice) == (398, 0)
    assert "secretsecret" not in task.told()
