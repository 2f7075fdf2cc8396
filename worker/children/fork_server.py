"""A fork server for questions: a process that has imported what the answers need and forks a child for each question.

It has one thread and creates no client, so that a fork is safe. A child answers one question and ends; nothing that one
question has left behind reaches another.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final, NoReturn

from cdcworker.worker.linux.process_group import PR_SET_PDEATHSIG, prctl
from cdcworker.worker.linux.procfs import threads

REQUEST_BYTES_MAX: Final = 131_072
STREAMS: Final = 2
READY: Final = b"ready"


def main() -> int:
    """Arguments: the descriptor of the socket, and the module whose `preload` and `main` are called."""
    return run(int(sys.argv[1]), sys.argv[2])


def run(descriptor: int, module_name: str) -> int:
    """Answers with `main` of the module until the other end of the socket is closed."""
    module = importlib.import_module(module_name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nobody waits for the children: their answer and the end of their output say everything.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    module.preload()
    gc.collect()
    # The collector of a child would write into every page that it looks at, and so copy it.
    gc.freeze()
    with socket.socket(fileno=descriptor) as control, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        control.send(READY)
        serve(control, module.main)
    return 0


def serve(control: socket.socket, answer: Callable[[], int]) -> None:
    """Forks a child for each request until the worker closes its end of the socket."""
    while True:
        data, streams, _flags, _address = socket.recv_fds(control, REQUEST_BYTES_MAX, STREAMS)
        if not data:
            return
        reply = _forked(control, data, streams, answer)
        for stream in streams:
            os.close(stream)
        control.send(json.dumps(reply).encode())


def _forked(control: socket.socket, data: bytes, streams: list[int], answer: Callable[[], int]) -> dict[str, Any]:
    """Returns the id of the child, or why there is none."""
    if (count := threads()) != 1:
        return {"error": f"the fork server has {count} threads"}
    try:
        pid = os.fork()
    except OSError as exc:
        return {"error": f"fork: {exc.strerror}"}
    if pid == 0:
        _answer(control, json.loads(data), streams, answer)
    return {"pid": pid}


def _answer(control: socket.socket, request: dict[str, Any], streams: list[int], answer: Callable[[], int]) -> NoReturn:
    """Answers in the forked process as if its command had started it."""
    code = 1
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        control.close()
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
            os.close(stream)
        for number in (signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(request["env"])
        random.seed()
        code = answer()
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
