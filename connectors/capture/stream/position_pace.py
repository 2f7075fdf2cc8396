"""When a task stores a position although it hands nothing on, and when it says how far it has come."""

from __future__ import annotations

from typing import Any

from cdcworker.connectors.capture.stream.limits import WATERMARK_S


class PositionPace:
    """Remembers what was stored last. `interval_s`: a place that has moved waits no longer. Times are of the monotonic clock."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._place: Any = None
        self._moves = 0
        self._stored_at = 0.0
        self._told_at = 0.0

    def begin(self, place: Any, now: float) -> None:
        """Called at the start, whose place in the source's log is stored already."""
        self._place, self._stored_at = place, now

    def store(self, place: Any, moves: int, now: float) -> None:
        """A position is handed on, with a watermark. `moves` are the steps of the snapshot's progress that it holds."""
        self._place, self._moves = place, moves
        self._stored_at = self._told_at = now

    def is_due(self, place: Any, moves: int, now: float) -> bool:
        """Returns whether a position is worth storing without changes: the snapshot has come on, or the place has moved long
        enough ago."""
        return moves != self._moves or (place != self._place and now - self._stored_at >= self._interval_s)

    def tells(self, now: float) -> bool:
        """Returns whether a watermark alone is due; it counts as handed on then."""
        if now - self._told_at < WATERMARK_S:
            return False
        self._told_at = now
        return True
