"""The worker's side of the fork server: starts it, requests task processes from it, and reports when it cannot be used."""

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

from cdcworker.schemas.untrusted.json_text import JsonRefused, parse_message
from cdcworker.worker.children.warm import WarmChildren
from cdcworker.worker.linux.process_group import IS_LINUX, MARK, NO_MARK
from cdcworker.worker.linux.procfs import children_of, read_stat
from cdcworker.worker.task.fork_server import PADDING, REQUEST_BYTES_MAX

log = logging.getLogger(__name__)

READY_S_MAX: Final = 20.0
ANSWER_S_MAX: Final = 5.0
REQUESTS_MAX: Final = 4
"""Requests under way at the same time; more would only wait in the socket, with their descriptors open."""
RETRY_S_MAX: Final = 60.0
END_S_MAX: Final = 2.0
FORK_SERVER: Final = (sys.executable, "-m", "cdcworker.worker.task.fork_server")


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """One task process to be started. `streams` opens its three pipes when they are needed. Exactly one of `on_started`
    (with the pid) and `on_failed` (with the reason) is called."""

    name: str
    mark: str
    streams: Callable[[], Sequence[int]]
    on_started: Callable[[int], None]
    on_failed: Callable[[str], None]


class ForkClient:
    """Talks to one fork server. All methods are called by the thread that owns the selector."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        mark_prefix: str,
        command: Sequence[str] = FORK_SERVER,
        clock: Callable[[], float] = time.monotonic,
        questions: WarmChildren | None = None,
    ) -> None:
        """`mark_prefix` begins the marks of all processes that this fork server starts. The first one also forks the fork
        server of `questions`, which then shares what is imported here."""
        self._selector = selector
        self._mark_prefix = mark_prefix
        self._command = tuple(command)
        self._clock = clock
        self._questions = questions
        self._questions_end: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ready = False
        self._since = 0.0
        self._failures = 0
        self._retry_at = float("-inf")
        self._queue: deque[SpawnRequest] = deque()
        self._pending: dict[int, tuple[SpawnRequest, float]] = {}
        self._number = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def reserve_questions(self) -> None:
        """Lets questions wait for the first fork server rather than start one of their own. Any thread may call."""
        if self._questions is not None and IS_LINUX:
            self._questions_end = self._questions.end_for_server()

    def open(self) -> bool:
        """Starts the fork server unless it runs; returns False when it cannot be used at the moment."""
        if self._process is not None:
            return True
        if not IS_LINUX or self._clock() < self._retry_at:
            return False
        try:
            own_end, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as exc:
            self._note_failure(f"{type(exc).__name__}: {exc.strerror}")
            return False
        questions_end, self._questions_end = self._questions_end, None
        ends = [end for end in (server_end, questions_end) if end is not None]
        questions = (str(questions_end.fileno()), self._questions.module) if self._questions and questions_end else ()
        try:
            self._process = subprocess.Popen(  # noqa: S603  a command of the product's own
                [*self._command, str(server_end.fileno()), str(os.getpid()), self._mark_prefix, *questions, PADDING],
                stdin=subprocess.DEVNULL,
                pass_fds=[end.fileno() for end in ends],
                start_new_session=True,
                env={**os.environ, MARK: NO_MARK},
            )
        except OSError as exc:
            own_end.close()
            self._note_failure(f"{type(exc).__name__}: {exc.strerror}")
            return False
        finally:
            for end in ends:
                end.close()
        own_end.setblocking(False)
        self._control, self._ready, self._since = own_end, False, self._clock()
        self._selector.register(own_end, selectors.EVENT_READ, lambda _mask: self._receive())
        return True

    def spawn(self, spawn_request: SpawnRequest) -> None:
        """Queues a request; `open` has returned True before."""
        self._queue.append(spawn_request)
        self._send_queued()

    def deadline(self) -> float | None:
        """Returns the monotonic time by which `check` has something to do, None for never."""
        if self._process is None:
            return None
        if not self._ready:
            return self._since + READY_S_MAX
        return min((at for _, at in self._pending.values()), default=None)

    def check(self, now: float) -> None:
        """Gives up a fork server that has not answered in time."""
        due = self.deadline()
        if due is not None and now >= due:
            self._receive()
            due = self.deadline()
            if due is not None and now >= due:
                self._drop("it does not answer" if self._ready else "it is not ready in time")

    def close(self) -> None:
        if self._questions_end is not None:
            self._questions_end.close()
        if self._process is not None:
            self._end()

    def _send_queued(self) -> None:
        while self._ready and self._queue and len(self._pending) < REQUESTS_MAX:
            spawn_request = self._queue.popleft()
            try:
                request = self._request(spawn_request)
                streams = list(spawn_request.streams())
            except (OSError, ValueError) as exc:
                spawn_request.on_failed(f"{type(exc).__name__}: {exc}")
                continue
            self._pending[self._number] = (spawn_request, self._clock() + ANSWER_S_MAX)
            try:
                assert self._control is not None
                socket.send_fds(self._control, [request], streams)
            except OSError as exc:
                self._drop(f"the request could not be sent: {type(exc).__name__} {exc.strerror}")

    def _request(self, spawn_request: SpawnRequest) -> bytes:
        self._number += 1
        request = {"id": self._number, "name": spawn_request.name, "mark": spawn_request.mark}
        data = json.dumps({**request, "env": dict(os.environ), "cwd": os.getcwd()}).encode()
        if len(data) > REQUEST_BYTES_MAX:
            raise ValueError("the environment is too large for a request")
        return data

    def _receive(self) -> None:
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
            self.take(data)

    def take(self, data: bytes) -> None:
        """Takes an answer. A fork server that says what is none is given up."""
        try:
            self._handle(parse_message(data))
        except (JsonRefused, KeyError, TypeError) as exc:
            self._drop(f"its answer is not understood: {type(exc).__name__}")

    def _handle(self, answer: dict[str, Any]) -> None:
        if answer.get("ready"):
            self._ready = True
            log.info(
                "fork server ready pid=%d threads=%d after_s=%.2f",
                *(answer["pid"], answer["threads"], self._clock() - self._since),
            )
        else:
            spawn_request, _ = self._pending.pop(answer["id"])
            if "pid" in answer:
                self._failures = 0
                spawn_request.on_started(answer["pid"])
            else:
                log.warning("fork server started no process task=%s error=%s", spawn_request.name, answer.get("error"))
                spawn_request.on_failed(str(answer.get("error")))
        self._send_queued()

    def _drop(self, why: str) -> None:
        """Ends the fork server and fails its open requests; the caller starts those processes itself, the next `open` a
        new fork server."""
        # What it did before counts: those processes run.
        self._end()
        self._note_failure(why)
        spawn_requests = [spawn_request for spawn_request, _ in self._pending.values()] + list(self._queue)
        self._pending.clear()
        self._queue.clear()
        for spawn_request in spawn_requests:
            spawn_request.on_failed(why)

    def _note_failure(self, why: str) -> None:
        # One that had worked is replaced at once.
        delay = min(RETRY_S_MAX, 2.0**self._failures - 1)
        self._failures += 1
        self._retry_at = self._clock() + delay
        log.warning("fork server lost error=%s retry_s=%.0f", why, delay)

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
        _reap(process.pid)


def _reap(session: int) -> None:
    """Ends what a fork server has left behind in its session; as a subreaper this process has become the parent."""
    for pid in children_of(os.getpid()):
        stat = read_stat(pid)
        if stat is not None and stat.session == session:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
