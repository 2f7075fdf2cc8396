"""Task processes from a fork server: real processes, their beginnings, their ends and what they try on the way."""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cdcworker.coordinator.core.events import TaskExited, TaskReport
from cdcworker.coordinator.model import AssignedTask
from cdcworker.worker.children.warm import WarmChildren
from cdcworker.worker.linux.procfs import children_of, read_stat
from cdcworker.worker.processes.task_processes import TaskProcesses
from cdcworker.worker.protocol.task_spec import ClusterTopics, TaskSpec

FORK_SERVER = (sys.executable, str(Path(__file__).with_name("scripted_fork_server.py")))
SLOW_FORK_SERVER = (sys.executable, "-c", "import time; time.sleep(600)")
ASKED = """
import json, os, sys
told = []
def preload():
    told.append("preloaded")
def main():
    json.load(sys.stdin)
    json.dump([len(told), os.getppid()], sys.stdout)
    return 0
if __name__ == "__main__":
    sys.exit(main())
"""
DEADLINE_S = 30.0
TASK = AssignedTask("shop", "i1", 0, 7)


def spec(do: str = "obey", **config: str) -> TaskSpec:
    return TaskSpec(
        kind="sink",
        connector="shop",
        task=0,
        incarnation="i1",
        task_epoch=7,
        attempt=0,
        worker_id="w1",
        boot_id="b1",
        paused=False,
        config={"connector.class": "scripted", "topics": "t", "do": do, **config},
        kafka={"bootstrap.servers": "127.0.0.1:1"},
        group_id="g",
        topics=ClusterTopics("c", "o", "s", "r"),
        offsets_partitions=3,
        session_timeout_s=600.0,
        state_dir="",
    )


def number(n: int) -> AssignedTask:
    return AssignedTask("shop", "i1", n, 7)


class Heard:
    """The events of a launcher, in the order in which they came."""

    def __init__(self) -> None:
        self._events: queue.Queue = queue.Queue()
        self.all: list = []

    def put(self, event) -> None:
        self._events.put(event)

    def until(self, wanted, what: str):
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                event = self._events.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"not in time: {what}; heard {self.all[-5:]}") from None
            self.all.append(event)
            if wanted(event):
                return event

    def metrics(self, task: AssignedTask = TASK, name: str = ""):
        return self.until(
            lambda e: (
                isinstance(e, TaskReport) and e.task == task and bool(e.metrics) and (not name or name in e.metrics)
            ),
            f"metrics of {task}",
        ).metrics

    def state(self, state: str, task: AssignedTask = TASK):
        return self.until(lambda e: isinstance(e, TaskReport) and e.task == task and e.state == state, state)

    def exit(self, task: AssignedTask = TASK) -> TaskExited:
        return self.until(lambda e: isinstance(e, TaskExited) and e.task == task, f"exit of {task}")


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def run(heard):
    made = []

    def make(fork_server=FORK_SERVER, **settings) -> TaskProcesses:
        tasks = TaskProcesses(fork_server=fork_server, **settings)
        tasks.open(heard.put)
        made.append(tasks)
        return tasks

    yield make
    for tasks in made:
        tasks.close(5.0)
    assert not [pid for pid in children_of(os.getpid()) if is_alive(pid) and "scripted_fork_server" in arguments(pid)]


