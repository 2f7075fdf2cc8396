"""Questions to a child process with a time limit: who talks to the outside may hang or die without its worker."""

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
class Answer:
    """What the child wrote, whole or not."""

    out: bytes
    code: int | None
    """Its exit code; None: it was ended when its time was over."""


def ask(command: Sequence[str], question: JsonObject, timeout_s: float) -> Answer:
    """Put the question on the child's standard input; nothing that it started outlives the answer."""
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        out, _ = child.communicate(json.dumps(question).encode(), timeout=timeout_s)
        return Answer(out, child.returncode)
    except subprocess.TimeoutExpired:
        _end(child)
        out, _ = child.communicate()
        return Answer(out, None)
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """With everything that it started: the group is there as long as any of that is, and holds the pipes open."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
