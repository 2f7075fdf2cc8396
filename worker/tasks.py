"""Task processes: one thread starts them, carries their JSON lines both ways, stops them and reaps them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Protocol

from cdcworker.coordinator.events import Event, TaskExited, TaskReport, TaskTopics
from cdcworker.coordinator.model import AssignedTask, JsonObject
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.taskspec import TaskSpec

log = logging.getLogger(__name__)
task_log = logging.getLogger("cdcworker.task")

SPAWN_FAILED = declare(
    "worker.spawn_failed",
    "environment",
    "A task's process could not be started",
    "Look at the limits of processes, memory and open files on this worker.",
)

STOP_S = 10.0
"""A task that has not ended so long after `stop` gets SIGTERM."""
TERMINATE_S = 3.0
"""And after so much longer SIGKILL, together with everything it started."""
LINE_BYTES_MAX = 4_194_304
PENDING_BYTES_MAX = 8_388_608
_READ_BYTES = 65_536
_LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b", re.IGNORECASE)
_STATES = frozenset({"RUNNING", "PAUSED", "FAILED", "STOPPED", "RESTARTING"})

Post = Callable[[Event], None]


class Launcher(Protocol):
    """What the herder needs of whoever runs tasks. No call blocks or raises; answers come as events.

    `TaskExited` is posted exactly once for every `start`.
    """

    def open(self, post: Post) -> None: ...

    def start(self, task: AssignedTask, spec: TaskSpec) -> None: ...

    def send(self, task: AssignedTask, message: Mapping[str, Any]) -> None: ...

    def broadcast(self, message: Mapping[str, Any]) -> None: ...

    def stop(self, task: AssignedTask) -> None: ...

    def kill(self, task: AssignedTask) -> None: ...

    def close(self, timeout_s: float) -> None:
        """Stop all tasks, kill what is left after the time-out, and end."""


class Lines:
    """Splits a byte stream into lines; a line that never ends is cut, so that a task cannot fill the worker."""

    def __init__(self, bytes_max: int = LINE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > self._bytes_max:
            lines.append(self._rest)
            self._rest = b""
        return lines

    def close(self) -> list[bytes]:
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


def event_of(task: AssignedTask, line: bytes) -> TaskReport | TaskTopics | None:
    """The event that a line of a task means; None for one that is not understood."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    if not isinstance(message, dict):
        return None
    kind = message.pop("type", None)
    if kind == "status" and message.get("state") in _STATES:
        return TaskReport(task, message["state"], message.get("error"))
    if kind == "metrics":
        return TaskReport(task, metrics=message)
    if kind == "topics" and isinstance(message.get("topics"), list):
        return TaskTopics(task, tuple(str(name) for name in message["topics"]))
    return None


def level_of(line: str) -> int:
    """The level that a task's log line names near its start."""
    found = _LEVEL.search(line[:80])
    return logging.getLevelNamesMapping()[found.group(1).upper()] if found else logging.INFO


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
    pipes = (process.stdin, process.stdout, process.stderr)
    for pipe in pipes:
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
    return pipes  # type: ignore[return-value]


class _Child:
    """A running task process and its pipes."""

    def __init__(self, task: AssignedTask, process: subprocess.Popen[bytes]) -> None:
        self.task = task
        self.process = process
        self.stdin, self.stdout, self.stderr = _pipes(process)
        self.pidfd = os.pidfd_open(process.pid)
        self.out, self.err = Lines(), Lines()
        self.pending = bytearray()
        self.stop_at: float | None = None
        self.terminated = False

    def signal_group(self, number: int) -> None:
        # The child leads its own session. Until it is reaped its id cannot go to anybody else.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


