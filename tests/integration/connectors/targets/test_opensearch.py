"""The sink into OpenSearch, with a real Kafka and a real server: an index has each event and each row once, whatever dies."""

from __future__ import annotations

import signal
import uuid

import pytest

from tests.contract import record_targets
from tests.contract.letters.of_records import *  # noqa: F403 - the suite of their dead letters
from tests.contract.record_targets import *  # noqa: F403 - the suite of all targets of records
from tests.contract.record_targets import QUICK, holds
from tests.record_sinks import Ledger, TaskProcess, Topics, Workload, running, seed, wait

pytestmark = [pytest.mark.kafka, pytest.mark.opensearch]


class Receiver:
    """A reader of one index."""

    def __init__(self, server):
        self.server, self.index = server, f"s{uuid.uuid4().hex[:8]}"
        self._ledger, self._seen, self._since = Ledger(), set(), 0

    @property
    def config(self):
        return self.server.config(key_ignore="true", index_name_template=self.index)

    @property
    def ledger(self):
        for one in self.server.documents(self.index, self._since) if self.server.alive() else ():
            if one["_seq_no"] not in self._seen:
                self._seen.add(one["_seq_no"])
                self._ledger.take(one["_source"])
        while self._since in self._seen:
            self._since += 1
        return self._ledger

    def stop(self):
        self.server.kill()

    def start(self):
        self.server.start()

    def close(self):
        assert self.ledger.twice == 0, "the index has an event twice"
        self.server.drop(self.index)


@pytest.fixture
def receiver(opensearch):
    made = Receiver(opensearch)
    yield made
    made.close()


@pytest.mark.long
def test_a_receiver_that_is_away_is_waited_for(kafka, receiver, tmp_path):
    """A server of Java takes its time to start."""
    record_targets.test_a_receiver_that_is_away_is_waited_for(kafka, receiver, tmp_path)


@pytest.fixture
def topics(kafka):
    return Topics(kafka)


def held(server, topics):
    return {int(id): found for id, found in server.rows(topics.topic).items()}


def test_rows_are_those_of_the_source_after_a_kill_and_after_all_was_written_again(topics, opensearch, tmp_path):
    workload = Workload(topics, seed())
    config = opensearch.config() | QUICK
    workload.run(150, truncates=False)
    tasks = [TaskProcess(topics, config, (1, 0), tmp_path)]
    with running():
        try:
            wait(lambda: tasks[0].numbers.get("changes", 0) > 60, "progress")
            tasks[0].signal(signal.SIGKILL)
            workload.evolve()
            workload.run(150, truncates=False)
            # Another sink has offsets of its own: it writes all of it again beside the rest.
            tasks.append(TaskProcess(topics, config, (2, 0), tmp_path))
            tasks.append(TaskProcess(topics, config, (1, 0), tmp_path, name=f"{topics.name}-again"))
            for task in tasks[1:]:
                wait(lambda task=task: task.numbers.get("lag_records") == 0, "that nothing waits")
                task.stop()
        finally:
            for task in tasks:
                task.kill()
    assert {id: _present(row) for id, row in held(opensearch, topics).items()} == {
        id: _present(row) for id, row in workload.rows.items()
    }
    opensearch.drop(topics.topic)


def _present(row):
    return {name: value for name, value in row.items() if value is not None}


def test_documents_that_do_not_fit_are_dead_letters_and_the_others_go_on(topics, opensearch, tmp_path):
    workload = Workload(topics, 1)
    opensearch.ask("PUT", f"/{topics.topic}", {"mappings": {"properties": {"a": {"type": "integer"}}}})
    for number in range(40):
        topics.stream.insert(workload.table, (number, number, "secret text" if number in (7, 11) else "5"))
    topics.flush()
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": topics.letters}
    more = {"errors.deadletterqueue.context.headers.enable": "true"}
    task = TaskProcess(topics, opensearch.config() | letters | more | QUICK, (1, 0), tmp_path)
    try:
        wait(lambda: task.numbers.get("dead_letters") == 2 and task.numbers.get("lag_records") == 0, "the dead letters")
        task.stop()
    finally:
        task.kill()
    found = topics.read(topics.letters)
    headers = dict(found[0].headers())
    assert len(found) == 2
    assert headers["__connect.errors.exception.class.name"] == b"sink.mapping_conflict"
    assert b"secret" not in headers["__connect.errors.exception.message"]
    assert len(held(opensearch, topics)) == 38
    assert "secret text" not in task.told()
    opensearch.drop(topics.topic)


@pytest.mark.long
def test_a_server_that_hangs_is_broken_off_and_tried_again(topics, opensearch, receiver, tmp_path):
    workload, child = Workload(topics, seed()), opensearch._running()
    workload.run(50)
    task = TaskProcess(topics, receiver.config | QUICK | {"target.timeout.ms": "1000"}, (1, 0), tmp_path)
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
