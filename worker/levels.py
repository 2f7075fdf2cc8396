"""Log levels that were changed while the worker runs: of its own process, and of the tasks that it has or will have."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

ROOT: Final = "root"

Listener = Callable[[Mapping[str, Any]], None]
"""Gets the message for tasks."""

_changed: dict[str, int] = {}
_listeners: list[Listener] = []


def change(levels: Mapping[str, int]) -> None:
    """Here and in every task that runs; one that starts later begins with them."""
    apply(levels)
    _changed.update(levels)
    for listener in (*_listeners,):
        listener(message(levels))


def apply(levels: Mapping[str, int]) -> None:
    for name, level in levels.items():
        logging.getLogger(None if name == ROOT else name).setLevel(level)


def changed() -> Mapping[str, int]:
    return dict(_changed)


def message(levels: Mapping[str, int]) -> dict[str, Any]:
    """What a task is told."""
    return {"type": "levels", "levels": dict(levels)}


def listen(listener: Listener) -> None:
    _listeners.append(listener)


def unlisten(listener: Listener) -> None:
    if listener in _listeners:
        _listeners.remove(listener)


def forget() -> None:
    """For tests: a process that was told of levels keeps them."""
    _changed.clear()
