"""The worker's end of the zygote: starts it, asks it for tasks' processes, and says when it cannot be had."""

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
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.worker.process import IS_LINUX, MARK, NO_MARK
from cdcworker.worker.zygote import PADDING, REQUEST_BYTES_MAX

log = logging.getLogger(__name__)

READY_S_MAX: Final = 20.0
ANSWER_S_MAX: Final = 5.0
ASKED_MAX: Final = 4
"""Requests under way: more would only wait in the socket, with their descriptors."""
RETRY_S_MAX: Final = 60.0
END_S_MAX: Final = 2.0
ZYGOTE: Final = (sys.executable, "-m", "cdcworker.worker.zygote")


@dataclass(frozen=True, slots=True)
class Birth:
    """One process that is wanted. `streams` opens its three ends when they are needed; exactly one of `born` and
    `failed` is called."""

    name: str
    mark: str
    streams: Callable[[], Sequence[int]]
    born: Callable[[int], None]
    failed: Callable[[str], None]


class Nursery:
    """All methods are for one thread, the one that owns the selector."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        family: str,
        command: Sequence[str] = ZYGOTE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`family` begins the marks of all births."""
        self._selector = selector
        self._family = family
        self._command = tuple(command)
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ready = False
        self._since = 0.0
        self._failures = 0
        self._retry_at = float("-inf")
        self._queue: deque[Birth] = deque()
        self._asked: dict[int, tuple[Birth, float]] = {}
        self._number = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def open(self) -> bool:
        """Start the zygote unless it runs; False when it cannot be had at the moment."""
        if self._process is not None:
            return True
        if not IS_LINUX or self._clock() < self._retry_at:
            return False
        try:
            near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as exc:
            self._failed(f"{type(exc).__name__}: {exc.strerror}")
            return False
        try:
            self._process = subprocess.Popen(
                [*self._command, str(far.fileno()), str(os.getpid()), self._family, PADDING],
                stdin=subprocess.DEVNULL,
                pass_fds=(far.fileno(),),
                start_new_session=True,
                env={**os.environ, MARK: NO_MARK},
            )
        except OSError as exc:
            near.close()
            self._failed(f"{type(exc).__name__}: {exc.strerror}")
            return False
        finally:
            far.close()
        near.setblocking(False)
        self._control, self._ready, self._since = near, False, self._clock()
        self._selector.register(near, selectors.EVENT_READ, lambda _mask: self._heard())
        return True

    def ask(self, birth: Birth) -> None:
        """Queue it; the caller has seen `open` return True."""
        self._queue.append(birth)
        self._pump()

    def deadline(self) -> float | None:
        """When `check` has something to do at the latest."""
        if self._process is None:
            return None
        if not self._ready:
            return self._since + READY_S_MAX
        return min((at for _, at in self._asked.values()), default=None)

    def check(self, now: float) -> None:
        due = self.deadline()
        if due is not None and now >= due:
            self._heard()
            due = self.deadline()
            if due is not None and now >= due:
                self._drop("it does not answer" if self._ready else "it is not ready in time")

    def close(self) -> None:
        if self._process is not None:
            self._end()

    def _pump(self) -> None:
        while self._ready and self._queue and len(self._asked) < ASKED_MAX:
            birth = self._queue.popleft()
            try:
                request = self._request(birth)
                streams = list(birth.streams())
            except (OSError, ValueError) as exc:
                birth.failed(f"{type(exc).__name__}: {exc}")
                continue
            self._asked[self._number] = (birth, self._clock() + ANSWER_S_MAX)
            try:
                assert self._control is not None
                socket.send_fds(self._control, [request], streams)
            except OSError as exc:
                self._drop(f"asking failed: {type(exc).__name__} {exc.strerror}")

    def _request(self, birth: Birth) -> bytes:
        self._number += 1
        request = {"id": self._number, "name": birth.name, "mark": birth.mark}
        data = json.dumps({**request, "env": dict(os.environ), "cwd": os.getcwd()}).encode()
        if len(data) > REQUEST_BYTES_MAX:
            raise ValueError("the environment is too large for a request")
        return data

    def _heard(self) -> None:
        while self._control is not None:
            try:
                data = self._control.recv(REQUEST_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._drop("it has ended")
                return
            self._take(json.loads(data))

    def _take(self, answer: dict[str, Any]) -> None:
        if answer.get("ready"):
            self._ready = True
            log.info(
                "zygote ready pid=%d threads=%d after_s=%.2f",
                *(answer["pid"], answer["threads"], self._clock() - self._since),
            )
        else:
            birth, _ = self._asked.pop(answer["id"])
            if "pid" in answer:
                self._failures = 0
                birth.born(answer["pid"])
            else:
                log.warning("zygote made no process task=%s error=%s", birth.name, answer.get("error"))
                birth.failed(str(answer.get("error")))
        self._pump()

    def _drop(self, why: str) -> None:
        """Give it up: what it was asked for is made in another way, the next start tries a new one."""
        # What it did before counts: those processes run.
        self._end()
        self._failed(why)
        births = [birth for birth, _ in self._asked.values()] + list(self._queue)
        self._asked.clear()
        self._queue.clear()
        for birth in births:
            birth.failed(why)

    def _failed(self, why: str) -> None:
        # One that had worked is replaced at once.
        delay = min(RETRY_S_MAX, 2.0**self._failures - 1)
        self._failures += 1
        self._retry_at = self._clock() + delay
        log.warning("zygote lost error=%s retry_s=%.0f", why, delay)

    def _end(self) -> None:
        process, control = self._process, self._control
        assert process is not None
        assert control is not None
        self._process = self._control = None
        self._ready = False
        self._selector.unregister(control)
        control.close()
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S_MAX)