def arguments(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.state != "Z"


def gone(pids) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while left := [pid for pid in pids if read_stat(pid) is not None]:
        assert time.monotonic() < deadline, f"still there: {[read_stat(pid) for pid in left]}"


def fork_server_of(tasks: TaskProcesses) -> int:
    pid = tasks._fork_client.pid
    assert pid is not None
    return pid


# --- the fork server ------------------------------------------------------------------------------------------------------


def test_a_forked_task_is_a_process_like_a_started_one(run, heard, monkeypatch, caplog):
    tasks = run()
    tasks.start(number(1), spec())
    heard.metrics(number(1))
    monkeypatch.setenv("SCRIPTED_WORD", "changed after the fork server's start")
    with caplog.at_level(logging.INFO):
        tasks.start(TASK, spec())
        said = heard.metrics()
        assert said["parent"] == os.getpid()
        assert said["session"] == said["group"] == said["pid"] != fork_server_of(tasks)
        assert said["cwd"] == os.getcwd()
        assert said["word"] == "changed after the fork server's start"
        assert said["blocked"] == []
        assert said["arguments"] == [sys.executable, "-m", "cdcworker.worker.task.main", "shop-0"]
        assert said["modules"] == ["confluent_kafka", "fastavro"]
        # The three streams, the private end of the worker's pipe, the listing's own, and of a sink where standard error led
        # and what Java writes there.
        assert len(said["descriptors"]) == 7
        tasks.stop(TASK)
        assert heard.exit() == TaskExited(TASK, 0)
    gone([said["pid"]])
    logged = [record.getMessage() for record in caplog.records if record.name == "cdcworker.task"]
    assert "[shop-0] INFO task speaks to its log" in logged
    assert not any("without the fork server" in record.getMessage() for record in caplog.records)


def test_the_fork_server_of_questions_is_forked_from_the_one_of_tasks(run, tmp_path, monkeypatch):
    (tmp_path / "asked_module.py").write_text(ASKED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    questions = WarmChildren("asked_module")
    tasks = run(questions=questions)

    def ask() -> tuple[int, int]:
        told, server = json.loads(questions.call({}, 60.0).out)
        return told, server

    try:
        told, server = ask()
        old = fork_server_of(tasks)
        assert (told, ask()[1]) == (1, server)
        assert children_of(old) == [server]
        assert arguments(server).split("\0")[2:4] == ["cdcworker.worker.children.fork_server", "asked_module"]
        os.kill(old, signal.SIGKILL)
        gone([server])
        # The first one finds that it is lost and is answered by a process of its own, the next one by a new server.
        assert ask()[1] == os.getpid()
        assert ask()[1] not in (server, os.getpid())
    finally:
        questions.close()


def test_tasks_from_one_fork_server_draw_different_random_numbers(run, heard):
    tasks = run()
    drawn = set()
    for n in range(3):
        tasks.start(number(n), spec())
        drawn.add(heard.metrics(number(n))["random"])
    assert len(drawn) == 3


def test_tasks_go_on_when_the_fork_server_dies_and_the_next_start_makes_a_new_one(run, heard):
    tasks = run()
    tasks.start(number(0), spec())
    first = heard.metrics(number(0))
    old = fork_server_of(tasks)
    os.kill(old, signal.SIGKILL)
    gone([old])
    tasks.start(number(1), spec())
    second = heard.metrics(number(1))
    assert fork_server_of(tasks) != old
    assert heard.metrics(number(0))["pid"] == first["pid"]
    for n in range(2):
        tasks.stop(number(n))
        assert heard.exit(number(n)).code == 0
    gone([first["pid"], second["pid"]])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "fork_server", [SLOW_FORK_SERVER, (sys.executable, "-c", "pass"), ("/nonexistent/fork-server",)]
)
def test_without_a_fork_server_that_works_tasks_are_started_all_the_same(run, heard, caplog, monkeypatch, fork_server):
    monkeypatch.setattr("cdcworker.worker.processes.fork_client.READY_S_MAX", 0.2)
    tasks = run(fork_server)
    tasks.start(TASK, spec())
    # The command of a started task knows nothing of scripted connectors: that it says so shows that it runs.
    error = heard.state("FAILED").error
    assert error["code"] == "config.unknown_connector"
    assert heard.exit().code == 1
    assert any("fork server lost" in record.getMessage() for record in caplog.records)


def test_a_fork_server_that_stops_answering_is_replaced(run, heard, caplog):
    tasks = run()
    tasks.start(number(0), spec())
    heard.metrics(number(0))
    old = fork_server_of(tasks)
    os.kill(old, signal.SIGSTOP)
    tasks.start(number(1), spec())
    assert heard.exit(number(1)).code == 1
    assert any("started without the fork server" in record.getMessage() for record in caplog.records)
    gone([old])
    tasks.start(number(2), spec())
    heard.metrics(number(2))
    assert heard.metrics(number(0))


def test_children_of_others_are_not_reaped(run, heard):
    tasks = run()
    other = subprocess.Popen([sys.executable, "-I", "-c", "raise SystemExit(7)"])
    tasks.start(TASK, spec())
    heard.metrics()
    tasks.kill(TASK)
    assert heard.exit().code == -9
    assert other.wait(DEADLINE_S) == 7


def test_a_task_that_is_killed_before_it_is_there_ends_once(run, heard):
    tasks = run()
    tasks.start(TASK, spec())
    tasks.kill(TASK)
    assert heard.exit().code == -9
    tasks.start(number(1), spec())
    heard.metrics(number(1))
    assert [event for event in heard.all if isinstance(event, TaskExited)] == [TaskExited(TASK, -9)]


WORKER = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
import test_launcher as t
from cdcworker.worker.processes.task_processes import TaskProcesses
heard = t.Heard()
tasks = TaskProcesses(fork_server=t.FORK_SERVER)
tasks.open(heard.put)
tasks.start(t.TASK, t.spec(*sys.argv[2:3], **{"then": "hang"}))
said = heard.metrics(name=sys.argv[3])
print(said[sys.argv[3]], tasks._fork_client.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("do", "name"), [("obey", "pid"), ("abandon", "left"), ("halt", "pid")])
def test_nothing_outlives_a_worker_that_is_killed(do, name):
    """A forked task's parent-death signal holds after its adoption; the fork server ends what left its task's session."""
    here = str(Path(__file__).parent)
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, here, do, name], stdout=subprocess.PIPE, start_new_session=True
    )
    with worker:
        line = worker.stdout.readline()
        pids = [int(word.strip(b"[],")) for word in line.split()]
        assert all(is_alive(pid) for pid in pids)
        if do == "halt":
            # Neither the task nor the fork server can do anything any more: the kernel has to.
            os.kill(pids[-1], signal.SIGKILL)
        worker.kill()
    gone(pids)


