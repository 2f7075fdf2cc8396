"""Which transactions a database snapshot sees: decided by transaction id, never by LSN."""

from __future__ import annotations

from dataclasses import dataclass

_HALF = 1 << 31
_WHOLE = 1 << 32


@dataclass(frozen=True, slots=True)
class TxSnapshot:
    """pg_snapshot: what began before `xmax` and is not in `running` had ended when it was taken."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> TxSnapshot:
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in running.split(",") if xid))

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, sorted(self.running)))}"

    def sees(self, xid: int) -> bool:
        """Whether the transaction with this 32-bit id of the stream is visible."""
        full = self.expand(xid)
        return full < self.xmax and full not in self.running

    def expand(self, xid: int) -> int:
        """The 64-bit id: the one of this epoch or a neighbour that lies nearest."""
        full = (self.xmax & ~(_WHOLE - 1)) | xid
        if full > self.xmax + _HALF:
            return full - _WHOLE
        if full < self.xmax - _HALF:
            return full + _WHOLE
        return full
