"""How tests wait: for a condition with a deadline, looked at less often the longer it takes.

Each look costs processor time that what is waited for needs: a login at PostgreSQL as much as a hundred rows of a sink.
"""

from __future__ import annotations

import time

FIRST_S = 0.01
SHARE = 0.1
"""Of the time that was waited already, which the next pause takes at most."""
LONGEST_S = 0.25


def pause(began: float, first_s: float = FIRST_S) -> None:
    """Sleeps until the next look of whoever waits since `began`, a monotonic time."""
    time.sleep(max(first_s, min(LONGEST_S, SHARE * (time.monotonic() - began))))
