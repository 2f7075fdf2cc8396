import errno
import json
import logging
import os
import queue
import sys
import time
from dataclasses import replace

import pytest
from cdcworker.coordinator.core.events import TaskExited, TaskReport, TaskTopics
from cdcworker.coordinator.model import AssignedTask
from cdcworker.worker.linux.process_group import is_subreaper
from cdcworker.worker.processes import fork_client
from cdcworker.worker.processes.task_processes import TaskProcesses
from cdcworker.worker.protocol.messages import LineSplitter, event_of, lease_message, level_of, message_of
from cdcworker.worker.protocol.task_spec import ClusterTopics, TaskSpec

TASK = AssignedTask("shop", "i1", 0, 7)

OBEDIENT = """
import json, sys
def say(**message): print(json.dumps(message), flush=True)
spec = json.loads(sys.stdin.readline())
say(type="status", state="PAUSED" if spec["paused"] else "RUNNING", error=None)
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "pause": say(type="status", state="PAUSED")
    if message["type"] == "lease": say(type="metrics", valid_s=message["valid_s"], size=len(spec["config"].get("big", "")))
    if message["type"] == "stop": say(type="status", state="STOPPED"); sys.exit(0)
"""
DEAF = """
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child == 0:
    time.sleep(600)
print(json.dumps({"type": "topics", "topics": [str(child)]}), flush=True)
print(json.dumps({"type": "status", "state": "RUNNING"}), flush=True)
time.sleep(600)
"""
LEAVING = """
import json, os, time
child = os.fork()
if child == 0:
    time.sleep(600)
print(json.dumps({"type": "topics", "topics": [str(child)]}), flush=True)
"""
POLITE = """
import json, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
print(json.dumps({"type": "status", "state": "RUNNING"}), flush=True)
time.sleep(600)
"""
FAILING = """
import json, sys
print("WARNING about to fail", file=sys.stderr)
print("no message at all")
print(json.dumps({"type": "status", "state": "FAILED", "error": {"code": "x.y", "kind": "data"}}), end="")
sys.exit(1)
"""


def spec(**changes) -> TaskSpec:
    given = {
        "kind": "source",
        "connector": "shop",
        "task": 0,
        "incarnation": "i1",
        "task_epoch": 7,
        "attempt": 0,
        "worker_id": "w1",
        "boot_id": "b1",
        "paused": False,
        "config": {},
        "kafka": {"bootstrap.servers": "x:1"},
        "group_id": "g",
        "topics": ClusterTopics("c", "o", "s", "r"),
        "offsets_partitions": 3,
        "session_timeout_s": 6.0,
        "state_dir": "",
    }
    return TaskSpec(**{**given, **changes})


class Heard:
    """The events of a launcher, without what it measures of a process about once a second: how often it does depends on
    the machine."""

    MEASURED = ("cpu_cores", "rss_bytes")

    def __init__(self) -> None:
        self.events: queue.Queue = queue.Queue()

    def put(self, event) -> None:
        if isinstance(event, TaskReport) and event.state is None:
            event = replace(event, metrics={k: v for k, v in event.metrics.items() if k not in self.MEASURED})
            if not event.metrics:
                return
        self.events.put(event)

    def next(self, kind=object, timeout_s=20.0):
        """The next event of a kind; others before it are dropped."""
        while not isinstance(event := self.events.get(timeout=timeout_s), kind):
            pass
        return event


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def run(heard):
    made = []

    def make(program: str, **times) -> TaskProcesses:
        tasks = TaskProcesses((sys.executable, "-I", "-c", program), **times)
        tasks.open(heard.put)
        made.append(tasks)
        return tasks

    yield make
    for tasks in made:
        tasks.close(0.1)


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# --- lines ----------------------------------------------------------------------------------------------------------


def test_lines_are_cut_wherever_the_pipe_cuts():
    lines = LineSplitter()
    assert lines.feed(b"ab") == []
    assert lines.feed(b"c\nd") == [b"abc"]
    assert lines.feed(b"\n\n") == [b"d", b""]
    assert lines.feed(b"rest") == []
    assert lines.close() == [b"rest"]
    assert lines.close() == []


def test_a_line_without_an_end_does_not_fill_the_worker():
    lines = LineSplitter(bytes_max=10)
    assert lines.feed(b"x" * 11) == [b"x" * 11]
    assert lines.close() == []


