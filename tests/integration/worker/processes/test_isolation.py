"""A task that hangs, spins, leaks or dies again and again hurts itself alone: its neighbours, REST and worker go on."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition

from tests import plain_http
from tests.integration import one_worker

pytestmark = pytest.mark.kafka


GAP_S_MAX = 2.0
ANSWER_S_MAX = 1.0
PROCESSES = 5
"""A row and an answer come through about so many processes and threads, each of which a busy machine may let wait."""
LIMITS = {
    "task.start.timeout.ms": "60000",
    "task.hang.timeout.ms": "2000",
    "task.restart.max": "1",
    "task.restart.backoff.ms": "100",
}


@pytest.fixture(scope="module")
def worker(kafka, tmp_path_factory):
    made = one_worker.Worker(tmp_path_factory.mktemp("isolation"), kafka.bootstrap, f"i{uuid.uuid4().hex[:8]}")
    made.wait_ready()
    yield made
    made.kill()


class Watcher:
    """Reads what the neighbour writes and asks REST, all the time; remembers the worst of both."""

    def __init__(self, worker: Any, topic: str) -> None:
        self._worker, self._topic = worker, topic
        self.gap_s = self.answer_s = 0.0
        self.late_s = 0.0
        """By how much a thread of the test itself, which waits for nobody, came too late at the worst."""
        self.rows, self.answers = 0, 0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._read, self._ask, self._wake)]

    def __enter__(self) -> Watcher:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _read(self) -> None:
        settings = {"bootstrap.servers": self._worker.bootstrap, "group.id": "watch", "fetch.wait.max.ms": 50}
        consumer = Consumer({**settings, "isolation.level": "read_committed"})
        consumer.assign([TopicPartition(self._topic, 0)])  # from the end
        last: float | None = None
        while not self._over.is_set():
            message = consumer.poll(0.1)
            now = time.monotonic()
            if last is not None:
                self.gap_s = max(self.gap_s, now - last)
            if message is not None and message.error() is None:
                last, self.rows = now, self.rows + 1
        consumer.close()

    def _wake(self) -> None:
        due = time.monotonic()
        while not self._over.wait(0.05):
            self.late_s = max(self.late_s, time.monotonic() - due - 0.05)
            due = time.monotonic()

    def _ask(self) -> None:
        with httpx.Client(base_url=self._worker.url, timeout=10.0) as client:
            while not self._over.wait(0.1):
                for path in ("/connectors?expand=status", "/v1/cluster", "/healthz"):
                    started = time.monotonic()
                    client.get(path).raise_for_status()
                    self.answer_s = max(self.answer_s, time.monotonic() - started)
                    self.answers += 1


@pytest.fixture
def neighbour(worker):
    """A healthy connector of two tasks; afterwards it must not have noticed anything."""
    name, prefix = "good", f"good-{worker.group}"
    config = {"connector.class": "datagen", "topic.prefix": prefix, "tasks.max": "2", "rows.per.second": "20"}
    worker.put(name, config)
    for number in range(2):
        worker.wait_state(name, "RUNNING", number)
    worker.wait(lambda: worker.task(name)["metrics"].get("records"), "rows")
    before = [worker.starts(f"{name}-{number}") for number in range(2)]
    with Watcher(worker, f"{prefix}.task0.rows") as watcher:
        worker.wait(lambda: watcher.rows > 5, "rows of the neighbour")
        yield watcher
        seen = watcher.rows
        worker.wait(lambda: watcher.rows > seen + 5, "rows of the neighbour afterwards")
    of_machine_s = PROCESSES * watcher.late_s
    assert watcher.gap_s <= GAP_S_MAX + of_machine_s
    assert watcher.answers > 2
    assert watcher.answer_s < ANSWER_S_MAX + of_machine_s
    assert [worker.starts(f"{name}-{number}") for number in range(2)] == before
    assert worker.process.poll() is None


@pytest.fixture
def bad(worker):
    """Makes a connector with trouble; gone afterwards."""
    made = []

    def make(**config: str) -> str:
        name = f"bad{uuid.uuid4().hex[:6]}"
        made.append(name)
        keys = {key.replace("_", "."): value for key, value in config.items()}
        base = {"connector.class": "datagen", "topic.prefix": f"{name}-{worker.group}", "rows.per.second": "100"}
        worker.put(name, {**base, **LIMITS, **keys})
        return name

    yield make
    for name in made:
        assert plain_http.delete(f"{worker.url}/connectors/{name}", timeout=30.0).status_code == 204
    for name in made:
        pid = worker.starts(f"{name}-0")[-1]
        worker.wait(lambda pid=pid: not one_worker.alive(pid), "the end of its process")


BAD = [
    # Whoever notices first: its launcher that it stands still, or the herder that it does not report.
    pytest.param(
        {"hang_in": "start", "task_start_timeout_ms": "4000"},
        "worker.task_hung coordinator.task_start_timeout",
        marks=pytest.mark.long,
    ),
    ({"hang_in": "poll"}, "worker.task_hung"),
    pytest.param({"hang_prob": "0.02"}, "worker.task_hung", marks=pytest.mark.long),
    pytest.param({"spin_prob": "0.02"}, "worker.task_hung", marks=pytest.mark.long),
    (
        {
            "leak_bytes_per_second": "150000000",
            "task_memory_limit_mb": "256",
            # On a busy machine what fills its memory may stand still before it is full.
            "task_hang_timeout_ms": "30000",
        },
        "worker.task_memory",
    ),
    ({"crash_prob": "0.2", "task_restart_max": "4"}, "coordinator.task_crashed"),
]
"""Configs of bad tasks, and the codes by which what they do is told."""
IDS = ["hangs-in-start", "hangs-in-poll", "hangs-at-a-row", "spins", "leaks", "crash-loops"]


@pytest.mark.parametrize(("config", "cause"), BAD, ids=IDS)
def test_a_bad_task_ends_in_quarantine_and_nobody_else_notices(worker, neighbour, bad, config, cause):
    name = bad(**config)
    task = worker.wait_state(name, "FAILED", timeout_s=120.0)
    assert task["error"]["code"] == "coordinator.task_quarantined"
    assert task["error"]["cause"]["code"] in cause.split()
    budget = int(config.get("task_restart_max", "1"))
    assert len(worker.starts(f"{name}-0")) == budget + 1
    answer = worker.ask("POST", f"/connectors/{name}/tasks/0/restart")
    assert answer.status_code == 204
    worker.wait(lambda: len(worker.starts(f"{name}-0")) == budget + 2, "a start after the restart")


def test_a_task_that_hangs_in_its_stop_is_killed_and_nobody_else_notices(worker, neighbour, bad):
    name = bad(hang_in="stop")
    worker.wait_state(name, "RUNNING")
    (pid,) = worker.starts(f"{name}-0")
    assert worker.ask("PUT", f"/connectors/{name}/stop").status_code == 204
    worker.wait(lambda: not one_worker.alive(pid), "the end of its process")
    worker.wait(lambda: worker.get(f"/connectors/{name}/status")["tasks"] == [], "no task")
    assert worker.ask("PUT", f"/connectors/{name}/resume").status_code == 202
    worker.wait_state(name, "RUNNING")


@pytest.mark.sampled(2, "halts")
def test_a_wrong_configuration_halts_at_once_with_its_own_code(worker, neighbour, bad):
    name = bad(fail_prob="1", fail_class="configuration")
    task = worker.wait_state(name, "FAILED")
    assert task["error"]["code"] == "datagen.fault_config"
    assert len(worker.starts(f"{name}-0")) == 1


@pytest.mark.sampled(2, "halts")
def test_bad_data_halts_at_once_with_its_own_code_and_the_rows_before_it_are_there(worker, neighbour, bad):
    name = bad(fail_prob="0.05", fail_class="data")
    task = worker.wait_state(name, "FAILED")
    assert task["error"]["code"] == "datagen.fault_data"
    assert len(worker.starts(f"{name}-0")) == 1
