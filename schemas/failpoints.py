"""Named places where a process may be made to die: for the tests of exactly-once, inert without CDC_FAILPOINTS."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)


class Point(NamedTuple):
    """What is done at the `nth` hit. `after`: a hit counts once this place has been passed since the last one that
    counted; empty: each counts."""

    action: str
    nth: int
    after: str = ""


def _parse(text: str) -> dict[str, Point]:
    """`[after>]name=action[@n]`, separated by commas: at the n-th hit do `kill` (SIGKILL), `stop` (SIGSTOP), `sleep:<s>`
    or `error:<code>` (raise it)."""
    points = {}
    for part in filter(None, (item.strip() for item in text.split(","))):
        place, _, action = part.partition("=")
        after, _, name = place.rpartition(">")
        action, _, count = action.partition("@")
        points[name] = Point(action or "kill", int(count or 1), after)
    return points


_points = _parse(os.environ.get("CDC_FAILPOINTS", ""))
_hits: dict[str, int] = {}
_passed: set[str] = set()
_listener: Callable[[str], None] | None = None


def arm(text: str) -> None:
    """Take these points instead; for a process that was forked with the environment of another."""
    global _points
    _points = _parse(text)
    _hits.clear()
    _passed.clear()


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
    if _counts(name):
        _do(_points[name].action, name)


def _counts(name: str) -> bool:
    """Whether this is the hit that the place is armed for."""
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
