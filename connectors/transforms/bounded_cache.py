"""A dictionary that keeps at most so many things, of which the oldest goes."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(dict[K, V]):
    """What was made of something, by what it was made of. Reading costs what a dictionary's does.

    What goes is what was put in first, not what was used last: to note each use would cost more than to make it once more.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self._size and key not in self:
            del self[next(iter(self))]
        super().__setitem__(key, value)
