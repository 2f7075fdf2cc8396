"""Task processes: one thread starts them, exchanges JSON lines with them, stops them and reaps them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cdcworker.coordinator.core.events import TaskExited
from cdcworker.coordinator.model import AssignedTask
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.threads import SupervisedThread
from cdcworker.worker.children.warm import WarmChildren
from cdcworker.worker.linux import procfs
from cdcworker.worker.linux.orphan_reaper import OrphanReaper, Subreaper
from cdcworker.worker.linux.process_group import MARK
from cdcworker.worker.logs import levels
from cdcworker.worker.processes.child import CLOSED, TaskChild
from cdcworker.worker.processes.fork_client import FORK_SERVER, ForkClient, SpawnRequest
from cdcworker.worker.processes.launcher import Post
from cdcworker.worker.processes.monitor import TaskMonitor
from cdcworker.worker.processes.output_reader import OutputReader
from cdcworker.worker.protocol.task_limits import MEMORY_MB, TaskLimits, limits_of
from cdcworker.worker.protocol.task_spec import TaskSpec

log = logging.getLogger(__name__)

SPAWN_FAILED = declare(
    "worker.spawn_failed",
    "transient",
    "A task's process could not be started",
    "It is tried again within its budget. Look at the limits of processes, memory and open files on this worker.",
)

STOP_S: Final = 9.0
"""Seconds after `stop` after which a task that still runs gets SIGTERM."""
TERMINATE_S: Final = 3.0
"""Seconds after SIGTERM after which the task and everything that it has started get SIGKILL."""
PENDING_BYTES_MAX: Final = 8_388_608
ORPHANS_S_MAX: Final = 1.0
STACKS_S: Final = 0.5
"""Seconds that a task has to write the stacks of its threads (SIGQUIT) before it is ended."""
COMMAND: Final = (sys.executable, "-m", "cdcworker.worker.task.main")
_READ_BYTES: Final = 65_536


class TaskProcesses:
    """The launcher that runs each task in a process of its own.

    One thread lives as long as the worker and starts all processes: the parent-death signal of a process follows the
    thread that started it, not the worker's process. Without a `command` the fork server starts them.
    """

    def __init__(
        self,
        command: Sequence[str] | None = None,
        *,
        stop_s: float = STOP_S,
        terminate_s: float = TERMINATE_S,
        memory_mb: int = MEMORY_MB,
        fork_server: Sequence[str] | None = None,
        questions: WarmChildren | None = None,
    ) -> None:
        """`memory_mb` limits the memory of tasks whose connector sets no limit. The fork server of `questions` is forked
        from the one of the tasks."""
        self._command = tuple(command or COMMAND)
        self._memory_mb = memory_mb
        self._stop_s = stop_s
        self._terminate_s = terminate_s
        self._post: Post = lambda _event: None
        self._children: dict[AssignedTask, TaskChild] = {}
        self._jobs: deque[Callable[[], None]] = deque()
        self._mark_prefix = uuid.uuid4().hex[:16]
        self._selector = selectors.DefaultSelector()
        self._orphans = OrphanReaper(self._selector)
        self._output_reader = OutputReader(
            self._selector,
            lambda event: self._post(event),
            lambda child, message: child.hang_detector.message_received(message),
        )
        self._monitor = TaskMonitor(self._end, self._output_reader.report)
        self._fork_client = (
            None
            if command
            else ForkClient(self._selector, self._mark_prefix, fork_server or FORK_SERVER, questions=questions)
        )
        self._wake_near, self._wake_far = socket.socketpair()
        for end in (self._wake_near, self._wake_far):
            end.setblocking(False)
        self._closing = False
        self.failure: BaseException | None = None
        self._thread = SupervisedThread(self._run, name="tasks")

    # --- called from any thread -------------------------------------------------------------------------------------

    def open(self, post: Post) -> None:
        self._post = post
        if self._fork_client is not None:
            self._fork_client.reserve_questions()
        self._selector.register(self._wake_near, selectors.EVENT_READ, self._woken)
        self._thread.start()
        levels.listen(self.broadcast)

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
        levels.unlisten(self.broadcast)
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
        Subreaper.acquire()
        try:
            self._serve()
        except BaseException as exc:
            # Without this thread nobody hears of its tasks' ends: better there are none, and the worker knows.
            log.exception("the thread of the task processes ended")
            for child in self._children.values():
                child.signal_group(signal.SIGKILL)
            self.failure = exc
        finally:
            Subreaper.release()
            self._selector.close()
            self._wake_near.close()
            self._wake_far.close()

    def _serve(self) -> None:
        if self._fork_client is not None:
            self._fork_client.open()
        while not (self._closing and not self._children):
            self._run_once(self._wait_s())
        if self._fork_client is not None:
            self._fork_client.close()
        until = time.monotonic() + ORPHANS_S_MAX
        while self._orphans.is_pending and (left := until - time.monotonic()) > 0:
            self._run_once(left)

    def _run_once(self, wait_s: float | None) -> None:
        for key, mask in self._selector.select(wait_s):
            # What came before may have closed it.
            if key.fileobj in self._selector.get_map():
                key.data(mask)
        while self._jobs:
            self._jobs.popleft()()
        now = time.monotonic()
        self._enforce_steps(now)
        self._output_reader.tick(now)
        self._monitor.tick(self._children.values(), now)
        if self._fork_client is not None:
            self._fork_client.check(now)

    def _woken(self, _mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_near.recv(_READ_BYTES)

    def _wait_s(self) -> float | None:
        deadlines = [child.steps[0][0] for child in self._children.values() if child.steps]
        if self._children:
            deadlines.append(self._monitor.deadline())
        others = (
            self._output_reader.deadline(),
            self._fork_client.deadline() if self._fork_client is not None else None,
        )
        deadlines += [at for at in others if at is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _enforce_steps(self, now: float) -> None:
        for child in self._children.values():
            if child.steps and now >= child.steps[0][0]:
                _, number = child.steps.popleft()
                log.warning("task does not stop task=%s signal=%s", child.task.id, number.name)
                child.signal_group(number)
                child.shows_stacks = child.shows_stacks or number == signal.SIGQUIT

    # --- the start ---------------------------------------------------------------------------------------------------

    def _start(self, task: AssignedTask, spec: TaskSpec) -> None:
        if self._closing or task in self._children:
            self._refuse(task, "the worker stops" if self._closing else "the task runs already")
            return
        limits = limits_of(spec, self._memory_mb)
        child = self._children[task] = TaskChild(task, self._mark_prefix, limits)
        self._send_spec(task, spec, limits)
        if self._fork_client is not None and self._fork_client.open():
            self._fork_client.spawn(
                SpawnRequest(
                    str(task.id),
                    child.mark,
                    child.open_pipes,
                    lambda pid: self._forked(child, pid),
                    lambda why: self._fork_failed(child, why),
                )
            )
        else:
            self._spawn(child)

    def _send_spec(self, task: AssignedTask, spec: TaskSpec, limits: TaskLimits) -> None:
        """Sends the first messages that a task process reads: its spec, and log levels that were changed."""
        self._send(task, replace(spec, memory_limit_mb=limits.memory_mb).to_line())
        if levels.changed():
            self._send(task, _line(levels.message(levels.changed())))

    def _forked(self, child: TaskChild, pid: int) -> None:
        stat = procfs.read_stat(pid)
        if stat is None or stat.parent != os.getpid():
            self._fork_failed(child, "the process is not ours")
            return
        self._attach(child, pid)

    def _fork_failed(self, child: TaskChild, why: str) -> None:
        log.warning("task is started without the fork server task=%s reason=%s", child.task.id, why)
        # One that was half made reads the end of its commands and goes.
        child.close_pipes()
        self._spawn(child)

    def _spawn(self, child: TaskChild) -> None:
        if child.is_killed:
            self._report_exit(child, -signal.SIGKILL)
            return
        process: subprocess.Popen[bytes] | None = None
        try:
            stdin, stdout, stderr = child.open_pipes()
            # The task's name is there for people who read a process list.
            process = subprocess.Popen(  # noqa: S603  a command of the product's own; the name of a task is one argument
                [*self._command, str(child.task.id)],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env={**os.environ, MARK: child.mark},
                start_new_session=True,
            )
        except OSError as exc:
            self._fail_start(child, exc)
            return
        # We wait for it ourselves.
        process.returncode = 0
        self._attach(child, process.pid)

    def _attach(self, child: TaskChild, pid: int) -> None:
        try:
            child.attach(pid)
        except OSError as exc:  # the descriptors ran out behind it
            child.signal_group(signal.SIGKILL)
            child.reap()
            self._fail_start(child, exc)
            return
        log.info("task started task=%s pid=%d epoch=%d", child.task.id, pid, child.task.task_epoch)
        self._output_reader.open(child)
        self._selector.register(child.pidfd, selectors.EVENT_READ, lambda _mask: self._exited(child))
        if child.is_killed:
            child.signal_group(signal.SIGKILL)
        self._write(child)

    def _fail_start(self, child: TaskChild, exc: OSError) -> None:
        child.close_pipes()
        del self._children[child.task]
        self._refuse(child.task, f"{type(exc).__name__}: {exc.strerror}")

    def _refuse(self, task: AssignedTask, why: str) -> None:
        error = CdcError(SPAWN_FAILED, why, where={"connector": task.connector, "task": task.task})
        log.error("task not started task=%s error=%s", task.id, error)
        self._post(TaskExited(task, 127, error.to_dict()))

    # --- what children are told --------------------------------------------------------------------------------------

    def _send(self, task: AssignedTask, line: bytes) -> None:
        child = self._children.get(task)
        if child is None:
            return
        if len(child.pending) > PENDING_BYTES_MAX:
            log.warning("task does not read its commands task=%s", task.id)
            return
        child.pending += line
        self._write(child)

    def _write(self, child: TaskChild) -> None:
        if not child.pid or child.stdin == CLOSED:
            return
        try:
            while child.pending:
                count = os.write(child.stdin, child.pending[:_READ_BYTES])
                del child.pending[:count]
        except BlockingIOError:
            pass
        except OSError:
            # The reader is gone; its exit is reported by the process itself.
            child.pending.clear()
        registered = child.stdin in self._selector.get_map()
        if child.pending and not registered:
            self._selector.register(child.stdin, selectors.EVENT_WRITE, lambda _mask: self._write(child))
        elif not child.pending and registered:
            self._selector.unregister(child.stdin)

    def _stop(self, task: AssignedTask) -> None:
        child = self._children.get(task)
        if child is not None and not child.stopping:
            child.stopping = True
            terminate_at = time.monotonic() + self._stop_s
            if child.hang_detector.has_heartbeat:
                child.steps.append((terminate_at, signal.SIGQUIT))
                terminate_at += min(STACKS_S, self._terminate_s / 2)
            child.steps.append((terminate_at, signal.SIGTERM))
            child.steps.append((terminate_at + self._terminate_s, signal.SIGKILL))
            self._send(task, _line({"type": "stop"}))

    def _end(self, child: TaskChild, error: CdcError, *, show: bool) -> None:
        """Kills a task with an error that its exit is reported with."""
        log.warning("task killed task=%s error=%s", child.task.id, error)
        child.error = {**error.to_dict(), "where": {"task": str(child.task.id), **error.where}}
        now = time.monotonic()
        # Asked by SIGQUIT its threads' stacks go to its log, those of a JVM too.
        child.steps = deque([(now, signal.SIGQUIT)] if show else [])
        child.steps.append((now + STACKS_S * show, signal.SIGKILL))

    def _kill(self, task: AssignedTask) -> None:
        child = self._children.get(task)
        if child is not None:
            child.is_killed = True
            child.signal_group(signal.SIGKILL)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _exited(self, child: TaskChild) -> None:
        """Ends what the task has left behind, reaps it, reads the rest of its output and reports its exit."""
        # Before reaping: the id still belongs to the group, so what the task left behind can be ended safely.
        child.signal_group(signal.SIGKILL)
        spare = {other.pid for other in self._children.values()}
        self._orphans.sweep(child.mark, child.pid, spare, child.members.items())
        code = child.reap()
        self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        self._output_reader.close(child)
        if child.stdin in self._selector.get_map():
            self._selector.unregister(child.stdin)
        log.info("task ended task=%s pid=%d code=%d", child.task.id, child.pid, code)
        self._report_exit(child, code)

    def _report_exit(self, child: TaskChild, code: int) -> None:
        child.close_pipes()
        del self._children[child.task]
        self._post(TaskExited(child.task, code, child.error))


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
