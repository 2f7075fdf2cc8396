"""A task's two ends towards its worker: what the worker wants, and what the task reports."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NoReturn

from cdcworker.schemas.errors import CdcError
from cdcworker.worker.progress import OWN, RUNNING
from cdcworker.worker.security.redact import clean_all

Clock = Callable[[], float]
State = Literal["RUNNING", "PAUSED", "FAILED", "STOPPED"]


class Control:
    """The worker's wishes, set by the reader thread and looked at by the task. Starts with a lease of `lease_s`."""

    def __init__(self, lease_s: float, *, paused: bool = False, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._valid_until = clock() + lease_s
        self._stopping = False
        self._paused = paused
        self._takes_turns = False
        self.jobs: tuple[dict[str, Any], ...] = ()
        """What the task was last told of jobs for it."""

    @property
    def stopping(self) -> bool:
        return self._stopping

    @property
    def paused(self) -> bool:
        return self._paused

    def leased(self) -> bool:
        """Whether the worker may still own this task; without it nothing is produced. Monotonic (INV-12)."""
        return self._clock() < self._valid_until

    def takes_turns(self) -> bool:
        """Whether whoever owns a source's task next fences both of its data producers."""
        return self._takes_turns

    def interrupted(self) -> bool:
        """Long waits inside a source end when this turns true."""
        return self._stopping or self._paused

    def apply(self, message: Mapping[str, Any]) -> None:
        """One message of the worker; kinds that this version does not know are left out."""
        kind = message.get("type")
        with self._changed:
            if kind == "lease":
                # The last word counts, also a shorter one. The worker's clock is ours: a message that lay in the pipe
                # while we were paused is worth no more than when it was sent.
                until = message.get("until")
                self._valid_until = self._clock() + float(message["valid_s"]) if until is None else float(until)
                self._takes_turns = bool(message.get("takes_turns"))
            elif kind == "pause":
                self._paused = True
            elif kind == "resume":
                self._paused = False
            elif kind == "jobs":
                self.jobs = tuple(dict(job) for job in message["jobs"])
            elif kind == "stop":
                self._stopping = True
            self._changed.notify_all()

    def wait(self, timeout_s: float, until: Callable[[], bool] | None = None) -> None:
        """Until the time is over, the task is to stop, or `until` holds after a message. Counts as a step."""
        OWN.beat("a pause", timeout_s)
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or (until is not None and until()), timeout_s)


TOPICS_AGAIN_S: Final = 20.0
"""Topics in use can be reset: those that still are in use are reported again after this time."""


class Reporter:
    """JSON lines to the worker, whole lines only, from any thread."""

    def __init__(self, fd: int, on_broken: Callable[[], None], clock: Clock = time.monotonic) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._on_broken = on_broken
        self._clock = clock
        self._topics: dict[str, float] = {}

    def status(self, state: State, error: CdcError | None = None) -> None:
        if state == "RUNNING":
            OWN.enter(RUNNING)
        self._send({"type": "status", "state": state, "error": clean_all(error.to_dict()) if error else None})

    def metrics(self, numbers: Mapping[str, Any]) -> None:
        self._send({**numbers, "type": "metrics"})

    def beat(self, message: Mapping[str, Any]) -> None:
        self._send(message)

    def topics(self, names: Iterable[str]) -> None:
        """Topics in use, each time they are used; what was sent a moment ago is not sent again."""
        now = self._clock()
        due = sorted({name for name in names if now - self._topics.get(name, -TOPICS_AGAIN_S) >= TOPICS_AGAIN_S})
        if due:
            self._topics.update(dict.fromkeys(due, now))
            self._send({"type": "topics", "topics": due})

    def _send(self, message: Mapping[str, Any]) -> None:
        line = json.dumps(message, separators=(",", ":"), default=str).encode() + b"\n"
        with self._lock:
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except OSError:
                self._on_broken()


def end_process_group() -> NoReturn:
    """The worker is gone: end at once, with every process that this task started."""
    import signal

    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
