"""One task process as its worker sees it: its pipes, the signals that end it, and its exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections import deque
from typing import Final

from cdcworker.coordinator.model import AssignedTask, JsonObject
from cdcworker.worker.protocol.heartbeat import HangDetector
from cdcworker.worker.protocol.messages import LOG_LINE_BYTES_MAX, LineSplitter
from cdcworker.worker.protocol.task_limits import TaskLimits

CLOSED: Final = -1
REAPED_ELSEWHERE_CODE: Final = 255
"""The exit code of a process that another part of the worker has reaped."""


class TaskChild:
    """One run of a task, from the request to start it until its exit is reported. `pid` is 0 until the process exists."""

    def __init__(self, task: AssignedTask, mark_prefix: str, limits: TaskLimits) -> None:
        self.task = task
        self.limits = limits
        self.hang_detector = HangDetector(limits.hang_s, limits.start_s)
        self.members: dict[int, int] = {}
        """The start times of the processes that belonged to the task when they were last sampled, by their ids."""
        self.peak_bytes = 0
        self.mark = mark_prefix + uuid.uuid4().hex[:16]
        """The value of CDC_TASK_MARK in the environment of the process and of everything that it starts."""
        self.pid = 0
        self.pidfd = CLOSED
        self.stdin = self.stdout = self.stderr = CLOSED
        self.child_ends: list[int] = []
        """The process's ends of the pipes, open in this process until the task process has them."""
        self.out, self.err = LineSplitter(), LineSplitter(LOG_LINE_BYTES_MAX)
        self.pending = bytearray()
        self.steps: deque[tuple[float, signal.Signals]] = deque()
        """Signals for a process that has to end, each with its time."""
        self.stopping = False
        self.shows_stacks = False
        """True if the process was asked for the stacks of its threads: its log then counts at any level."""
        self.is_killed = False
        """True if the task was killed before its process existed."""
        self.error: JsonObject | None = None
        """The error for which the worker killed the process; None for every other end."""

    def open_pipes(self) -> list[int]:
        """Opens new pipes and returns the process's ends. Pipes that were opened before and not used are closed."""
        self.close_pipes()
        try:
            child_in, self.stdin = self._pipe()
            self.stdout, child_out = self._pipe(child_in)
            self.stderr, child_err = self._pipe(child_in, child_out)
        except OSError:
            self.close_pipes()
            raise
        for end in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(end, False)
        self.child_ends = [child_in, child_out, child_err]
        return self.child_ends

    def _pipe(self, *opened: int) -> tuple[int, int]:
        self.child_ends = list(opened)
        return os.pipe()

    def close_child_ends(self) -> None:
        for end in self.child_ends:
            os.close(end)
        self.child_ends = []

    def close_pipes(self) -> None:
        self.close_child_ends()
        for end in (self.stdin, self.stdout, self.stderr):
            if end != CLOSED:
                os.close(end)
        self.stdin = self.stdout = self.stderr = CLOSED

    def attach(self, pid: int) -> None:
        """Takes over the process that was started. OSError when no descriptor is left for its pidfd."""
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.close_child_ends()

    def signal_group(self, number: int) -> None:
        # The child leads its own session. Until it is reaped its id cannot go to anybody else.
        """Sends a signal to the process and to everything in its process group."""
        if not self.pid:
            return
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            # A process that is only just there does not lead its group yet.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)
        except PermissionError:
            pass

    def reap(self) -> int:
        """Waits for the process and returns its exit code, the negative number of the signal if one ended it."""
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            return REAPED_ELSEWHERE_CODE
        return os.waitstatus_to_exitcode(status)