# --- ends ------------------------------------------------------------------------------------------------------------


def test_what_a_task_leaves_in_other_sessions_goes_with_it_when_it_exits(run, heard):
    tasks = run()
    tasks.start(TASK, spec("abandon", then="exit"))
    left = heard.metrics(name="left")["left"]
    assert heard.exit().code == 0
    gone(left)


def test_what_a_killed_task_leaves_in_other_sessions_goes_with_it(run, heard):
    tasks = run()
    tasks.start(TASK, spec("abandon", then="hang"))
    left = heard.metrics(name="left")["left"]
    assert all(is_alive(pid) for pid in left)
    tasks.kill(TASK)
    assert heard.exit().code == -9
    gone(left)


def test_a_stop_that_hangs_ends_in_a_kill_of_all(run, heard):
    tasks = run(stop_s=0.2, terminate_s=0.2)
    tasks.start(TASK, spec("abandon", then="hang"))
    left = heard.metrics(name="left")["left"]
    tasks.stop(TASK)
    assert heard.exit().code == -9
    gone(left)


def test_children_of_tasks_are_not_mistaken_for_those_of_others(run, heard):
    tasks = run()
    other = subprocess.Popen([sys.executable, "-I", "-c", "import time; time.sleep(600)"], start_new_session=True)
    tasks.start(number(0), spec())
    tasks.start(number(1), spec("abandon", then="hang"))
    kept = heard.metrics(number(0))["pid"]
    left = heard.metrics(number(1), "left")["left"]
    tasks.kill(number(1))
    heard.exit(number(1))
    gone(left)
    assert is_alive(other.pid)
    assert is_alive(kept)
    other.kill()
    assert other.wait() == -9


def test_a_stop_that_hangs_is_told_with_the_stacks_of_the_task(run, heard, caplog):
    tasks = run(stop_s=0.1, terminate_s=2.0)
    tasks.start(TASK, spec("hang"))
    heard.metrics()
    tasks.stop(TASK)
    assert heard.exit().code == -15
    assert "scripted_fork_server.py" in logged(caplog)
    assert " in hang" in logged(caplog)


def logged(caplog) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.name == "cdcworker.task")


# --- standstill and memory -------------------------------------------------------------------------------------------

