"""A worker with many tasks is told to end: all of them stop by themselves, or are ended, and it is gone in time."""

from __future__ import annotations

import re
import time
import uuid

import pytest

from .. import one_worker

pytestmark = [pytest.mark.kafka, pytest.mark.long]


TASKS = 16
EXIT_S_MAX = 20.0
"""What a platform that has asked a worker to end can be expected to wait for."""
ENDED = re.compile(r"task ended task=(\S+) pid=\d+ code=(-?\d+)")


def test_many_tasks_one_of_which_does_not_stop_are_drained_in_time_and_the_worker_ends_with_code_0(kafka, tmp_path):
    group = f"d{uuid.uuid4().hex[:8]}"
    worker = one_worker.Worker(tmp_path, kafka.bootstrap, group)
    try:
        worker.wait_ready()
        generator = {"connector.class": "datagen", "rows.per.second": "20"}
        worker.put("many", {**generator, "topic.prefix": f"{group}-many", "tasks.max": str(TASKS)})
        worker.put("stuck", {**generator, "topic.prefix": f"{group}-stuck", "hang.in": "stop"})
        for number in range(TASKS):
            worker.wait_state("many", "RUNNING", number)
        worker.wait_state("stuck", "RUNNING")
        started = time.monotonic()
        code = worker.end()
        seconds = time.monotonic() - started
        text = worker.log.read_text()
        assert code == 0, text[-20_000:]
        assert seconds < EXIT_S_MAX
        ends = dict(ENDED.findall(text))
        assert {ends.pop(f"many-{number}") for number in range(TASKS)} == {"0"}
        assert ends.keys() == {"stuck-0"}
        assert "Traceback" not in text
    finally:
        worker.kill()
