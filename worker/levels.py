"""Log levels that were changed while the worker runs: of its own process, and of the tasks that it has or will have."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

ROOT: Final = "root"

Listener = Callable[[Mapping[str, int]], None]

_changed: dict[str, int] = {}
_listeners: list[Listener] = []


def change(levels: Mapping[str, int]) -> None:
    """Here and in every task that runs; one that starts later begins with them."""
    apply(levels)
    _changed.update(levels)
    for listener in (*_listeners,):
        listener(levels)


def apply(levels: Mapping[str, int]) -> None:
    for name, level in levels.items():
        logging.getLogger(None if name == ROOT else name).setLevel(level)


def message(levels: Mapping[str, int] | None = None) -> dict[str, Any] | None:
    """What a task is told; without `levels` everything that was changed, None if that is nothing."""
    found = dict(_changed if levels is None else levels)
    return {"type": "levels", "levels": found} if found else None


def listen(listener: Listener) -> None:
    _listeners.append(listener)


def unlisten(listener: Listener) -> None:
    if listener in _listeners:
        _listeners.remove(listener)


def forget() -> None:
    """For tests: a process that was told of levels keeps them."""
    _changed.clear()