SHORT = {"task.hang.timeout.ms": "1500"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("do", ["hang", "spin"])
def test_a_task_without_a_step_shows_its_stacks_and_is_killed(run, heard, caplog, do):
    tasks = run()
    tasks.start(TASK, spec(do, **SHORT))
    pid = heard.metrics()["pid"]
    exited = heard.exit()
    assert exited.code == -9
    assert (exited.error["code"], exited.error["kind"]) == ("worker.task_hung", "transient")
    assert exited.error["where"]["task"] == "shop-0"
    gone([pid])
    assert f" in {do}" in logged(caplog)


def test_a_stopped_process_is_hung_and_killed(run, heard):
    tasks = run()
    tasks.start(TASK, spec("halt", **SHORT))
    pid = heard.metrics()["pid"]
    exited = heard.exit()
    assert (exited.code, exited.error["code"]) == (-9, "worker.task_hung")
    assert "stopped" in exited.error["message"]
    gone([pid])


def test_a_task_that_closed_all_its_pipes_ends_with_its_next_word(run, heard):
    tasks = run()
    tasks.start(TASK, spec("mute"))
    pid = heard.metrics()["pid"]
    assert heard.exit() == TaskExited(TASK, -9)
    gone([pid])


def test_a_task_that_waits_within_its_bounds_is_left_alone(run, heard):
    tasks = run()
    tasks.start(TASK, spec("wait", seconds="2.5", **SHORT))
    heard.metrics(name="waited")
    until = time.monotonic() + 2
    while time.monotonic() < until:
        heard.metrics(name="cpu_cores")
    tasks.stop(TASK)
    assert heard.exit() == TaskExited(TASK, 0)


def test_memory_of_all_that_a_task_has_started_counts_and_all_of_it_is_ended(run, heard):
    tasks = run(memory_mb=0)
    tasks.start(number(0), spec())
    kept = heard.metrics(number(0))["pid"]
    tasks.start(TASK._replace(task=1), spec("leak", **{"task.memory.limit.mb": "250"}))
    exited = heard.exit(number(1))
    left = next(e.metrics["left"] for e in heard.all if isinstance(e, TaskReport) and "left" in e.metrics)
    assert (exited.code, exited.error["code"]) == (-9, "worker.task_memory")
    assert exited.error["where"]["limit_mb"] == 250
    assert exited.error["where"]["peak_mb"] > 250
    gone(left)
    assert is_alive(kept)


def test_processor_time_and_memory_of_a_task_are_reported_with_its_numbers(run, heard):
    tasks = run()
    tasks.start(TASK, spec("work"))
    deadline = time.monotonic() + DEADLINE_S
    while (said := heard.metrics(name="cpu_cores"))["cpu_cores"] < 0.02:
        assert time.monotonic() < deadline
    assert said["rss_bytes"] > 10_000_000
    tasks.kill(TASK)
    heard.exit()
    gone([said["child"]])


# --- floods ----------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "what",
    ["messages", "noise", "log", *(pytest.param(what, marks=pytest.mark.long) for what in ("states", "endless"))],
)
def test_a_flood_neither_blocks_the_worker_nor_grows_it(run, heard, caplog, what):
    tasks = run()
    tasks.start(number(0), spec())
    heard.metrics(number(0))
    tasks.start(number(1), spec("flood", what=what, **{"task.hang.timeout.ms": "0"}))
    heard.state("RUNNING", number(1))
    before = read_stat(os.getpid()).rss_bytes
    heard.all.clear()
    until = time.monotonic() + 3.0
    while time.monotonic() < until:
        heard.metrics(number(0))
    flooded = [event for event in heard.all if event.task == number(1)]
    tasks.send(number(0), {"type": "pause"})
    asked = time.monotonic()
    heard.state("PAUSED", number(0))
    assert time.monotonic() - asked < 5.0
    tasks.kill(number(1))
    assert heard.exit(number(1)).code == -9
    assert read_stat(os.getpid()).rss_bytes - before < 64 << 20
    assert len(flooded) < 3_000
    told = [
        record.getMessage() for record in caplog.records if record.name == "cdcworker.worker.processes.output_reader"
    ]
    if what == "log":
        assert any("task logs too much task=shop-1 dropped_lines=" in text for text in told)
    if what in ("noise", "endless"):
        assert any("lines that are no messages task=shop-1 lines=" in text for text in told)
    assert len([record for record in caplog.records if record.name == "cdcworker.task"]) < 3_000
