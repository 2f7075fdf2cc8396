"""Children that are forked from a process which has imported everything: a question then costs no start of an interpreter."""

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
import threading
import time
from collections.abc import Sequence
from typing import Final

from cdcworker.coordinator.model import JsonObject
from cdcworker.schemas.untrusted.json_text import JsonRefused, parse_message
from cdcworker.worker.children.call import ChildAnswer, call_child
from cdcworker.worker.children.fork_server import REQUEST_BYTES_MAX
from cdcworker.worker.linux.process_group import IS_LINUX, MARK, NO_MARK

log = logging.getLogger(__name__)

FORK_SERVER: Final = (sys.executable, "-m", "cdcworker.worker.children.fork_server")
READ_BYTES: Final = 65_536
END_S_MAX: Final = 2.0
FORK_S_MAX: Final = 10.0
"""A fork takes milliseconds, and the first one as long as all imports."""
START_S_MAX: Final = 30.0
"""A fork server that is not ready by then is replaced."""


class WarmChildren:
    """Asks children of one module, which has `preload` and `main`. Any thread may call. Where no child can be forked, the
    module is started as a process of its own."""

    def __init__(self, module: str, server: Sequence[str] = FORK_SERVER) -> None:
        self.module: Final = module
        self._server = tuple(server)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._is_ready = False
        self._since = 0.0
        self._is_closed = False

    def open(self) -> None:
        """Starts the fork server without waiting for it, unless it runs."""
        with self._lock:
            self._open()

    def end_for_server(self) -> socket.socket | None:
        """Returns the end of the socket for a fork server that somebody else has forked, to whom it belongs then; None if
        one was started before. When that server is lost, the next one is started here."""
        with self._lock:
            if self._control is not None or self._is_closed:
                return None
            self._control, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._is_ready, self._since = False, time.monotonic()
            return server_end

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._drop()

    def call(self, question: JsonObject, timeout_s: float) -> ChildAnswer:
        """Returns what the child has said when it ends, or until the time limit."""
        deadline = time.monotonic() + timeout_s
        question_end, answer_start = os.pipe(), os.pipe()
        ends = [question_end[1], answer_start[0]]
        try:
            try:
                pid = self._fork((question_end[0], answer_start[1]), deadline)
            finally:
                os.close(question_end[0])
                os.close(answer_start[1])
            if pid is None:
                left = max(0.1, deadline - time.monotonic())
                return call_child((sys.executable, "-m", self.module), question, left)
            return _exchanged(pid, ends, json.dumps(question).encode(), deadline)
        finally:
            for end in ends:
                os.close(end)

    def _fork(self, streams: tuple[int, int], deadline: float) -> int | None:
        """Returns the id of a new child that reads and writes the streams, None if there can be none."""
        request = json.dumps({"env": dict(os.environ)}).encode()
        # A fork server that hangs leaves enough of the time for a process of its own.
        wait_s = max(0.1, min(FORK_S_MAX, (deadline - time.monotonic()) / 3))
        if len(request) > REQUEST_BYTES_MAX or not self._lock.acquire(timeout=wait_s):
            return None
        try:
            control = self._open()
            if control is None:
                return None
            control.settimeout(wait_s)
            if not self._is_ready and self._still_starts(control):
                return None
            socket.send_fds(control, [request], list(streams))
            reply = parse_message(control.recv(REQUEST_BYTES_MAX))
        except (OSError, JsonRefused) as exc:
            log.warning("fork server for questions lost module=%s error=%s", self.module, type(exc).__name__)
            self._drop()
            return None
        finally:
            self._lock.release()
        if isinstance(pid := reply.get("pid"), int):
            return pid
        log.warning("no child was forked module=%s error=%s", self.module, reply.get("error"))
        return None

    def _still_starts(self, control: socket.socket) -> bool:
        """Waits for the fork server. Returns whether it needs longer than this question can wait: it is left to those that follow."""
        try:
            self._is_ready = bool(control.recv(REQUEST_BYTES_MAX))
        except TimeoutError:
            if time.monotonic() - self._since > START_S_MAX:
                raise
            return True
        return False

    def _open(self) -> socket.socket | None:
        if self._process is not None and self._process.poll() is not None:
            self._drop()
        if self._control is None and IS_LINUX and not self._is_closed:
            own_end, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with server_end:
                self._process = subprocess.Popen(  # noqa: S603  a command of the product's own
                    [*self._server, str(server_end.fileno()), self.module],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(server_end.fileno(),),
                    start_new_session=True,
                    env={**os.environ, MARK: NO_MARK},
                )
            self._control, self._is_ready, self._since = own_end, False, time.monotonic()
        return self._control

    def _drop(self) -> None:
        process, control = self._process, self._control
        self._process = self._control = None
        if control is not None:
            control.close()
        if process is not None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S_MAX)


def _exchanged(pid: int, ends: list[int], question: bytes, deadline: float) -> ChildAnswer:
    """Returns the answer of the child. Every process that it started is killed in the end."""
    question_end, answer_start = ends
    left, out = memoryview(question), bytearray()
    try:
        with selectors.DefaultSelector() as selector:
            os.set_blocking(question_end, False)
            selector.register(question_end, selectors.EVENT_WRITE)
            selector.register(answer_start, selectors.EVENT_READ)
            while (wait_s := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(wait_s):
                    if key.fd == answer_start:
                        data = os.read(answer_start, READ_BYTES)
                        out += data
                        if not data:
                            return ChildAnswer(bytes(out), 0)
                        continue
                    try:
                        left = left[os.write(question_end, left) :]
                    except BrokenPipeError:
                        left = left[:0]
                    if not left:
                        selector.unregister(question_end)
                        ends.remove(question_end)
                        os.close(question_end)
        return ChildAnswer(bytes(out), None)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
