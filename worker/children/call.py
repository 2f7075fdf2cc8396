"""Calls a child process with a time limit: code that talks to outside systems may hang or crash without harm to the
worker."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from cdcworker.coordinator.model import JsonObject


@dataclass(frozen=True, slots=True)
class ChildAnswer:
    """The output of a child, complete or not."""

    out: bytes
    code: int | None
    """The exit code; None when the child was killed after the time limit."""


def call_child(command: Sequence[str], question: JsonObject, timeout_s: float) -> ChildAnswer:
    """Runs the command with the question on its standard input and returns its output. Every process that it started is
    killed in the end."""
    child = subprocess.Popen(  # noqa: S603  a command of the product's own; the question goes by its standard input
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        out, _ = child.communicate(json.dumps(question).encode(), timeout=timeout_s)
        return ChildAnswer(out, child.returncode)
    except subprocess.TimeoutExpired:
        _end(child)
        out, _ = child.communicate()
        return ChildAnswer(out, None)
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kills the child's process group: as long as one member runs, it holds the pipes open."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
