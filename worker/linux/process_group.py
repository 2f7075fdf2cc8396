"""Sets up the process of a task: its session, parent-death signal, limits, and the mark that everything it starts
inherits."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
PR_GET_CHILD_SUBREAPER: Final = 37
MARK: Final = "CDC_TASK_MARK"
"""The environment variable that marks one start of a task in its process and in everything that this process starts."""
NO_MARK: Final = "0" * 32
OOM_SCORE: Final = 500
"""Added to the OOM score of tasks: when memory runs out, the kernel kills a task before the worker."""
DATA_ROOM_BYTES: Final = 1_073_741_824
"""Address space beyond the memory limit that is reserved but not used: stacks of threads, arenas of allocators."""
REPARENTING_S_MAX: Final = 5.0
_REPARENTING_STEP_S: Final = 0.0002
_ARG_START: Final = 45
"""The index of `arg_start` among the fields after the command in /proc/self/stat; `arg_end` and `env_start` follow it.
"""

IS_LINUX: Final = sys.platform == "linux"


def prctl(option: int, value: int) -> bool:
    return IS_LINUX and ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0


def is_subreaper() -> bool:
    value = ctypes.c_int(0)
    return IS_LINUX and ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(value)) == 0 and bool(value.value)


def die_with_parent(parent: int) -> None:
    """Asks for SIGKILL at the end of the parent `parent`; ends at once if that has already ended."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It died before the signal was asked for.
        os._exit(1)


def await_reparenting(middle: int, worker: int) -> None:
    """Waits until the intermediate process has ended and the worker is the parent: the parent-death signal follows the
    parent of that moment."""
    deadline = time.monotonic() + REPARENTING_S_MAX
    while (parent := os.getppid()) != worker:
        if parent != middle or time.monotonic() > deadline:
            os._exit(1)
        time.sleep(_REPARENTING_STEP_S)


def lead_session() -> None:
    """Makes this process a session leader and the subreaper of its descendants, without core dumps, and raises its OOM
    score."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getsid(0) != os.getpid():
        with contextlib.suppress(OSError):
            os.setsid()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    with contextlib.suppress(OSError, ValueError):
        # A core would acquire rows and passwords.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+") as file:
        score = int(file.read())
        file.seek(0)
        file.write(str(min(1000, score + OOM_SCORE)))


def limit_data_segment(limit_bytes: int) -> None:
    """Limits the data segment, so that a process that allocates far too much fails at once: the worker samples memory
    only once a second."""
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        bound = limit_bytes + DATA_ROOM_BYTES
        if hard == resource.RLIM_INFINITY or bound < hard:
            resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))


def rename(arguments: list[str], mark: str) -> None:
    """Shows these arguments in process lists, and `mark` in the environment that the kernel shows.

    /proc shows the environment as it was at the start of the process, also for processes forked from it.
    """
    os.environ[MARK] = mark
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
        arg_start, arg_end, env_start = (int(fields[_ARG_START + n]) for n in range(3))
        text = b"\0".join(os.fsencode(argument) for argument in arguments) + b"\0"
        room = arg_end - arg_start
        if room > 1:
            # The last byte stays NUL: anything else there means something to the kernel.
            ctypes.memmove(arg_start, text[: room - 1].ljust(room, b"\0"), room)
        with open("/proc/self/environ", "rb") as file:
            at = _place_of(file.read(), f"{MARK}=".encode())
        if at >= 0 and len(mark) == len(NO_MARK):
            ctypes.memmove(env_start + at, mark.encode(), len(mark))


def _place_of(environment: bytes, name: bytes) -> int:
    if environment.startswith(name):
        return len(name)
    start = environment.find(b"\0" + name)
    return start + 1 + len(name) if start >= 0 else -1
