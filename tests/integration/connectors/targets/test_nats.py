"""The sink into NATS, with a real Kafka and a real server: a stream has each change once, whatever dies."""

from __future__ import annotations

import json
import uuid

import pytest

from tests.contract.letters.of_records import *  # noqa: F403 - the suite of their dead letters
from tests.contract.record_targets import *  # noqa: F403 - the suite of all targets of records
from tests.contract.record_targets import QUICK, holds
from tests.record_sinks import Ledger, TaskProcess, Topics, Workload, seed, wait

pytestmark = [pytest.mark.kafka, pytest.mark.nats]


class Receiver:
    """A reader of one stream."""

    def __init__(self, server):
        self.server, self.stream = server, f"s{uuid.uuid4().hex[:8]}"
        self._ledger, self._last = Ledger(), 0

    @property
    def config(self):
        return self.server.config(self.stream)

    @property
    def ledger(self):
        if self.server._child is not None:
            for message in self.server.messages(self.stream, self._last):
                self._ledger.take(json.loads(message.data))
                self._last = message.metadata.sequence.stream
        return self._ledger

    def stop(self):
        self.server.kill()

    def start(self):
        self.server.start()

    def close(self):
        assert self.ledger.twice == 0, "the stream has a message twice"


@pytest.fixture
def receiver(nats):
    made = Receiver(nats)
    yield made
    made.close()


def test_a_server_that_hangs_is_broken_off_and_tried_again(kafka, nats, receiver, tmp_path):
    topics = Topics(kafka)
    workload, child = Workload(topics, seed()), nats._running()
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


def test_a_message_that_is_too_large_is_a_dead_letter_and_the_others_go_on(kafka, nats, receiver, tmp_path):
    topics = Topics(kafka)
    workload = Workload(topics, 1)
    for number in range(40):
        topics.stream.insert(workload.table, (number, number, "secret" * 2 + "\1" * (300_000 if number == 7 else 0)))
    topics.flush()
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": topics.letters}
    task = TaskProcess(topics, receiver.config | letters | QUICK, (1, 0), tmp_path)
    try:
        wait(lambda: task.numbers.get("dead_letters") == 1 and task.numbers.get("lag_records") == 0, "the dead letter")
        task.stop()
    finally:
        task.kill()
    assert len(topics.read(topics.letters)) == 1
    assert nats.count(receiver.stream) == 39
    assert "secretsecret" not in task.told()
