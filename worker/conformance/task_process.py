"""One process of a task, spoken to as its worker would."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from cdcworker.schemas.threads import SupervisedThread
from cdcworker.worker.protocol.task_spec import TaskSpec

DEADLINE_S: Final = 120.0
TASK: Final = (sys.executable, "-m", "cdcworker.worker.task.main")
LEASE_SHARE: Final = 0.6


class NotInTime(Exception):
    """A condition that did not become true within its deadline, with the end of the process's log."""


class TaskProcess:
    """Starts at once. `messages` are what the process tells its worker, `log` what it writes to standard error."""

    def __init__(
        self,
        spec: TaskSpec,
        failpoints: str = "",
        *,
        command: Sequence[str] = TASK,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.process = subprocess.Popen(  # noqa: S603  a command of the product's own
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(variables or {}), "CDC_FAILPOINTS": failpoints},
            start_new_session=True,
        )
        self.messages: list[dict[str, Any]] = []
        self.log = b""
        self._readers = [
            SupervisedThread(self._read, name="task-messages"),
            SupervisedThread(self._read_log, name="task-log"),
        ]
        for reader in self._readers:
            reader.start()
        assert self.process.stdin is not None
        self.process.stdin.write(spec.to_line())
        self.say(type="lease", valid_s=LEASE_SHARE * spec.session_timeout_s, takes_turns=True)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.messages.append(json.loads(line))

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line

    def say(self, **message: Any) -> None:
        """Sends a command. A process that has just ended does not hear it."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def states(self) -> list[str]:
        """Returns the states that the task has reported."""
        return [message["state"] for message in self.messages if message["type"] == "status"]

    def error(self) -> Mapping[str, Any]:
        """Returns the error of the last state; empty where there is none."""
        found = [message.get("error") for message in self.messages if message["type"] == "status"]
        return (found[-1] if found else None) or {}

    def number(self, name: str) -> Any:
        """Returns what the task has reported last under this name; None where it never did."""
        found = [m[name] for m in self.messages if m["type"] == "metrics" and name in m]
        return found[-1] if found else None

    def wait_for(self, condition: Callable[[], Any], what: str, timeout_s: float = DEADLINE_S) -> None:
        """Raises NotInTime, also when the process ends before."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            ended = self.process.poll() is not None
            if ended and condition():
                return
            if ended or time.monotonic() > deadline:
                end = "the process has ended" if ended else "not in time"
                raise NotInTime(f"{end}: {what}\n{self.log.decode(errors='replace')[-4_000:]}")
            select.select([], [], [], 0.01)

    def stop(self, timeout_s: float = DEADLINE_S) -> int:
        """Tells the task to stop, and returns the exit code. Raises NotInTime."""
        self.say(type="stop")
        return self.join(timeout_s)

    def join(self, timeout_s: float = DEADLINE_S) -> int:
        """Returns the exit code once the process has ended. Raises NotInTime."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise NotInTime(f"the process does not end\n{self.log.decode(errors='replace')[-4_000:]}") from None
        self.close()
        return code

    def kill(self) -> None:
        """Ends the process and its children as a crash does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for reader in self._readers:
            reader.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            # What it has not read of what was said to it goes nowhere.
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
