"""Denials of callers that nobody knows, counted by address and minute: they are in the audit and cannot flood it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

TOLD_MAX: Final = 3
"""Denials of an address in a minute that have an entry each; the others have one together."""
ADDRESSES_MAX: Final = 1_000
"""Addresses that are told apart in a minute; the others count as one."""
MINUTE_S: Final = 60.0
OTHERS: Final = "others"
Entry = dict[str, Any]


@dataclass
class _Count:
    began_s: float
    first: str
    last: Entry
    more: int = 0
    told: int = 0


class AnonymousDenials:
    """Returns the entries that are due. `now_s` is the time since 1970."""

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}

    def note(self, address: str, entry: Entry, now_s: float) -> list[Entry]:
        """Counts a denial; returns what is to be written now: the entry itself, unless there were many."""
        out = self.due(now_s)
        if address not in self._counts and len(self._counts) >= ADDRESSES_MAX:
            address = OTHERS
        count = self._counts.setdefault(address, _Count(now_s, entry["ts"], entry))
        if count.told < TOLD_MAX and address != OTHERS:
            count.told += 1
            return [*out, entry]
        count.more, count.last = count.more + 1, entry
        return out

    def due(self, now_s: float, *, everything: bool = False) -> list[Entry]:
        """Returns one entry for each address whose minute is over and which was denied more than was told."""
        over = []
        for address, count in self._counts.items():  # in the order in which their minutes began
            if not everything and now_s - count.began_s < MINUTE_S:
                break
            over.append(address)
        counts = [(address, self._counts.pop(address)) for address in over]
        return [_together(address, count) for address, count in counts if count.more]


def _together(address: str, count: _Count) -> Entry:
    """Returns one entry for many denials: `times` of them, beyond those that were told, since `since`."""
    who = {"address": OTHERS} if address == OTHERS else {}
    return {**count.last, **who, "times": count.more, "since": count.first}
