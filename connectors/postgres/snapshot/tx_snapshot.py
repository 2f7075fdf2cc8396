"""Which transactions a database snapshot sees: decided by transaction id, never by LSN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

UNKNOWN: Final = "*"
_HALF = 1 << 31
_WHOLE = 1 << 32


@dataclass(frozen=True, slots=True)
class TransactionSnapshot:
    """pg_snapshot: what began before `xmax` and is not in `running` had ended when it was taken. A standby's does not
    tell what ran from `xmin` on: what may be invisible counts as invisible, and its event as the newer one."""

    xmin: int
    xmax: int
    running: frozenset[int]
    exact: bool = True
    """`running` is known."""

    @classmethod
    def parse(cls, text: str) -> TransactionSnapshot:
        xmin, xmax, running = text.split(":")
        if running == UNKNOWN:
            return cls(int(xmin), int(xmax), frozenset(), exact=False)
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in running.split(",") if xid))

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, sorted(self.running))) if self.exact else UNKNOWN}"

    def sees(self, xid: int) -> bool:
        """Returns whether the transaction with this 32-bit id of the stream is visible for certain."""
        full = self.expand(xid)
        return full < (self.xmax if self.exact else self.xmin) and full not in self.running

    def reaches(self, place: int) -> bool:
        """An LSN says nothing of what is visible: transactions are asked for one by one."""
        del place
        return True

    def sees_delivered(self, xid: int) -> bool:
        """The same of one that the stream had delivered before. A standby decodes what it has replayed only, and what
        is replayed is visible."""
        return self.sees(xid) or (not self.exact and self.expand(xid) < self.xmax)

    def all_ended(self, upto: int, exempt: frozenset[int]) -> bool:
        """Returns whether no transaction up to this 64-bit id ran any more, but for the exempt."""
        if not self.exact:
            return self.xmin > upto
        return self.xmax > upto and not any(xid <= upto and xid not in exempt for xid in self.running)

    def expand(self, xid: int) -> int:
        """The 64-bit id: the one of this epoch or a neighbour that lies nearest."""
        full = (self.xmax & ~(_WHOLE - 1)) | xid
        if full > self.xmax + _HALF:
            return full - _WHOLE
        if full < self.xmax - _HALF:
            return full + _WHOLE
        return full
