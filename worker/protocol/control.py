"""A task's side of the protocol: the commands of its worker, and the reports of the task."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NoReturn

from cdcworker.schemas.errors import CdcError
from cdcworker.worker.logs.redaction import clean_all
from cdcworker.worker.protocol.heartbeat import HEARTBEAT, RUNNING

Clock = Callable[[], float]
State = Literal["RUNNING", "PAUSED", "FAILED", "STOPPED"]


class TaskControl:
    """The state that the worker wants of the task; the reader thread sets it, the task reads it. Starts with a lease of
    `lease_s` seconds."""

    def __init__(self, lease_s: float, *, paused: bool = False, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._valid_until = clock() + lease_s
        self._stopping = False
        self._paused = paused
        self._may_alternate = False
        self.jobs: tuple[dict[str, Any], ...] = ()
        """The snapshot jobs that the worker last sent."""

    @property
    def stopping(self) -> bool:
        return self._stopping

    @property
    def paused(self) -> bool:
        return self._paused

    def leased(self) -> bool:
        """Returns whether the worker may still own this task; without the lease nothing is written. Monotonic (INV-12)."""
        return self._clock() < self._valid_until

    def may_alternate(self) -> bool:
        """Returns whether every worker that may own this source task next fences both of its data producers."""
        return self._may_alternate

    def interrupted(self) -> bool:
        """Returns whether the task is to stop or pause: long waits inside a source end then."""
        return self._stopping or self._paused

    def apply(self, message: Mapping[str, Any]) -> None:
        """Applies one message of the worker; message types that this version does not know are ignored."""
        kind = message.get("type")
        with self._changed:
            if kind == "lease":
                # The last word counts, also a shorter one. The worker's clock is ours: a message that lay in the pipe
                # while we were paused is worth no more than when it was sent.
                until = message.get("until")
                self._valid_until = self._clock() + float(message["valid_s"]) if until is None else float(until)
                self._may_alternate = bool(message.get("takes_turns"))
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
        """Waits until the timeout, until the task is to stop, or until `until` holds after a message. Counts as a step."""
        HEARTBEAT.beat("a pause", timeout_s)
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or (until is not None and until()), timeout_s)


MESSAGES: Final = ("paused", "quarantine", "retrying")
"""Numbers of a task that hold texts of errors."""
TOPICS_AGAIN_S: Final = 20.0
"""Seconds after which topics in use are reported again: an earlier worker does not say that they were reset."""


class TaskReporter:
    """Writes JSON lines to the worker, whole lines only, from any thread."""

    def __init__(self, fd: int, on_broken: Callable[[], None], clock: Clock = time.monotonic) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._on_broken = on_broken
        self._clock = clock
        self._topics: dict[str, float] = {}

    def status(self, state: State, error: CdcError | None = None) -> None:
        if state == "RUNNING":
            HEARTBEAT.enter(RUNNING)
        self._send({"type": "status", "state": state, "error": clean_all(error.to_dict()) if error else None})

    def metrics(self, numbers: Mapping[str, Any]) -> None:
        """Names of tables and topics among them are no part of a config, messages of errors may quote one."""
        told = {name: clean_all(numbers[name]) for name in MESSAGES if name in numbers}
        self._send({**numbers, **told, "type": "metrics"})

    def heartbeat(self, message: Mapping[str, Any]) -> None:
        self._send(message)

    def topics(self, names: Iterable[str]) -> None:
        """Reports topics in use. A topic that was reported a moment ago is left out."""
        now = self._clock()
        due = sorted({name for name in names if now - self._topics.get(name, -TOPICS_AGAIN_S) >= TOPICS_AGAIN_S})
        if due:
            self._topics.update(dict.fromkeys(due, now))
            self._send({"type": "topics", "topics": due})

    def repeat_topics(self) -> None:
        """Has every topic reported when it is used next: what was reported is forgotten."""
        self._topics = {}

    def _send(self, message: Mapping[str, Any]) -> None:
        line = json.dumps(message, separators=(",", ":"), default=str).encode() + b"\n"
        with self._lock:
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except OSError:
                self._on_broken()


def end_process_group() -> NoReturn:
    """Ends this process with every process that the task has started: the worker is gone."""
    import signal

    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
