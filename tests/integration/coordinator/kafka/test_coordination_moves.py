"""Why tasks move, on a real broker: probes, announced restarts, drains, and what the journal says about them."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from cdcworker.coordinator.core.events import ProbeWorker
from cdcworker.coordinator.model import PutConnector, TaskId
from cdcworker.worker.herder.liveness_probe import LivenessProber, is_gone

from tests import herders
from tests.herders import SESSION_S, StubLauncher, accepted, eventually, placement

pytestmark = pytest.mark.kafka

TASKS = [TaskId("c", n) for n in range(4)]


@pytest.fixture
def group():
    return f"g-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def start(kafka, group):
    with herders.starting(kafka.bootstrap, group) as make:
        yield make


def lead(first, connector_tasks=4):
    eventually(lambda: first.view().is_leader, 60, what="a leader")
    request = PutConnector("c", {"tasks.max": str(connector_tasks)}, kind="source")
    accepted(first, request)
    eventually(lambda: len(placement(first.view())) == connector_tasks, what="running tasks")


def of(herder, worker):
    return {task for task, where in placement(herder.view()).items() if where == worker}


def reasons(herder, worker):
    """Why tasks left this worker, newest first."""
    return [move.why for entry in herder.view().journal for move in entry.moves if move.source == worker]


def test_the_journal_says_on_every_worker_why_tasks_are_where_they_are(start):
    first = start("w1")
    lead(first)
    second = start("w2")
    eventually(lambda: len(of(second, "w2")) == 2, what="an even split")
    assert {move.why for entry in second.view().journal for move in entry.moves} == {"new task", "balance"}
    moved = {TaskId(m.connector, m.task) for e in second.view().journal for m in e.moves if m.why == "balance"}
    assert moved == of(second, "w2")
    seqs = [entry.seq for entry in second.view().journal]
    assert seqs == list(range(len(seqs), 0, -1))


def test_an_announced_restart_keeps_the_tasks_for_the_next_process_of_the_same_name(start):
    first = start("w1")
    lead(first)
    second = start("w2")
    eventually(lambda: len(of(first, "w2")) == 2, what="an even split")
    theirs, mine = of(first, "w2"), of(first, "w1")
    assert second.drain(returns=True)
    eventually(lambda: set(first.view().workers) == {"w1"}, what="the leave")
    assert of(first, "w1") == mine
    waiting = first.view().waiting_s
    assert set(waiting) == theirs
    assert all(0 < left <= 60 for left in waiting.values())
    codes = {first.view().statuses[task].error["code"] for task in theirs}
    assert codes == {"coordinator.task_waits"}
    again = StubLauncher()
    start("w2", again)
    eventually(lambda: of(first, "w2") == theirs, what="the same tasks on the same worker")
    assert set(again.starts()) == theirs
    assert of(first, "w1") == mine
    assert not first.view().state.deadlines
    assert "worker returned" in reasons(first, "w2")


def test_a_drained_worker_hands_over_within_a_moment_and_nothing_else_moves(start):
    launcher = StubLauncher()
    first = start("w1", launcher)
    lead(first)
    second = start("w2")
    eventually(lambda: len(of(first, "w2")) == 2, what="an even split")
    before = list(launcher.history)
    began = time.monotonic()
    assert second.drain()
    eventually(lambda: len(of(first, "w1")) == 4, what="all tasks here")
    assert time.monotonic() - began < SESSION_S, "as one that is lost"
    assert {what for what, _ in launcher.history[len(before) :]} == {"start"}
    assert reasons(first, "w2")[:2] == ["drain", "drain"]
    assert not first.view().state.fenced


class Listening:
    """A herder in another process, and the address at which this test answers for it."""

    def __init__(self, bootstrap: str, group: str) -> None:
        program = Path(herders.__file__)
        self.process = subprocess.Popen(
            [sys.executable, str(program), bootstrap, group, "w2"], stdin=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        self.process.kill()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


@pytest.fixture
def outside(kafka, group):
    """Starts it when asked: a herder that joins before the test's own may become the leader."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(contextlib.closing(Listening(kafka.bootstrap, group)))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def answer_for(herder, url):
    """The leader looks at this address when it probes anybody."""
    probe = herder._prober.probe
    herder._prober.probe = lambda command: probe(replace(command, url=url))


def test_a_killed_worker_whose_address_refuses_is_replaced_long_before_its_lease_lapses(start, outside):
    first = start("w1")
    lead(first)
    other = outside()
    eventually(lambda: len(of(first, "w2")) == 2, 30, what="an even split")
    answer_for(first, f"http://127.0.0.1:{free_port()}")
    other.process.send_signal(signal.SIGKILL)
    eventually(lambda: len(of(first, "w1")) == 4, what="all tasks here")
    assert reasons(first, "w2")[:2] == ["worker probed gone"] * 2, "no lease had lapsed"


def test_a_frozen_worker_whose_address_is_silent_keeps_its_tasks_until_its_lease_lapses(start, outside):
    first = start("w1")
    lead(first)
    other = outside()
    eventually(lambda: len(of(first, "w2")) == 2, 30, what="an even split")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        answer_for(first, f"http://127.0.0.1:{silent.getsockname()[1]}")
        other.process.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        eventually(lambda: len(of(first, "w1")) == 4, SESSION_S + 4, "all tasks here")
        assert time.monotonic() - stopped > 0.8 * SESSION_S
    assert reasons(first, "w2")[:2] == ["lease lapsed"] * 2


# --- the probe itself -----------------------------------------------------------------------------------------------


def serve(answer: bytes) -> socket.socket:
    """Answers every connection with these bytes."""
    server = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(answer)

    threading.Thread(target=run, daemon=True).start()
    return server


def http(body: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    ("answer", "gone"),
    [
        (http('{"worker":"w","boot":"b1"}'), False),
        (http('{"worker":"w","boot":"b2"}'), True),
        (http("{}"), False),
        (http("not json"), False),
        (b"nonsense", False),
    ],
)
def test_whoever_answers_there_is_asked_which_process_it_is(answer, gone):
    with contextlib.closing(serve(answer)) as server:
        assert is_gone(f"http://127.0.0.1:{server.getsockname()[1]}", "b1") is gone


@pytest.mark.parametrize(("url", "gone"), [("http://no.such.host.invalid:1", False), ("", False), ("https://x", False)])
def test_what_cannot_be_asked_proves_nothing(url, gone):
    assert is_gone(url, "b1") is gone


def test_a_refusal_counts_when_it_comes_twice():
    assert is_gone(f"http://127.0.0.1:{free_port()}", "b1")


def test_probes_are_bounded_and_all_answered():
    answers, lock = [], threading.Lock()

    def post(event):
        with lock:
            answers.append(event)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        prober = LivenessProber(post)
        for n in range(30):
            prober.probe(ProbeWorker(f"w{n}", "b", f"http://127.0.0.1:{silent.getsockname()[1]}"))
        eventually(lambda: len(answers) == 30, what="all answers")
    assert {answer.verdict for answer in answers} == {"unknown"}
