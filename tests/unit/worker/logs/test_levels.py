"""Log levels that are changed over REST hold in the processes of tasks too."""

from __future__ import annotations

import io
import json
import logging

import pytest
from cdcworker.coordinator.core.events import TaskReport
from cdcworker.coordinator.model import AssignedTask
from cdcworker.worker.logs import levels
from cdcworker.worker.processes.task_processes import TaskProcesses
from cdcworker.worker.protocol.control import TaskControl
from cdcworker.worker.protocol.task_spec import ClusterTopics, TaskSpec
from cdcworker.worker.rest.resources import loggers
from cdcworker.worker.task import main as task_main

NAME = "cdcworker.levels.probe"
TASKS = [AssignedTask("shop", "i1", number, 7) for number in (0, 1)]
ECHO = """
import json, sys
def say(**message): print(json.dumps(message), flush=True)
json.loads(sys.stdin.readline())
say(type="status", state="RUNNING")
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "levels": say(type="metrics", **message["levels"])
    if message["type"] == "stop": sys.exit(0)
"""


@pytest.fixture(autouse=True)
def _as_before():
    yield
    levels.forget()
    logging.getLogger(NAME).setLevel(logging.NOTSET)


def spec(number: int) -> TaskSpec:
    topics = ClusterTopics("c", "o", "s", "sc")
    return TaskSpec("source", "shop", number, "i1", 7, 0, "w1", "b1", False, {}, {}, "g", topics, 5, 10.0, "/tmp")


def told(heard: list) -> list[AssignedTask]:
    return [event.task for event in heard if getattr(event, "metrics", {}).get(NAME) == logging.DEBUG]


def test_tasks_that_run_and_tasks_that_start_later_are_told(tmp_path, until):
    path = tmp_path / "echo.py"
    path.write_text(ECHO)
    heard: list = []
    tasks = TaskProcesses(["/usr/bin/env", "python3", str(path)])
    tasks.open(heard.append)
    try:
        tasks.start(TASKS[0], spec(0))
        until(lambda: TaskReport(TASKS[0], "RUNNING") in heard, 30.0)
        loggers._apply(NAME, logging.DEBUG, 1)
        assert logging.getLogger(NAME).level == logging.DEBUG
        until(lambda: TASKS[0] in told(heard), 30.0)
        tasks.start(TASKS[1], spec(1))
        until(lambda: TASKS[1] in told(heard), 30.0)
    finally:
        tasks.close(10.0)
    levels.change({NAME: logging.INFO})  # and nobody is left to be told


def test_a_task_follows_what_it_is_told_and_goes_on_with_its_commands(monkeypatch):
    ended = []
    monkeypatch.setattr(task_main, "end_process_group", lambda: ended.append(True))
    lines = [{"type": "levels", "levels": {NAME: 10}}, {"type": "levels", "levels": 5}, {"type": "stop"}]
    control = TaskControl(60.0)
    task_main._read_commands(io.BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in lines)), control)
    assert logging.getLogger(NAME).level == logging.DEBUG
    assert control.stopping
    assert ended
