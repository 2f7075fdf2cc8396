"""Whether a task still has its place: nothing is written unless that was proven a moment ago."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

PROVEN_S: Final = 5.0
"""How long a proof lasts. A process that was stopped meanwhile needs a new one before it writes again."""


class Ownership:
    """A commit of offsets is the proof: the broker refuses that of a former owner. Threads that write ask for one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._proven_at = float("-inf")
        self._wanted = False
        self._ended = False

    @property
    def is_wanted(self) -> bool:
        """Whether a thread waits for a proof."""
        return self._wanted

    def proven(self, began: float) -> None:
        """Notes a commit that was begun at this time."""
        with self._changed:
            self._proven_at, self._wanted = began, False
            self._changed.notify_all()

    def end(self) -> None:
        """Nobody shall write any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait(self) -> bool:
        """Waits until the task is known to have its place; False: nothing is to be written any more."""
        with self._changed:
            while not self._ended and self._clock() - self._proven_at > PROVEN_S:
                self._wanted = True
                self._changed.wait(1.0)
            return not self._ended
