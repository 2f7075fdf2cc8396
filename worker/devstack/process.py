"""Programs that cannot outlive this process: own process group, parent-death signal, stopped by pid with a time limit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.errors import START_FAILED

LAUNCHER = Path(__file__).with_name("_launch.py")
LOG_TAIL_LINES = 15
FREEZE_S_MAX = 5.0
"""A thread that waits for a disk stops only when it is answered."""


class EmbeddedServer(ABC):
    """A server of one process that runs as long as a `with` block, or from `start` to `stop`."""

    title: ClassVar[str]
    """Its name in errors."""
    _child: Program | None = None

    @abstractmethod
    def start(self) -> None:
        """Starts it; returns when it answers."""

    @abstractmethod
    def stop(self) -> None:
        """Ends it; its data stay."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def _running(self) -> Program:
        if self._child is None:
            raise CdcError(START_FAILED, f"{self.title} is not running")
        return self._child


class Program:
    """A started program; its output is appended to `log`."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        user: str = "-",
        death_signal: int = signal.SIGKILL,
    ) -> None:
        """The parent-death signal follows the calling thread, which has to live as long as the program."""
        self.name = name
        self.log = log
        launcher = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), str(int(death_signal)), user, "--"]
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603  programs of an embedded server, by their paths
                [*launcher, *argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=log.parent,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, number: int) -> None:
        """Sends a signal to the program alone; does nothing when it has ended."""
        if self.alive():
            self._process.send_signal(number)

    def freeze(self) -> None:
        """Stops the program (SIGSTOP); returns when none of its threads runs any more, or at the latest after `FREEZE_S_MAX`."""
        self.send(signal.SIGSTOP)
        deadline = time.monotonic() + FREEZE_S_MAX
        while self.alive() and not self._stands() and time.monotonic() < deadline:
            time.sleep(0.001)

    def thaw(self) -> None:
        """Lets a stopped program go on."""
        self.send(signal.SIGCONT)

    def _stands(self) -> bool:
        # Where there is no /proc, nobody can see it.
        return all(_state(stat) in ("T", "") for stat in Path(f"/proc/{self.pid}/task").glob("*/stat"))

    def wait(self, timeout_s: float) -> int | None:
        """Returns the exit code, None when the program still runs after `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 10.0) -> int:
        """Sends `number`, waits, then kills the whole process group. Returns the exit code."""
        self.send(signal.SIGCONT)
        self.send(number)
        code = self.wait(timeout_s)
        return self.kill() if code is None else code

    def kill(self) -> int:
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait()

    def wait_until(self, ready: Callable[[], bool], timeout_s: float, *, poll_s: float = 0.02) -> None:
        """Waits until `ready()`. CdcError with the end of the log when the program ends before, or after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.alive():
                raise self.failure(f"{self.name} ended with exit code {self.returncode}")
            if time.monotonic() > deadline:
                raise self.failure(f"{self.name} was not ready within {timeout_s:.0f} s")
            time.sleep(poll_s)

    def failure(self, message: str) -> CdcError:
        tail = log_tail(self.log)
        return CdcError(START_FAILED, message + (f":\n{tail}" if tail else ""), where={"log": str(self.log)})


def _state(stat: Path) -> str:
    """Returns a thread's state, one letter of proc(5); empty when the thread has ended."""
    try:
        # The name before it may have spaces and brackets of its own.
        return stat.read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def log_tail(path: Path, lines: int = LOG_TAIL_LINES) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16_384))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def run(argv: Sequence[str], log: Path, *, name: str, timeout_s: float, user: str = "-") -> int:
    """Runs a program to its end with the same supervision; returns its exit code."""
    child = Program(name, argv, log, user=user)
    code = child.wait(timeout_s)
    if code is None:
        child.kill()
        raise child.failure(f"{name} did not end within {timeout_s:.0f} s")
    return code
