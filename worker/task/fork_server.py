"""The fork server: a process that has imported the modules of source tasks and forks one task process for each request.

It has one thread and creates no client, so that a fork is safe. It forks twice: the intermediate process ends at once,
so that the worker becomes the parent of the task process, which outlives the fork server.
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
from typing import Any, Final, NoReturn

from cdcworker.connectors.registry.names import plugins
from cdcworker.schemas.untrusted.json_text import JsonRefused, parse_message
from cdcworker.worker.children import fork_server as question_server
from cdcworker.worker.linux.process_group import NO_MARK, await_reparenting, die_with_parent, rename
from cdcworker.worker.linux.procfs import kill, mark_of, pids, threads

REQUEST_BYTES_MAX: Final = 262_144
STREAMS: Final = 3
TASK_MODULE: Final = "cdcworker.worker.task.main"
NEEDED: Final = (
    "cdcworker.worker.task.main",
    "cdcworker.worker.source.start",
    "cdcworker.worker.config.config_providers",
    # Imported late by what a task does in its first moments.
    "encodings.idna",
    "importlib.metadata",
    "fastavro",
)
PADDING: Final = " " * 512
"""An argument that makes room for the names of tasks in process lists."""


def preload() -> None:
    """Imports what every source task needs. A connector that cannot be imported fails in its own task."""
    for name in NEEDED:
        importlib.import_module(name)
    for plugin in plugins():
        if plugin.kind == "source":
            try:
                plugin.load()
            except Exception:  # noqa: BLE001
                traceback.print_exc()


def main() -> int:
    """Arguments: the descriptor of the socket, the worker's process id, the beginning of the tasks' marks, and before the
    padding, if a fork server for questions is to be forked, the descriptor of its socket and its module."""
    descriptor, worker = int(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    preload()
    gc.collect()
    # The collector of a task would write into every page that it looks at, and so copy it.
    gc.freeze()
    if questions := sys.argv[4:-1]:
        fork_question_server(descriptor, int(questions[0]), questions[1])
    with socket.socket(fileno=descriptor) as control, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        control.send(json.dumps({"ready": True, "pid": os.getpid(), "threads": threads()}).encode())
        serve(control, worker)
    kill_marked(sys.argv[3])
    return 0


def fork_question_server(control: int, descriptor: int, module: str) -> None:
    """Forks the fork server that answers questions with the module. It ends with this process."""
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        pid = -1
    if pid:
        # Whoever asks then finds the other end closed, and starts one that is not forked.
        os.close(descriptor)
        return
    code = 1
    try:
        # It stays in this session, where the worker looks for what it has to reap.
        die_with_parent(parent)
        os.close(control)
        silence = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(silence, stream)
        os.close(silence)
        rename([sys.executable, "-m", question_server.__name__, module], NO_MARK)
        code = question_server.run(descriptor, module)
    finally:
        os._exit(code)


def kill_marked(family: str) -> None:
    """Kills the processes that tasks have started in sessions of their own, once the worker and its tasks are gone."""
    for pid in pids():
        if pid != os.getpid() and mark_of(pid).startswith(family):
            descriptor = kill(pid)
            if descriptor is not None:
                os.close(descriptor)


def serve(control: socket.socket, worker: int) -> None:
    """Answers requests until the worker closes its end of the socket."""
    while True:
        data, descriptors, _flags, _address = socket.recv_fds(control, REQUEST_BYTES_MAX, STREAMS)
        if not data:
            return
        try:
            request = parse_message(data)
            answer = {"id": request["id"], **fork_task(control, request, descriptors, worker)}
        except (JsonRefused, KeyError):
            # Without a number nobody waits for an answer: the worker gives up when its time is over.
            answer = {}
        for descriptor in descriptors:
            os.close(descriptor)
        if answer:
            control.send(json.dumps(answer).encode())


def fork_task(control: socket.socket, request: dict[str, Any], streams: list[int], worker: int) -> dict[str, Any]:
    """Forks the process of a task. Returns its pid, or the error."""
    if (count := threads()) != 1:
        return {"error": f"the fork server has {count} threads"}
    if len(streams) != STREAMS:
        return {"error": f"{len(streams)} descriptors arrived instead of {STREAMS}"}
    read_end, write_end = os.pipe()
    try:
        intermediate = os.fork()
    except OSError as exc:
        os.close(read_end)
        os.close(write_end)
        return {"error": f"fork: {exc.strerror}"}
    if intermediate == 0:
        _intermediate(control, request, streams, worker, (read_end, write_end))
    os.close(write_end)
    pid_text = os.read(read_end, 32)
    os.close(read_end)
    # When this returns the worker has adopted the task.
    os.waitpid(intermediate, 0)
    return {"pid": int(pid_text)} if pid_text else {"error": "the second fork failed"}


def _intermediate(
    control: socket.socket, request: dict[str, Any], streams: list[int], worker: int, pipe: tuple[int, int]
) -> NoReturn:
    me = os.getpid()
    try:
        pid = os.fork()
        if pid == 0:
            control.close()
            for end in pipe:
                os.close(end)
            await_reparenting(me, worker)
            die_with_parent(worker)
            _run_task(request, streams)
        os.write(pipe[1], str(pid).encode())
    finally:
        os._exit(0)


def _run_task(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Runs the task in the forked process as if its command had started it."""
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
    from cdcworker.worker.task import main as task_main

    failpoints.arm(os.environ.get("CDC_FAILPOINTS", ""))
    code = task_main.main()
    logging.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
