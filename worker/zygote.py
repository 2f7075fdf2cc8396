"""The zygote: a process that has imported what source tasks need and forks one for each request of its worker.

It runs one thread and creates no client, so that a fork is safe. It forks twice: the process between ends at once, the
task's process is adopted by the worker and outlives the zygote.
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
import threading
import traceback
from typing import Any, Final, NoReturn

from cdcworker.connectors.registry import plugins
from cdcworker.worker.process import await_adoption, die_with, rename
from cdcworker.worker.procstat import kill, mark_of, pids

REQUEST_BYTES_MAX: Final = 262_144
STREAMS: Final = 3
TASK_MODULE: Final = "cdcworker.worker.task_main"
NEEDED: Final = (
    "cdcworker.worker.task_main",
    "cdcworker.worker.source_start",
    "cdcworker.worker.references",
    # Imported late by what a task does in its first moments.
    "encodings.idna",
    "importlib.metadata",
    "fastavro",
)
PADDING: Final = " " * 512
"""An argument that makes room for the names of tasks in process lists."""


def preload() -> None:
    """Import what every source task needs. A connector that cannot be imported fails in its own task."""
    for name in NEEDED:
        importlib.import_module(name)
    for plugin in plugins():
        if plugin.kind == "source":
            try:
                plugin.load()
            except Exception:  # noqa: BLE001
                traceback.print_exc()


def threads() -> int:
    """Threads of this process as the kernel counts them: a library may start some that Python does not know."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


def main() -> int:
    descriptor, worker = int(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    preload()
    gc.collect()
    # The collector of a task would write into every page that it looks at, and so copy it.
    gc.freeze()
    with socket.socket(fileno=descriptor) as control, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        control.send(json.dumps({"ready": True, "pid": os.getpid(), "threads": threads()}).encode())
        serve(control, worker)
    end_family(sys.argv[3])
    return 0


def end_family(family: str) -> None:
    """The worker is gone, its tasks with it. What they had started in sessions of their own has nobody else to end it."""
    for pid in pids():
        if pid != os.getpid() and mark_of(pid).startswith(family):
            descriptor = kill(pid)
            if descriptor is not None:
                os.close(descriptor)


def serve(control: socket.socket, worker: int) -> None:
    """Until the worker closes its end."""
    while True:
        data, descriptors, _flags, _address = socket.recv_fds(control, REQUEST_BYTES_MAX, STREAMS)
        if not data:
            return
        request = json.loads(data)
        answer = {"id": request["id"], **fork_task(control, request, descriptors, worker)}
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(json.dumps(answer).encode())


def fork_task(control: socket.socket, request: dict[str, Any], streams: list[int], worker: int) -> dict[str, Any]:
    """The process of the task, or why there is none."""
    if (count := threads()) != 1:
        return {"error": f"the zygote has {count} threads"}
    if len(streams) != STREAMS:
        return {"error": f"{len(streams)} descriptors arrived instead of {STREAMS}"}
    near, far = os.pipe()
    try:
        middle = os.fork()
    except OSError as exc:
        os.close(near)
        os.close(far)
        return {"error": f"fork: {exc.strerror}"}
    if middle == 0:
        _between(control, request, streams, worker, (near, far))
    os.close(far)
    told = os.read(near, 32)
    os.close(near)
    # When this returns the worker has adopted the task.
    os.waitpid(middle, 0)
    return {"pid": int(told)} if told else {"error": "the second fork failed"}


def _between(
    control: socket.socket, request: dict[str, Any], streams: list[int], worker: int, pipe: tuple[int, int]
) -> NoReturn:
    me = os.getpid()
    try:
        pid = os.fork()
        if pid == 0:
            control.close()
            for end in pipe:
                os.close(end)
            await_adoption(me, worker)
            die_with(worker)
            _become(request, streams)
        os.write(pipe[1], str(pid).encode())
    finally:
        os._exit(0)


def _become(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """The process of a task, as if it had been started by its command."""
    code = 1
    try:
        for target, descriptor in enumerate(streams):
            os.dup2(descriptor, target)
            os.close(descriptor)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        rename([sys.executable, "-m", TASK_MODULE, request["name"]], request["mark"])
        sys.argv[:] = [TASK_MODULE, request["name"]]
        random.seed()
        code = _run()
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run() -> int:
    import logging

    from cdcworker.schemas import failpoints
    from cdcworker.worker import task_main

    failpoints.arm(os.environ.get("CDC_FAILPOINTS", ""))
    code = task_main.main()
    logging.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