class TaskProcesses:
    """The Launcher of real processes.

    One thread lives as long as the worker and starts all children: a child's parent-death signal follows the thread
    that started it, not the process.
    """

    def __init__(
        self,
        command: Sequence[str] = (sys.executable, "-m", "cdcworker.worker.task_main"),
        *,
        stop_s: float = STOP_S,
        terminate_s: float = TERMINATE_S,
    ) -> None:
        self._command = tuple(command)
        self._stop_s = stop_s
        self._terminate_s = terminate_s
        self._post: Post = lambda _event: None
        self._children: dict[AssignedTask, _Child] = {}
        self._jobs: deque[Callable[[], None]] = deque()
        self._selector = selectors.DefaultSelector()
        self._wake_near, self._wake_far = socket.socketpair()
        for end in (self._wake_near, self._wake_far):
            end.setblocking(False)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="tasks", daemon=True)

    # --- called from any thread -------------------------------------------------------------------------------------

    def open(self, post: Post) -> None:
        self._post = post
        self._selector.register(self._wake_near, selectors.EVENT_READ, self._woken)
        self._thread.start()

    def start(self, task: AssignedTask, spec: TaskSpec) -> None:
        self._do(lambda: self._start(task, spec))

    def send(self, task: AssignedTask, message: Mapping[str, Any]) -> None:
        line = _line(message)
        self._do(lambda: self._send(task, line))

    def broadcast(self, message: Mapping[str, Any]) -> None:
        line = _line(message)

        def send_all() -> None:
            for task in self._children:
                self._send(task, line)

        self._do(send_all)

    def stop(self, task: AssignedTask) -> None:
        self._do(lambda: self._stop(task))

    def kill(self, task: AssignedTask) -> None:
        self._do(lambda: self._kill(task))

    def close(self, timeout_s: float) -> None:
        if not self._thread.is_alive():
            return

        def begin() -> None:
            self._closing = True
            for task in list(self._children):
                self._stop(task)

        def kill_all() -> None:
            for task in list(self._children):
                self._kill(task)

        self._do(begin)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._do(kill_all)
            self._thread.join(5.0)

    def _do(self, job: Callable[[], None]) -> None:
        self._jobs.append(job)
        self._wake()

    def _wake(self) -> None:
        # Full means that the thread will wake anyway, closed that it has ended.
        with contextlib.suppress(OSError):
            self._wake_far.send(b"w")

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not (self._closing and not self._children):
            for key, mask in self._selector.select(self._next_deadline_s()):
                key.data(mask)
            while self._jobs:
                self._jobs.popleft()()
            self._enforce_deadlines()
        self._selector.close()
        self._wake_near.close()
        self._wake_far.close()

    def _woken(self, _mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_near.recv(_READ_BYTES)

    def _next_deadline_s(self) -> float | None:
        deadlines = [child.stop_at for child in self._children.values() if child.stop_at is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _enforce_deadlines(self) -> None:
        now = time.monotonic()
        for child in self._children.values():
            if child.stop_at is None or now < child.stop_at:
                continue
            number = signal.SIGKILL if child.terminated else signal.SIGTERM
            log.warning("task does not stop task=%s signal=%s", child.task.id, number.name)
            child.signal_group(number)
            child.stop_at = None if child.terminated else now + self._terminate_s
            child.terminated = True

    def _start(self, task: AssignedTask, spec: TaskSpec) -> None:
        if self._closing or task in self._children:
            self._refuse(task, "the worker stops" if self._closing else "the task runs already")
            return
        process: subprocess.Popen[bytes] | None = None
        try:
            # The task's name is there for people who read a process list.
            process = subprocess.Popen(
                [*self._command, str(task.id)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
            child = self._children[task] = _Child(task, process)
        except OSError as exc:
            if process is not None:  # the descriptors ran out behind it
                with process:
                    process.kill()
            self._refuse(task, f"{type(exc).__name__}: {exc.strerror}")
            return
        log.info("task started task=%s pid=%d epoch=%d attempt=%d", task.id, process.pid, task.task_epoch, spec.attempt)
        register = self._selector.register
        register(child.stdout, selectors.EVENT_READ, lambda _mask: self._read_messages(child))
        register(child.stderr, selectors.EVENT_READ, lambda _mask: self._read_log(child))
        register(child.pidfd, selectors.EVENT_READ, lambda _mask: self._exited(child))
        self._send(task, spec.to_line())

    def _refuse(self, task: AssignedTask, why: str) -> None:
        error = CdcError(SPAWN_FAILED, why, where={"connector": task.connector, "task": task.task})
        log.error("task not started task=%s error=%s", task.id, error)
        self._post(TaskExited(task, 127, error.to_dict()))

    def _send(self, task: AssignedTask, line: bytes) -> None:
        child = self._children.get(task)
        if child is None:
            return
        if len(child.pending) > PENDING_BYTES_MAX:
            log.warning("task does not read its commands task=%s", task.id)
            return
        child.pending += line
        self._write(child)

    def _write(self, child: _Child) -> None:
        stdin = child.stdin
        if stdin.closed:
            return
        try:
            while child.pending:
                count = os.write(stdin.fileno(), child.pending[:_READ_BYTES])
                del child.pending[:count]
        except BlockingIOError:
            pass
        except OSError:
            # The reader is gone; its exit is reported by the process itself.
            child.pending.clear()
        registered = stdin in self._selector.get_map()
        if child.pending and not registered:
            self._selector.register(stdin, selectors.EVENT_WRITE, lambda _mask: self._write(child))
        elif not child.pending and registered:
            self._selector.unregister(stdin)

    def _stop(self, task: AssignedTask) -> None:
        child = self._children.get(task)
        if child is not None and child.stop_at is None and not child.terminated:
            child.stop_at = time.monotonic() + self._stop_s
            self._send(task, _line({"type": "stop"}))

    def _kill(self, task: AssignedTask) -> None:
        child = self._children.get(task)
        if child is not None:
            child.signal_group(signal.SIGKILL)

    # --- what children say ------------------------------------------------------------------------------------------

    def _read(self, stream: IO[bytes]) -> bytes | None:
        """What is there; None at the end, and the stream is no longer watched."""
        if stream.closed:
            return None
        try:
            data = os.read(stream.fileno(), _READ_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            self._selector.unregister(stream)
            return None
        return data

    def _read_messages(self, child: _Child) -> bool:
        data = self._read(child.stdout)
        for line in child.out.close() if data is None else child.out.feed(data):
            self._take_message(child, line)
        return bool(data)

    def _take_message(self, child: _Child, line: bytes) -> None:
        event = event_of(child.task, line)
        if event is not None:
            self._post(event)
        elif line.strip():
            log.warning("task said something else than a message task=%s bytes=%d", child.task.id, len(line))

    def _read_log(self, child: _Child) -> bool:
        data = self._read(child.stderr)
        for line in child.err.close() if data is None else child.err.feed(data):
            text = line.decode(errors="replace").rstrip()
            if text:
                names = {"connector": child.task.connector, "task": child.task.task}
                task_log.log(level_of(text), "[%s] %s", child.task.id, text, extra=names)
        return bool(data)

    def _exited(self, child: _Child) -> None:
        """Reap it, take its last words, report."""
        # Before reaping: the id still belongs to the group, so what the task left behind can be ended safely.
        child.signal_group(signal.SIGKILL)
        code = child.process.wait()
        watched = self._selector.get_map()
        self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        # What the task said last counts, its error above all.
        for stream, read in ((child.stdout, self._read_messages), (child.stderr, self._read_log)):
            while stream in watched and read(child):
                pass
        for line in child.out.close():
            self._take_message(child, line)
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe in watched:
                self._selector.unregister(pipe)
            pipe.close()
        del self._children[child.task]
        log.info("task ended task=%s pid=%d code=%d", child.task.id, child.process.pid, code)
        self._post(TaskExited(child.task, code))


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def lease_message(valid_s: float) -> JsonObject:
    """How long the task may go on producing without hearing from us again."""
    return {"type": "lease", "valid_s": round(max(0.0, valid_s), 3)}
