"""Numbers of commits that rise for ever, whatever becomes of the log's files and of the server that writes it.

A place in a file begins again with each server, and GTIDs of several servers have no order. So each transaction is given the time of its
commit in microseconds, or, where that does not rise, one more than the transaction before. The number of the last transaction is part of
the stored position: transactions that are read again are given the numbers that they had. A connector whose position was deleted begins
at the time of day, which lies behind the numbers that it gave before.
"""

from __future__ import annotations

from typing import Final

NUMBER_MAX: Final = (1 << 63) - 1


class CommitNumbers:
    """Gives the numbers of one stream; `last` is that of the last transaction, or where a new stream begins. `again` is the number of
    the next one where a part of it was handed on already: its time may be another one on another server."""

    def __init__(self, last: int = 0, again: int = 0) -> None:
        self.last = last
        self._again = again

    def next(self, commit_us: int) -> int:
        """Returns the number of the transaction that comes next, whose commit has this time in microseconds since 1970."""
        again, self._again = self._again, 0
        self.last = again or max(self.last + 1, min(commit_us, NUMBER_MAX >> 1))
        return self.last

    def begin_anew(self, now_us: int) -> int:
        """Returns the number at which a stream begins whose position was lost: behind all that were given before."""
        self.last = max(self.last + 1, now_us)
        return self.last
