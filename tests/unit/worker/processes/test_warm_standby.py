"""A process that waits for a sink task: who gets it, and what happens when it is not ready, does not fit, or dies."""

import contextlib
import os
import queue
import signal
import sys
import threading

import pytest
from cdcworker.coordinator.core.events import StandbyChanged, TaskExited, TaskReport
from cdcworker.coordinator.model import AssignedTask, ClusterState, Connector
from cdcworker.worker.linux.procfs import read_stat
from cdcworker.worker.processes.warm_standby import StandbyProcesses, session_config, standby_spec
from cdcworker.worker.protocol.task_spec import ClusterTopics, TaskSpec
from cdcworker.worker.task.warm_standby import STANDBY

TASK = AssignedTask("warehouse", "i1", 0, 7)
CHILD = """
import json, os, sys
def say(**message): print(json.dumps(message), flush=True)
spec = json.loads(sys.stdin.readline())
if spec["standby"]:
    {ready}
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "stop": sys.exit(0)
        if message["type"] == "spec":
            spec = message
            break
say(type="status", state="RUNNING")
say(type="metrics", pid=os.getpid(), warm=spec["connector"], limit=spec["memory_limit_mb"])
for line in sys.stdin:
    if json.loads(line)["type"] == "stop": sys.exit(0)
    if json.loads(line)["type"] == "die": sys.exit(9)
"""
READY = 'say(type="metrics", standby=1, pid=os.getpid())'


def spec(**changes) -> TaskSpec:
    given = {
        "kind": "sink",
        "connector": "warehouse",
        "task": 0,
        "incarnation": "i1",
        "task_epoch": 7,
        "attempt": 1,
        "worker_id": "w1",
        "boot_id": "b1",
        "paused": False,
        "config": {"connector.class": "spark"},
        "kafka": {"bootstrap.servers": "x:1"},
        "group_id": "g",
        "topics": ClusterTopics("c", "o", "s", "r"),
        "offsets_partitions": 3,
        "session_timeout_s": 6.0,
        "state_dir": "",
    }
    return TaskSpec(**{**given, **changes})


WANTED = spec(connector=STANDBY, incarnation=STANDBY, standby=True)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class World(StandbyProcesses):
    """Also remembers what its herder heard."""

    def __init__(self, ready=READY):
        self.clock = Clock()
        self.load = False
        self.heard = queue.Queue()
        self.told = []
        program = CHILD.replace("{ready}", ready)
        command = (sys.executable, "-I", "-c", program)
        super().__init__(command=command, clock=self.clock, busy=lambda: self.load, settle_s=20.0)

    def hear(self, event):
        if isinstance(event, StandbyChanged):
            self.told.append(event.ready)
        else:
            self.heard.put(event)

    def pid(self):
        """Of the process that runs the task, once it says so."""
        while True:
            event = self.heard.get(timeout=20)
            assert event.task == TASK
            if isinstance(event, TaskReport) and "warm" in event.metrics:
                assert event.metrics["warm"] == "warehouse"
                return event.metrics["pid"]

    def exited(self):
        while not isinstance(event := self.heard.get(timeout=20), TaskExited):
            pass
        return event

    def idle_pid(self):
        child = self._children.get(self._idle)
        return child.pid if child else 0


@contextlib.contextmanager
def stopped(world, until):
    """The launcher's thread does nothing meanwhile."""
    there, go_on = threading.Event(), threading.Event()
    world._do(lambda: (there.set(), go_on.wait(20)))
    until(there.is_set)
    try:
        yield
    finally:
        go_on.set()


@pytest.fixture
def make(until):
    made = []

    def build(*args, waits_for=lambda world: world._pinged is not None):
        world = World(*args)
        made.append(world)
        world.open(world.hear)
        world.keep_ready(WANTED)
        until(lambda: world._standby_spec is not None, 20)
        world.clock.now += 30

        def there():
            world.keep_ready(WANTED)
            return waits_for(world)

        until(there, 20)
        return world

    yield build
    for world in made:
        world.close(2)


def test_a_sink_task_gets_the_process_that_waits(make):
    world = make()
    waiting = world.idle_pid()
    world.start(TASK, spec())
    assert world.pid() == waiting


def test_the_herd_knows_whether_there_is_one(make, until):
    world = make()
    world.keep_ready(WANTED)
    until(lambda: world.told == [True], 20)
    world.start(TASK, spec())
    world.pid()
    assert world.told == [True, False]


def test_one_that_falls_silent_is_not_promised_any_more(make, until):
    world = make()
    world.keep_ready(WANTED)
    until(lambda: world.told == [True], 20)
    os.kill(world.idle_pid(), signal.SIGSTOP)
    pinged = world._pinged

    def silent():
        world.clock.now += 6
        world.keep_ready(WANTED)
        return world.told[-1] is False

    until(silent, 20)
    assert world._pinged >= pinged


def test_its_limits_are_the_tasks_from_then_on(make):
    world = make()
    world.start(TASK, spec(config={"connector.class": "spark", "task.memory.limit.mb": "777"}))
    world.pid()
    assert world._children[TASK].limits.memory_mb == 777