@pytest.mark.parametrize(
    ("message", "event"),
    [
        ({"type": "status", "state": "RUNNING", "error": None}, TaskReport(TASK, "RUNNING")),
        ({"type": "status", "state": "FAILED", "error": {"code": "a"}}, TaskReport(TASK, "FAILED", {"code": "a"})),
        ({"type": "metrics", "records": 3}, TaskReport(TASK, metrics={"records": 3})),
        ({"type": "topics", "topics": ["a", "b"]}, TaskTopics(TASK, ("a", "b"))),
        ({"type": "status", "state": "DANCING"}, None),
        ({"type": "later"}, None),
        ([], None),
        (1, None),
    ],
)
def test_messages_become_events(message, event):
    read = message_of(json.dumps(message).encode())
    assert (read and event_of(TASK, read)) == event


def test_noise_is_no_event():
    assert message_of(b"hello") is None
    assert message_of(b"\xff\xfe") is None
    assert message_of(b"[" * 100_000) is None


def test_the_level_of_a_log_line_is_kept():
    assert level_of("2026-01-01 ERROR broken") == logging.ERROR
    assert level_of("level=warning x") == logging.WARNING
    assert level_of("all is well") is None


def test_a_lapsed_lease_is_valid_for_no_time():
    before = time.monotonic()
    message = lease_message(-3.0)
    assert message["valid_s"] == 0.0
    assert before <= message["until"] <= time.monotonic()


# --- processes ------------------------------------------------------------------------------------------------------


def test_a_task_gets_its_spec_and_obeys(run, heard):
    tasks = run(OBEDIENT)
    tasks.start(TASK, spec())
    assert heard.next() == TaskReport(TASK, "RUNNING")
    tasks.send(TASK, {"type": "pause"})
    assert heard.next() == TaskReport(TASK, "PAUSED")
    tasks.broadcast(lease_message(1.5))
    assert heard.next() == TaskReport(TASK, metrics={"valid_s": 1.5, "size": 0})
    tasks.stop(TASK)
    assert heard.next() == TaskReport(TASK, "STOPPED")
    assert heard.next() == TaskExited(TASK, 0)


def test_a_spec_larger_than_the_pipe_arrives(run, heard):
    tasks = run(OBEDIENT)
    tasks.start(TASK, spec(config={"big": "x" * 1_000_000}))
    tasks.broadcast(lease_message(1))
    assert heard.next(TaskReport) == TaskReport(TASK, "RUNNING")
    assert heard.next(TaskReport).metrics["size"] == 1_000_000


def test_the_last_words_of_a_failing_task_are_heard_before_its_end(run, heard, caplog):
    with caplog.at_level(logging.INFO):
        run(FAILING).start(TASK, spec())
        assert heard.next() == TaskReport(TASK, "FAILED", {"code": "x.y", "kind": "data"})
        assert heard.next() == TaskExited(TASK, 1)
    said = next(record for record in caplog.records if record.name == "cdcworker.task")
    assert (said.levelname, said.connector, said.task) == ("WARNING", "shop", 0)
    assert "[shop-0] WARNING about to fail" in said.getMessage()


def test_a_task_that_does_not_stop_is_asked_by_a_signal(run, heard):
    tasks = run(POLITE, stop_s=0.1)
    tasks.start(TASK, spec())
    heard.next(TaskReport)
    tasks.stop(TASK)
    assert heard.next(TaskExited) == TaskExited(TASK, 5)


def test_a_task_that_ignores_everything_is_killed_with_all_it_started(run, heard):
    tasks = run(DEAF, stop_s=0.1, terminate_s=0.1)
    tasks.start(TASK, spec())
    grandchild = int(heard.next(TaskTopics).topics[0])
    assert is_alive(grandchild)
    tasks.stop(TASK)
    assert heard.next(TaskExited) == TaskExited(TASK, -9)
    deadline = time.monotonic() + 10
    while is_alive(grandchild):
        assert time.monotonic() < deadline


def test_what_a_task_leaves_behind_is_ended_with_it(run, heard):
    run(LEAVING).start(TASK, spec())
    grandchild = int(heard.next(TaskTopics).topics[0])
    assert heard.next(TaskExited) == TaskExited(TASK, 0)
    deadline = time.monotonic() + 10
    while is_alive(grandchild):
        assert time.monotonic() < deadline


