"""The transactions that a stream has passed: a set to which each one that ends is added."""

from __future__ import annotations

from itertools import pairwise

from cdcworker.connectors.mysql.gtid.mariadb import MariaDbGtid, MariaDbPosition
from cdcworker.connectors.mysql.gtid.mysql import GtidSet, Source

Gtids = MariaDbPosition | GtidSet
OwnGtid = MariaDbGtid | tuple[Source, int]
"""One transaction's GTID, as its server has it."""
ADDED_MAX = 10_000
"""Transactions that are kept before they are put together with the set. # INV-10"""


def parse_gtids(text: str, *, is_mariadb: bool) -> Gtids:
    """Reads the text that either server writes. Raises CdcError."""
    return MariaDbPosition.parse(text) if is_mariadb else GtidSet.parse(text)


def contains(one: Gtids, other: Gtids) -> bool:
    """Returns whether the first holds every transaction of the other; sets of two products hold nothing of each other."""
    if isinstance(one, MariaDbPosition):
        return isinstance(other, MariaDbPosition) and one.contains(other)
    return isinstance(other, GtidSet) and one.contains(other)


class ExecutedGtids:
    """Putting sets together costs as much as they have parts, so it is done when somebody asks."""

    def __init__(self, gtids: Gtids) -> None:
        self._gtids = gtids
        self._added: list[OwnGtid] = []

    def add(self, own: OwnGtid) -> None:
        """A transaction has been read to its end."""
        self._added.append(own)
        if len(self._added) >= ADDED_MAX:
            self._put_together()

    @property
    def gtids(self) -> Gtids:
        """All transactions up to here."""
        if self._added:
            self._put_together()
        return self._gtids

    def _put_together(self) -> None:
        added, self._added = self._added, []
        if isinstance(self._gtids, MariaDbPosition):
            self._gtids = self._gtids.union(MariaDbPosition.of(own for own in added if isinstance(own, MariaDbGtid)))
            return
        for source, first, last in _runs([own for own in added if not isinstance(own, MariaDbGtid)]):
            self._gtids = self._gtids.union(GtidSet.of(source, first, last))


def _runs(added: list[tuple[Source, int]]) -> list[tuple[Source, int, int]]:
    """Returns the numbers as runs of ones that follow each other."""
    ordered = sorted(added)
    if not ordered:
        return []
    source, first = ordered[0]
    out = []
    for (one, number), (other, following) in pairwise(ordered):
        if other != one or following > number + 1:
            out.append((source, first, number))
            source, first = other, following
    out.append((source, first, ordered[-1][1]))
    return out
