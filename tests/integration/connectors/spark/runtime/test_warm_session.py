"""A sink task that finds its Spark session waiting: the process, its limits and what it knew before."""

from __future__ import annotations

import os
import queue
from pathlib import Path

import pytest
from cdcworker.coordinator.core.events import StandbyChanged, TaskExited
from cdcworker.coordinator.model import AssignedTask
from cdcworker.worker.linux import procfs as procstat
from cdcworker.worker.processes.warm_standby import CLASS, STANDBY, StandbyProcesses
from cdcworker.worker.protocol.task_spec import ClusterTopics, TaskSpec

from tests.change_streams import NARROW
from tests.integration.connectors.spark_world import await_end_of_group, eventually, load

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]


class Launcher:
    """The worker's launcher of tasks without the rest of the worker."""

    def __init__(self, world):
        self.world = world
        self.heard = queue.Queue()
        self.processes = StandbyProcesses(settle_s=0.0, busy=lambda: False)
        self.told = []
        self.processes.open(self.hear)

    def hear(self, event):
        if isinstance(event, StandbyChanged):
            self.told.append(event.ready)
        else:
            self.heard.put(event)

    def spec(self, connector, **changes):
        world = self.world
        given = {
            "task": 0,
            "incarnation": "i",
            "task_epoch": 1,
            "attempt": 1,
            "worker_id": "w",
            "boot_id": "b",
            "paused": False,
            "config": {CLASS: "spark"},
            "kafka": {"bootstrap.servers": world.kafka.bootstrap},
            "group_id": "g",
            "topics": ClusterTopics("c", "o", "s", world.schema_topic),
            "offsets_partitions": 0,
            "session_timeout_s": 10.0,
            "state_dir": str(world.tmp_path),
        }
        return TaskSpec(kind="sink", connector=connector, **{**given, **changes})

    def standby(self):
        """Ask for one until it is ready; its process and its Java process."""
        config = {CLASS: "spark", "topics": self.world.schema_topic}
        standby_spec = self.spec(STANDBY, incarnation=STANDBY, config=config, standby=True)

        def ready():
            self.processes.keep_ready(standby_spec)
            return self.processes._pinged is not None

        eventually(ready, "a standby")
        pid = self.processes._children[self.processes._idle].pid
        return pid, *java_of(pid)

    def start(self, **config):
        """The sink task of this world, by its worker."""
        name = self.world.name
        task = AssignedTask(name, "i", 0, 1)
        usual = self.world.config([self.world.topic(NARROW)])
        self.processes.start(task, self.spec(name, config={**usual, **config}))
        return task

    def exit_code(self, task):
        while not isinstance(event := self.heard.get(timeout=30), TaskExited):
            assert event.task == task
        assert event.task == task
        return event.code


def java_of(pid):
    """Without what writes the archive of its classes, on a machine that has none yet."""
    running = [Path(f"/proc/{child}") for child in procstat.children_of(pid)]
    java = [one for one in running if "java" in (one / "comm").read_text()]
    return [int(one.name) for one in java if b"-Xshare:dump" not in (one / "cmdline").read_bytes()]


def oom_score(pid):
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


@pytest.fixture
def launcher(world):
    made = Launcher(world)
    yield made
    made.processes.close(20)


@pytest.mark.sampled(2, "standby")
def test_a_task_commits_from_the_session_that_waited_for_it(world, launcher):
    world.create(world.topic(NARROW))
    load(world, 0, 300)
    world.send()
    pid, java = launcher.standby()
    assert [oom_score(pid), oom_score(java)] == [1000, 1000]
    waiting = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{java}/cmdline").read_bytes()
    assert world.name.encode() + b"-0" not in waiting
    task = launcher.start(**{"task.memory.limit.mb": "1900"})
    eventually(lambda: world.rows() == world.model.rows, "the rows")
    assert launcher.processes._children[task].limits.memory_mb == 1900
    assert [launcher.processes._children[task].pid, *java_of(pid)] == [pid, java]
    assert f"{world.name}-0".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert max(oom_score(pid), oom_score(java)) < 1000
    launcher.processes.stop(task)
    assert launcher.exit_code(task) == 0
    await_end_of_group(pid)
    assert list((world.tmp_path / "standby").iterdir()) == []


@pytest.mark.sampled(2, "standby")
def test_a_standby_whose_session_dies_goes_and_is_nobodys_news(launcher):
    pid, java = launcher.standby()
    os.kill(java, 9)
    eventually(lambda: launcher.processes._failures == 1, "the end of the standby", 30)
    await_end_of_group(pid)
    assert launcher.heard.empty()
