"""The sink into Redis, with a real Kafka and a real server: streams and rows hold each change once, whatever dies."""

from __future__ import annotations

import json
import signal
import uuid

import pytest
from redis import RedisError

from tests.contract.letters.of_records import *  # noqa: F403 - the suite of their dead letters
from tests.contract.record_targets import *  # noqa: F403 - the suite of all targets of records
from tests.contract.record_targets import QUICK, holds
from tests.record_sinks import Ledger, TaskProcess, Topics, Workload, running, seed, wait

pytestmark = [pytest.mark.kafka, pytest.mark.redis]


class Receiver:
    """A reader of one stream."""

    def __init__(self, server):
        self.server, self.stream = server, f"s{uuid.uuid4().hex[:8]}"
        self._ledger, self._last = Ledger(), "-"

    @property
    def config(self):
        return self.server.config(key_template=self.stream)

    @property
    def ledger(self):
        try:
            found = self.server.client.xrange(self.stream, self._last)
        except RedisError:
            return self._ledger
        for number, entry in found:
            self._ledger.take(
                {
                    "id": entry["id"],
                    "partition": int(entry["partition"]),
                    "offset": int(entry["offset"]),
                    "value": json.loads(entry["value"]),
                }
            )
            self._last = f"({number}"
        return self._ledger

    def stop(self):
        self.server.kill()

    def start(self):
        self.server.start()

    def close(self):
        assert self.ledger.twice == 0, "the stream has an entry twice"
        self.server.client.delete(self.stream)


@pytest.fixture
def receiver(redis):
    made = Receiver(redis)
    yield made
    made.close()


@pytest.fixture
def topics(kafka):
    return Topics(kafka)


def told(workload):
    """The rows as a hash has them."""
    return {
        f"{row['id']}": {name: str(value) for name, value in row.items() if value is not None}
        for row in workload.rows.values()
    }


def held(client, name, kind, rows):
    """The rows that Redis has, and those that it has to have."""
    keys = {key.rpartition(":")[2]: key for key in client.scan_iter(f"{name}:*") if not key.startswith("{")}
    if kind == "SET":
        return client.smembers(name), set(map(str, rows))
    if kind == "JSON":
        found = {int(id): json.loads(client.execute_command("JSON.GET", key)) for id, key in keys.items()}
        return found, rows
    texts = {str(id): {name: str(v) for name, v in row.items() if v is not None} for id, row in rows.items()}
    return {id: client.hgetall(key) for id, key in keys.items()}, texts


@pytest.mark.parametrize("kind", ["HASH", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("JSON", "SET"))])
def test_rows_are_those_of_the_source_after_a_kill_and_after_all_was_written_again(topics, redis, tmp_path, kind):
    workload, name = Workload(topics, seed()), topics.name
    template = name if kind == "SET" else f"{name}:${{key}}"
    config = redis.config(type=kind, key_template=template) | QUICK
    workload.run(200, truncates=False)
    tasks = [TaskProcess(topics, config, (1, 0), tmp_path)]
    with running():
        try:
            wait(lambda: tasks[0].numbers.get("changes", 0) > 60, "progress")
            tasks[0].signal(signal.SIGKILL)
            workload.run(200, truncates=False)
            # Another sink has offsets of its own: it writes all of it again beside the rest.
            tasks.append(TaskProcess(topics, config, (2, 0), tmp_path))
            tasks.append(TaskProcess(topics, config, (1, 0), tmp_path, name=f"{name}-again"))
            for task in tasks[1:]:
                wait(lambda task=task: task.numbers.get("lag_records") == 0, "that nothing waits")
                task.stop()
        finally:
            for task in tasks:
                task.kill()
    found, wanted = held(redis.client, name, kind, workload.rows)
    assert found == wanted


def test_a_record_that_redis_refuses_is_a_dead_letter_and_the_others_go_on(topics, redis, tmp_path):
    workload, name = Workload(topics, 1), topics.name
    redis.client.rpush(f"{name}:7", "a list of somebody else's")
    for number in range(40):
        topics.stream.insert(workload.table, (number, number, "secret text"))
    topics.flush()
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": topics.letters}
    config = redis.config(type="HASH", key_template=f"{name}:${{key}}") | letters | QUICK
    task = TaskProcess(topics, config | {"errors.deadletterqueue.context.headers.enable": "true"}, (1, 0), tmp_path)
    try:
        wait(lambda: task.numbers.get("dead_letters") == 1 and task.numbers.get("lag_records") == 0, "the dead letter")
        task.stop()
    finally:
        task.kill()
    (letter,) = topics.read(topics.letters)
    headers = dict(letter.headers())
    assert headers["__connect.errors.exception.class.name"] == b"sink.record_refused"
    assert b"WRONGTYPE" in headers["__connect.errors.exception.message"]
    assert len(list(redis.client.scan_iter(f"{name}:[0-9]*"))) == 40
    assert "secret text" not in task.told()


def test_a_server_that_hangs_is_broken_off_and_tried_again(topics, redis, tmp_path):
    workload, reader = Workload(topics, seed()), Receiver(redis)
    child = redis._running()
    workload.run(50)
    child.freeze()
    task = TaskProcess(topics, reader.config | QUICK | {"target.timeout.ms": "300"}, (1, 0), tmp_path)
    try:
        wait(lambda: task.numbers.get("retrying"), "that the task tries again")
        child.thaw()
        holds(reader, workload, task)
        task.stop()
    finally:
        child.thaw()
        task.kill()
    reader.close()
