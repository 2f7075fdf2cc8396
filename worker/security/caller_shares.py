"""Limits on what each caller holds at a time: connections, streams, readers of rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class CallerShares:
    """Counts what callers hold. One caller has at most `each_max`, all of them together at most `all_max` (0: any
    number)."""

    each_max: int
    all_max: int = 0
    held: Counter[str] = field(default_factory=Counter)

    def take(self, who: str) -> bool:
        """Takes one; returns whether the caller may have it. Nothing is awaited between look and count: callers at the
        same time cannot take more together."""
        if self.held[who] >= self.each_max or (self.all_max and self.held.total() >= self.all_max):
            self._tidy(who)
            return False
        self.held[who] += 1
        return True

    def give_back(self, who: str) -> None:
        self.held[who] -= 1
        self._tidy(who)

    def _tidy(self, who: str) -> None:
        if self.held[who] <= 0:
            del self.held[who]


class ConnectionOwner:
    """The user of one connection: who has sent the last request over it."""

    def __init__(self, shares: CallerShares) -> None:
        self._shares = shares
        self._user = ""

    def belongs_to(self, user: str) -> bool:
        """Returns whether the user may have this connection besides its others."""
        if user == self._user:
            return True
        if not self._shares.take(user):
            return False
        self.release()
        self._user = user
        return True

    def release(self) -> None:
        if self._user:
            self._shares.give_back(self._user)
            self._user = ""
