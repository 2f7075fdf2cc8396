"""Log levels that are changed while the worker runs: those of its own process, and of its present and later tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

ROOT: Final = "root"

Listener = Callable[[Mapping[str, Any]], None]
"""Gets the message that is sent to tasks."""

_changed: dict[str, int] = {}
_listeners: list[Listener] = []


def change(levels: Mapping[str, int]) -> None:
    """Sets levels in this process and in all running tasks; tasks that start later begin with them."""
    apply(levels)
    _changed.update(levels)
    for listener in (*_listeners,):
        listener(message(levels))


def apply(levels: Mapping[str, int]) -> None:
    """Sets levels in this process."""
    for name, level in levels.items():
        logging.getLogger(None if name == ROOT else name).setLevel(level)


def changed() -> Mapping[str, int]:
    """Returns the levels that were changed."""
    return dict(_changed)


def message(levels: Mapping[str, int]) -> dict[str, Any]:
    """Returns the message with the levels for a task."""
    return {"type": "levels", "levels": dict(levels)}


def listen(listener: Listener) -> None:
    _listeners.append(listener)


def unlisten(listener: Listener) -> None:
    if listener in _listeners:
        _listeners.remove(listener)


def forget() -> None:
    """Forgets changed levels; for tests, since a process keeps them."""
    _changed.clear()
