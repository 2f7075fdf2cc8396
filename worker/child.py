"""One task's process as its worker sees it: its three pipes, its way to an end, what it left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections import deque
from typing import Final

from cdcworker.coordinator.model import AssignedTask, JsonObject
from cdcworker.worker.limits import TaskLimits
from cdcworker.worker.pipes import LOG_LINE_BYTES_MAX, Lines
from cdcworker.worker.progress import Pulse

CLOSED: Final = -1
LOST_CODE: Final = 255
"""Exit code of a process that somebody else reaped."""


class Child:
    """A task between its start and the report of its end. The process may not be there yet: `pid` is 0 then."""

    def __init__(self, task: AssignedTask, family: str, limits: TaskLimits) -> None:
        self.task = task
        self.limits = limits
        self.pulse = Pulse(limits.hang_s, limits.start_s)
        self.members: dict[int, int] = {}
        """Processes that belonged to it when it was last looked at, and their starts."""
        self.peak_bytes = 0
        self.mark = family + uuid.uuid4().hex[:16]
        """Carried by the process and everything that comes from it."""
        self.pid = 0
        self.pidfd = CLOSED
        self.stdin = self.stdout = self.stderr = CLOSED
        self.far: list[int] = []
        """The process's ends of the pipes, until it has them."""
        self.out, self.err = Lines(), Lines(LOG_LINE_BYTES_MAX)
        self.pending = bytearray()
        self.steps: deque[tuple[float, signal.Signals]] = deque()
        """Signals and their times, for a process that is to end."""
        self.stopping = False
        self.showing = False
        """It was asked for its stacks: what it says to its log now is worth reading at any level."""
        self.unwanted = False
        """Killed before it was there."""
        self.error: JsonObject | None = None
        """Why it was killed, when its worker had a reason of its own."""

    def open_pipes(self) -> list[int]:
        """New pipes; returns the process's ends. What was opened before and not used is closed."""
        self.close_pipes()
        try:
            far_in, self.stdin = self._pipe()
            self.stdout, far_out = self._pipe(far_in)
            self.stderr, far_err = self._pipe(far_in, far_out)
        except OSError:
            self.close_pipes()
            raise
        for end in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(end, False)
        self.far = [far_in, far_out, far_err]
        return self.far

    def _pipe(self, *opened: int) -> tuple[int, int]:
        self.far = list(opened)
        return os.pipe()

    def close_far(self) -> None:
        for end in self.far:
            os.close(end)
        self.far = []

    def close_pipes(self) -> None:
        self.close_far()
        for end in (self.stdin, self.stdout, self.stderr):
            if end != CLOSED:
                os.close(end)
        self.stdin = self.stdout = self.stderr = CLOSED

    def adopt(self, pid: int) -> None:
        """Take the process that was made; raises OSError when there is no descriptor for it."""
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.close_far()

    def signal_group(self, number: int) -> None:
        # The child leads its own session. Until it is reaped its id cannot go to anybody else.
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
        """Its exit code, a negative signal number if one ended it."""
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            return LOST_CODE
        return os.waitstatus_to_exitcode(status)
