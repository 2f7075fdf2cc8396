"""Failpoints: named places where tests make a process die, stop, sleep or fail; inert without CDC_FAILPOINTS.

Code that runs for every batch asks `failpoints.active` before it calls `hit`, so that an inert failpoint costs no call.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)


class Failpoint(NamedTuple):
    """The action at the `nth` hit. With `after` only the first hit after each pass of that place counts."""

    action: str
    nth: int
    after: str = ""


def _parse(text: str) -> dict[str, Failpoint]:
    """Parses `[after>]name=action[@n]`, separated by commas: at the n-th hit `kill` (SIGKILL), `stop` (SIGSTOP),
    `sleep:<s>` or `error:<code>` (raises it)."""
    points = {}
    for part in filter(None, (item.strip() for item in text.split(","))):
        place, _, action = part.partition("=")
        after, _, name = place.rpartition(">")
        action, _, count = action.partition("@")
        points[name] = Failpoint(action or "kill", int(count or 1), after)
    return points


_points = _parse(os.environ.get("CDC_FAILPOINTS", ""))
_hits: dict[str, int] = {}
_passed: set[str] = set()
_listener: Callable[[str], None] | None = None
active: bool = bool(_points)
"""Whether any failpoint is armed or a listener is there."""


def arm(text: str) -> None:
    """Replaces the failpoints; for a process that was forked with the environment of another one."""
    global _points, active
    _points = _parse(text)
    active = bool(_points) or _listener is not None
    _hits.clear()
    _passed.clear()


def listen(listener: Callable[[str], None] | None) -> None:
    """Has a callback called at every place that is passed; None removes it."""
    global _listener, active
    _listener = listener
    active = bool(_points) or listener is not None


def hit(name: str) -> None:
    """Passes the place `name`; carries out its action if it is armed for this hit."""
    if _listener is not None:
        _listener(name)
    if not _points:
        return
    if _counts(name):
        _do(_points[name].action, name)


def _counts(name: str) -> bool:
    """Counts a hit; tells whether the place is armed for it."""
    point = _points.get(name)
    is_ready = point is not None and (not point.after or point.after in _passed)
    _passed.add(name)
    if point is None or not is_ready:
        return False
    _passed.discard(point.after)
    _hits[name] = _hits.get(name, 0) + 1
    return _hits[name] == point.nth


def _do(action: str, name: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action.startswith("sleep:"):
        log.warning("failpoint %s sleeps s=%s", name, action.removeprefix("sleep:"))
        time.sleep(float(action.removeprefix("sleep:")))
    elif action.startswith("error:"):
        raise CdcError(action.removeprefix("error:"), f"failpoint {name}")
