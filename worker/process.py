"""What makes a process a task's own: session, parent-death signal, limits, and the mark that all it starts carry."""

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
"""Names the start of a task in the environment of its process and of all that come from it."""
NO_MARK: Final = "0" * 32
OOM_SCORE: Final = 500
"""When the machine runs out of memory a task goes before the worker."""
DATA_ROOM_BYTES: Final = 1_073_741_824
"""What is asked for and not used: stacks of threads, room that allocators keep."""
ADOPTION_S_MAX: Final = 5.0
_ADOPTION_STEP_S: Final = 0.0002
_ARG_START: Final = 45
"""Place of `arg_start` among what follows the command in /proc/self/stat; `arg_end` and `env_start` are the next."""

IS_LINUX: Final = sys.platform == "linux"


def prctl(option: int, value: int) -> bool:
    return IS_LINUX and ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0


def is_subreaper() -> bool:
    value = ctypes.c_int(0)
    return IS_LINUX and ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(value)) == 0 and bool(value.value)


def die_with(parent: int) -> None:
    """Ask for SIGKILL at the end of the parent, which is `parent`; ends at once if that has died already."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It died before the signal was asked for.
        os._exit(1)


def await_adoption(middle: int, worker: int) -> None:
    """Until the process between has ended and the worker is the parent: the signal follows the parent of its day."""
    deadline = time.monotonic() + ADOPTION_S_MAX
    while (parent := os.getppid()) != worker:
        if parent != middle or time.monotonic() > deadline:
            os._exit(1)
        time.sleep(_ADOPTION_STEP_S)


def lead() -> None:
    """Lead a session, adopt what descendants leave behind, and be the first to go when memory runs out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getsid(0) != os.getpid():
        with contextlib.suppress(OSError):
            os.setsid()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    with contextlib.suppress(OSError, ValueError):
        # A core would hold rows and passwords.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+") as file:
        score = int(file.read())
        file.seek(0)
        file.write(str(min(1000, score + OOM_SCORE)))


def bound_data(limit_bytes: int) -> None:
    """A quick end for a process that asks for far more memory than it may have: the worker looks once a second only."""
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        bound = limit_bytes + DATA_ROOM_BYTES
        if hard == resource.RLIM_INFINITY or bound < hard:
            resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))


def rename(arguments: list[str], mark: str) -> None:
    """Show these arguments in process lists, and `mark` in the environment as the kernel shows it.

    The environment's text at the start of the process is what /proc shows of it and of all that it forks.
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
    found = environment.find(b"\0" + name)
    return found + 1 + len(name) if found >= 0 else -1
