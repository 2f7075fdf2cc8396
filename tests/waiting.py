"""How tests wait: for a condition with a deadline, looked at less often the longer it takes.

Each look costs processor time that what is waited for needs: a login at PostgreSQL as much as a hundred rows of a sink.
"""

from __future__ import annotations

import time

FIRST_S = 0.01
SHARE = 0.1
"""Of the time that was waited already, which the next pause takes at most."""
LONGEST_S = 0.25
LOOK_S_MAX = 2.0
"""What one look and the pause behind it count for at most: a machine that stood still has not let anything happen."""


def pause(began: float, first_s: float = FIRST_S) -> None:
    """Sleeps until the next look of whoever waits since `began`, a monotonic time."""
    time.sleep(max(first_s, min(LONGEST_S, SHARE * (time.monotonic() - began))))


class Patience:
    """The time that has been waited, without that in which the machine stood still."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._began = self._looked = time.monotonic()
        self._waited_s = 0.0

    def is_over(self) -> bool:
        """Returns whether all of the time has been waited. It is asked once a look."""
        now = time.monotonic()
        self._waited_s += min(LOOK_S_MAX, now - self._looked)
        self._looked = now
        return self._waited_s >= self._timeout_s

    def pause(self, first_s: float = FIRST_S) -> None:
        """Sleeps until the next look."""
        pause(self._began, first_s)