def test_kill_does_not_ask(run, heard):
    tasks = run(DEAF)
    tasks.start(TASK, spec())
    heard.next(TaskReport)
    tasks.kill(TASK)
    assert heard.next(TaskExited) == TaskExited(TASK, -9)


def test_a_program_that_cannot_be_started_has_exited(heard):
    tasks = TaskProcesses(("/nonexistent/program",))
    tasks.open(heard.put)
    tasks.start(TASK, spec())
    exited = heard.next()
    assert (exited.task, exited.error["code"]) == (TASK, "worker.spawn_failed")
    tasks.close(1)


def test_a_task_for_which_there_are_no_descriptors_has_exited_and_the_others_go_on(run, heard, monkeypatch):
    def refuse(_pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as without:
        without.setattr(os, "pidfd_open", refuse)
        processes = run(OBEDIENT)
        processes.start(TASK, spec())
        exited = heard.next(TaskExited)
    assert (exited.code, exited.error["code"]) == (127, "worker.spawn_failed")
    assert exited.error["kind"] == "transient", "it is tried again: what is missing may be there in a moment"
    processes.start(TASK, spec())
    assert heard.next(TaskReport).state == "RUNNING"


def test_without_descriptors_for_a_fork_server_a_task_has_exited_and_the_next_one_starts(heard, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    tasks = TaskProcesses(fork_server=("/nonexistent/fork-server",))
    tasks._command = (sys.executable, "-I", "-c", OBEDIENT)
    with monkeypatch.context() as without:
        without.setattr(fork_client.socket, "socketpair", refuse)
        without.setattr(os, "pipe", refuse)
        tasks.open(heard.put)
        tasks.start(TASK, spec())
        assert heard.next(TaskExited).error["code"] == "worker.spawn_failed"
    tasks.start(TASK, spec())
    assert heard.next(TaskReport).state == "RUNNING"
    tasks.close(5)
    assert tasks.failure is None


def test_a_thread_that_ends_by_an_error_ends_its_tasks_and_says_so(run, heard, caplog):
    tasks = run(DEAF)
    tasks.start(TASK, spec())
    grandchild = int(heard.next(TaskTopics).topics[0])
    tasks._do(lambda: [][0])
    tasks._thread.join(20)
    assert isinstance(tasks.failure, IndexError)
    assert not is_subreaper()
    deadline = time.monotonic() + 20
    while is_alive(grandchild):
        assert time.monotonic() < deadline
    for child in tasks._children.values():
        child.reap()
        os.close(child.pidfd)
        child.close_pipes()


def test_a_task_leads_a_group_of_its_own(run, heard):
    program = "import json, os; print(json.dumps({'type': 'topics', 'topics': [os.getpid() == os.getpgid(0)]}))"
    run(program).start(TASK, spec())
    assert heard.next(TaskTopics).topics == ("True",)


def test_no_secret_of_the_spec_is_in_the_arguments_or_the_environment(run, heard):
    program = """
import json, sys
spec = json.loads(sys.stdin.readline())
seen = open("/proc/self/cmdline").read() + open("/proc/self/environ").read()
print(json.dumps({"type": "topics", "topics": [spec["config"]["password"] in seen]}))
"""
    word = "hunter" + str(os.getpid())
    run(program).start(TASK, spec(config={"password": word}))
    assert heard.next(TaskTopics).topics == ("False",)


def test_closing_stops_the_willing_and_kills_the_rest(run, heard):
    tasks = run(DEAF)
    tasks.start(TASK, spec())
    heard.next(TaskReport)
    tasks.close(0.2)
    assert heard.next(TaskExited) == TaskExited(TASK, -9)
    tasks.stop(TASK)
    tasks.close(1)


def test_a_task_that_never_reads_does_not_block_the_others(run, heard):
    tasks = run('import time; print(\'{"type": "status", "state": "RUNNING"}\', flush=True); time.sleep(600)')
    other = AssignedTask("shop", "i1", 1, 8)
    tasks.start(TASK, spec())
    heard.next(TaskReport)
    for _ in range(100):
        tasks.send(TASK, {"type": "lease", "valid_s": 1.0, "padding": "x" * 10_000})
    tasks.start(other, spec(task=1))
    assert heard.next(TaskReport).task == other
    tasks.kill(TASK)
    tasks.kill(other)
    assert {heard.next(TaskExited).task, heard.next(TaskExited).task} == {TASK, other}
