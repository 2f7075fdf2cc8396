"""Named places where a process may be made to die: for the tests of exactly-once, inert without CDC_FAILPOINTS."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from cdcworker.schemas.errors import CdcError


def _parse(text: str) -> dict[str, tuple[str, int]]:
    """`name=action[@n]`, separated by commas: at the n-th hit do `kill` (SIGKILL), `stop` (SIGSTOP), `sleep:<s>` or
    `error:<code>` (raise it)."""
    points = {}
    for part in filter(None, (item.strip() for item in text.split(","))):
        name, _, action = part.partition("=")
        action, _, count = action.partition("@")
        points[name] = (action or "kill", int(count or 1))
    return points


_points = _parse(os.environ.get("CDC_FAILPOINTS", ""))
_hits: dict[str, int] = {}
_listener: Callable[[str], None] | None = None


def arm(text: str) -> None:
    """Take these points instead; for a process that was forked with the environment of another."""
    global _points
    _points = _parse(text)
    _hits.clear()


def listen(listener: Callable[[str], None] | None) -> None:
    """Have somebody in this process called at every place; None: nobody any more."""
    global _listener
    _listener = listener


def hit(name: str) -> None:
    """Pass the place `name`."""
    if _listener is not None:
        _listener(name)
    if not _points:
        return
    point = _points.get(name)
    if point is None:
        return
    _hits[name] = _hits.get(name, 0) + 1
    action, count = point
    if _hits[name] != count:
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action.startswith("sleep:"):
        time.sleep(float(action.removeprefix("sleep:")))
    elif action.startswith("error:"):
        raise CdcError(action.removeprefix("error:"), f"failpoint {name}")