def test_the_next_one_comes_when_the_task_has_settled(make, until):
    world = make()
    world.start(TASK, spec())
    first = world.pid()
    world.keep_ready(WANTED)
    world.keep_ready(WANTED)
    until(lambda: not world._jobs)
    assert world.idle_pid() == 0
    world.clock.now += 21
    world.keep_ready(WANTED)
    until(lambda: world._pinged is not None and world.idle_pid() not in (0, first), 20)


def test_a_source_and_a_paused_sink_leave_it_alone(make):
    world = make()
    waiting = world.idle_pid()
    world.start(TASK, spec(kind="source"))
    assert world.pid() != waiting
    world.start(TASK._replace(task=1), spec(task=1, paused=True))
    assert world.heard.get(timeout=20).task.task == 1
    assert world.idle_pid() == waiting


def test_one_that_is_not_ready_makes_way(make):
    world = make("", waits_for=World.idle_pid)
    waiting = world.idle_pid()
    world.start(TASK, spec())
    assert world.pid() != waiting
    assert world.idle_pid() == 0


def test_one_that_does_not_fit_is_left_and_replaced_when_it_should_fit_another(make, until):
    world = make()
    waiting, large = world.idle_pid(), {"connector.class": "spark", "spark.driver.memory": "4g"}
    world.start(TASK, spec(config=large))
    assert world.pid() != waiting
    assert world.idle_pid() == waiting
    world.clock.now += 30
    world.keep_ready(spec(connector=STANDBY, incarnation=STANDBY, standby=True, config=large))
    until(lambda: world.idle_pid() not in (0, waiting), 20)


def test_one_that_has_died_unnoticed_gets_no_task(make, until):
    world = make()
    waiting = world.idle_pid()
    # Its end is heard in the same turn in which the task is started, after it.
    with stopped(world, until):
        os.kill(waiting, signal.SIGKILL)
        until(lambda: read_stat(waiting).state == "Z")
        world.start(TASK, spec())
    assert world.pid() != waiting
    assert world.heard.empty()


def test_one_that_does_not_say_that_it_is_ready_any_more_gets_no_task(make):
    world = make()
    waiting = world.idle_pid()
    world.clock.now += 6
    world.start(TASK, spec())
    assert world.pid() != waiting


def test_a_start_of_any_task_and_a_busy_machine_put_it_off(make, until):
    world = make(READY + "; sys.exit(4)", waits_for=lambda world: world._failures == 1)
    world.clock.now += 35
    world.load = True
    world.start(TASK, spec(kind="source"))
    world.pid()

    def asked():
        world.keep_ready(WANTED)
        until(lambda: not world._jobs)
        return world._started_count

    assert asked() == 1
    world.clock.now += 21
    assert asked() == 1
    world.clock.now += 121
    asked()
    # A job is taken before it is done.
    until(lambda: world._started_count == 2)


def test_one_that_dies_is_nobodys_news_and_is_tried_again_later(make, until):
    world = make(READY + "; sys.exit(4)", waits_for=lambda world: world._failures == 1)
    world.start(TASK, spec())
    world.pid()
    world.clock.now += 31
    world.keep_ready(WANTED)
    until(lambda: world._failures >= 1 and world._started_count == 2, 20)
    assert all(event.task == TASK for event in list(world.heard.queue))


def test_the_end_of_a_task_that_took_it_is_told_once(make):
    world = make()
    world.start(TASK, spec())
    world.pid()
    world.send(TASK, {"type": "die"})
    found = world.exited()
    assert (found.task, found.code) == (TASK, 9)
    assert world.heard.empty()


def test_it_ends_when_it_is_not_wanted_and_with_its_worker(make, until):
    world = make()
    world.keep_ready(None)
    until(lambda: not world._children, 20)
    other = make()
    other.close(10)
    assert not other._children


def test_a_worker_wants_one_while_the_cluster_has_a_sink_that_can_use_it():
    from types import SimpleNamespace

    def view(*connectors, **more):
        state = ClusterState(connectors={found.name: found for found in connectors})
        return SimpleNamespace(**{"state": state, "boot_id": "b", "ready": True, "draining": False, **more})

    def sink(name, cls, state="RUNNING", **config):
        return Connector(name, "i", 1, {"connector.class": cls, **config}, state, "sink")

    config = spec(connector="", incarnation="")
    source = Connector("a", "i", 1, {"connector.class": "postgres"}, "RUNNING", "source")
    assert standby_spec(view(source, sink("f", "file-sink"), sink("g", "of.a.newer.Version")), config) is None
    found = standby_spec(
        view(source, sink("f", "file-sink"), sink("s", "spark", **{"spark.driver.memory": "2g"})), config
    )
    assert (found.standby, found.incarnation, found.worker_id) == (True, STANDBY, config.worker_id)
    assert session_config(found.config) == {"connector.class": "spark", "spark.driver.memory": "2g"}
    assert standby_spec(view(sink("s", "spark", **{"spark.launcher": "client"})), config) is None
    assert standby_spec(view(sink("s", "spark", "STOPPED")), config) is None
    assert standby_spec(view(sink("s", "spark"), draining=True), config) is None
    assert standby_spec(view(sink("s", "spark"), ready=False), config) is None
